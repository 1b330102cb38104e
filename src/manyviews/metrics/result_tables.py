"""Tables of an evaluation: scores, subsets of modalities, cross-modal retrieval and geometry.

The terminal, the report and the reproduction of the paper's tables print the same ones. Functions that take several
results show mean and standard deviation over them, for instance over seeds.
"""

from collections.abc import Iterable, Sequence

from manyviews.metrics.evaluation_result import ALL_OTHERS, EvaluationResult, Geometry, Representation, SubsetProbe
from manyviews.metrics.geometry import GEOMETRY_HELP
from manyviews.utils import Cell, Row, Table, format_mean_std

COMPARED_METRICS = ("accuracy", "Has0_acc_2", "Mult_acc_2", "MAE")
"""Metrics by which subsets of modalities, and probes of regression targets, are compared."""
NON_PERCENT_METRICS = ("MAE", "Corr")
"""Metrics that are not fractions."""
REPRESENTATIONS: dict[Representation, str] = {
    "majority": "majority",
    "raw_features": "raw features",
    "untrained": "untrained encoder",
    "trained": "trained encoder",
    "mean_embedding": "mean embedding",
    "fused_prediction": "fused prediction",
    "supervised_head": "supervised head",
}
"""Titles of what is scored."""
SUBSET_PROBES: dict[SubsetProbe, str] = {
    "raw": "raw features, probe per subset",
    "per_subset": "probe per subset",
    "mean_imputed": "one probe, mean imputation",
    "shared_space": "one probe, shared space",
}
"""Titles of the ways to score a subset of modalities."""
MAX_FULL_MODALITIES = 4
"""With more modalities, a compact table of subsets has only single ones, all but one, and all together."""
MISSING = Cell("\N{EN DASH}")


def format_metric(name: str, values: Sequence[float]) -> str:
    """Format the mean of a metric and, for several values, their standard deviation.

    Examples:
        >>> format_metric("accuracy", [0.5, 0.6]), format_metric("MAE", [0.91])
        ('55.0% ± 7.1', '0.910')
    """
    return format_mean_std(values, 3) if name in NON_PERCENT_METRICS else format_mean_std(values, percent=True)


def name_knn(k: int | None) -> str:
    """Return the title of a kNN column."""
    return "kNN" if k is None else f"kNN (k = {k})"


def describe_evaluation(result: EvaluationResult) -> str:
    """Describe the setup in one line: number of test instances, number of labels, probe."""
    kind = "held-out" if result.tested_on_train_holdout else result.split
    without = f" without {', '.join(result.dropped_modalities)}" if result.dropped_modalities else ""
    method, probe = "", result.probe
    if probe is not None:
        method = f"; mean of {probe.count} linear probes" if result.is_regression else f"; {probe.solver} probe"
        if probe.epochs is not None:
            method += f" (learning rate {probe.learning_rate:g}, {probe.epochs} epochs)"
    for few in list(result.scores["trained"].few_label.values())[:1] if result.scores else ():
        method += f"; few labels sampled {len(few.linear)} times"
    return f"{result.test_instances:,} {kind} instances{without}, {result.train_instances:,} labels{method}"


def make_scores_table(results: Sequence[EvaluationResult]) -> Table | None:
    """Tabulate kNN and probes of each representation, or the metrics of regression targets; None without scores."""
    results = [result for result in results if result.scores]
    if not results:
        return None
    first = results[0]
    columns = {
        name: [result.scores[name] for result in results if name in result.scores]
        for name in REPRESENTATIONS
        if name in first.scores
    }
    notes = [f"{first.dataset}: {describe_evaluation(first)}."]
    notes += [f"Note: {note}." for note in (*first.caveats, *first.better_baselines)]
    titles = [REPRESENTATIONS[name] for name in columns]
    if first.is_regression:
        rows = []
        for metric in first.scores["trained"].probes[0]:
            by_name = [[p[metric] for s in scores for p in s.probes if metric in p] for scores in columns.values()]
            rows.append(Row(metric, [_make_cell(metric, values) for values in by_name]))
        return Table("Evaluation", ["metric", *titles], rows, notes)
    few_label = first.scores["trained"].few_label
    header = ["representation", name_knn(first.scores["trained"].knn_k), "linear probe"]
    header += [f"{few.labels:,} labels" for few in few_label.values()]
    rows = []
    for name, title in zip(columns, titles, strict=True):
        scores = columns[name]
        cells = [_make_cell("knn", _list_values(s.knn for s in scores))]
        cells += [_make_cell("linear", _list_values(s.linear for s in scores))]
        for key in few_label:
            cells.append(
                _make_cell("linear", [v for s in scores if key in s.few_label for v in s.few_label[key].linear])
            )
        rows.append(Row(title, cells, highlight=name == "trained"))
    return Table("Evaluation", header, rows, notes)


def _list_values(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _make_cell(metric: str, values: Sequence[float]) -> Cell:
    """Format values, with a bar for the mean of fractions."""
    if not values:
        return MISSING
    return Cell(format_metric(metric, values), None if metric in NON_PERCENT_METRICS else sum(values) / len(values))


def get_compared_metrics(result: EvaluationResult) -> list[str]:
    """List the metrics that subsets of modalities have, the most important first."""
    metrics = result.subsets[0].fused
    return [name for name in COMPARED_METRICS if name in metrics] or list(metrics)[:1]


def make_subset_table(results: Sequence[EvaluationResult], compact: bool = False) -> Table | None:
    """Tabulate the metrics of each subset of the modalities; None without subsets."""
    results = [result for result in results if result.subsets]
    if not results:
        return None
    first = results[0]
    metrics, kinds, count = get_compared_metrics(first), list(first.subsets[0].scores), len(first.kept_modalities)
    rows = []
    for subset in first.subsets:
        if compact and count > MAX_FULL_MODALITIES and 1 < len(subset.modalities) < count - 1:
            continue
        same = [s.scores for result in results for s in result.subsets if s.modalities == subset.modalities]
        cells = [
            Cell(" / ".join(format_metric(name, [scores[kind][name] for scores in same]) for name in metrics))
            for kind in kinds
        ]
        count_note = f" ({subset.instances:,})" if subset.instances < first.test_instances else ""
        rows.append(Row(" + ".join(subset.modalities) + count_note, cells))
    total = len(first.subsets)
    notes = [] if len(rows) == total else [f"{len(rows)} of {total} subsets are shown; the JSON file has all."]
    title = f"{' / '.join(metrics)} by subset of modalities"
    return Table(title[:1].upper() + title[1:], ["modalities", *(SUBSET_PROBES[kind] for kind in kinds)], rows, notes)


def make_retrieval_table(result: EvaluationResult) -> Table | None:
    """Tabulate the recall of cross-modal retrieval; rows query columns."""
    if not result.retrieval:
        return None
    names, pairs = result.kept_modalities, {(pair.source, pair.target): pair for pair in result.retrieval}
    rows = []
    sources = list(dict.fromkeys(pair.source for pair in result.retrieval))
    for source in sorted(sources, key=[*names, ALL_OTHERS].index):
        cells = []
        for target in names:
            pair = pairs.get((source, target))
            if pair is None:
                cells.append(Cell("·", shade_level=-1))
                continue
            first, *others = pair.recall.values()
            subtext = " · ".join(f"{recall:.0%}" for recall in others)
            cells.append(Cell(f"{first:.1%}", shade_level=round(10 * first), subtext=subtext))
        rows.append(Row(source, cells))
    counts = sorted({pair.instances for pair in result.retrieval})
    total = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    chance = f"; chance level {1 / counts[0]:.1%}" if len(counts) == 1 else ""
    first_k, *other_ks = result.retrieval[0].recall
    note = (
        f"Recall at {first_k} (below: at {' and '.join(other_ks)}) among {total} instances{chance}. Rows query columns."
    )
    return Table("Cross-modal retrieval", ["from \\ to", *names], rows, [note])


def make_geometry_table(result: EvaluationResult) -> Table | None:
    """Tabulate the geometry of all representations h and embeddings z; None if it was not evaluated."""
    if result.geometry is None:
        return None
    kinds = {"h": "representations h", "z": "embeddings z"}
    columns = {kind: geometry for kind in ("h", "z") if (geometry := result.get_geometry(kind))}
    rows = []
    for name, help_text in GEOMETRY_HELP.items():
        if any(getattr(geometry, name) is not None for geometry in columns.values()):
            cells = [Cell(format_geometry(geometry, name)) for geometry in columns.values()]
            rows.append(Row("RankMe" if name == "rankme" else name.replace("_at_", "@"), cells, subtext=help_text))
    has_one_view_each = len(set(result.modalities) - set(result.dropped_modalities)) == result.geometry.views
    unit = "modalities" if has_one_view_each else "views"
    note = f"{result.geometry.views} {unit} of {result.geometry.instances:,} {result.split} instances."
    return Table("Geometry", ["", *(kinds[kind] for kind in columns)], rows, [note])


def format_geometry(geometry: Geometry, name: str) -> str:
    """Format one metric."""
    value = getattr(geometry, name)
    if value is None:
        return MISSING.text
    if name == "rank":
        return f"{value} of {geometry.dimensions}" if geometry.dimensions else str(value)
    return f"{value:.1%}" if name == "recall_at_1" else f"{value:.1f}" if name == "rankme" else f"{value:.3f}"


def make_modality_geometry_table(result: EvaluationResult) -> Table | None:
    """Tabulate the geometry of each pair of modalities and of each modality."""
    geometry = result.geometry
    groups = () if geometry is None else (geometry.z or geometry.h)[1:]
    if geometry is None or not groups:
        return None
    names = ("alignment", "uniformity", "rankme")
    rows = [
        Row(" and ".join(group.modalities), [Cell(format_geometry(group, name)) for name in names]) for group in groups
    ]
    kind = "embeddings z" if geometry.z else "representations h"
    return Table(f"Geometry of modalities, {kind}", ["", "alignment", "uniformity", "RankMe"], rows)


def list_tables(result: EvaluationResult) -> list[Table]:
    """List all tables of a result, in a form that fits a terminal.

    Examples:
        >>> from manyviews.metrics import Score
        >>> result = EvaluationResult("0.2", "photos", "photos", "test", scores={"trained": Score(linear=0.451)})
        >>> [table.title for table in list_tables(result)]
        ['Evaluation']
    """
    tables = [
        make_scores_table([result]),
        make_subset_table([result], compact=True),
        make_retrieval_table(result),
        make_geometry_table(result),
        make_modality_geometry_table(result),
    ]
    return [table for table in tables if table is not None]
