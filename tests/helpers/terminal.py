"""Tables in the output of commands."""

import re


def parse_tables(output: str) -> dict[str, list[str]]:
    """Return the cells of the rows of all printed tables by the first cell; cells are two spaces or more apart."""
    rows = [re.split(r" {2,}", line.strip()) for line in output.splitlines() if line.startswith("  ")]
    return {row[0]: row[1:] for row in rows if len(row) > 1}
