"""Mistakes are told where they are made: what was given, what was expected, what to do."""

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
from manyviews.data import ImageFiles
from manyviews.models import ModalityEncoder, VectorEncoder
from manyviews.training.setup import fitted
from manyviews.views import ModalityBatches
from manyviews.views.plain import natural_size
from tests.training.small import finished


def photos(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    folder.mkdir()
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (number % 256, 0, 0)).save(folder / f"{number:03}.png")
    return folder


def test_a_batch_too_large_for_a_folder_is_told_a_size_that_works(tmp_path: Path) -> None:
    folder = photos(tmp_path / "few", [(16, 16)] * 40)
    config = mv.Config(data=str(folder), held_out=7, batch_size=128, epochs=1, width=0.125, probe=False, threads=1)
    given = "a batch of 128 is larger than the 33 instances of few to train on (7 of 40 are held out)"
    with pytest.raises(ValueError, match=f"^{re.escape(given)}: try --batch-size 33$"):
        mv.train(config, output=tmp_path / "run")
    run = mv.train(dataclasses.replace(config, batch_size=33), output=tmp_path / "run")
    assert (run.finished, run.config.held_out) == (True, 7)
    with pytest.raises(ValueError, match=r"1 instances of few .*39 of 40 are held out., and a batch needs 2"):
        mv.train(dataclasses.replace(config, held_out=39, batch_size=None), output=tmp_path / "other")


def test_the_first_command_of_the_readme_works_on_few_images(tmp_path: Path) -> None:
    said = finished("--data", photos(tmp_path / "few", [(16, 16)] * 20), cwd=tmp_path)
    assert "batches of 20 instances, not 128: the largest that fit the data" in said
    assert "1 rank on cpu, 1 CPU thread" in said  # by OMP_NUM_THREADS
    assert "10 trained-on instances monitored" in said
    assert re.search("step 10, 10 trained-on instances: alignment", said)
    run = mv.Run.open(tmp_path / "runs/few-mv-dhel-4")
    assert (run.finished, run.config.held_out, run.config.batch_size) == (True, 0, 20)
    again = mv.get_recipe(run.path / "config.yaml")
    assert (again.held_out, again.batch_size) == (0, 20)


@pytest.mark.parametrize(
    ("count", "held_out", "batch_size"),
    [(2, 0, 2), (20, 0, 20), (99, 0, 99), (100, 20, 80), (203, 20, 128), (960, 96, 128), (2500, 250, 128)],
)
def test_what_is_left_open_fits_any_data(count: int, held_out: int, batch_size: int) -> None:
    data = mv.data.Dataset("any", {"train": mv.data.Split({"image": torch.zeros(count, 3, 8, 8, dtype=torch.uint8)})})
    config = fitted(mv.Config(), data, 1)
    assert (config.held_out, config.batch_size, config.instances) == (held_out, batch_size, batch_size)
    if count >= 6:
        assert fitted(mv.Config(), data, 3).instances == batch_size // 3 * 3
    if count >= 20:
        thrifty = fitted(mv.Config(fixed_batch=True), data, 1)
        assert thrifty.instances == min(32, count - held_out)
    given = mv.Config(held_out=0, batch_size=2)
    assert (fitted(given, data, 1).held_out, fitted(given, data, 1).batch_size) == (0, 2)


def test_one_tiny_image_does_not_decide_the_size_of_views(tmp_path: Path) -> None:
    images = ImageFiles(tuple(sorted(photos(tmp_path / "mixed", [(16, 16), *[(120, 90)] * 9]).iterdir())))
    assert natural_size(images) == 90


def test_a_class_list_for_a_flat_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\n")
    with pytest.raises(mv.DatasetError, match=r"selects subfolders, and .*flat has none"):
        mv.load_dataset(photos(tmp_path / "flat", [(8, 8)] * 3), classes=tmp_path / "classes.txt")


def test_labels_in_a_column_are_labels_and_a_text_is_no_array(tmp_path: Path) -> None:
    images = np.zeros((6, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "column.npz", x_train=images, y_train=np.arange(6)[:, None] % 2)
    assert mv.load_dataset(tmp_path / "column.npz")["train"].labels.tolist() == [0, 1, 0, 1, 0, 1]
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(mv.DatasetError, match=r"text\.npz is no \.npy or .npz file"):
        mv.load_dataset(tmp_path / "text.npz")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mv.train({"epochs": 1}), "config must be a Config, got a dict"),
        (lambda: mv.losses.audit("mv-dhel"), "objective must be an objective .* got 'mv-dhel'"),
        (lambda: mv.SimCLRPolicy("32"), "size must be a whole number >= 1.* got '32'"),
        (lambda: mv.SimCLRPolicy(32, scale=0.5), "scale must be two numbers.* got 0.5"),
        (
            lambda: mv.evaluation.knn_classify(np.zeros((3, 2)), np.zeros(3), np.zeros((1, 2))),
            "must be a tensor, got nda",
        ),
        (lambda: mv.get_objective("MV-DHEL"), "did you mean mv-dhel"),
        (lambda: mv.train(mv.Config(nodes=2)), "several --nodes are started by torchrun or SLURM"),
        (lambda: mv.train(mv.Config(precision="16-mixed", device="cpu")), "on a CPU take --precision bf16-mixed"),
        (lambda: mv.train(mv.Config(device="mps")), "there is no device mps here"),
    ],
)
def test_a_mistake_is_told_where_it_is_made(
    call: Callable[[], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError), match=words):
        call()
    assert list(tmp_path.iterdir()) == []


def foreign() -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8))


def modality_encoder() -> ModalityEncoder:
    return ModalityEncoder({"text": VectorEncoder(3), "audio": VectorEncoder(4)})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: mv.load_dataset(foreign()),
            r"name \(photos, .*\) or a path, got a torch.*TensorDataset: write its images",
        ),
        (lambda: mv.load_dataset(np.zeros((4, 8, 8, 3))), r"got a numpy\.ndarray: write .* numpy\.savez"),
        (
            lambda: mv.train(foreign()),
            r"must be a Config, got a torch.*TensorDataset: mv\.train\(mv\.Config\(data=PATH",
        ),
        (
            lambda: mv.Config(data=foreign()),
            "data in the config must be a text, got a torch.*: write it to a file or a folder",
        ),
        (lambda: ModalityBatches(foreign(), ("text",)), r"expected a Split, .* got a torch.*: Split\(\{NAME: tensor"),
        (lambda: ModalityEncoder.for_split(foreign(), ("text",)), "expected a Split, .* got a torch.*TensorDataset"),
        (lambda: mv.data.Split({"text": np.zeros((4, 3))}), r"text must be a tensor .* got float64 \(4, 3\)"),
        (lambda: mv.data.Split({"text": torch.ones(2, 3)}, labels=[0, 1]), "labels must be a tensor .* got a list"),
        (lambda: mv.data.Split(foreign()), "must be a dict of tensors by name, got a torch.*TensorDataset"),
        (
            lambda: modality_encoder()({"text": torch.zeros(2, 3), "audio": torch.zeros(2, 4)}),
            r"a list of the rows of text, audio, their lengths \(B, 2\) and .* got a dict: ModalityBatches",
        ),
        (lambda: modality_encoder()([torch.zeros(2, 3)]), r"got \[Tensor\]: ModalityBatches"),
    ],
)
def test_what_is_given_instead_of_data_is_described(call: Callable[[], object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_rows_of_different_shapes_are_named(tmp_path: Path) -> None:
    rows = np.empty(4, dtype=object)
    rows[:] = [np.zeros((steps, 3), np.float32) for steps in (1, 2, 3, 4)]
    np.savez(tmp_path / "ragged.npz", text=rows, audio=np.zeros((4, 2)))
    np.save(tmp_path / "ragged.npy", rows)
    for name in ("ragged.npz", "ragged.npy"):
        with pytest.raises(mv.DatasetError, match=rf"{name} holds Python objects .* pad sequences .* NAME_length"):
            mv.load_dataset(tmp_path / name)
    for given in (rows, list(rows)):
        held = {"train": {"text": given, "audio": np.zeros((4, 2)), "labels": np.zeros(4)}}
        (tmp_path / "ragged.pkl").write_bytes(pickle.dumps(held))
        with pytest.raises(mv.DatasetError, match=r"train, text: rows must have the same shape.* NAME_lengths"):
            mv.load_dataset(tmp_path / "ragged.pkl")
