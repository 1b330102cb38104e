"""Fused predictions: a weak modality does not make them worse, and missing modalities do not vote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyviews.api import train
from manyviews.evaluation import EvaluationConfig, evaluate, list_tables
from manyviews.evaluation.fused_prediction import (
    CONCATENATION,
    EncodedInstances,
    FitPredictor,
    Fusion,
    Predictor,
    average_predictions,
    choose_fusion,
    describe_fusion,
    predict_fusions,
)
from manyviews.metrics import fit_linear_probe, fit_regression_probe
from manyviews.training import Config

CLASSES, DIM = 4, 30


def fit_classes(h: Tensor, labels: Tensor) -> Predictor:
    probe = fit_linear_probe(h, labels, num_classes=CLASSES)
    return lambda queries: probe.logits(queries).log_softmax(1)


def fit_targets(h: Tensor, labels: Tensor) -> Predictor:
    return fit_regression_probe(h, labels, epochs=20).predict


def make_part(count: int, signals: tuple[float, ...], seed: int, regression: bool = False) -> EncodedInstances:
    """Modalities whose features have noise 1 and a part of size `signal` that depends on the label."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    directions = torch.randn(len(signals), CLASSES, DIM, generator=torch.Generator().manual_seed(9))
    h = torch.randn(count, len(signals), DIM, generator=generator)
    h = h + torch.tensor(signals)[:, None] * directions[:, labels].transpose(0, 1)
    targets = labels.float() if regression else labels
    return EncodedInstances(h, torch.ones(count, len(signals), dtype=torch.bool), targets)


def compute_error(fit: FitPredictor, train: EncodedInstances, test: EncodedInstances, fusion: Fusion) -> float:
    (prediction,) = predict_fusions(fit, train, test, [fusion])
    if test.labels.is_floating_point():
        return (prediction - test.labels).abs().mean().item()
    return (prediction.argmax(1) != test.labels).double().mean().item()


def test_average_is_over_available_modalities_only() -> None:
    predictions = torch.randn(3, 2, 5)
    mask = torch.tensor([[True, True], [False, True], [False, False]])
    mean = average_predictions(predictions, mask)
    torch.testing.assert_close(mean[0], predictions[0].mean(0))
    torch.testing.assert_close(mean[1], predictions[1, 1])
    torch.testing.assert_close(mean[2], predictions[2].mean(0))


@pytest.mark.slow
@pytest.mark.parametrize("num_noise", [1, 4])
@pytest.mark.parametrize("regression", [False, True])
def test_modalities_of_pure_noise_do_not_hurt(num_noise: int, regression: bool) -> None:
    fit, signals = fit_targets if regression else fit_classes, (0.5, *[0.0] * num_noise)
    errors = []
    for seed in range(5):
        train, valid, test = (
            make_part(count, signals, 3 * seed + i, regression) for i, count in enumerate((120, 60, 500))
        )
        chosen = choose_fusion(fit, train, valid, range(len(signals)))
        errors.append([compute_error(fit, train, test, fusion) for fusion in (chosen, (0,), CONCATENATION)])
    fused, best_single, concatenated = torch.tensor(errors).mean(0).tolist()
    assert best_single < concatenated
    assert fused <= concatenated
    if num_noise > 1:  # most of what the concatenation loses is kept
        assert fused < (best_single + concatenated) / 2


def test_complementary_modalities_are_fused() -> None:
    train, valid, test = (make_part(count, (0.3, 0.3), seed) for seed, count in enumerate((200, 100, 500)))
    chosen = choose_fusion(fit_classes, train, valid, [0, 1])
    assert chosen in (CONCATENATION, (0, 1))
    fused, single = (compute_error(fit_classes, train, test, fusion) for fusion in (chosen, (0,)))
    assert fused < single


def test_representations_of_missing_modalities_do_not_matter() -> None:
    train, test = make_part(100, (0.5, 0.5), 0), make_part(50, (0.5, 0.5), 1)
    mask = torch.rand(100, 2, generator=torch.Generator().manual_seed(0)) < 0.8
    train_a = EncodedInstances(train.h, mask, train.labels)
    train_b = EncodedInstances(torch.where(mask[..., None], train.h, 100.0), mask, train.labels)
    one, other = (next(predict_fusions(fit_classes, part, test, [(0, 1)])) for part in (train_a, train_b))
    torch.testing.assert_close(one, other)


def test_description_names_the_modalities() -> None:
    names = ["text", "audio", "video"]
    assert describe_fusion((0, 1, 2), names) == "the mean prediction of text, audio and video"
    assert describe_fusion(CONCATENATION, names) == "a probe on the concatenation of all modalities"


def write_bundle(path: Path, labels: str, splits: tuple[str, ...]) -> str:
    """Write text (n, 5, 3), audio (n, 4) with missing entries, and video (n, 6), which does not depend on the label."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, count in zip(splits, (80, 40, 30), strict=False):
        label = rng.integers(0, 3, count)
        audio = rng.normal(size=(count, 4)) + label[:, None]
        audio[rng.random(count) < 0.25] = np.nan
        arrays[f"{split}/text"] = rng.normal(size=(count, 5, 3)) + label[:, None, None]
        arrays[f"{split}/audio"], arrays[f"{split}/video"] = audio, rng.normal(size=(count, 6))
        arrays[f"{split}/label"] = label if labels == "classes" else label - 1 + 0.3 * rng.normal(size=count)
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["classes", "regression"])
@pytest.mark.parametrize("splits", [("train", "test"), ("train", "test", "valid")])
def test_evaluation_scores_the_fused_prediction_and_names_the_choice(
    tmp_path: Path, labels: str, splits: tuple[str, ...]
) -> None:
    data = write_bundle(tmp_path / "tiny.npz", labels, splits)
    options = {"hidden_dim": 16, "transformer_layers": 1, "epochs": 1, "cpu_threads": 1, "num_workers": 0}
    run = train(Config(data=data, evaluate_at_end=False, **options), output=tmp_path / "run", quiet=True)  # type: ignore[arg-type]
    for dropped in ((), ("text",), ("text", "video")):
        config = EvaluationConfig(
            drop_modalities=dropped, baselines=False, modality_subsets=False, label_fractions=(), num_workers=0
        )
        result = evaluate(run.path, config=config)
        notes = [note for note in result.caveats if note.startswith("fused prediction, chosen on")]
        assert ("fused_prediction" in result.scores) == bool(notes) == (len(dropped) < 2)
        if notes:
            assert (f"chosen on {30 if 'valid' in splits else 16} instances" in notes[0]) or dropped
            assert not any(name in notes[0] for name in dropped)
            score = result.scores["fused_prediction"]
            assert len(score.probes) == (3 if labels == "regression" else 0)
            assert (score.linear is None) == (labels == "regression")
            assert "fused prediction" in list_tables(result)[0].to_markdown()
