"""MkDocs hooks: generate a page for each loss and one of the notebook, and render equations as MathML."""

from __future__ import annotations

import base64
import inspect
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import torch
import yaml
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from manyviews.cli.losses_command import describe_cost
from manyviews.losses import LOSSES, EnergyLoss, MultiViewLoss, check_principles

torch.set_num_threads(1)

VIEWS: dict[float, str] = {2: "exactly two", 3: "exactly three; some may be missing"}
LOSS_PAGES = yaml.safe_load((Path(__file__).parent / "losses.yaml").read_text())
"""Title, equation in LaTeX, recommended use and paper of each loss, by name."""
NOTEBOOK = Path(__file__).with_name("tutorial.ipynb")
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
    page, pictures = render_notebook(json.loads(NOTEBOOK.read_text()))
    files.append(File.generated(config, "tutorial.md", content=page))
    for name, picture in pictures.items():
        files.append(File.generated(config, name, content=picture))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.file.src_uri != "tutorial.md":  # the page of the notebook, which links to the file itself
        markdown = markdown.replace("(tutorial.ipynb)", "(tutorial.md)")
    table = "{{ losses }}"
    return markdown.replace(table, make_losses_table()) if table in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    def to_mathml(match: re.Match[str]) -> str:
        return convert(unescape(match[2]), display="inline" if match[1] == "span" else "block")

    return MATH.sub(to_mathml, html)


def render_notebook(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Render cells and stored outputs as Markdown; also return the pictures by their path."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            kind = next((kind for kind in ("image/png", "image/jpeg") if kind in data), None)
            if kind is None:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
            else:
                name = f"images/tutorial-{len(pictures) + 1}.{kind.removeprefix('image/')}"
                pictures[name] = base64.b64decode(data[kind])
                parts.append(f"![Output of the code above]({name})")
    title, *rest = parts
    download = "[Download the notebook](tutorial.ipynb){: download }"
    head, _, intro = title.partition("\n\n")
    return "\n\n".join([head, download, intro, *rest]) + "\n", pictures


def make_losses_table() -> str:
    lines = ["| loss | cost | P1 | P2 | P3, terms | coupling |", "|---|---|---|---|---|---|"]
    for name in LOSS_PAGES:
        loss = LOSSES[name]()
        lines.append(f"| [`{name}`](losses/{name}.md) | {describe_cost(loss)} | {' | '.join(list_principles(loss))} |")
    return "\n".join(lines)


def list_principles(loss: MultiViewLoss) -> tuple[str, ...]:
    """The cells of a loss in the table of principles."""
    if loss.audit_error:
        return ("-",) * 4
    report, marks = check_principles(loss), {True: "yes", False: "no"}
    return marks[report.simultaneous_alignment], marks[report.accurate_energy], str(report.terms), report.coupling


def make_loss_page(name: str) -> str:
    """The page of a loss in Markdown, from losses.yaml and the code."""
    entry, loss = LOSS_PAGES[name], LOSSES[name]()
    views = int(min(4, loss.max_views))
    unit = "operations" if "d" in describe_cost(loss) else "inner products"
    arguments = "z, labels=torch.arange(64) % 10" if name == "supcon" else "z"
    return f"""# {entry["title"]}

{entry["when"].strip()}

{format_equations(entry)}

{format_released(entry)}{describe_code(loss)}: `{loss.equation}`

```python
import torch, manyviews as mv

loss_fn = mv.get_loss("{name}")
z = torch.randn(64, {views}, 128, requires_grad=True)  # (instances, views, dim)
loss_fn({arguments}).backward()
```

| property | value |
|---|---|
| class | [`{type(loss).__name__}`](../api/losses.md#manyviews.losses.{type(loss).__name__}) |
| cost | {describe_cost(loss)} {unit}, for M instances and N views |
| views | {VIEWS.get(loss.max_views, "two or more; some may be missing")} |
{format_principles(loss, views)}
| reference | {entry["paper"]} |

## Defaults

| option | default |
|---|---|
{format_defaults(loss)}

The options are described in the [reference](../api/losses.md#manyviews.losses.{type(loss).__name__}); those
common to all losses are described in [`EnergyLoss`](../api/losses.md#manyviews.losses.EnergyLoss) (functions of P
and A) and [`MultiViewLoss`](../api/losses.md#manyviews.losses.MultiViewLoss).
"""


def describe_code(loss: MultiViewLoss) -> str:
    is_function_of_energies = isinstance(loss, EnergyLoss)
    return "In code" + (
        ", in terms of the [positives P and energies A](../inside.md#p-and-a)" * is_function_of_energies
    )


def format_released(entry: dict[str, Any]) -> str:
    return f"**Released code.** {entry['released'].strip()}\n\n" if "released" in entry else ""


def format_principles(loss: MultiViewLoss, views: int) -> str:
    """Table rows with the paper's principles, or why they do not apply."""
    link = "[measured](../paper.md#how-the-principles-are-measured) by differentiating the loss"
    if loss.audit_error:
        return f"| P1, P2, P3, {link} | not applicable: {loss.audit_error} |"
    report, marks = check_principles(loss, views=views), {True: "holds", False: "does not hold"}
    return f"""| P1, all views aligned at once | {marks[report.simultaneous_alignment]} |
| P2, energy of a complete configuration | {marks[report.accurate_energy]} |
| P3, terms of an instance at {views} views | {report.terms} |
| coupling of alignment and uniformity | {report.coupling} |
| P1, P2, P3 and coupling are | {link} |"""


def format_equations(entry: dict[str, Any]) -> str:
    return "\n\n".join(f"$$\n{line.strip()}\n$$" for line in (entry["equation"], *entry.get("where", ())))


def format_defaults(loss: MultiViewLoss) -> str:
    """Table rows with the default options of a loss."""
    loss_class = type(loss)
    names = {
        name: parameter
        for parent in reversed(loss_class.__mro__)
        if issubclass(parent, MultiViewLoss)
        for name, parameter in inspect.signature(parent.__init__).parameters.items()
    }
    values: dict[str, Any] = {"learn_temperature": loss.log_temperature is not None}
    if loss.temperature is None:
        del names["temperature"], names["learn_temperature"]
    else:
        values["temperature"] = round(float(torch.as_tensor(loss.temperature).detach()), 6)
    rows = []
    for name, parameter in names.items():
        if parameter.default is not inspect.Parameter.empty:
            value = values[name] if name in values else getattr(loss, name, parameter.default)
            rows.append(f"| `{name}` | `{value.item() if isinstance(value, torch.Tensor) else value!r}` |")
    return "\n".join(rows)
