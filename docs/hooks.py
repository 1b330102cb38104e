"""What mkdocs does beyond its plugins: a page for each objective, made from the code, and equations as MathML."""

from __future__ import annotations

import inspect
import re
from html import unescape
from pathlib import Path
from typing import Any

import torch
import yaml
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from manyviews.cli.losses import cost
from manyviews.losses import OBJECTIVES, Objective, audit

torch.set_num_threads(1)

WORDS = yaml.safe_load((Path(__file__).parent / "objectives.yaml").read_text())
"""Of each objective by name: title, equation in LaTeX, when to take it, its paper."""
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    assert config.nav is not None
    for part in config.nav:
        if "Objectives" in part:
            part["Objectives"] = [{words["title"]: f"objectives/{name}.md"} for name, words in WORDS.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in OBJECTIVES:
        files.append(File.generated(config, f"objectives/{name}.md", content=objective_page(name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    table = "{{ objectives }}"
    return markdown.replace(table, objectives_table()) if table in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    def mathml(found: re.Match[str]) -> str:
        return convert(unescape(found[2]), display="inline" if found[1] == "span" else "block")

    return MATH.sub(mathml, html)


def objectives_table() -> str:
    lines = ["| objective | inner products | P1 | P2 | P3, terms | coupling |", "|---|---|---|---|---|---|"]
    for name in WORDS:
        objective = OBJECTIVES[name]()
        found, marks = audit(objective), {True: "yes", False: "no"}
        principles = f"{marks[found.simultaneous_alignment]} | {marks[found.accurate_energy]} | {found.terms}"
        lines.append(f"| [`{name}`](objectives/{name}.md) | {cost(objective)} | {principles} | {found.coupling} |")
    return "\n".join(lines)


def objective_page(name: str) -> str:
    """Markdown: what the YAML says and what the code knows."""
    words, objective = WORDS[name], OBJECTIVES[name]()
    views = int(min(4, objective.most_views))
    found = audit(objective, views=views)
    marks = {True: "holds", False: "does not hold"}
    arguments = "z, labels=torch.arange(64) % 10" if name == "supcon" else "z"
    return f"""# {words["title"]}

{words["when"].strip()}

{equations(words)}

as the code has it, on the [positives P and energies A](../inside.md#p-and-a): `{objective.equation}`

```python
import torch, manyviews as mv

objective = mv.get_objective("{name}")
z = torch.randn(64, {views}, 128, requires_grad=True)  # (instances, views, dim)
objective({arguments}).backward()
```

| what | of this objective |
|---|---|
| class | [`{type(objective).__name__}`](../api/losses.md#manyviews.losses.{type(objective).__name__}) |
| inner products | {cost(objective)}, of M instances and N views |
| views | {"exactly two" if objective.most_views == 2 else "two or more; some may be missing"} |
| P1, all views aligned at once | {marks[found.simultaneous_alignment]} |
| P2, energy of a complete configuration | {marks[found.accurate_energy]} |
| P3, terms of an instance at {views} views | {found.terms} |
| coupling of alignment to uniformity | {found.coupling} |
| reference | {words["paper"]} |

The principles are [measured](../paper.md#how-the-principles-are-measured) by differentiating the loss.

## Defaults

| option | default |
|---|---|
{defaults(objective)}

What each does is in the [reference](../api/losses.md#manyviews.losses.{type(objective).__name__}); those that all
objectives have are in that of [`Objective`](../api/losses.md#manyviews.losses.Objective).
"""


def equations(words: dict[str, Any]) -> str:
    return "\n\n".join(f"$$\n{line.strip()}\n$$" for line in (words["equation"], *words.get("where", ())))


def defaults(objective: Objective) -> str:
    """What the objective was made with, where nothing was said."""
    kind = type(objective)
    names = {**inspect.signature(Objective.__init__).parameters, **inspect.signature(kind.__init__).parameters}
    temperature = torch.as_tensor(objective.temperature).detach()
    made = {"temperature": round(float(temperature), 6), "learnable": objective.log_temperature is not None}
    rows = []
    for name, parameter in names.items():
        if parameter.default is not inspect.Parameter.empty:
            value = made[name] if name in made else getattr(objective, name, parameter.default)
            rows.append(f"| `{name}` | `{value.item() if isinstance(value, torch.Tensor) else value!r}` |")
    return "\n".join(rows)
