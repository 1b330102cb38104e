"""Values of `evaluate` on image runs: own data, other data, without labels, without a test set."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import manyviews as mv
from manyviews.api import train
from manyviews.evaluation import (
    EvaluationConfig,
    EvaluationResult,
    Score,
    evaluate,
    get_evaluation_filename,
    list_tables,
    load_evaluation,
)
from manyviews.evaluation.baselines import find_better_baselines
from manyviews.metrics import (
    FewLabelScore,
    ProbeDescription,
    fit_linear_probe,
    knn_classify,
    rankme,
    sample_stratified,
    spectrum,
    wasserstein_uniformity,
)
from manyviews.models import EncoderError
from manyviews.runs import Run, load_encoder
from manyviews.training import ConfigError
from manyviews.training.task import split_monitored
from manyviews.transforms import SimCLRTransform, center_crop_batch
from manyviews.utils import resolve_device
from tests.helpers.tiny_run import folder_of_images, tiny_config

DEFAULTS = EvaluationConfig()


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run with all photos as data: those it was trained on are of one class."""
    path = Path(shutil.copytree(finished_run, tmp_path / "run"))
    config = path / "config.yaml"
    config.write_text(config.read_text().replace("max_instances: 96", "max_instances: null"))
    return path


@pytest.mark.slow
def test_scores_equal_the_metric_functions(run: Path) -> None:
    result = evaluate(run, config=EvaluationConfig(label_fractions=(0.02,)))
    assert (run / "evaluation.json").read_text() == result.to_json()
    assert load_evaluation(run) == load_evaluation(Run.open(run)) == result
    assert (result.dataset, result.split, result.tested_on_train_holdout) == ("photos", "test", False)
    assert (result.train_instances, result.test_instances) == (2500, 1000)
    assert list(result.scores) == ["majority", "raw_features", "untrained", "trained"]
    assert result.scores["majority"] == Score(linear=0.1)
    assert (result.modalities, result.subsets, result.retrieval) == (("image",), (), ())

    photos = mv.load_dataset("photos")
    encoder = mv.load_encoder(run)
    h, queries = encoder(photos["train"].images), encoder(photos["test"].images)
    labels, test_labels = photos["train"].labels, photos["test"].labels
    score = result.scores["trained"]
    assert [scores.knn_k for scores in result.scores.values()] == [None, 25, 25, 25]  # a tenth of 250 per class
    assert score.knn == (knn_classify(h, labels, queries) == test_labels).double().mean().item()
    assert score.linear == pytest.approx(
        fit_linear_probe(h, labels, num_classes=10).accuracy(queries, test_labels), abs=0.003
    )
    few = [sample_stratified(labels, 0.02, seed) for seed in range(3)]
    probes = [fit_linear_probe(h[index], labels[index], num_classes=10).accuracy(queries, test_labels) for index in few]
    assert score.few_label == {"0.02": FewLabelScore(50, pytest.approx(probes, abs=0.003))}
    pixels = (
        center_crop_batch(photos["train"].images, 16).flatten(1),
        center_crop_batch(photos["test"].images, 16).flatten(1),
    )
    preds = knn_classify(pixels[0], labels, pixels[1])
    assert result.scores["raw_features"].knn == (preds == test_labels).double().mean().item()


@pytest.mark.slow
def test_knn_k_comes_from_the_config_then_the_run_then_the_default(run: Path, tmp_path: Path) -> None:
    def get_k(eval_config: EvaluationConfig, data: str | Path | None = None) -> int:
        return evaluate(run, config=eval_config, data=data).scores["trained"].knn_k

    few = EvaluationConfig(label_fractions=(), baselines=False)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("knn_k: null", "knn_k: 7"))
    assert get_k(few) == 7
    assert get_k(dataclasses.replace(few, knn_k=3)) == 3
    assert get_k(dataclasses.replace(few, knn_k=10**6)) == 2500
    assert get_k(few, folder_of_images(tmp_path / "images", count=100)) == 2  # other data, 26 or 27 per class


@pytest.mark.slow
def test_better_baselines_are_reported(run: Path, capsys: pytest.CaptureFixture) -> None:
    result = evaluate(run, config=EvaluationConfig(label_fractions=(0.1,)))
    pixels, trained = (result.scores[name] for name in ("raw_features", "trained"))
    assert pixels.linear > trained.linear  # it was trained on 80 photos
    (line,) = [line for line in result.better_baselines if "worse than raw features" in line]
    expected = (
        f"the trained encoder is worse than raw features: linear probe {trained.linear:.1%} against {pixels.linear:.1%}"
    )
    assert line.startswith(expected)
    assert line.endswith(" on 1,000 instances")
    for table in list_tables(result):
        table.print()
    output = capsys.readouterr().out
    assert f"Note: {line}.\n" in output
    assert "kNN (k = 25)" in output
    assert "photos: 1,000 test instances, 2,500 labels; lbfgs probe; few labels sampled 3 times.\n" in output
    equal = {"raw_features": Score(knn=0.9, linear=0.1), "trained": Score(knn=0.9, linear=0.1)}
    assert find_better_baselines(EvaluationResult("0", "a", "a", "test", scores=equal, test_instances=9)) == ()


def test_geometry_uses_training_views(run: Path) -> None:
    opened = Run.open(run)
    geometry = evaluate(opened, config=EvaluationConfig(label_fractions=(), baselines=False)).geometry
    assert (geometry.instances, geometry.views) == (1000, 3)
    index = torch.arange(1000)
    images = mv.load_dataset("photos")["test"].images
    transform = SimCLRTransform(16, jitter_strength=0.5, blur_prob=0.0, crop_scale=(0.2, 1.0))
    views = transform(images, views=3, seed=0, epoch=2**31 - 1, index=index)
    h, z = opened.load_model()(views)
    (of_h,), (of_z,) = geometry.h, geometry.z
    assert of_z.wasserstein == pytest.approx(wasserstein_uniformity(z).item(), abs=1e-4)
    assert of_h.rankme == pytest.approx(rankme(h).item(), rel=1e-4)
    assert of_z.spectrum == pytest.approx(spectrum(z).tolist(), abs=1e-5)
    assert (of_h.dimensions, of_z.dimensions) == (64, 16)


@pytest.mark.slow
def test_transfer_without_a_test_set_evaluates_on_a_held_out_fifth(run: Path, tmp_path: Path) -> None:
    own_result = evaluate(run, config=EvaluationConfig(label_fractions=(), baselines=False))
    folder = folder_of_images(tmp_path / "other pictures", count=40)
    result = evaluate(run, data=folder, config=EvaluationConfig(label_fractions=(0.5,), baselines=False, num_workers=0))
    assert (result.split, result.tested_on_train_holdout) == ("train", True)
    assert (result.train_instances, result.test_instances) == (32, 8)
    assert list(result.scores) == ["majority", "trained"]
    assert result.geometry.instances == 40
    (file,) = run.glob("evaluation-other-pictures-*.json")
    assert EvaluationResult.from_json(file.read_text()) == result
    assert result.dataset_path == str(folder)
    assert load_evaluation(run) == own_result
    (folder / "a" / "000.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 file of"):
        again = evaluate(run, data=folder, config=EvaluationConfig(label_fractions=(), num_workers=0))
    assert again.train_instances == 32


def test_without_labels_only_geometry_is_computed(run: Path, tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=20, labelled=False)
    result = evaluate(run, data=folder)
    assert result.scores == {}
    assert result.skipped_reason == "images has no labels: no kNN and no linear probe"
    assert result.geometry.instances == 20
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(10) % 2
    np.savez(tmp_path / "half.npz", x_train=images, y_train=labels, x_test=images)
    assert evaluate(run, data=tmp_path / "half.npz").skipped_reason.startswith("half has no labels in its test set")


def test_images_with_regression_targets_are_scored_by_l1_probes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "ages.npz", image=images, age=np.ones((40, 2)), label=np.arange(40) / 7)
    config = tiny_config(
        data=str(tmp_path / "ages.npz"), max_instances=None, monitor_size=8, epochs=1, evaluate_at_end=True
    )
    run = train(config, output=tmp_path / "run", quiet=True)
    assert "knn" not in run.read_metrics()[-1]
    result, labels = load_evaluation(run), run.load_data()["train"].labels
    assert (result.is_regression, result.sentiment_scale, result.modalities) == (True, None, ("image",))
    assert (result.train_instances, result.test_instances) == (32, 8)  # those that were monitored
    assert list(result.scores) == ["majority", "raw_features", "untrained", "trained"]
    assert [len(score.probes) for score in result.scores.values()] == [1, 3, 3, 3]
    assert {score.linear for score in result.scores.values()} == {None}
    trained, monitored, _ = split_monitored(40, run.config.seed, 8)
    majority = (labels[monitored] - labels[trained].median()).abs().mean().item()
    assert result.scores["majority"].probes[0]["MAE"] == pytest.approx(majority, rel=1e-5)
    with pytest.raises(ConfigError, match="supcon requires class labels, ages has none"):
        train(dataclasses.replace(config, loss="supcon"), output=tmp_path / "other", quiet=True)


@pytest.mark.slow
def test_sgd_probe_has_the_papers_settings(run: Path) -> None:
    photos = mv.load_dataset("photos")
    assert EvaluationConfig(probe_solver="sgd").get_probe_settings(photos, 32) == {"learning_rate": 0.1, "epochs": 200}
    assert EvaluationConfig(probe_solver="sgd").get_probe_settings(photos, 224) == {"learning_rate": 0.5, "epochs": 200}
    thousand = mv.DatasetDict("folder", photos.splits, tuple(map(str, range(1000))))
    assert EvaluationConfig(probe_solver="sgd").get_probe_settings(thousand, 224) == {
        "learning_rate": 1.6,
        "epochs": 100,
    }
    assert EvaluationConfig(probe_solver="sgd", probe_epochs=3).get_probe_settings(thousand, 224) == {
        "learning_rate": 1.6,
        "epochs": 3,
    }

    once = evaluate(
        run, config=EvaluationConfig(probe_solver="sgd", probe_epochs=2, label_fractions=(), baselines=False)
    )
    assert once.probe == ProbeDescription("sgd", learning_rate=0.1, epochs=2, augment=False)
    encoder, split = mv.load_encoder(run), mv.load_dataset("photos")
    h, labels = encoder(split["train"].images), split["train"].labels
    probe = fit_linear_probe(h, labels, num_classes=10, solver="sgd", epochs=2)
    accuracy = probe.accuracy(encoder(split["test"].images), split["test"].labels)
    assert once.scores["trained"].linear == pytest.approx(accuracy, abs=0.003)

    again = evaluate(
        run,
        config=EvaluationConfig(
            probe_solver="sgd", probe_epochs=2, probe_augment=True, label_fractions=(), baselines=False
        ),
    )
    assert again.scores["trained"].knn == once.scores["trained"].knn
    assert again.scores["trained"].linear != once.scores["trained"].linear
    assert min(result.scores["trained"].linear for result in (once, again)) > 0.12


@pytest.mark.parametrize(
    ("eval_config", "message"),
    [
        (EvaluationConfig(probe_augment=True), "probe_augment requires probe_solver sgd"),
        (EvaluationConfig(probe_epochs=3), "probe_lr and probe_epochs require probe_solver sgd"),
        (EvaluationConfig(knn_k=0), "knn_k must be >= 1, got 0"),
        (EvaluationConfig(label_fractions=(0.1, 1.0)), "label_fractions must be between 0 and 1, got 1.0"),
        (EvaluationConfig(probe_solver="sgd", probe_epochs=0), "epochs, batch_size and learning_rate must be > 0"),
    ],
)
def test_invalid_config_raises(finished_run: Path, eval_config: EvaluationConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(finished_run, config=eval_config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "validation"}, "split in the evaluation must be one of test, valid, got 'validation'"),
        ({"probe_solver": "ridge"}, "probe_solver in the evaluation must be one of lbfgs, sgd, got 'ridge'"),
        ({"label_fractions": 0.1}, "label_fractions in the evaluation must be a list, each item a number, got 0.1"),
        ({"num_regression_probes": 2.5}, "num_regression_probes in the evaluation must be an integer, got 2.5"),
        (
            {"drop_modalities": 2.5},
            "drop_modalities in the evaluation must be a list, each item a string, got 2.5",
        ),
    ],
)
def test_config_field_of_the_wrong_type_raises(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvaluationConfig(**changes)
    assert EvaluationConfig(label_fractions=[0.1], drop_modalities=["text"]) == EvaluationConfig(
        label_fractions=(0.1,), drop_modalities=("text",)
    )
    assert EvaluationConfig(drop_modalities="text audio").drop_modalities == ("text", "audio")


def test_missing_or_unfinished_run_raises(run: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match="is not a run directory"):
            load_encoder(path)
    with pytest.raises(EncoderError, match="cannot read"):
        load_encoder(tmp_path / "nothing.safetensors")
    (run / "encoder.safetensors").rename(tmp_path / "moved.safetensors")
    with pytest.raises(ConfigError, match="has no encoder yet: finish the run with"):
        evaluate(run)
    assert load_encoder(tmp_path / "moved.safetensors").dim == 64


def test_head_of_another_architecture_raises(run: Path, tmp_path: Path) -> None:
    other = train(tiny_config(width_mult=0.25, embed_dim=8, epochs=1), output=tmp_path / "other", quiet=True)
    shutil.copy(other.path / "head.safetensors", run / "head.safetensors")
    with pytest.raises(EncoderError, match="do not fit heads from 64 to 16 dimensions"):
        evaluate(run)
    assert load_encoder(run).dim == 64  # the encoder does not need the head


def test_non_finite_encoder_raises(run: Path) -> None:
    with safe_open(run / "encoder.safetensors", "pt") as file:
        metadata = file.metadata()
    state = load_file(run / "encoder.safetensors")
    state["encoders.0.encoder.conv1.weight"].fill_(torch.nan)
    save_file(state, run / "encoder.safetensors", metadata)
    with pytest.raises(ValueError, match="representations must be finite"):
        evaluate(run, config=EvaluationConfig(baselines=False))
    assert not (run / "evaluation.json").exists()


def test_labels_outside_the_classes_raise(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = mv.load_dataset("photos")
    monkeypatch.setattr(
        "manyviews.evaluation.run_evaluation.load_dataset",
        lambda *_, **__: mv.DatasetDict("odd", photos.splits, ("a", "b")),
    )
    with pytest.raises(ValueError, match="labels must be integers 0 to 1, got 0 to 9"):
        evaluate(run, data="odd")


def test_caveats_are_noted(run: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    eval_config = EvaluationConfig(baselines=False)
    np.savez(tmp_path / "odd.npz", x_train=images, y_train=np.zeros(20, int), x_test=images, y_test=np.arange(20) % 3)
    unknown, single = evaluate(run, data=tmp_path / "odd.npz", config=eval_config).caveats
    assert unknown == "2 test classes are not in the training set and cannot be predicted: 1, 2"
    assert single.startswith("all training instances have the same class")
    np.savez(tmp_path / "tiny.npz", x=images[:9], y=np.arange(9) % 2)
    tiny = evaluate(run, data=tmp_path / "tiny.npz", config=eval_config)
    assert tiny.skipped_reason == "tiny has 9 labeled instances: too few for kNN and a linear probe"
    assert tiny.geometry.instances == 9
    np.savez(tmp_path / "small.npz", x=images[:10], y=np.arange(10) % 2)
    assert evaluate(run, data=tmp_path / "small.npz", config=eval_config).caveats == ()


def test_folders_of_the_same_name_have_different_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "images").mkdir(parents=True)
    names = {get_evaluation_filename(tmp_path / name / "images", "images", DEFAULTS) for name in ("a", "b")}
    assert len(names) == 2
    assert get_evaluation_filename("cifar10", "cifar10", DEFAULTS) == "evaluation-cifar10.json"
    assert get_evaluation_filename(None, "photos", DEFAULTS) == "evaluation.json"
    assert get_evaluation_filename("фото", "фото", DEFAULTS) != get_evaluation_filename("图片", "图片", DEFAULTS)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_auto_device_is_a_gpu_if_available(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto").type == ("cuda" if has_gpu else "cpu")
    with pytest.raises(ValueError, match="device mps is not available"):
        resolve_device("mps")
