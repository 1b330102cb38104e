"""The runs over time, and their singular spectra, laid over each other."""

from __future__ import annotations

from collections.abc import Sequence

from manyviews.report.account import Account, whom
from manyviews.report.charts import Figure, Line, line_chart

CURVES = {
    "loss": "Loss",
    "knn": "kNN",
    "alignment": "Alignment",
    "uniformity": "Uniformity",
    "rank": "Rank",
    "rankme": "RankMe",
    "temperature": "Temperature",
}
NOTES = {
    "loss": "Of the batches.",
    "knn": "By representations.",
    "alignment": "Distance² of two views; 0 when they meet.",
    "uniformity": "0 for one point, -4 spread evenly.",
    "rank": "Dimensions that embeddings fill.",
    "rankme": "Dimensions that embeddings use evenly.",
    "temperature": "As it was learned.",
}


MONITORED = ("knn", "alignment", "uniformity", "rank", "rankme")
"""Metrics of instances that are held out or, in some runs, trained on."""


def curves(accounts: Sequence[Account]) -> tuple[list[Figure], list[str]]:
    """A chart for each metric, and what is not drawn, and why."""
    figures, left_out = [], []
    for name, title in CURVES.items():
        if name == "temperature" and not any(account.run.config.settled().learnable for account in accounts):
            continue
        note = NOTES[name]
        used = sorted({f"{row['knn_k']:.0f}" for account in accounts for row in account.metrics if "knn_k" in row})
        if name == "knn" and used:
            note += f" k = {', '.join(used)}."
        if name == "loss" and len({account.objective for account in accounts}) > 1:
            note += " Losses of different objectives are not to be compared."
        shown = title
        if name in MONITORED:
            note += f" {whom(accounts)}"
            seen = [account.trained_on for account in accounts]
            shown += ", trained-on instances" if all(seen) else ", some trained on" if any(seen) else ""
        figure = line_chart(shown, [_line(account, name) for account in accounts], shares=name == "knn", note=note)
        if figure is None:
            left_out.append(title if title in ("kNN", "RankMe") else title.lower())
        else:
            figures.append(figure)
    why = "kNN takes classes, geometry takes embeddings, and both a run that has come as far as a first look"
    return figures, [f"Left out: {', '.join(left_out)}. There is none in metrics.csv: {why}."] if left_out else []


def _line(account: Account, name: str) -> Line:
    rows = [row for row in account.metrics if name in row]
    return Line(account.name, account.number, [row["step"] for row in rows], [row[name] for row in rows])


def spectra(accounts: Sequence[Account]) -> tuple[list[Figure], list[str]]:
    """Singular values of representations and embeddings, and what is not drawn, and why."""
    figures = []
    for kind, title in (("h", "Representations h"), ("z", "Embeddings z")):
        lines = []
        for account in accounts:
            values = account.geometry(kind).get("spectrum") or []
            lines.append(Line(account.name, account.number, range(1, len(values) + 1), [float(v) for v in values]))
        note = "Singular values, the largest first: a line that falls off late uses many dimensions."
        if figure := line_chart(title, lines, along="singular value", log=True, note=note):
            figures.append(figure)
    lacking = [account.name for account in accounts if not account.geometry("h").get("spectrum")]
    if not lacking:
        return figures, []
    return figures, [f"Left out: {', '.join(lacking)}, of which evaluation.json has no spectrum."]
