"""`limit` takes a sample that stands for the data, or the first instances where that is asked for."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import manyviews as mv
from manyviews.data import Dataset, ImageFiles, Split
from manyviews.report import write_report
from manyviews.training import Config, ConfigError, InterruptedTraining, train
from manyviews.training.source import limit_data, load_data
from tests.training.small import assert_same_run, folder_of_images, small
from tests.training.test_loop import stop_after


def ordered(counts: list[int], labelled: bool = True) -> Dataset:
    """Instances that know their index, ordered by class."""
    total = sum(counts)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)) if labelled else None
    split = Split({"x": torch.arange(total, dtype=torch.float32)[:, None]}, labels)
    return Dataset("ordered", {"train": split}, tuple(map(str, range(len(counts)))))


def indices(data: Dataset) -> list[int]:
    return data["train"].modalities["x"][:, 0].long().tolist()


def test_a_sample_has_as_many_of_each_class_as_can_be() -> None:
    data = ordered([500] * 100)  # as CIFAR-100, of which the first 2,000 are 4 classes
    first, sample = (limit_data(data, Config(limit=2000, limit_order=order)) for order in ("first", "sample"))
    assert indices(first) == list(range(2000))
    assert first["train"].labels.unique().tolist() == [0, 1, 2, 3]
    assert sample["train"].labels.bincount().tolist() == [20] * 100
    assert indices(sample) == sorted(indices(sample))
    assert sample["train"].ids[:2] == tuple(f"train/{number}" for number in indices(sample)[:2])

    uneven = limit_data(ordered([3, 50, 50]), Config(limit=40))["train"].labels.bincount().tolist()
    assert uneven[0] == 3
    assert sorted(uneven[1:]) == [18, 19]
    assert len(limit_data(ordered([9] * 9), Config(limit=5))["train"].labels.unique()) == 5


@pytest.mark.parametrize("labelled", [True, False])
def test_a_sample_is_the_same_for_all_seeds_and_part_of_a_larger_one(labelled: bool) -> None:
    data = ordered([40, 60, 10], labelled)
    samples = {limit: indices(limit_data(data, Config(limit=limit))) for limit in (20, 50, 90)}
    assert indices(limit_data(data, Config(limit=20, seed=7))) == samples[20]
    assert set(samples[20]) < set(samples[50]) < set(samples[90])
    assert samples[20] != list(range(20))
    assert limit_data(data, Config(limit=110)) is data
    sample = limit_data(data, Config(limit=20))
    assert limit_data(sample, Config(limit=20)) is sample


def test_training_evaluation_and_report_take_the_same_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (90, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "ordered.npz", images=images, labels=np.repeat(np.arange(9), 10))
    config = small(data=str(tmp_path / "ordered.npz"), limit=45, held_out=9, size=8, probe=True)
    whole = train(config, output=tmp_path / "whole", quiet=True)
    assert "instances of 5 of 9 classes" not in (whole.path / "log.txt").read_text()
    assert (whole.evaluation["train_instances"], whole.evaluation["test_instances"]) == (36, 9)
    assert whole.evaluation["notes"] == []  # all nine classes are there
    write_report([whole.path], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert load_data(whole.config)["train"].ids[0] in page
    first = train(dataclasses.replace(config, limit_order="first"), output=tmp_path / "first", quiet=True)
    assert "instances of 5 of 9 classes" in (first.path / "log.txt").read_text()
    assert first.metrics != whole.metrics

    stop_after(monkeypatch, 3)
    with pytest.raises(InterruptedTraining):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"another limit_order \(was sample, now first\)"):
        train(dataclasses.replace(config, limit_order="first"), resume=tmp_path / "stopped", quiet=True)
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(whole.path, tmp_path / "stopped")


def test_files_are_sampled_too(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=60)
    taken = load_data(Config(data=str(folder), limit=12))["train"]
    assert isinstance(taken.images, ImageFiles)
    assert taken.labels.bincount().tolist() == [4, 4, 4]
    assert [path.parent.name for path in taken.images.paths] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    everyone = mv.load_dataset(folder)["train"].images.paths
    assert set(taken.images.paths) < set(everyone)
