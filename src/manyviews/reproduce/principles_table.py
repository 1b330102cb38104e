"""The principles table: measured properties of each loss, compared with the paper's Table I."""

from manyviews.losses import LOSSES, check_principles, get_loss
from manyviews.reproduce.claims import Claim
from manyviews.utils import Table

TABLE_I: dict[str, tuple[bool, bool, str]] = {
    "pwe-infonce": (False, False, "N(N-1)/2"),
    "pvc": (False, False, "N(N-1)"),
    "mv-infonce": (True, True, "1"),
    "mv-dhel": (True, True, "1"),
}
"""P1, P2 and the number of terms in the paper's Table I."""
VIEW_COUNTS = (3, 4, 5)
TERMS = {"1": lambda _: 1, "N(N-1)": lambda n: n * (n - 1), "N(N-1)/2": lambda n: n * (n - 1) // 2}


def make_principles_table() -> tuple[Table, list[Claim]]:
    """Measure the principles of every loss at several numbers of views."""
    rows, claims = [], []
    for name in LOSSES:
        loss = get_loss(name)
        if loss.audit_error:
            rows.append((name, *["not applicable"] * 3, loss.audit_error))
            continue
        counts = [count for count in VIEW_COUNTS if count <= loss.max_views] or [2]
        reports = [check_principles(loss, count) for count in counts]
        terms = ", ".join(f"{report.terms} ({count})" for report, count in zip(reports, counts, strict=True))
        first = reports[0]
        marks = ["yes" if holds else "no" for holds in (first.simultaneous_alignment, first.accurate_energy)]
        rows.append((name, *marks, terms, first.coupling))
        if name in TABLE_I:
            p1, p2, formula = TABLE_I[name]
            expected = [(p1, p2, TERMS[formula](count)) for count in counts]
            measured = [(report.simultaneous_alignment, report.accurate_energy, report.terms) for report in reports]
            numbers = f"P1 {marks[0]}, P2 {marks[1]}, terms (at views) {terms}"
            text = f"{name}: P1 {'yes' if p1 else 'no'}, P2 {'yes' if p2 else 'no'}, {formula} terms"
            claims.append(Claim(text, numbers, None, "equal, without tolerance", measured == expected))
    header = ("loss", "P1 all views aligned at once", "P2 complete energy", "P3 terms (at views)", "coupling")
    return Table.from_texts("The paper's principles, measured by differentiating each loss", header, rows), claims
