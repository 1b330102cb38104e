"""Tables as files: every number in .csv, a table to read in .md, the same for a paper in .tex."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from manyviews.experiments.claims import Claim
from manyviews.experiments.grids import Experiment
from manyviews.experiments.results import METRICS, Results


@dataclass(frozen=True)
class Table:
    """A title, a header, and rows of texts."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """As Markdown; the title before it.

        Examples:
            >>> print(Table("Accuracy", ("a", "b"), (("1", "2"),)).markdown())
            **Accuracy**
            <BLANKLINE>
            | a | b |
            |---|---|
            | 1 | 2 |
        """
        lines = ["| " + " | ".join(_cell(text) for text in row) + " |" for row in (self.header, *self.rows)]
        return "\n".join([f"**{self.title}**", "", lines[0], "|" + "---|" * len(self.header), *lines[1:]])

    def latex(self) -> str:
        """As a `tabular` of booktabs."""
        body = [" & ".join(_tex(text) for text in row) + r" \\" for row in (self.header, *self.rows)]
        columns = "l" + "r" * (len(self.header) - 1)
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_tex(self.title)}}}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                body[0],
                r"\midrule",
                *body[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """As comma-separated values."""
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows((self.header, *self.rows))
        return buffer.getvalue()


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").replace("<", "&lt;").split())


def _tex(text: str) -> str:
    words = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$"}
    words |= {sign: "\\" + sign for sign in "&%$#_{}"}
    return "".join(words.get(sign, sign) for sign in " ".join(text.split()))


def pivoted(experiment: Experiment, results: Results, paper: bool) -> Iterator[Table]:
    """A table for each metric that has a value; the paper's figure in brackets where the setting is the same."""
    for name in experiment.metrics:
        metric = METRICS[name]
        if not any(name in values for values in results.values.values()):
            continue
        rows: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
        columns: dict[tuple[str, ...], None] = {}
        for key, values in results.values.items():
            place = dict(key)
            row = tuple(str(place[part]) for part in experiment.rows)
            column = tuple(str(place[part]) for part in experiment.columns)
            columns.setdefault(column)
            told = metric.told(results.all(name, **place)) if name in values else ""
            theirs = experiment.paper(place, name) if paper else None
            rows.setdefault(row, {})[column] = f"{told} ({theirs:g})" if told and theirs is not None else told
        heads = [", ".join(_headed(experiment.columns, column)) or metric.name for column in columns]
        body = tuple((*row, *(cells.get(column, "") for column in columns)) for row, cells in rows.items())
        title = metric.name + (" (the paper's in brackets)" if paper else "")
        yield Table(title, (*experiment.rows, *heads), body)


def _headed(parts: Sequence[str], values: Sequence[str]) -> list[str]:
    """What a column is called: names speak for themselves, numbers do not.

    Examples:
        >>> _headed(("data", "views"), ("cifar10", "4"))
        ['cifar10', '4 views']
    """
    pairs = zip(parts, values, strict=True)
    return [f"{value} {part}" if value.replace(".", "").isdigit() else value for part, value in pairs]


def table_of_claims(claims: Sequence[Claim]) -> Table:
    return Table(
        "What the paper says of it, and whether it held here",
        ("claim", "verdict", "decided by", "numbers"),
        tuple((claim.text, claim.verdict, claim.basis, claim.numbers) for claim in claims),
    )


def long_form(experiment: Experiment, results: Results, paper: bool) -> str:
    """Every number: a line for each place and metric."""
    parts = list(dict.fromkeys(name for place in results.places for name in place))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*parts, "metric", "mean", "deviation", "seeds", "values", "paper"])
    for key, found in results.values.items():
        place = dict(key)
        for name, seeds in found.items():
            values = list(chain.from_iterable(seeds.values()))
            theirs = experiment.paper(place, name) if paper else None
            spread = f"{statistics.stdev(values):.6g}" if len(values) > 1 else ""
            each = " ".join(f"{value:.6g}" for value in values)
            mean = f"{statistics.fmean(values):.6g}"
            numbers = [mean, spread, len(seeds), each, "" if theirs is None else theirs]
            writer.writerow([*(place.get(part, "") for part in parts), name, *numbers])
    return buffer.getvalue()
