"""Mistakes are told where they are made: what was given, what was expected, what to do."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import manyviews as mv
from manyviews.data import ImageFiles
from manyviews.views.plain import natural_size


def photos(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    folder.mkdir()
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (number % 256, 0, 0)).save(folder / f"{number:03}.png")
    return folder


def test_a_folder_too_small_for_the_recipe_is_told_flags_that_work(tmp_path: Path) -> None:
    folder = photos(tmp_path / "few", [(32, 32)] * 40)
    with pytest.raises(ValueError, match=r"of few to train on .*: try --held-out 4 --batch-size 36") as told:
        mv.train(mv.Config(data=str(folder)), output=tmp_path / "run")
    held, size = (int(number) for number in re.findall(r"--held-out (\d+) --batch-size (\d+)", str(told.value))[0])
    config = mv.Config(data=str(folder), held_out=held, batch_size=size, epochs=1, probe=False, threads=1)
    assert mv.train(config, output=tmp_path / "run").finished


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
        (lambda: mv.train({"epochs": 1}), "config must be a Config, got dict"),
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
