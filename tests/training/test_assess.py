"""What a run is worth, by value: on its own data, on other data, without labels, without a test set."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import manyviews as mv
from manyviews.cli.evaluate import show_scores
from manyviews.evaluation import few_labels, knn_classify, linear_probe, rankme, spectrum, wasserstein_uniformity
from manyviews.models import EncoderError
from manyviews.training import ConfigError, EvaluationConfig, Run, evaluate, load_encoder, train
from manyviews.training.assess import evaluation_name
from manyviews.training.compare import find_better_baselines
from manyviews.training.images import policy_of
from manyviews.training.setup import device_of
from manyviews.views import plain_views
from tests.training.small import folder_of_images, small

HOW = EvaluationConfig()


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A run of one's own, whose data are all the photos: the few it was trained on are of one class."""
    path = Path(shutil.copytree(finished_run, tmp_path / "run"))
    config = path / "config.yaml"
    config.write_text(config.read_text().replace("limit: 96", "limit: null"))
    return path


def test_scores_are_those_of_the_functions(run: Path) -> None:
    found = evaluate(run, how=EvaluationConfig(few=(0.02,)))
    assert json.loads((run / "evaluation.json").read_text()) == found == Run.open(run).evaluation
    assert (found["data"], found["split"], found["held_out"]) == ("photos", "test", False)
    assert (found["train_instances"], found["test_instances"]) == (2500, 1000)
    assert list(found["scores"]) == ["pixels", "untrained encoder", "trained encoder"]

    photos = mv.load_dataset("photos")
    encoder = mv.load_encoder(run)
    h, queries = encoder(photos["train"].images), encoder(photos["test"].images)
    labels, answers = photos["train"].labels, photos["test"].labels
    score = found["scores"]["trained encoder"]
    assert [one["knn_k"] for one in found["scores"].values()] == [25, 25, 25]  # a tenth of 250 a class
    assert score["knn"] == (knn_classify(h, labels, queries) == answers).double().mean().item()
    assert score["linear"] == pytest.approx(linear_probe(h, labels, classes=10).accuracy(queries, answers), abs=0.003)
    few = [few_labels(labels, 0.02, seed) for seed in range(3)]
    probes = [linear_probe(h[index], labels[index], classes=10).accuracy(queries, answers) for index in few]
    assert score["few"] == {"0.02": {"labels": 50, "linear": pytest.approx(probes, abs=0.003)}}
    pixels = plain_views(photos["train"].images, 16).flatten(1), plain_views(photos["test"].images, 16).flatten(1)
    guess = knn_classify(pixels[0], labels, pixels[1])
    assert found["scores"]["pixels"]["knn"] == (guess == answers).double().mean().item()


def test_k_of_knn_is_the_flags_or_the_runs_or_the_rules(run: Path, tmp_path: Path) -> None:
    def k(how: EvaluationConfig, data: str | Path | None = None) -> int:
        return evaluate(run, how=how, data=data)["scores"]["trained encoder"]["knn_k"]

    few = EvaluationConfig(few=(), baselines=False)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("knn_k: null", "knn_k: 7"))
    assert k(few) == 7
    assert k(dataclasses.replace(few, knn_k=3)) == 3
    assert k(dataclasses.replace(few, knn_k=10**6)) == 2500
    assert k(few, folder_of_images(tmp_path / "images", count=100)) == 2  # other data, 26 or 27 a class


def test_a_baseline_that_is_better_is_said_in_words(run: Path, capsys: pytest.CaptureFixture) -> None:
    found = evaluate(run, how=EvaluationConfig(few=(0.1,)))
    pixels, trained = (found["scores"][name] for name in ("pixels", "trained encoder"))
    assert pixels["linear"] > trained["linear"]  # it was trained on 80 photos
    (line,) = [line for line in found["better_baselines"] if "worse than pixels" in line]
    said = (
        f"the trained encoder is worse than pixels: linear probe {trained['linear']:.1%} against {pixels['linear']:.1%}"
    )
    assert line.startswith(said)
    assert line.endswith(" on 1,000 instances")
    show_scores(found)
    shown = capsys.readouterr().out
    assert f"note: {line}\n" in shown
    assert "kNN (k = 25)" in shown
    assert "photos: 1,000 test instances, labels of 2,500; probe lbfgs; few labels drawn 3 times\n" in shown
    better = {"pixels": {"linear": 0.1, "knn": 0.9}, "trained encoder": {"linear": 0.1, "knn": 0.9}}
    assert find_better_baselines({"scores": better, "test_instances": 9}) == []


def test_geometry_is_of_views_as_in_training(run: Path) -> None:
    opened = Run.open(run)
    shape = evaluate(opened, how=EvaluationConfig(few=(), baselines=False))["geometry"]
    assert (shape["instances"], shape["views"]) == (1000, 3)
    index = torch.arange(1000)
    images = mv.load_dataset("photos")["test"].images
    views = policy_of(opened.config)(images, views=3, seed=0, epoch=2**31 - 1, index=index)
    h, z = opened.embedder(views)
    assert shape["z"]["wasserstein"] == pytest.approx(wasserstein_uniformity(z).item(), abs=1e-4)
    assert shape["h"]["rankme"] == pytest.approx(rankme(h).item(), rel=1e-4)
    assert shape["z"]["spectrum"] == pytest.approx(spectrum(z).tolist(), abs=1e-5)
    assert (shape["h"]["dimensions"], shape["z"]["dimensions"]) == (64, 16)


def test_transfer_to_a_folder_without_a_test_set(run: Path, tmp_path: Path) -> None:
    own = evaluate(run, how=EvaluationConfig(few=(), baselines=False))
    folder = folder_of_images(tmp_path / "other pictures", count=40)
    found = evaluate(run, data=folder, how=EvaluationConfig(few=(0.5,), baselines=False, workers=0))
    assert (found["split"], found["held_out"]) == ("train", True)
    assert (found["train_instances"], found["test_instances"]) == (32, 8)
    assert list(found["scores"]) == ["trained encoder"]
    assert found["geometry"]["instances"] == 40
    (file,) = run.glob("evaluation-other-pictures-*.json")
    assert json.loads(file.read_text()) == found
    assert found["source"] == str(folder)
    assert Run.open(run).evaluation == own  # of its own data
    (folder / "a" / "000.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 file of"):
        assert evaluate(run, data=folder, how=EvaluationConfig(few=(), workers=0))["train_instances"] == 32


def test_without_labels_there_is_geometry_and_a_reason(run: Path, tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=20, labelled=False)
    found = evaluate(run, data=folder)
    assert found["scores"] is None
    assert found["why"] == "images has no labels: no kNN and no linear probe"
    assert found["geometry"]["instances"] == 20
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(10) % 2
    np.savez(tmp_path / "half.npz", x_train=images, y_train=labels, x_test=images)
    assert evaluate(run, data=tmp_path / "half.npz")["why"].startswith("half has no labels in its test set")


def test_labels_that_are_quantities_are_no_classes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "ages.npz", image=images, age=np.ones((40, 2)), label=np.arange(40) / 7)
    config = small(data=str(tmp_path / "ages.npz"), limit=None, held_out=8, epochs=1, probe=True)
    run = train(config, output=tmp_path / "run", quiet=True)
    assert "knn" not in run.metrics[-1]
    assert run.evaluation["why"] == "the labels of ages are quantities, not classes: no kNN and no linear probe"
    with pytest.raises(ConfigError, match="supcon needs classes as labels, and ages has none"):
        train(dataclasses.replace(config, objective="supcon"), output=tmp_path / "other", quiet=True)


def test_the_sgd_probe_has_the_papers_settings(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = mv.load_dataset("photos")
    assert EvaluationConfig(probe="sgd").settings(photos, 32) == {"learning_rate": 0.1, "epochs": 200}
    assert EvaluationConfig(probe="sgd").settings(photos, 224) == {"learning_rate": 0.5, "epochs": 200}
    thousand = mv.Dataset("folder", photos.splits, tuple(map(str, range(1000))))
    assert EvaluationConfig(probe="sgd").settings(thousand, 224) == {"learning_rate": 1.6, "epochs": 100}
    assert EvaluationConfig(probe="sgd", epochs=3).settings(thousand, 224) == {"learning_rate": 1.6, "epochs": 3}

    once = evaluate(run, how=EvaluationConfig(probe="sgd", epochs=2, few=(), baselines=False))
    assert once["probe"] == {"method": "sgd", "augment": False, "learning_rate": 0.1, "epochs": 2}
    encoder, split = mv.load_encoder(run), mv.load_dataset("photos")
    h, labels = encoder(split["train"].images), split["train"].labels
    probe = linear_probe(h, labels, classes=10, method="sgd", epochs=2)
    accuracy = probe.accuracy(encoder(split["test"].images), split["test"].labels)
    assert once["scores"]["trained encoder"]["linear"] == pytest.approx(accuracy, abs=0.003)

    again = evaluate(run, how=EvaluationConfig(probe="sgd", epochs=2, augment=True, few=(), baselines=False))
    assert again["scores"]["trained encoder"]["knn"] == once["scores"]["trained encoder"]["knn"]
    assert again["scores"]["trained encoder"]["linear"] != once["scores"]["trained encoder"]["linear"]
    assert min(found["scores"]["trained encoder"]["linear"] for found in (once, again)) > 0.12


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (EvaluationConfig(augment=True), "for the probe sgd"),
        (EvaluationConfig(epochs=3), "for the probe sgd"),
        (EvaluationConfig(knn_k=0), "knn_k must be >= 1, got 0"),
        (EvaluationConfig(few=(0.1, 1.0)), "shares of the labels between 0 and 1, got 1.0"),
        (EvaluationConfig(probe="sgd", epochs=0), "epochs, batch_size and learning_rate must be > 0"),
    ],
)
def test_a_mistake_in_how_is_named(finished_run: Path, how: EvaluationConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(finished_run, how=how)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "validation"}, "split in the evaluation must be one of test, valid, got 'validation'"),
        ({"probe": "ridge"}, "probe in the evaluation must be one of lbfgs, sgd, got 'ridge'"),
        ({"few": 0.1}, "few in the evaluation must be a list of a number, got 0.1"),
        ({"heads": 2.5}, "heads in the evaluation must be a whole number, got 2.5"),
        ({"drop": "text"}, "drop in the evaluation must be a list of a text, got 'text'"),
    ],
)
def test_a_value_of_another_type_is_named_at_once(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvaluationConfig(**changes)
    assert EvaluationConfig(few=[0.1], drop=["text"]) == EvaluationConfig(few=(0.1,), drop=("text",))


def test_what_is_no_finished_run_is_named(run: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match="is no run"):
            load_encoder(path)
    with pytest.raises(EncoderError, match="cannot read"):
        load_encoder(tmp_path / "nothing.safetensors")
    (run / "encoder.safetensors").rename(tmp_path / "moved.safetensors")
    with pytest.raises(ConfigError, match="has no encoder yet: finish it with"):
        evaluate(run)
    assert load_encoder(tmp_path / "moved.safetensors").dim == 64


def test_files_of_another_architecture_are_named(run: Path, tmp_path: Path) -> None:
    other = train(small(width=0.25, projection=8, epochs=1), output=tmp_path / "other", quiet=True)
    shutil.copy(other.path / "head.safetensors", run / "head.safetensors")
    with pytest.raises(EncoderError, match="another architecture than a projection from 64 to 16 dimensions"):
        evaluate(run)
    assert load_encoder(run).dim == 64  # which needs no head


def test_an_encoder_that_is_not_finite_is_named(run: Path) -> None:
    state = load_file(run / "encoder.safetensors")
    state["conv1.weight"].fill_(torch.nan)
    about = {"manyviews": json.dumps({"encoder": "resnet-small", "options": {"width": 0.125}, "size": 16})}
    save_file(state, run / "encoder.safetensors", about)
    with pytest.raises(ValueError, match="representations must be finite"):
        evaluate(run, how=EvaluationConfig(baselines=False))
    assert not (run / "evaluation.json").exists()


def test_labels_outside_the_classes_are_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = mv.load_dataset("photos")
    monkeypatch.setattr(
        "manyviews.training.assess.load_dataset", lambda *_, **__: mv.Dataset("odd", photos.splits, ("a", "b"))
    )
    with pytest.raises(ValueError, match="labels must be whole numbers 0 to 1, got 0 to 9"):
        evaluate(run, data="odd")


def test_what_makes_scores_mean_little_is_noted(run: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    few = EvaluationConfig(baselines=False)
    np.savez(tmp_path / "odd.npz", x_train=images, y_train=np.zeros(20, int), x_test=images, y_test=np.arange(20) % 3)
    one, other = evaluate(run, data=tmp_path / "odd.npz", how=few)["notes"]
    assert one == "2 classes of the test set are not in the training set, so never right: 1, 2"
    assert other.startswith("all training instances are of one class")
    np.savez(tmp_path / "tiny.npz", x=images[:9], y=np.arange(9) % 2)
    tiny = evaluate(run, data=tmp_path / "tiny.npz", how=few)
    assert tiny["why"] == "tiny has 9 labelled instances: too few for kNN and a linear probe"
    assert tiny["geometry"]["instances"] == 9
    np.savez(tmp_path / "small.npz", x=images[:10], y=np.arange(10) % 2)
    assert evaluate(run, data=tmp_path / "small.npz", how=few)["notes"] == []


def test_evaluations_on_folders_of_the_same_name_stand_side_by_side(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "images").mkdir(parents=True)
    names = {evaluation_name(tmp_path / name / "images", "images", HOW) for name in ("a", "b")}
    assert len(names) == 2
    assert evaluation_name("cifar10", "cifar10", HOW) == "evaluation-cifar10.json"
    assert evaluation_name(None, "photos", HOW) == "evaluation.json"
    assert evaluation_name("фото", "фото", HOW) != evaluation_name("图片", "图片", HOW)


@pytest.mark.parametrize("there", [True, False])
def test_auto_is_a_gpu_where_there_is_one(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device_of("auto").type == ("cuda" if there else "cpu")
    with pytest.raises(ConfigError, match="there is no device mps here"):
        device_of("mps")
