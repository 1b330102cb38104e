"""Tables, claims and figure of `manyviews reproduce synergy`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from manyviews.losses import parse_sum
from manyviews.reproduce.claims import Claim, find_least_favorable
from manyviews.reproduce.figures import get_line_style, save_figure, use_plot_style
from manyviews.reproduce.synergy import (
    CHANCE,
    OWN_SCORES,
    SUMS,
    Measurement,
    compute_best_possible,
    list_losses,
)
from manyviews.utils import Table, format_mean_std

Accuracy = Literal["best", "own", "pairwise"]
TITLES: dict[Accuracy, str] = {
    "best": "b from (a, c), %, by the best of all scores (named where it is not the loss's own)",
    "own": "b from (a, c), %, by the score of the loss",
    "pairwise": "c from a, %, by the cosine",
}
TOLERANCE = 0.03
"""Difference of accuracy that is not counted: the mean of three seeds varies by less than this at chance."""
DIGITS = 1
HIGHLIGHTED = (*SUMS, "mv-dhel", "prod-infonce", "symile", "gram", "triangle")
"""Losses with a labeled line in the figure."""


def make_synergy_tables(results: Sequence[Measurement]) -> list[Table]:
    """Make a table for each accuracy and encoder: losses by p."""
    return [
        _make_table([result for result in results if result.encoder == encoder], accuracy, encoder)
        for encoder in dict.fromkeys(result.encoder for result in results)
        for accuracy in TITLES
    ]


def _make_table(results: Sequence[Measurement], accuracy: Accuracy, encoder: str) -> Table:
    fractions = sorted({result.fraction for result in results})
    index = 1 if accuracy == "pairwise" else 0
    limits = [f"{100 * compute_best_possible(fraction)[index]:.1f}" for fraction in fractions]
    rows = [("(best possible)", *limits)]
    for loss in dict.fromkeys(result.loss for result in results):
        cells = []
        for fraction in fractions:
            selected = [result for result in results if (result.loss, result.fraction) == (loss, fraction)]
            cell = format_mean_std([100 * getattr(result, accuracy) for result in selected])
            # The best of several scores at chance has no meaning.
            solved = accuracy == "best" and _average(selected, "best") > CHANCE + 2 * TOLERANCE
            names = {result.best_score for result in selected if result.best > result.own}
            cells.append(f"{cell} ({', '.join(sorted(names))})" if solved and names else cell)
        rows.append((loss, *cells))
    header = ("loss", *(f"p = {fraction:g}" for fraction in fractions))
    return Table.from_texts(f"{TITLES[accuracy]}; {encoder} encoders", header, rows)


def _average(results: Sequence[Measurement], accuracy: Accuracy) -> float:
    return statistics.fmean(getattr(result, accuracy) for result in results)


Accuracies = dict[tuple[str, float], dict[Accuracy, dict[int, float]]]
"""In percent, by loss and p, kind and seed."""


def make_synergy_claims(results: Sequence[Measurement]) -> list[Claim]:
    """Compare what each kind of loss should do with the measurements, for each encoder.

    The difference of a claim is the distance to its bound, in points of accuracy.
    """
    claims: list[Claim] = []
    for encoder in dict.fromkeys(result.encoder for result in results):
        values: Accuracies = {}
        for result in results:
            if result.encoder == encoder:
                by_kind = values.setdefault((result.loss, result.fraction), {kind: {} for kind in TITLES})
                for kind in TITLES:
                    by_kind[kind][result.seed] = 100 * getattr(result, kind)
        claims += _make_claims(values, encoder)
    return claims


def _make_claims(values: Accuracies, encoder: str) -> Iterator[Claim]:
    names = list(dict.fromkeys(loss for loss, _ in values))
    fractions = sorted({fraction for _, fraction in values})
    if pair_losses := [name for name in names if _is_pairwise(name)]:
        bound = 100 * (CHANCE + TOLERANCE)
        rooms = {
            f"{bound:.1f}, {name}, p = {fraction:g}": [
                bound - value for value in values[name, fraction]["best"].values()
            ]
            for name, fraction in product(pair_losses, fractions)
        }
        worst = max(statistics.fmean(values[key]["best"].values()) for key in product(pair_losses, fractions))
        yield Claim(
            f"losses of pairs predict b from (a, c) at chance, whatever p ({encoder})",
            f"at most {worst:.1f}%; chance {CHANCE:.1%}; {len(pair_losses)} losses, by the best of all scores",
            find_least_favorable(rooms, DIGITS),
        )
    for name in (name for name in names if name.startswith("prod-") or name == "symile"):
        rooms = {
            f"{bound:.1f}, p = {fraction:g}": [value - bound for value in values[name, fraction]["own"].values()]
            for fraction in fractions
            for bound in [100 * (compute_best_possible(fraction)[0] - TOLERANCE)]
        }
        best = f"as well as possible, less {100 * TOLERANCE:g} points"
        text = f"{name} predicts b from (a, c) {best}, whatever p ({encoder})"
        yield Claim(text, _format_curve(values, name, fractions, "own"), find_least_favorable(rooms, DIGITS))
    for name, limit in (("gram", 15), ("triangle", 7)):
        if name in names:
            rooms = {
                f"{limit}, p = {fraction:g}": [limit - value for value in values[name, fraction]["own"].values()]
                for fraction in fractions
            }
            text = f"{name} predicts b from (a, c) in at most {limit}% of all cases, by its own score ({encoder})"
            yield Claim(text, _format_curve(values, name, fractions, "own"), find_least_favorable(rooms, DIGITS))
    yield from _make_sum_claims(values, names, [fraction for fraction in fractions if 0 < fraction < 1], encoder)


def _make_sum_claims(
    values: Accuracies, names: Sequence[str], fractions: Sequence[float], encoder: str
) -> Iterator[Claim]:
    if not fractions:
        return
    sums = [name for name in names if len(parse_sum(name)) > 1]
    for name in sums:
        rooms = {
            f"{100 * (limit - TOLERANCE):.1f} for {target}, p = {fraction:g}": [
                value - 100 * (limit - TOLERANCE) for value in values[name, fraction][kind].values()
            ]
            for fraction in fractions
            for target, kind, limit in _list_targets(fraction)
        }
        text = f"{name} keeps both, less {100 * TOLERANCE:g} points: b from (a, c), and c from a ({encoder})"
        curves = [_format_curve(values, name, fractions, kind) for kind in ("best", "pairwise")]
        yield Claim(text, f"b: {curves[0]}; c: {curves[1]}", find_least_favorable(rooms, DIGITS))
    if singles := [name for name in names if name not in sums]:
        gaps = {name: _compute_gaps(values, name, fractions) for name in singles}
        closest = min(singles, key=lambda name: statistics.fmean(gaps[name]))
        rooms = {f"{100 * TOLERANCE:g}, {name}": [gap - 100 * TOLERANCE for gap in gaps[name]] for name in singles}
        yield Claim(
            f"no single loss keeps both: each misses one by more than {100 * TOLERANCE:g} points ({encoder})",
            f"the closest is {closest}: {statistics.fmean(gaps[closest]):.1f} points below the best possible",
            find_least_favorable(rooms, DIGITS),
        )


def _list_targets(fraction: float) -> list[tuple[str, Accuracy, float]]:
    """List what a loss that keeps both predicts, by which accuracy, and the best possible one."""
    joint, pairwise = compute_best_possible(fraction)
    return [("b", "best", joint), ("c", "pairwise", pairwise)]


def _compute_gaps(values: Accuracies, name: str, fractions: Sequence[float]) -> list[float]:
    """Return by how much the worse of both accuracies is below the best possible, at the worst p, for each seed."""
    return [
        max(
            100 * limit - values[name, fraction][kind][seed]
            for fraction in fractions
            for _, kind, limit in _list_targets(fraction)
        )
        for seed in values[name, fractions[0]]["best"]
    ]


def _format_curve(values: Accuracies, name: str, fractions: Sequence[float], kind: Accuracy) -> str:
    means = {fraction: statistics.fmean(values[name, fraction][kind].values()) for fraction in fractions}
    return ", ".join(f"p = {fraction:g}: {mean:.1f}%" for fraction, mean in means.items())


def _is_pairwise(name: str) -> bool:
    return len(parse_sum(name)) == 1 and name not in OWN_SCORES and not name.startswith("prod-")


def draw_synergy_figure(results: Sequence[Measurement], path: Path) -> list[Path]:
    """Plot both accuracies against p; losses that are not highlighted are thin gray lines."""
    results = [result for result in results if result.encoder == results[0].encoder]
    names, fractions = list(dict.fromkeys(r.loss for r in results)), sorted({r.fraction for r in results})
    highlighted = [name for name in HIGHLIGHTED if name in names]
    panels: tuple[tuple[Accuracy, str], ...] = (("best", "b from (a, c): joint"), ("pairwise", "c from a: pairwise"))
    with use_plot_style() as Figure:
        figure = Figure(figsize=(7.2, 3.0))
        axes = figure.subplots(1, 2, sharey=True)
        for index, (axis, (accuracy, title)) in enumerate(zip(axes, panels, strict=True)):
            limits = [100 * compute_best_possible(fraction)[index] for fraction in fractions]
            axis.plot(fractions, limits, color="#000000", lw=4, alpha=0.15, label="best possible")
            for name in [*(name for name in names if name not in highlighted), *reversed(highlighted)]:
                means = [
                    100 * _average([r for r in results if (r.loss, r.fraction) == (name, fraction)], accuracy)
                    for fraction in fractions
                ]
                style: dict[str, Any] = {"color": "#b5b5b5", "lw": 0.6, "zorder": 1}
                if name in highlighted:
                    style = {**get_line_style(highlighted.index(name)), "label": name}
                axis.plot(fractions, means, **style)
            axis.set_title(title, fontsize=9)
            axis.set_xlabel("p, the probability of c = a XOR b")
            axis.set_xticks(fractions)
        axes[0].set_ylabel("accuracy, %")
        axes[1].plot([], [], color="#b5b5b5", lw=0.6, label="other losses")
        handles, labels = axes[1].get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda i: _sort_label(labels[i], highlighted))
        figure.tight_layout()
        figure.legend(
            [handles[i] for i in order],
            [labels[i] for i in order],
            loc="upper center",
            ncol=4,
            bbox_to_anchor=(0.5, 0.0),
        )
        return save_figure(figure, path)


def _sort_label(label: str, highlighted: Sequence[str]) -> int:
    return highlighted.index(label) if label in highlighted else len(highlighted) + (label != "best possible")


def describe_skipped() -> str:
    """Describe which losses are left out, and why."""
    _, skipped = list_losses()
    return "left out: " + ", ".join(f"{name} ({reason})" for name, reason in skipped.items())
