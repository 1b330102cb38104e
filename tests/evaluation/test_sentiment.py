"""Sentiment metrics against the definitions written out with numpy and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from manyviews.evaluation import majority_baseline, sentiment_metrics


def drawn(most: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """With neutral instances, halves, and predictions beyond the scale."""
    random = np.random.default_rng(seed)
    truth = random.choice(np.linspace(-most, most, 13), 200)
    truth[:20] = 0
    guess = np.round(truth + random.normal(0, most / 2, 200), 1)
    guess[:10] = np.array([-0.5, 0.5, 1.5, 2.5, -2.5, 3.5, 0.0, -0.1, 0.1, 0.7]) * most / 3
    return guess, truth


def test_mosi() -> None:
    guess, truth = drawn(3.0)
    found = sentiment_metrics(torch.from_numpy(guess), torch.from_numpy(truth))
    some = truth != 0
    expected = {
        "Has0_acc_2": accuracy_score(truth >= 0, guess >= 0),
        "Non0_acc_2": accuracy_score(truth[some] > 0, guess[some] > 0),
        "Acc_5": np.mean(np.round(np.clip(guess, -2, 2)) == np.round(np.clip(truth, -2, 2))),
        "Acc_7": np.mean(np.round(np.clip(guess, -3, 3)) == np.round(np.clip(truth, -3, 3))),
        "Has0_F1": f1_score(truth >= 0, guess >= 0, average="weighted"),
        "Non0_F1": f1_score(truth[some] > 0, guess[some] > 0, average="weighted"),
        "MAE": np.abs(guess - truth).mean(),
        "Corr": np.corrcoef(guess, truth)[0, 1],
    }
    assert found == pytest.approx(expected, rel=1e-5)
    assert len({found["Has0_acc_2"], found["Non0_acc_2"]}) == 2


def test_ch_sims() -> None:
    guess, truth = drawn(1.0)
    guess[11:14] = [-0.7, -0.1, 0.1]  # at the cuts
    found = sentiment_metrics(torch.from_numpy(guess), torch.from_numpy(truth), "sims")
    inside, known = np.clip(guess, -1, 1), np.clip(truth, -1, 1)

    def classes(values: np.ndarray, cuts: list[float]) -> np.ndarray:
        return (values.astype(np.float32)[:, None] > np.array(cuts, np.float32)).sum(1)

    expected = {
        f"Mult_acc_{len(cuts) + 1}": accuracy_score(classes(known, cuts), classes(inside, cuts))
        for cuts in ([0.0], [-0.1, 0.1], [-0.7, -0.1, 0.1, 0.7])
    }
    expected |= {
        "F1": f1_score(known > 0, inside > 0, average="weighted"),
        "MAE": np.abs(inside - known).mean(),
        "Corr": np.corrcoef(inside, known)[0, 1],
    }
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_value_at_a_cut_is_below_it(kind: torch.dtype) -> None:
    """In any precision: labels are kept in float32, where 0.1 is a little more than 0.1."""
    cuts, below = torch.tensor([-0.7, -0.1, 0.1, 0.7], dtype=kind), torch.tensor([-0.8, -0.3, 0.0, 0.5])
    found = sentiment_metrics(cuts, below, "sims")
    assert (found["Mult_acc_3"], found["Mult_acc_5"]) == (1, 1)


@pytest.mark.parametrize("scale", ["mosi", "sims"])
def test_the_majority_knows_the_training_labels_alone(scale: str) -> None:
    most = 3.0 if scale == "mosi" else 1.0
    train, truth = (torch.from_numpy(drawn(most, seed)[1]) for seed in (1, 2))
    found = majority_baseline(train, truth, scale)
    assert found.keys() == sentiment_metrics(truth, truth, scale).keys()
    name = "Has0_acc_2" if scale == "mosi" else "Mult_acc_2"
    positive = (lambda x: x >= 0) if scale == "mosi" else (lambda x: x > 0)
    common = positive(train).double().mean() > 0.5
    assert found[name] == pytest.approx((positive(truth) == common).double().mean().item())
    assert found["MAE"] == pytest.approx((truth - train.median()).abs().mean().item(), rel=1e-5)
    assert found["Corr"] == 0


def test_what_has_no_variation_and_what_is_wrong() -> None:
    truth = torch.tensor([1.0, -1.0])
    assert sentiment_metrics(torch.ones(2), truth)["Corr"] == 0
    assert "Non0_acc_2" not in sentiment_metrics(torch.ones(2), torch.zeros(2))
    for call, message in (
        (lambda: sentiment_metrics(torch.ones(3), truth), r"must both be \(n,\), got \(3,\) and \(2,\)"),
        (lambda: sentiment_metrics(torch.tensor([torch.nan, 0]), truth), "predictions must be finite"),
        (lambda: sentiment_metrics(truth, truth, "stars"), "scale must be mosi or sims, got 'stars'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
