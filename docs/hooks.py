"""MkDocs hooks: generate a page for each loss, and render equations as MathML."""

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

from manyviews.cli.losses_command import describe_cost
from manyviews.losses import LOSSES, MultiViewLoss, check_principles

torch.set_num_threads(1)

LOSS_PAGES = yaml.safe_load((Path(__file__).parent / "losses.yaml").read_text())
"""Title, equation in LaTeX, recommended use and paper of each loss, by name."""
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    assert config.nav is not None
    for part in config.nav:
        if "Losses" in part:
            part["Losses"] = [{entry["title"]: f"losses/{name}.md"} for name, entry in LOSS_PAGES.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in LOSSES:
        files.append(File.generated(config, f"losses/{name}.md", content=make_loss_page(name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    table = "{{ losses }}"
    return markdown.replace(table, make_losses_table()) if table in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    def to_mathml(match: re.Match[str]) -> str:
        return convert(unescape(match[2]), display="inline" if match[1] == "span" else "block")

    return MATH.sub(to_mathml, html)


def make_losses_table() -> str:
    lines = ["| loss | inner products | P1 | P2 | P3, terms | coupling |", "|---|---|---|---|---|---|"]
    for name in LOSS_PAGES:
        loss = LOSSES[name]()
        report, marks = check_principles(loss), {True: "yes", False: "no"}
        principles = f"{marks[report.simultaneous_alignment]} | {marks[report.accurate_energy]} | {report.terms}"
        lines.append(f"| [`{name}`](losses/{name}.md) | {describe_cost(loss)} | {principles} | {report.coupling} |")
    return "\n".join(lines)


def make_loss_page(name: str) -> str:
    """The page of a loss in Markdown, from losses.yaml and the code."""
    entry, loss = LOSS_PAGES[name], LOSSES[name]()
    views = int(min(4, loss.max_views))
    report = check_principles(loss, views=views)
    marks = {True: "holds", False: "does not hold"}
    arguments = "z, labels=torch.arange(64) % 10" if name == "supcon" else "z"
    return f"""# {entry["title"]}

{entry["when"].strip()}

{format_equations(entry)}

In code, in terms of the [positives P and energies A](../inside.md#p-and-a): `{loss.equation}`

```python
import torch, manyviews as mv

loss_fn = mv.get_loss("{name}")
z = torch.randn(64, {views}, 128, requires_grad=True)  # (instances, views, dim)
loss_fn({arguments}).backward()
```

| property | value |
|---|---|
| class | [`{type(loss).__name__}`](../api/losses.md#manyviews.losses.{type(loss).__name__}) |
| inner products | {describe_cost(loss)}, for M instances and N views |
| views | {"exactly two" if loss.max_views == 2 else "two or more; some may be missing"} |
| P1, all views aligned at once | {marks[report.simultaneous_alignment]} |
| P2, energy of a complete configuration | {marks[report.accurate_energy]} |
| P3, terms of an instance at {views} views | {report.terms} |
| coupling of alignment and uniformity | {report.coupling} |
| reference | {entry["paper"]} |

The principles are [measured](../paper.md#how-the-principles-are-measured) by differentiating the loss.

## Defaults

| option | default |
|---|---|
{format_defaults(loss)}

The options are described in the [reference](../api/losses.md#manyviews.losses.{type(loss).__name__}); those
common to all losses are described in [`MultiViewLoss`](../api/losses.md#manyviews.losses.MultiViewLoss).
"""


def format_equations(entry: dict[str, Any]) -> str:
    return "\n\n".join(f"$$\n{line.strip()}\n$$" for line in (entry["equation"], *entry.get("where", ())))


def format_defaults(loss: MultiViewLoss) -> str:
    """Table rows with the default options of a loss."""
    loss_class = type(loss)
    names = {
        **inspect.signature(MultiViewLoss.__init__).parameters,
        **inspect.signature(loss_class.__init__).parameters,
    }
    temperature = torch.as_tensor(loss.temperature).detach()
    values = {"temperature": round(float(temperature), 6), "learn_temperature": loss.log_temperature is not None}
    rows = []
    for name, parameter in names.items():
        if parameter.default is not inspect.Parameter.empty:
            value = values[name] if name in values else getattr(loss, name, parameter.default)
            rows.append(f"| `{name}` | `{value.item() if isinstance(value, torch.Tensor) else value!r}` |")
    return "\n".join(rows)
