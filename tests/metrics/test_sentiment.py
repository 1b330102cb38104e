"""Sentiment metrics against definitions in numpy and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from manyviews.metrics import compute_majority_baseline, compute_sentiment_metrics


def make_predictions(limit: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make predictions and targets with neutral instances, halves, and predictions outside the scale."""
    random = np.random.default_rng(seed)
    truth = random.choice(np.linspace(-limit, limit, 13), 200)
    truth[:20] = 0
    preds = np.round(truth + random.normal(0, limit / 2, 200), 1)
    preds[:10] = np.array([-0.5, 0.5, 1.5, 2.5, -2.5, 3.5, 0.0, -0.1, 0.1, 0.7]) * limit / 3
    return preds, truth


def test_mosi_metrics_match_scikit_learn() -> None:
    preds, truth = make_predictions(3.0)
    metrics = compute_sentiment_metrics(torch.from_numpy(preds), torch.from_numpy(truth))
    nonzero = truth != 0
    expected = {
        "Has0_acc_2": accuracy_score(truth >= 0, preds >= 0),
        "Non0_acc_2": accuracy_score(truth[nonzero] > 0, preds[nonzero] > 0),
        "Acc_5": np.mean(np.round(np.clip(preds, -2, 2)) == np.round(np.clip(truth, -2, 2))),
        "Acc_7": np.mean(np.round(np.clip(preds, -3, 3)) == np.round(np.clip(truth, -3, 3))),
        "Has0_F1": f1_score(truth >= 0, preds >= 0, average="weighted"),
        "Non0_F1": f1_score(truth[nonzero] > 0, preds[nonzero] > 0, average="weighted"),
        "MAE": np.abs(preds - truth).mean(),
        "Corr": np.corrcoef(preds, truth)[0, 1],
    }
    assert metrics == pytest.approx(expected, rel=1e-5)
    assert len({metrics["Has0_acc_2"], metrics["Non0_acc_2"]}) == 2


def test_sims_metrics_match_scikit_learn() -> None:
    preds, truth = make_predictions(1.0)
    preds[11:14] = [-0.7, -0.1, 0.1]  # at the thresholds
    metrics = compute_sentiment_metrics(torch.from_numpy(preds), torch.from_numpy(truth), "sims")
    clipped, targets = np.clip(preds, -1, 1), np.clip(truth, -1, 1)

    def classes(values: np.ndarray, cuts: list[float]) -> np.ndarray:
        return (values.astype(np.float32)[:, None] > np.array(cuts, np.float32)).sum(1)

    expected = {
        f"Mult_acc_{len(cuts) + 1}": accuracy_score(classes(targets, cuts), classes(clipped, cuts))
        for cuts in ([0.0], [-0.1, 0.1], [-0.7, -0.1, 0.1, 0.7])
    }
    expected |= {
        "F1": f1_score(targets > 0, clipped > 0, average="weighted"),
        "MAE": np.abs(clipped - targets).mean(),
        "Corr": np.corrcoef(clipped, targets)[0, 1],
    }
    assert metrics == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_values_at_a_threshold_belong_to_the_lower_class(kind: torch.dtype) -> None:
    """The precision does not matter: labels are float32, where 0.1 is slightly more than 0.1."""
    cuts, below = torch.tensor([-0.7, -0.1, 0.1, 0.7], dtype=kind), torch.tensor([-0.8, -0.3, 0.0, 0.5])
    metrics = compute_sentiment_metrics(cuts, below, "sims")
    assert (metrics["Mult_acc_3"], metrics["Mult_acc_5"]) == (1, 1)


@pytest.mark.parametrize("scale", ["mosi", "sims"])
def test_majority_baseline_uses_training_labels_only(scale: str) -> None:
    limit = 3.0 if scale == "mosi" else 1.0
    train, truth = (torch.from_numpy(make_predictions(limit, seed)[1]) for seed in (1, 2))
    metrics = compute_majority_baseline(train, truth, scale)
    assert metrics.keys() == compute_sentiment_metrics(truth, truth, scale).keys()
    name = "Has0_acc_2" if scale == "mosi" else "Mult_acc_2"
    positive = (lambda x: x >= 0) if scale == "mosi" else (lambda x: x > 0)
    common = positive(train).double().mean() > 0.5
    assert metrics[name] == pytest.approx((positive(truth) == common).double().mean().item())
    assert metrics["MAE"] == pytest.approx((truth - train.median()).abs().mean().item(), rel=1e-5)
    assert metrics["Corr"] == 0


def test_constant_predictions_and_invalid_input() -> None:
    truth = torch.tensor([1.0, -1.0])
    assert compute_sentiment_metrics(torch.ones(2), truth)["Corr"] == 0
    assert "Non0_acc_2" not in compute_sentiment_metrics(torch.ones(2), torch.zeros(2))
    for call, message in (
        (lambda: compute_sentiment_metrics(torch.ones(3), truth), r"must both be \(n,\), got \(3,\) and \(2,\)"),
        (lambda: compute_sentiment_metrics(torch.tensor([torch.nan, 0]), truth), "predictions must be finite"),
        (lambda: compute_sentiment_metrics(truth, truth, "stars"), "scale must be mosi or sims, got 'stars'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
