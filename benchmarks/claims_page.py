"""claims.md: the claims of all tables, read from the tables' Markdown files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyviews.reproduce import ANALYSES
from manyviews.reproduce.pivot_tables import CLAIM_COLUMNS, MEASURED_CLAIM_COLUMNS

CLAIMS_TITLE = "whether they held here"
VERDICTS = ("held", "not held", "undecided")
HEAD = """# Claims

Made by `make results` from the tables of this folder. A claim is tested by a difference between trials of the same
seed, which is positive where it supports the claim. It held if the 95% interval (Student's t over seeds) of the mean
difference is above zero, and it did not hold if the interval is below zero. Otherwise, or if the table does not show so
small a difference, it is [undecided](../reproduce.md#verdicts). If a claim allows a margin, such as "less than 1
worse", minus the margin takes the place of zero.
"""


@dataclass(frozen=True)
class TableClaim:
    """A row of a table's claims."""

    table: str
    cells: dict[str, str]
    """By column, as Markdown."""


def read_claims(folder: Path, table: str) -> list[TableClaim]:
    """Read the claims of a table's Markdown file; none if it does not exist or was made by an older version."""
    path = folder / f"{table}.md"
    lines = path.read_text().splitlines() if path.exists() else []
    # Older versions decided claims of trained tables by margins, too.
    for columns in (CLAIM_COLUMNS, *([MEASURED_CLAIM_COLUMNS] if table in ANALYSES else [])):
        header = "| " + " | ".join(columns) + " |"
        if header in lines:
            rows = lines[lines.index(header) + 2 :]
            end = next((i for i, line in enumerate(rows) if not line.startswith("|")), len(rows))
            return [TableClaim(table, dict(zip(columns, _split_row(row), strict=True))) for row in rows[:end]]
    return []


def _split_row(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def format_claims_page(folder: Path, tables: Sequence[str]) -> str:
    """Format the claims of tables of a folder: those with an interval, those without seeds, and those not tested."""
    claims = {table: read_claims(folder, table) for table in tables}
    every = [claim for table in tables for claim in claims[table]]
    tested = [claim for claim in every if claim.cells.get("95% interval")]
    measured = [claim for claim in every if "decided by" in claim.cells]
    untested = [claim for claim in every if claim not in tested and claim not in measured]
    counts = Counter(claim.cells["verdict"] for claim in tested)
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    lines = [HEAD, f"Of {len(tested)} claims with an interval: {summary}.", ""]
    columns = ("claim", "verdict", "difference", "95% interval", "seeds")
    lines += _format_table((*columns, "table"), [[*_select(claim, columns), _link(claim)] for claim in tested])
    if measured:
        lines += ["## Without an interval", "", "These are computed or measured once, not trained with several seeds:"]
        lines += ["a tolerance decides, and there is no interval.", ""]
        columns = ("claim", "verdict", "decided by")
        lines += _format_table((*columns, "table"), [[*_select(claim, columns), _link(claim)] for claim in measured])
    if untested:
        lines += ["## Not tested yet", ""]
        rows = [[claim.cells["claim"], _explain(claim), _link(claim)] for claim in untested]
        lines += _format_table(("claim", "reason", "table"), rows)
    texts = {table: path.read_text() for table in tables if (path := folder / f"{table}.md").exists()}
    if outdated := [table for table, text in texts.items() if CLAIMS_TITLE in text and not claims[table]]:
        lines += [f"Tables of an older version, whose claims are not listed: {', '.join(outdated)}.", ""]
    if absent := [table for table in tables if table not in texts]:
        lines += [f"Tables that are not made yet: {', '.join(absent)}.", ""]
    return "\n".join(lines)


def _explain(claim: TableClaim) -> str:
    return "one seed has no interval" if claim.cells["verdict"] == "one seed" else "its trials are not finished"


def _select(claim: TableClaim, columns: Sequence[str]) -> list[str]:
    return [claim.cells[column] for column in columns]


def _link(claim: TableClaim) -> str:
    return f"[{claim.table}]({claim.table}.md)"


def _format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return [lines[0], "|" + "---|" * len(header), *lines[1:], ""]


def write_claims_page(folder: Path, tables: Sequence[str]) -> None:
    """Write claims.md into the folder of the tables."""
    (folder / "claims.md").write_text(format_claims_page(folder, tables))
