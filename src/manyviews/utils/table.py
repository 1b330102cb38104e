"""`Table`: one table, rendered as terminal text, Markdown, LaTeX and CSV (the report renders it as HTML)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from manyviews.utils.text import escape_control_characters

TEX_ESCAPES = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$"}
TEX_ESCAPES |= {sign: "\\" + sign for sign in "&%$#_{}"}


@dataclass(frozen=True)
class Cell:
    """A text; the report can add a bar for a fraction, or a shaded background."""

    text: str = ""
    fraction: float | None = None
    shade_level: int | None = None
    """From 0 to 10; -1 for an empty cell of a matrix."""
    subtext: str = ""


@dataclass(frozen=True)
class Row:
    """The name of a row, and its other cells."""

    name: str
    cells: Sequence[Cell]
    highlight: bool = False
    run_index: int | None = None
    """The run that the row is about: selects its color in the report."""
    subtext: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header; the first column contains the rows' names.

    Examples:
        >>> print(Table.from_texts("Accuracy", ("loss", "2 views"), [("pvc", "41.9 ± 0.2")]).to_markdown())
        **Accuracy**
        <BLANKLINE>
        | loss | 2 views |
        |---|---|
        | pvc | 41.9 ± 0.2 |
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    @classmethod
    def from_texts(cls, title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
        return cls(title, header, [Row(name, [Cell(text) for text in texts]) for name, *texts in rows])

    def list_texts(self, escape: Callable[[str], str] = str) -> list[list[str]]:
        """Return header and rows as texts; subtexts of rows become a last column, those of cells a second line."""
        lines = [[*map(Cell, self.header), Cell()]]
        lines += [[Cell(row.name), *row.cells, Cell(row.subtext)] for row in self.rows]
        end = None if any(row.subtext for row in self.rows) else -1
        return [["\n".join(escape(t) for t in (c.text, c.subtext) if t) for c in line[:end]] for line in lines]

    def to_markdown(self) -> str:
        """Return the table as Markdown, below its title."""
        head, *rows = [[text.replace("\n", " ") for text in row] for row in self.list_texts(_escape_markdown)]
        lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
        return "\n".join([f"**{_escape_markdown(self.title)}**", "", lines[0], "|" + "---|" * len(head), *lines[1:]])

    def to_latex(self) -> str:
        """Return the table as LaTeX, for the package booktabs."""
        texts = self.list_texts(_escape_tex)
        head, *body = [" & ".join(row).replace("\n", " ") + r" \\" for row in texts]
        start = [r"\begin{table}", r"\centering", rf"\caption{{{_escape_tex(self.title)}}}"]
        start += [rf"\begin{{tabular}}{{l{'r' * (len(texts[0]) - 1)}}}", r"\toprule", head, r"\midrule"]
        return "\n".join([*start, *body, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def to_csv(self) -> str:
        """Return the table as comma-separated values."""
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(self.list_texts())
        return buffer.getvalue()

    def print(self) -> None:
        """Print the table to the terminal as literal text: names of data and modalities are untrusted.

        Columns of numbers are right-aligned. Headings are broken after commas if the table is wider than the terminal;
        a table that is still wider is not truncated.
        """
        from rich import box
        from rich.console import Console
        from rich.table import Table as TerminalTable
        from rich.text import Text

        header, *texts = self.list_texts(escape_control_characters)
        title, console = Text(escape_control_characters(self.title)) if self.title else None, Console()
        for separator in (", ", ",\n"):
            table = TerminalTable(title=title, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left")
            for i, heading in enumerate(header):
                is_numeric = all(row[i][:1] in "0123456789+-\N{EN DASH}·" for row in texts)
                text = Text(heading.replace(", ", separator))
                table.add_column(text, justify="right" if i and is_numeric else "left")
            for row in texts:
                table.add_row(*map(Text, row))
            width = console.measure(table, options=console.options.update(max_width=500)).maximum
            if width <= console.width:
                break
        Console(width=max(console.width, width)).print(table)
        for note in self.notes:
            print(escape_control_characters(note), flush=True)


def _escape_markdown(text: str) -> str:
    return _join_lines(text).replace("|", r"\|").replace("<", "&lt;")


def _escape_tex(text: str) -> str:
    return "".join(TEX_ESCAPES.get(sign, sign) for sign in _join_lines(text))


def _join_lines(text: str) -> str:
    return escape_control_characters(" ".join(text.split()))
