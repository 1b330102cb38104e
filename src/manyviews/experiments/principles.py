"""The principles table: what the audit measures on each objective, beside what the paper says of it."""

from __future__ import annotations

from collections.abc import Sequence

from manyviews.experiments.claims import Claim
from manyviews.experiments.tables import Table
from manyviews.losses import OBJECTIVES, audit, get_objective

TABLE_I: dict[str, tuple[bool, bool, str]] = {
    "pwe-infonce": (False, False, "N(N-1)/2"),
    "pvc": (False, False, "N(N-1)"),
    "mv-infonce": (True, True, "1"),
    "mv-dhel": (True, True, "1"),
}
"""P1, P2 and the number of terms in the paper's Table I."""
TERMS = {"1": lambda _: 1, "N(N-1)": lambda n: n * (n - 1), "N(N-1)/2": lambda n: n * (n - 1) // 2}


def principles(views: Sequence[int] = (3, 4, 5)) -> tuple[Table, list[Claim]]:
    """Every objective's principles, measured at each number of views."""
    rows, claims = [], []
    for name in OBJECTIVES:
        objective = get_objective(name)
        counts = [count for count in views if count <= objective.most_views] or [2]
        found = [audit(objective, count) for count in counts]
        terms = ", ".join(f"{one.terms} ({count})" for one, count in zip(found, counts, strict=True))
        first = found[0]
        marks = ["yes" if held else "no" for held in (first.simultaneous_alignment, first.accurate_energy)]
        rows.append((name, *marks, terms, first.coupling))
        if name in TABLE_I:
            p1, p2, formula = TABLE_I[name]
            expected = [(p1, p2, TERMS[formula](count)) for count in counts]
            measured = [(one.simultaneous_alignment, one.accurate_energy, one.terms) for one in found]
            numbers = f"P1 {marks[0]}, P2 {marks[1]}, terms (at views) {terms}"
            text = f"{name}: P1 {'yes' if p1 else 'no'}, P2 {'yes' if p2 else 'no'}, {formula} terms"
            claims.append(Claim(text, measured == expected, numbers, "equal, without tolerance"))
    header = ("objective", "P1 all views aligned at once", "P2 complete energy", "P3 terms (at views)", "coupling")
    return Table("The paper's principles, measured by differentiating each objective", header, tuple(rows)), claims
