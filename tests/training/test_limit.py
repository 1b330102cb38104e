"""`max_instances` keeps a balanced sample, or the first instances."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import manyviews as mv
from manyviews.api import train
from manyviews.data import Dataset, DatasetDict, LazyImages
from manyviews.evaluation import load_evaluation
from manyviews.report import write_report
from manyviews.training import Config, ConfigError, TrainingInterrupted, load_data
from manyviews.training.task import limit_instances
from tests.helpers.tiny_run import assert_same_run, folder_of_images, tiny_config
from tests.training.test_trainer import stop_after


def make_ordered(counts: list[int], labeled: bool = True) -> DatasetDict:
    """Make instances ordered by class whose feature is their index."""
    total = sum(counts)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)) if labeled else None
    split = Dataset({"x": torch.arange(total, dtype=torch.float32)[:, None]}, labels)
    return DatasetDict("ordered", {"train": split}, tuple(map(str, range(len(counts)))))


def get_indices(data: DatasetDict) -> list[int]:
    return data["train"]["x"].values[:, 0].long().tolist()


def test_sample_is_balanced_over_classes() -> None:
    data = make_ordered([500] * 100)  # like CIFAR-100; the first 2,000 instances have 4 classes
    first, sample = (limit_instances(data, Config(max_instances=2000, subset=order)) for order in ("first", "sample"))
    assert get_indices(first) == list(range(2000))
    assert first["train"].labels.unique().tolist() == [0, 1, 2, 3]
    assert sample["train"].labels.bincount().tolist() == [20] * 100
    assert get_indices(sample) == sorted(get_indices(sample))
    assert sample["train"].ids[:2] == tuple(f"train/{i}" for i in get_indices(sample)[:2])

    uneven = limit_instances(make_ordered([3, 50, 50]), Config(max_instances=40))["train"].labels.bincount().tolist()
    assert uneven[0] == 3
    assert sorted(uneven[1:]) == [18, 19]
    assert len(limit_instances(make_ordered([9] * 9), Config(max_instances=5))["train"].labels.unique()) == 5


@pytest.mark.parametrize("labeled", [True, False])
def test_sample_is_the_same_for_all_seeds_and_a_subset_of_a_larger_one(labeled: bool) -> None:
    data = make_ordered([40, 60, 10], labeled)
    samples = {limit: get_indices(limit_instances(data, Config(max_instances=limit))) for limit in (20, 50, 90)}
    assert get_indices(limit_instances(data, Config(max_instances=20, seed=7))) == samples[20]
    assert set(samples[20]) < set(samples[50]) < set(samples[90])
    assert samples[20] != list(range(20))
    assert limit_instances(data, Config(max_instances=110)) is data
    sample = limit_instances(data, Config(max_instances=20))
    assert limit_instances(sample, Config(max_instances=20)) is sample


@pytest.mark.slow
def test_training_evaluation_and_report_use_the_same_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (90, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "ordered.npz", images=images, labels=np.repeat(np.arange(9), 10))
    config = tiny_config(
        data=str(tmp_path / "ordered.npz"), max_instances=45, monitor_size=9, image_size=8, evaluate_at_end=True
    )
    whole = train(config, output=tmp_path / "whole", quiet=True)
    assert "instances of 5 of 9 classes" not in (whole.path / "log.txt").read_text()
    assert (load_evaluation(whole).train_instances, load_evaluation(whole).test_instances) == (36, 9)
    assert load_evaluation(whole).caveats == ()  # all nine classes are present
    write_report([whole.path], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert whole.load_data()["train"].ids[0] in page
    first = train(dataclasses.replace(config, subset="first"), output=tmp_path / "first", quiet=True)
    assert "instances of 5 of 9 classes" in (first.path / "log.txt").read_text()
    assert first.read_metrics() != whole.read_metrics()

    stop_after(monkeypatch, 3)
    with pytest.raises(TrainingInterrupted):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="changed fields: subset sample -> first"):
        train(dataclasses.replace(config, subset="first"), resume=tmp_path / "stopped", quiet=True)
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(whole.path, tmp_path / "stopped")


def test_files_are_sampled(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=60)
    selected = load_data(Config(data=str(folder), max_instances=12))["train"]
    assert isinstance(selected.images, LazyImages)
    assert selected.labels.bincount().tolist() == [4, 4, 4]
    assert [path.parent.name for path in selected.images.paths] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    all_paths = mv.load_dataset(folder)["train"].images.paths
    assert set(selected.images.paths) < set(all_paths)
