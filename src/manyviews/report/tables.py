"""Tables of numbers: runs beside each other, a run beside baselines, its geometry, modalities beside each other."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyviews.evaluation.represent import GEOMETRY
from manyviews.report.account import Account, whom
from manyviews.report.scales import percent, plain
from manyviews.training.compare import describe_evaluation, name_knn

TRAINED = "trained encoder"
NUMBERS = ("MAE", "Corr")
"""Metrics that are no shares."""
NOTHING = "\N{EN DASH}"
FOOTNOTE = "* While it was trained: there is no evaluation yet."


@dataclass(frozen=True)
class Cell:
    """A number, with a bar for a share, or a shade."""

    text: str = ""
    share: float | None = None
    shade: int | None = None
    """From 0 to 10; -1 for a field of a matrix that has nothing in it."""
    small: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    cells: list[Cell]
    strong: bool = False
    number: int | None = None
    """Of a run."""
    small: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under a head; the first column is the rows' names."""

    title: str
    head: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def comparison(accounts: Sequence[Account]) -> Table:
    """The runs beside each other."""
    head = ["run", "objective", "views", "kNN", "linear probe", "alignment", "uniformity", "rank", "RankMe"]
    rows = [Row(account.name, _compared(account), number=account.number) for account in accounts]
    notes = []
    if any(cell.text.endswith("*") for row in rows for cell in row.cells):
        notes.append(f"{FOOTNOTE} {whom(accounts)}")
    if len({account.data for account in accounts}) > 1:
        notes.append("The runs are of different data: their scores are not to be compared.")
    for account in accounts:
        notes += [f"{account.name}: {line}." for line in account.evaluation.get("better_baselines", [])]
    return Table("Runs side by side", [*head, "epochs", "data"], rows, notes)


def _compared(account: Account) -> list[Cell]:
    score = (account.evaluation.get("scores") or {}).get(TRAINED, {})
    shape = account.geometry("z") or account.geometry("h")
    knn = share_cell(score["knn"], score.get("knn_k")) if "knn" in score else _watched(account, "knn")
    cells = [Cell(account.objective), Cell(account.views), knn]
    if "heads" in score:
        cells.append(Cell("MAE " + plain(statistics.fmean(head["MAE"] for head in score["heads"]))))
    else:
        cells.append(share_cell(score.get("linear")))
    geometry = ("alignment", "uniformity", "rank", "rankme")
    cells += [Cell(_shape_text(shape, name)) if shape else _watched(account, name) for name in geometry]
    return [*cells, Cell(str(account.run.config.epochs)), Cell(account.data)]


def _watched(account: Account, name: str) -> Cell:
    value = account.watched(name)
    if value is None:
        return Cell(NOTHING)
    if name == "knn":
        return dataclasses.replace(share_cell(value, account.watched("knn_k")), text=f"{percent(value)}*")
    return Cell(f"{value:.0f}*" if name == "rank" else f"{value:.3f}*")


def share_cell(share: float | None, k: float | None = None) -> Cell:
    """A share, with the k of a kNN below it."""
    return Cell(NOTHING) if share is None else Cell(percent(share), share, small=f"k = {k:.0f}" if k else "")


def scores_table(found: Mapping[str, Any]) -> Table:
    """Each representation's kNN and probe, or what layers make of quantities."""
    scores = found["scores"]
    notes = [f"{describe_evaluation(found)}."]
    notes += [f"Note: {note}." for note in [*found["notes"], *found.get("better_baselines", [])]]
    if found.get("labels") == "quantities":
        metrics = list(scores[TRAINED]["heads"][0])
        head = ["representation", *metrics]
        rows = [Row(name, [_metric_cell(one["heads"], m) for m in metrics]) for name, one in scores.items()]
    else:
        few = scores[TRAINED].get("few", {})
        head = ["representation", name_knn(scores[TRAINED]), "linear probe"]
        head += [f"{one['labels']:,} labels" for one in few.values()]
        rows = [
            Row(
                name,
                [
                    share_cell(one.get("knn")),
                    share_cell(one.get("linear")),
                    *(_draws(one.get("few", {}).get(key, {}).get("linear")) for key in few),
                ],
            )
            for name, one in scores.items()
        ]
    rows = [Row(row.name, row.cells, strong=row.name == TRAINED) for row in rows]
    return Table("Evaluation beside baselines", head, rows, notes)


def _metric_cell(heads: Sequence[Mapping[str, float]], metric: str) -> Cell:
    value = _mean_of(heads, metric)
    if value is None:
        return Cell(NOTHING)
    return Cell(f"{value:.3f}") if metric in NUMBERS else share_cell(value)


def _mean_of(heads: Sequence[Mapping[str, float]], metric: str) -> float | None:
    known = [head[metric] for head in heads if head.get(metric) is not None]
    return statistics.fmean(known) if known else None


def _draws(shares: Sequence[float] | None) -> Cell:
    if not shares:
        return Cell(NOTHING)
    mean = statistics.fmean(shares)
    spread = f" ± {100 * statistics.stdev(shares):.1f}" if len(shares) > 1 else ""
    return Cell(percent(mean) + spread, mean)


def geometry_table(account: Account) -> Table | None:
    """How representations and embeddings lie on the sphere."""
    shapes = {kind: shape for kind in "hz" if (shape := account.geometry(kind))}
    if not shapes:
        return None
    names = {"h": "representations h", "z": "embeddings z"}
    rows = [
        Row(name.replace("rankme", "RankMe"), [Cell(_shape_text(one, name)) for one in shapes.values()], small=says)
        for name, says in GEOMETRY.items()
        if any(shape.get(name) is not None for shape in shapes.values())
    ]
    looked = account.evaluation["geometry"]
    what = "modalities" if "modalities" in account.evaluation else "views"
    note = f"{looked['views']} {what} of {looked['instances']:,} {account.evaluation['split']} instances."
    return Table("Geometry", ["", *(names[kind] for kind in shapes)], rows, [note])


def _shape_text(shape: Mapping[str, Any], name: str) -> str:
    value = shape.get(name)
    if value is None:
        return NOTHING
    if name == "rank":
        return f"{value} of {shape['dimensions']}"
    return percent(value) if name == "recall@1" else f"{value:.1f}" if name == "rankme" else f"{value:.3f}"


def retrieval_table(found: Mapping[str, Any]) -> Table | None:
    """How often each modality finds the other of the same instance: rows find columns."""
    pairs = found.get("retrieval") or {}
    if not pairs:
        return None
    names = [name for name in found["modalities"] if name not in found["dropped"]]
    rows = []
    for one in names:
        cells = []
        for other in names:
            pair = pairs.get(f"{one} to {other}")
            cells.append(Cell("·", shade=-1) if pair is None else _recall(pair))
        rows.append(Row(one, cells))
    counts = sorted({pair["instances"] for pair in pairs.values()})
    among = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    chance = f"; by chance {percent(1 / counts[0])}" if len(counts) == 1 else ""
    note = f"Recall at 1 (below it at 5 and at 10) among {among} instances{chance}. Rows look for columns."
    return Table("Cross-modal retrieval", ["from \\ to", *names], rows, [note])


def _recall(pair: Mapping[str, float]) -> Cell:
    share = pair["recall@1"]
    return Cell(percent(share), shade=round(10 * share), small=f"{pair['recall@5']:.0%} · {pair['recall@10']:.0%}")


def between_table(found: Mapping[str, Any]) -> Table | None:
    """Alignment and uniformity of each pair of modalities, and of each one."""
    geometry = found.get("geometry") or {}
    shape = geometry.get("z") or geometry.get("h") or {}
    if "pairs" not in shape:
        return None
    rows = [
        Row(name, [Cell(_shape_text(one, key)) for key in ("alignment", "uniformity", "rankme")])
        for name, one in {**shape["pairs"], **shape["each"]}.items()
    ]
    kind = "embeddings z" if "z" in geometry else "representations h"
    return Table(f"Geometry of modalities, {kind}", ["", "alignment", "uniformity", "RankMe"], rows)
