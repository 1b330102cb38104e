"""Tables of results: one for each metric, the claims, and every number as CSV."""

import csv
import io
import statistics
from collections.abc import Iterator, Sequence
from itertools import chain

from manyviews.reproduce.claims import Claim
from manyviews.reproduce.experiments import Experiment
from manyviews.reproduce.results import METRICS, Results
from manyviews.utils import Table


def make_pivot_tables(experiment: Experiment, results: Results, paper: bool) -> Iterator[Table]:
    """Make a table for each metric that has values; `paper` adds the paper's values in brackets."""
    for name in experiment.metrics:
        metric = METRICS[name]
        if not any(name in values for values in results.values.values()):
            continue
        rows: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
        columns: dict[tuple[str, ...], None] = {}
        for coords, values in results.values.items():
            row = tuple(str(coords[part]) for part in experiment.rows)
            column = tuple(str(coords[part]) for part in experiment.columns)
            columns.setdefault(column)
            text = metric.format(results.list_values(name, **coords)) if name in values else ""
            paper_value = experiment.get_paper_value(coords, name) if paper else None
            rows.setdefault(row, {})[column] = f"{text} ({paper_value:g})" if text and paper_value is not None else text
        titles = [", ".join(_make_column_title(experiment.columns, column)) or metric.name for column in columns]
        body = [(*row, *(cells.get(column, "") for column in columns)) for row, cells in rows.items()]
        title = metric.name + (" (the paper's in brackets)" if paper else "")
        yield Table.from_texts(title, (*experiment.rows, *titles), body)


def _make_column_title(parts: Sequence[str], values: Sequence[str]) -> list[str]:
    """Make the title of a column: numbers have the name of their coordinate.

    Examples:
        >>> _make_column_title(("data", "views", "batch"), ("cifar10", "4", "64"))
        ['cifar10', '4 views', 'batch 64']
    """

    def describe(part: str, value: str) -> str:
        if not value.replace(".", "").isdigit():
            return value
        return f"{value} {part}" if part == "views" else f"{part} {value}"

    return [describe(part, value) for part, value in zip(parts, values, strict=True)]


CLAIM_COLUMNS = ("claim", "verdict", "difference", "95% interval", "seeds", "numbers")
MEASURED_CLAIM_COLUMNS = ("claim", "verdict", "decided by", "numbers")


def make_claims_table(claims: Sequence[Claim], title: str = "The paper's claims, and whether they held here") -> Table:
    if any(claim.tolerance for claim in claims):
        rows = [(claim.text, claim.verdict, claim.tolerance, claim.evidence) for claim in claims]
        return Table.from_texts(title, MEASURED_CLAIM_COLUMNS, rows)
    return Table.from_texts(title, CLAIM_COLUMNS, [_format_claim(claim) for claim in claims])


def _format_claim(claim: Claim) -> tuple[str, ...]:
    if claim.difference is None:
        return claim.text, claim.verdict, "", "", "", claim.evidence
    difference = claim.difference
    numbers = (difference.text, difference.interval_text, str(difference.seeds))
    return claim.text, claim.verdict, *numbers, claim.evidence


def format_long_csv(experiment: Experiment, results: Results, paper: bool) -> str:
    """Format every number as CSV, one line for each coordinates and metric."""
    parts = list(dict.fromkeys(name for coords in results.coordinates for name in coords))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*parts, "metric", "mean", "deviation", "seeds", "values", "paper"])
    for coords, metrics in results.values.items():
        for name, seeds in metrics.items():
            values = list(chain.from_iterable(seeds.values()))
            paper_value = experiment.get_paper_value(coords, name) if paper else None
            spread = f"{statistics.stdev(values):.6g}" if len(values) > 1 else ""
            all_values = " ".join(f"{value:.6g}" for value in values)
            mean = f"{statistics.fmean(values):.6g}"
            numbers = [mean, spread, len(seeds), all_values, "" if paper_value is None else paper_value]
            writer.writerow([*(coords.get(part, "") for part in parts), name, *numbers])
    return buffer.getvalue()
