"""The XOR measurement: exact accuracies, scores that solve it, and losses that can and cannot."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from manyviews.reproduce import ReproduceOptions, TrialRunner, reproduce_table, synergy
from manyviews.reproduce.synergy import (
    CHANCE,
    NUM_STRINGS,
    SCORES,
    Measurement,
    SynergySetting,
    compute_accuracies,
    compute_best_possible,
    compute_probabilities,
    list_losses,
    measure,
    measure_all,
    sample_strings,
)
from manyviews.reproduce.synergy_table import make_synergy_claims
from manyviews.training import ConfigError


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_samples_have_the_stated_probabilities(fraction: float) -> None:
    a, b, c = sample_strings(2**17, fraction, torch.Generator().manual_seed(0))
    counts = torch.zeros(NUM_STRINGS, NUM_STRINGS, NUM_STRINGS)
    counts.index_put_((a, b, c), torch.full((len(a),), 1 / len(a)), accumulate=True)
    probabilities = compute_probabilities(fraction)
    assert probabilities.sum() == pytest.approx(1)
    assert not counts[probabilities == 0].any()
    torch.testing.assert_close(counts.sum(1), probabilities.sum(1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 1.0])
def test_best_possible_accuracies_are_those_of_the_most_probable_strings(fraction: float) -> None:
    probabilities = compute_probabilities(fraction)
    joint, pairwise = probabilities.amax(1).sum(), probabilities.sum(1).amax(1).sum()
    assert compute_best_possible(fraction) == pytest.approx((joint.item(), pairwise.item()))


def test_the_product_of_signs_solves_xor_and_pairs_do_not() -> None:
    """The sign of a XOR b is the product of the signs."""
    bits = 2.0 * (torch.arange(NUM_STRINGS)[:, None] >> torch.arange(5) & 1) - 1
    views = normalize(torch.stack([bits, bits, -bits]), dim=2)
    _, by_score, _ = compute_accuracies("prod-dhel", 1.0, views)
    assert by_score["product"] == pytest.approx(1.0)
    assert by_score["pairs"] < 0.2
    own, _, pairwise = compute_accuracies("mv-dhel", 0.0, normalize(torch.stack([bits, bits, bits]), dim=2))
    assert pairwise == pytest.approx(1.0)
    assert own == pytest.approx(CHANCE)


def test_scores_equal_a_loop() -> None:
    a, b, c = normalize(torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=2)
    for i, j, k in ((0, 1, 2), (3, 0, 1)):
        points = torch.stack([a[i], c[j], b[k]])
        gram = points @ points.T
        side, other = points[0] - points[2], points[1] - points[2]
        expected = {
            "pairs": a[i] @ b[k] + c[j] @ b[k],
            "product": normalize(a[i] * c[j], dim=0) @ b[k],
            "volume": -torch.linalg.det(gram),
            "area": (side @ other) ** 2 - (side @ side) * (other @ other),
            "singular": torch.linalg.svdvals(points)[0] ** 2,
        }
        for name, score in SCORES.items():
            torch.testing.assert_close(score(a, b, c)[i, j, k], expected[name])


def test_only_losses_that_cannot_take_three_views_are_left_out() -> None:
    names, skipped = list_losses()
    assert set(skipped) == {"supcon", "infonce", "dhel"}
    assert {"mv-dhel", "prod-dhel", "symile", "gram", "lejepa", *synergy.SUMS} <= set(names)


@pytest.mark.slow
def test_products_solve_xor_pairs_stay_at_chance_and_a_sum_keeps_both() -> None:
    pairs, joint, both = (measure(name, "mlp", 0.5, 0) for name in ("mv-dhel", "prod-infonce", synergy.SUMS[0]))
    best = compute_best_possible(0.5)[0]
    assert (pairs.best < 0.06, pairs.pairwise) == (True, pytest.approx(best, abs=0.02))
    assert joint.own == pytest.approx(best, abs=0.03)
    assert joint.pairwise < 0.1
    assert both.best == pytest.approx(best, abs=0.03)
    assert both.pairwise == pytest.approx(best, abs=0.02)


def test_measurements_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = SynergySetting(fractions=(1.0,), seeds=2, steps=1)
    first = measure_all(["mv-dhel", "prod-dhel"], setting, tmp_path / "synergy.jsonl")
    assert [(item.loss, item.seed) for item in first] == [(n, s) for n in ("mv-dhel", "prod-dhel") for s in (0, 1)]
    path = tmp_path / "synergy.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], lines[-1][:20]]))
    measured = []

    def record(*point: object) -> Measurement:
        measured.append(point[:4])
        return measure(*point)

    monkeypatch.setattr(synergy, "measure", record)
    assert measure_all(["mv-dhel", "prod-dhel"], setting, tmp_path / "synergy.jsonl") == first
    assert measured == [("prod-dhel", "mlp", 1.0, 1)]
    measure_all(["mv-dhel"], SynergySetting(fractions=(1.0,), seeds=1, steps=2), tmp_path / "synergy.jsonl")
    assert len(measured) == 2


def make_measurements(loss: str, fraction: float, joint: float, pairwise: float) -> list[Measurement]:
    """Make measurements of two seeds, whose accuracies differ by 0.01%."""
    return [
        Measurement(loss, "mlp", fraction, seed, joint + seed / 1e4, joint + seed / 1e4, "product", pairwise)
        for seed in (0, 1)
    ]


def test_claims_can_fail() -> None:
    best = compute_best_possible(0.5)[0]
    good = [
        *make_measurements("mv-dhel", 0.5, CHANCE, best),
        *make_measurements("prod-dhel", 0.5, best, 0.02),
        *make_measurements("gram", 0.5, 0.1, 0.05),
        *make_measurements(synergy.SUMS[0], 0.5, best, best),
    ]
    assert [claim.verdict for claim in make_synergy_claims(good)] == ["held"] * 5
    bad = [
        *make_measurements("mv-dhel", 0.5, best, best),
        *make_measurements("prod-dhel", 0.5, 0.3, 0.02),
        *make_measurements("gram", 0.5, 0.2, 0.05),
        *make_measurements(synergy.SUMS[0], 0.5, best, 0.3),
    ]
    assert [claim.verdict for claim in make_synergy_claims(bad)] == ["not held"] * 5
    first_seed = [result for result in good if result.seed == 0]
    assert [claim.verdict for claim in make_synergy_claims(first_seed)] == ["one seed"] * 5
    difference = make_synergy_claims(good)[2].difference  # the limit of GRAM is 15%
    assert difference is not None
    assert (difference.mean, difference.seeds) == (pytest.approx(4.995), 2)


def test_the_table_has_its_files_and_options(tmp_path: Path) -> None:
    runner = TrialRunner(tmp_path / "runs", log=lambda _: None)
    options = ReproduceOptions(scale="smoke", losses=("mv-dhel", "prod-dhel"))
    outcome = reproduce_table("synergy", options, runner, tmp_path)
    assert [path.name for path in outcome.files] == [f"synergy.{kind}" for kind in ("md", "tex", "csv", "png", "pdf")]
    assert all(path.exists() for path in outcome.files)
    assert [table.list_texts()[2][0] for table in outcome.tables] == ["mv-dhel"] * 3
    for wrong, message in (
        (ReproduceOptions(losses=("supcon",)), "synergy does not measure 'supcon': it requires labels"),
        (ReproduceOptions(losses=("infonce",)), "'infonce': it is a loss of two views"),
        (ReproduceOptions(seeds=2), "only --scale and --losses apply"),
    ):
        with pytest.raises(ConfigError, match=message):
            reproduce_table("synergy", wrong, runner, tmp_path)
