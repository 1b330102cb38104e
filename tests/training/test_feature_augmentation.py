"""Which modalities of features are augmented, and that training with them depends on the key alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from manyviews.data import DatasetDict, load_dataset
from manyviews.training import Config, ConfigError, get_recipe, resolve_task
from manyviews.transforms import SequenceTransform, VectorTransform


@pytest.fixture
def data(tmp_path: Path) -> DatasetDict:
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "train/imu": generator.normal(3, 2, (120, 9, 4)).astype(np.float32),
        "train/imu_length": generator.integers(2, 10, 120),
        "train/pose": generator.normal(-1, 5, (120, 6)).astype(np.float32),
        "train/label": generator.integers(0, 3, 120),
    }
    arrays["train/imu"][np.arange(9) >= arrays["train/imu_length"][:, None]] = 0
    arrays["train/pose"][::7] = np.nan
    np.savez(tmp_path / "sensors.npz", **arrays)
    return load_dataset(str(tmp_path / "sensors.npz"))


@pytest.mark.parametrize(
    ("views", "choice", "expected"),
    [
        (("imu", "pose"), "auto", (SequenceTransform, None)),
        (("imu:2", "pose:2"), "auto", (SequenceTransform, VectorTransform)),
        (("imu", "pose", "pose"), "auto", (SequenceTransform, VectorTransform, VectorTransform)),
        (("imu", "pose"), "all", (SequenceTransform, VectorTransform)),
        (("imu:2", "pose:2"), "none", (None, None)),
    ],
)
def test_sequences_and_vectors_with_several_views_are_augmented(
    data: DatasetDict, views: tuple[str, ...], choice: str, expected: tuple[type | None, ...]
) -> None:
    task = resolve_task(Config(data="sensors", views=views, augment_features=choice), data, 1)  # type: ignore[arg-type]
    assert [type(transform) for transform in task.transforms] == [kind or type(None) for kind in expected]


def test_paper_recipes_and_digits_have_no_augmentation() -> None:
    digits = load_dataset("digits")
    assert resolve_task(get_recipe("multimodal"), digits, 1).transforms == [None] * 4
    assert get_recipe("ch-sims").augment_features == get_recipe("cmu-mosei").augment_features == "none"


def test_statistics_are_those_of_trained_instances_without_padding(data: DatasetDict) -> None:
    task = resolve_task(Config(data="sensors", views=("imu:2", "pose:2")), data, 1)
    imu, pose = task.transforms
    assert isinstance(imu, SequenceTransform)
    assert isinstance(pose, VectorTransform)
    trained = task.split.select(task.unmonitored)
    assert len(task.unmonitored) < len(task.split)
    for transform, name in ((imu, "imu"), (pose, "pose")):
        valid = trained[name].collect_valid().double()  # type: ignore[attr-defined]
        torch.testing.assert_close(transform.mean.double(), valid.mean(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(transform.std.double(), valid.std(0, correction=0), rtol=1e-5, atol=1e-5)


def test_views_do_not_depend_on_the_batch(data: DatasetDict) -> None:
    loader = resolve_task(Config(data="sensors", views=("imu:2", "pose:2")), data, 1).view_loader
    index = torch.tensor([5, 0, 7, 30, 14, 2])
    all_at_once = loader.load(index, epoch=3)
    one_by_one = [loader.load(i[None], epoch=3) for i in index]
    assert all_at_once.mask is not None
    assert not all_at_once.mask.all()
    for number, group in enumerate(all_at_once.groups):
        rows = []
        for batch in one_by_one:
            part = batch.groups[number]
            missing = group.values.shape[1] - part.values.shape[1] if part.lengths is not None else 0
            rows.append(pad(part.values, (0, 0, 0, missing)) if missing else part.values)
        torch.testing.assert_close(torch.cat(rows), group.values)
        if group.lengths is not None:
            lengths = [steps for batch in one_by_one if (steps := batch.groups[number].lengths) is not None]
            torch.testing.assert_close(torch.cat(lengths), group.lengths)
    other = loader.load(index, epoch=4)
    assert not torch.equal(other.groups[1].values, all_at_once.groups[1].values)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"feature_noise": -0.1}, "feature_noise must be a number >= 0, got -0.1"),
        ({"feature_mask": 1.0}, r"feature_mask must be in \[0, 1\), got 1.0"),
        ({"time_crop": 0.0}, r"time_crop must be in \(0, 1\], got 0.0"),
    ],
)
def test_invalid_strength_is_named(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**fields).check()  # type: ignore[arg-type]


def test_field_for_sequences_is_refused_for_vectors_alone() -> None:
    with pytest.raises(ConfigError, match="time_crop is for sequence or audio views, got pixels"):
        resolve_task(Config(data="digits", time_crop=0.9), load_dataset("digits"), 1)


def test_small_data_of_sequences_has_small_encoders_a_low_temperature_and_enough_steps(data: DatasetDict) -> None:
    config = resolve_task(Config(data="sensors", views=("imu:2",)), data, 1).config
    assert (config.hidden_dim, config.transformer_layers, config.temperature) == (64, 2, 0.2)
    assert config.epochs == 600  # one step per epoch
    assert config.learning_rate == 3e-3
    mixed = resolve_task(Config(data="sensors", views=("imu", "pose")), data, 1).config
    assert (mixed.hidden_dim, mixed.transformer_layers, mixed.temperature) == (128, 3, 0.5)
    chosen = Config(data="sensors", views=("imu:2",), hidden_dim=32, transformer_layers=1, temperature=0.7, epochs=3)
    config = resolve_task(chosen, data, 1).config
    assert (config.hidden_dim, config.transformer_layers, config.temperature, config.epochs) == (32, 1, 0.7, 3)
    learned = resolve_task(Config(data="sensors", views=("imu:2",), loss="siglip"), data, 1).config
    assert learned.temperature == 0.1


def test_digits_and_paper_recipes_keep_their_defaults() -> None:
    config = resolve_task(get_recipe("multimodal"), load_dataset("digits"), 1).config
    expected = (60, 128, None, 0.5, 1e-3)  # no transformer for vectors
    fields = ("epochs", "hidden_dim", "transformer_layers", "temperature", "learning_rate")
    assert tuple(getattr(config, name) for name in fields) == expected
    assert tuple(getattr(get_recipe("ch-sims"), name) for name in fields) == (200, 128, 3, 0.5, 1e-4)
