"""Errors appear where the mistake is made: what was given, what was expected, what to do."""

import dataclasses
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import manyviews as mv
from manyviews.data import Images, LazyImages
from manyviews.loading import ViewLoader, ViewSpec
from manyviews.models import MultiViewEncoder, VectorEncoder, ViewBatch
from manyviews.training import resolve_task
from tests.helpers.command_line import manyviews


def make_folder(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    folder.mkdir()
    for i, size in enumerate(sizes):
        Image.new("RGB", size, (i % 256, 0, 0)).save(folder / f"{i:03}.png")
    return folder


def test_error_for_a_too_large_batch_suggests_a_size_that_works(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "few", [(16, 16)] * 40)
    config = mv.Config(
        data=str(folder),
        monitor_size=7,
        batch_size=128,
        epochs=1,
        width_mult=0.125,
        evaluate_at_end=False,
        cpu_threads=1,
    )
    message = "a batch of 128 is larger than the 33 training instances of few (7 of 40 are only monitored)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}: try --batch-size 33$"):
        mv.train(config, output=tmp_path / "run")
    run = mv.train(dataclasses.replace(config, batch_size=33), output=tmp_path / "run")
    assert (run.is_finished, run.config.monitor_size) == (True, 7)
    message = "there are only 1 training instances of few (39 of 40 are only monitored), a batch needs 2: "
    message += "use a smaller --monitor-size"
    with pytest.raises(
        ValueError,
        match=f"^{re.escape(message)}$",
    ):
        mv.train(dataclasses.replace(config, monitor_size=39, batch_size=None), output=tmp_path / "other")


@pytest.mark.slow
def test_the_first_command_of_the_readme_works_on_a_small_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = manyviews("train", "--data", str(make_folder(tmp_path / "few", [(16, 16)] * 20)))
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "batches have 20 instances instead of 128, the largest size that fits the data" in output
    assert "1 rank on cpu, 1 CPU thread" in output  # by OMP_NUM_THREADS
    assert "  10 monitored instances (trained on)\n" in output
    assert re.search(r"step 10, 10 monitored instances \(trained on\): alignment", output)
    run = mv.Run.open(tmp_path / "runs/few-mv-dhel")
    assert (run.is_finished, run.config.monitor_size, run.config.batch_size) == (True, 0, 20)
    recipe = mv.get_recipe(run.path / "config.yaml")
    assert (recipe.monitor_size, recipe.batch_size) == (0, 20)


@pytest.mark.parametrize(
    ("count", "monitor_size", "batch_size"),
    [(2, 0, 2), (20, 0, 20), (99, 0, 99), (100, 20, 80), (203, 20, 128), (960, 96, 128), (2500, 250, 128)],
)
def test_default_sizes_fit_the_data(count: int, monitor_size: int, batch_size: int) -> None:
    data = mv.DatasetDict("any", {"train": mv.Dataset({"image": torch.zeros(count, 3, 8, 8, dtype=torch.uint8)})})
    config = resolve_task(mv.Config(), data, 1).config
    assert (config.monitor_size, config.batch_size, config.instances_per_batch) == (
        monitor_size,
        batch_size,
        batch_size,
    )
    if count >= 6:
        assert resolve_task(mv.Config(), data, 3).config.instances_per_batch == batch_size // 3 * 3
    if count >= 20:
        counts_views = resolve_task(mv.Config(batch_counts_views=True), data, 1).config
        assert counts_views.instances_per_batch == min(32, count - monitor_size)
    config = resolve_task(mv.Config(monitor_size=0, batch_size=2), data, 1).config
    assert (config.monitor_size, config.batch_size) == (0, 2)


def test_one_tiny_image_does_not_decide_the_size_of_views(tmp_path: Path) -> None:
    images = LazyImages(tuple(sorted(make_folder(tmp_path / "mixed", [(16, 16), *[(120, 90)] * 9]).iterdir())))
    assert Images(images).infer_size() == 90


def test_a_class_list_for_a_flat_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\n")
    with pytest.raises(mv.DatasetError, match=r"selects subfolders, but .*flat has none"):
        mv.load_dataset(make_folder(tmp_path / "flat", [(8, 8)] * 3), class_list=tmp_path / "classes.txt")


def test_a_column_of_labels_is_read_and_a_text_file_is_rejected(tmp_path: Path) -> None:
    images = np.zeros((6, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "column.npz", x_train=images, y_train=np.arange(6)[:, None] % 2)
    assert mv.load_dataset(tmp_path / "column.npz")["train"].labels.tolist() == [0, 1, 0, 1, 0, 1]
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(mv.DatasetError, match=r"text\.npz does not start like a \.npy or \.npz file"):
        mv.load_dataset(tmp_path / "text.npz")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mv.train({"epochs": 1}), r"epochs must be a tensor \(instances, \.\.\.\), got an int"),
        (lambda: mv.train(config={"epochs": 1}), "config must be a Config, got a dict"),
        (
            lambda: mv.losses.check_principles("mv-dhel"),
            "loss must be a MultiViewLoss or a function of P and A, got 'mv-dhel': use get_loss",
        ),
        (lambda: mv.SimCLRTransform("32"), r"size \(height and width of a view\) must be an integer >= 1, got '32'"),
        (lambda: mv.SimCLRTransform(32, crop_scale=0.5), r"crop_scale must be two numbers \(min, max\), got 0.5"),
        (
            lambda: mv.metrics.knn_classify(np.zeros((3, 2)), np.zeros(3), np.zeros((1, 2))),
            "train must be a tensor, got ndarray: use torch.as_tensor",
        ),
        (lambda: mv.get_loss("MV-DHEL"), "unknown loss 'MV-DHEL': did you mean mv-dhel"),
        (lambda: mv.train(mv.Config(num_nodes=2)), "--num-nodes > 1 requires torchrun or SLURM on each node"),
        (
            lambda: mv.train(mv.Config(precision="16-mixed", device="cpu")),
            "--precision 16-mixed requires a GPU: use bf16-mixed on a CPU",
        ),
        (lambda: mv.train(mv.Config(device="mps")), "device mps is not available on this machine: use auto"),
    ],
)
def test_invalid_arguments_raise_before_anything_is_written(
    call: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        call()
    assert list(tmp_path.iterdir()) == []


def make_tensor_dataset() -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8))


def make_encoder() -> MultiViewEncoder:
    return MultiViewEncoder({"text": VectorEncoder(3), "audio": VectorEncoder(4)})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mv.load_dataset(make_tensor_dataset()),
            r"name \(photos, .*\) or a path, got a torch.*TensorDataset: save its images",
        ),
        (lambda: mv.load_dataset(np.zeros((4, 8, 8, 3))), r"got a numpy\.ndarray: save .* numpy\.savez"),
        (
            lambda: mv.train(make_tensor_dataset()),
            r"item 0 must be a PIL image or uint8 \(3, H, W\), got torch.float32 \(3, 8, 8\): leave ToTensor",
        ),
        (
            lambda: mv.Config(data=make_tensor_dataset()),
            "data in the config must be a string, got a torch.*: save it to a file or folder and pass the path",
        ),
        (
            lambda: ViewLoader(make_tensor_dataset(), ViewSpec.parse(("text:2",)), [None]),
            r"expected a Dataset, .* got a torch.*: Dataset\(\{NAME: tensor",
        ),
        (lambda: mv.Dataset({"text": np.zeros((4, 3))}), r"text must be a tensor .* got float64 \(4, 3\)"),
        (lambda: mv.Dataset({"text": torch.ones(2, 3)}, labels=[0, 1]), "labels must be a tensor .* got a list"),
        (lambda: mv.Dataset(make_tensor_dataset()), "must be a dict of tensors by name, got a torch.*TensorDataset"),
        (
            lambda: make_encoder()({"text": torch.zeros(2, 3), "audio": torch.zeros(2, 4)}),
            "an encoder takes a ViewBatch, got a dict: use ViewBatch.from_views or a ViewLoader",
        ),
        (
            lambda: make_encoder()([torch.zeros(2, 3)]),
            "an encoder takes a ViewBatch, got a list: use ViewBatch.from_views or a ViewLoader",
        ),
        (
            lambda: make_encoder()(ViewBatch.from_views(torch.zeros(2, 2, 3), "smell")),
            "there is no encoder 'smell', only text, audio",
        ),
        (
            lambda: mv.MultiViewModel(make_encoder())({"text": torch.zeros(2, 3)}),
            r"views must be \(instances, views, ...\), .*, got a dict",
        ),
        (
            lambda: mv.MultiViewModel(make_encoder())(torch.zeros(2, 2, 3)),
            "views of 2 encoders, text, audio, must be a ViewBatch: use a ViewLoader",
        ),
    ],
)
def test_errors_describe_objects_that_are_not_data(
    call: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_errors_name_arrays_of_different_shapes(tmp_path: Path) -> None:
    rows = np.empty(4, dtype=object)
    rows[:] = [np.zeros((steps, 3), np.float32) for steps in (1, 2, 3, 4)]
    np.savez(tmp_path / "ragged.npz", text=rows, audio=np.zeros((4, 2)))
    np.save(tmp_path / "ragged.npy", rows)
    for name in ("ragged.npz", "ragged.npy"):
        with pytest.raises(
            mv.DatasetError, match=rf"{name} as .npy or .npz: it has Python objects .* pad .* NAME_length"
        ):
            mv.load_dataset(tmp_path / name)
    for value in (rows, list(rows)):
        content = {"train": {"text": value, "audio": np.zeros((4, 2)), "labels": np.zeros(4)}}
        (tmp_path / "ragged.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(mv.DatasetError, match=r"train, text: rows have different shapes: pad them .* NAME_lengths"):
            mv.load_dataset(tmp_path / "ragged.pkl")
