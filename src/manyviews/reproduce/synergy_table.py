"""Tables, claims and figure of `manyviews reproduce synergy`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from manyviews.losses import parse_sum
from manyviews.reproduce.claims import Claim
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


def make_synergy_claims(results: Sequence[Measurement]) -> list[Claim]:
    """Compare what each kind of loss should do with the measurements, for each encoder."""
    claims: list[Claim] = []
    for encoder in dict.fromkeys(result.encoder for result in results):
        means: dict[tuple[str, float], dict[Accuracy, float]] = {}
        for loss, fraction in dict.fromkeys((result.loss, result.fraction) for result in results):
            key = (loss, fraction, encoder)
            selected = [result for result in results if (result.loss, result.fraction, result.encoder) == key]
            means[loss, fraction] = {accuracy: _average(selected, accuracy) for accuracy in TITLES}
        claims += _make_claims(means, encoder)
    return claims


def _make_claims(means: dict[tuple[str, float], dict[Accuracy, float]], encoder: str) -> Iterator[Claim]:
    names = list(dict.fromkeys(loss for loss, _ in means))
    fractions = sorted({fraction for _, fraction in means})
    pair_losses = [name for name in names if _is_pairwise(name)]
    joint_losses = [name for name in names if name.startswith("prod-") or name == "symile"]
    if pair_losses:
        (loss, fraction), worst = max(
            ((key, value["best"]) for key, value in means.items() if key[0] in pair_losses), key=lambda item: item[1]
        )
        yield Claim(
            f"losses of pairs predict b from (a, c) at chance, whatever p ({encoder})",
            worst <= CHANCE + TOLERANCE,
            f"at most {worst:.1%}, {loss} at p = {fraction:g}; chance {CHANCE:.1%}",
            f"at most {CHANCE + TOLERANCE:.1%} by any score, {len(pair_losses)} losses",
        )
    for name in joint_losses:
        gaps = {fraction: means[name, fraction]["own"] - compute_best_possible(fraction)[0] for fraction in fractions}
        yield Claim(
            f"{name} predicts b from (a, c) as well as possible, whatever p ({encoder})",
            min(gaps.values()) > -TOLERANCE,
            ", ".join(f"p = {fraction:g}: {means[name, fraction]['own']:.1%}" for fraction in fractions),
            f"at most {100 * TOLERANCE:g} points below the best possible",
        )
    for name, bound in (("gram", 0.15), ("triangle", 0.07)):
        if name in names:
            worst = max(means[name, fraction]["own"] for fraction in fractions)
            evidence = ", ".join(f"p = {fraction:g}: {means[name, fraction]['own']:.1%}" for fraction in fractions)
            text = f"{name} predicts b from (a, c) in at most {bound:.0%} of all cases ({encoder})"
            yield Claim(text, worst <= bound, evidence, "by its own score, at every p")
    yield from _make_sum_claims(means, names, [f for f in fractions if 0 < f < 1], encoder)


def _make_sum_claims(
    means: dict[tuple[str, float], dict[Accuracy, float]],
    names: Sequence[str],
    fractions: Sequence[float],
    encoder: str,
) -> Iterator[Claim]:
    def compute_gap(name: str) -> float:
        """Return by how much the worse of both accuracies is below the best possible, at the worst p."""
        gaps = []
        for fraction in fractions:
            joint, pairwise = compute_best_possible(fraction)
            value = means[name, fraction]
            gaps += [joint - value["best"], pairwise - value["pairwise"]]
        return max(gaps)

    if not fractions:
        return
    sums = [name for name in names if len(parse_sum(name)) > 1]
    for name in sums:
        numbers = (
            f"p = {fraction:g}: {means[name, fraction]['best']:.1%} and {means[name, fraction]['pairwise']:.1%}"
            for fraction in fractions
        )
        text = f"{name} keeps both: b from (a, c), and c from a ({encoder})"
        basis = f"each at most {100 * TOLERANCE:g} points below the best possible, by the best of all scores"
        yield Claim(text, compute_gap(name) < TOLERANCE, "; ".join(numbers), basis)
    if singles := [name for name in names if name not in sums]:
        best = min(singles, key=compute_gap)
        yield Claim(
            f"no single loss keeps both ({encoder})",
            compute_gap(best) >= TOLERANCE,
            f"the closest is {best}: {100 * compute_gap(best):.1f} points below the best possible in one of them",
            f"more than {100 * TOLERANCE:g} points, by the best of all scores",
        )


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
