"""Every source of data, good and hostile."""

import contextlib
import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from manyviews.data import (
    BadImageError,
    DatasetError,
    ImageFiles,
    Split,
    cifar,
    download,
    files,
    load,
    load_dataset,
    pickles,
)
from manyviews.data.pickles import load_numpy_pickle
from manyviews.export import Pictures
from manyviews.training import RECIPES, Config, EvaluationConfig
from manyviews.training.assess import evaluation_name
from manyviews.training.setup import located
from manyviews.utils import budget
from manyviews.views import MultiCrop, SimCLRPolicy, ViewBatches, batches

REAL_CIFAR = Path(os.environ.get("MANYVIEWS_TEST_CIFAR", "nowhere"))


def picture(seed: int = 0, size: tuple[int, int] = (12, 8), mode: str = "RGB") -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).convert(mode)


def folder_of_classes(root: Path, splits: tuple[str, ...] = ("",), sizes: bool = False) -> Path:
    for split in splits:
        for label, name in enumerate(("cat", "dog")):
            (root / split / name).mkdir(parents=True)
            for number in range(3):
                size = (12 + number * sizes, 8)
                picture(label * 10 + number, size).save(root / split / name / f"{number}.png")
    return root


# photos and digits


def test_photos_are_balanced_and_real() -> None:
    photos = load_dataset("photos")
    for split, each in (("train", 250), ("test", 100)):
        assert photos[split].images.shape == (10 * each, 3, 32, 32)
        assert photos[split].images.dtype == torch.uint8
        assert photos[split].labels.bincount().tolist() == [each] * 10
    digest = hashlib.sha256(photos["train"].images.numpy().tobytes()).hexdigest()
    assert digest == PHOTOS_DIGEST


PHOTOS_DIGEST = "792fe6d15ac97be0a101d3da3106e51bf7204b70ea7f84faf682b57a0124734c"


def test_digits_have_four_feature_views() -> None:
    digits = load_dataset("digits")
    assert [len(digits[s]) for s in ("train", "test")] == [1437, 360]
    shapes = {name: tuple(rows.shape[1:]) for name, rows in digits["train"].modalities.items()}
    assert shapes == {"image": (1, 8, 8), "pixels": (64,), "fourier": (40,), "profiles": (16,), "gradients": (32,)}
    train, test = digits["train"], digits["test"]
    for name in ("pixels", "fourier", "profiles", "gradients"):
        # Each view knows the digit: the nearest training instance by that view alone.
        x, y = train.modalities[name], test.modalities[name]
        scale = x.std(0) + 1e-6
        nearest = torch.cdist(y / scale, x / scale).argmin(1)
        assert (train.labels[nearest] == test.labels).float().mean() > 0.7, name


# folders


def test_a_folder_of_classes(tmp_path: Path) -> None:
    data = load_dataset(folder_of_classes(tmp_path / "pets"))
    assert data.classes == ("cat", "dog")
    assert data["train"].images.shape == (6, 3, 8, 12)
    assert data["train"].labels.tolist() == [0, 0, 0, 1, 1, 1]
    expected = torch.from_numpy(np.array(picture(11))).permute(2, 0, 1)
    assert torch.equal(data["train"].images[4], expected)


def test_a_folder_of_splits_and_a_class_list(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "pets", ("train", "val"))
    assert set(load_dataset(root).splits) == {"train", "valid"}
    chosen = tmp_path / "classes.txt"
    chosen.write_text("# mine\ndog  domestic\n\n")
    data = load_dataset(root, classes=chosen)
    assert data.classes == ("dog",)
    assert len(data["train"]) == 3
    chosen.write_text("dog\nwolf\n")
    with pytest.raises(DatasetError, match="no folder for 1 listed classes, such as wolf"):
        load_dataset(root, classes=chosen)
    chosen.write_text("\ufeffcat\n", encoding="utf-8")
    assert load_dataset(root, classes=chosen).classes == ("cat",)
    chosen.write_text("dog\ndog\n")
    with pytest.raises(DatasetError, match="names dog twice"):
        load_dataset(root, classes=chosen)
    chosen.write_text("")
    with pytest.raises(DatasetError, match="names no class"):
        load_dataset(root, classes=chosen)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for number in range(3):
        picture(number, (10 + number, 8)).save(tmp_path / f"{number}.jpg")
    split = load_dataset(tmp_path)["train"]
    assert split.labels is None
    assert isinstance(split.images, ImageFiles)
    assert [tuple(image.shape) for image in split.images] == [(3, 8, 10), (3, 8, 11), (3, 8, 12)]


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "bmp", "gif", "tif"])
def test_formats(tmp_path: Path, ending: str) -> None:
    picture().save(tmp_path / f"a.{ending}", **({"lossless": True} if ending == "webp" else {}))
    image = files.read_image(tmp_path / f"a.{ending}")
    assert image.shape == (3, 8, 12)
    if ending not in ("jpg", "gif"):
        assert torch.equal(image, torch.from_numpy(np.array(picture())).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1", "I;16"])
def test_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    if mode == "I;16":
        grey = Image.fromarray(np.full((8, 12), 32896, dtype=np.uint16))
    else:
        grey = Image.new("RGB", (12, 8), (128, 128, 128))
        grey = grey.quantize(4) if mode == "P" else grey.convert(mode)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    grey.save(path)
    image = files.read_image(path).float()
    assert image.shape == (3, 8, 12)
    assert mode == "1" or (image - 128).abs().max() <= 2


def test_transparency_is_over_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    clear.putpixel((0, 0), (10, 20, 30, 255))
    clear.save(tmp_path / "a.png")
    image = files.read_image(tmp_path / "a.png")
    assert image[:, 0, 0].tolist() == [10, 20, 30]
    assert image[:, 3, 3].tolist() == [255, 255, 255]


def test_exif_turns_the_image_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(size=(20, 10)).save(tmp_path / "a.jpg", exif=exif)
    assert files.read_image(tmp_path / "a.jpg").shape == (3, 20, 10)


# hostile files


def truncated_jpeg(path: Path) -> None:
    held = io.BytesIO()
    picture(size=(64, 64)).save(held, "JPEG")
    path.write_bytes(held.getvalue()[: len(held.getvalue()) // 2])


def bomb_png(path: Path, side: int) -> None:
    """A few kilobytes that say they are hundreds of millions of pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 10_000_000)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def test_broken_images_are_named_and_left_out(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "pets")
    truncated_jpeg(root / "cat" / "half.jpg")
    (root / "dog" / "fake.png").write_text("I am not a picture")
    (root / "dog" / "empty.jpg").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"3 files of .* left out") as said:
        data = load_dataset(root)
    (warning,) = said
    assert all(name in str(warning.message) for name in ("half.jpg", "fake.png", "empty.jpg"))
    assert len(data["train"]) == 6
    assert len(data.notes) == 3
    with pytest.raises(BadImageError, match=r"half\.jpg is no whole image"):
        load_dataset(root, strict=True)


@pytest.mark.parametrize("side", [12_000, 20_000])
def test_a_decompression_bomb_is_refused(tmp_path: Path, side: int) -> None:
    root = folder_of_classes(tmp_path / "pets")
    bomb_png(root / "cat" / "bomb.png", side)
    with pytest.raises(DatasetError, match=r"bomb\.png.*decompression bomb"):
        load_dataset(root)


def test_a_link_out_of_the_folder_is_left_out(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "pets")
    outside = tmp_path / "secret.png"
    picture(99).save(outside)
    (root / "cat" / "link.png").symlink_to(outside)
    (root / "cat" / "inside.png").symlink_to(root / "cat" / "0.png")
    with pytest.warns(UserWarning, match="link out of the folder"):
        assert len(load_dataset(root)["train"]) == 7
    assert len(load_dataset(root, follow_links=True)["train"]) == 8
    with pytest.raises(DatasetError, match="link out of the folder"):
        load_dataset(root, strict=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_found_broken_later_is_replaced_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(files, "DECODED_WHEN_LOADED", 3)
    root = folder_of_classes(tmp_path / "pets")
    truncated_jpeg(root / "cat" / "9.jpg")
    images = load_dataset(root)["train"].images
    indices = [torch.tensor([2, 3]), torch.tensor([3, 5])]
    batches_of = ViewBatches(images, SimCLRPolicy(8), views=2, workers=workers)
    with pytest.warns(UserWarning, match=r"9\.jpg is no whole image.*takes its place \(1 so far\)"):
        found = list(batches_of(0, indices))
    assert [index.tolist() for _, index in found] == [[2, 4], [4, 5]]
    with pytest.raises(BadImageError, match=r"9\.jpg"):
        list(ViewBatches(ImageFiles(images.paths, strict=True), SimCLRPolicy(8), views=2)(0, indices))


def test_many_files_are_checked_by_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DECODED_WHEN_LOADED", 3)
    root = folder_of_classes(tmp_path / "pets")
    (root / "dog" / "fake.png").write_text("no")
    truncated_jpeg(root / "dog" / "half.jpg")
    with pytest.warns(UserWarning, match="1 file of"):
        images = load_dataset(root)["train"].images
    assert isinstance(images, ImageFiles)
    assert len(images) == 7
    with pytest.raises(BadImageError, match=r"half\.jpg"):
        list(images)


def test_a_class_may_be_called_train_below_train(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "traffic", ("train",))
    (root / "train" / "cat").rename(root / "train" / "train")
    assert load_dataset(root).classes == ("dog", "train")


@pytest.mark.parametrize("name", ["train", "Train", "training"])
def test_a_folder_beside_train_that_is_no_split_is_refused(tmp_path: Path, name: str) -> None:
    root = folder_of_classes(tmp_path / "pets", (name, "extra", "test"))
    with pytest.raises(
        DatasetError, match=rf"pets holds {name} and also extra, which is no split \(train, .* dev, test"
    ):
        load_dataset(root)


@pytest.mark.parametrize(
    ("name", "split"), [("val", "valid"), ("dev", "valid"), ("Validation", "valid"), ("testing", "test")]
)
def test_splits_have_the_same_names_everywhere(tmp_path: Path, name: str, split: str) -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "images.npz", images=images, **{f"{name}_images": images})
    np.savez(tmp_path / "bundle.npz", text=np.ones((2, 3)), **{f"{name}/text": np.ones((2, 3))})
    (tmp_path / "sims.pkl").write_bytes(pickle.dumps({part: {"text": np.ones((2, 3))} for part in ("train", name)}))
    folder_of_classes(tmp_path / "pets", ("train", name))
    for source in ("images.npz", "bundle.npz", "sims.pkl", "pets"):
        assert list(load_dataset(tmp_path / source).splits) == ["train", split]


def test_splits_that_two_folders_claim(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="are both for valid"):
        load_dataset(folder_of_classes(tmp_path / "pets", ("train", "val", "validation")))


def test_a_flat_test_split_has_no_labels(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "pets", ("train",))
    (root / "test").mkdir()
    picture(5).save(root / "test" / "a.png")
    data = load_dataset(root)
    assert data["train"].labels is not None
    assert data["test"].labels is None


def test_images_beside_class_folders_and_odd_names_are_told(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "pets")
    picture(7).save(root / "loose.PNG")
    (root / "cat" / ".cache").mkdir()
    picture(8).save(root / "cat" / ".cache" / "hidden.png")
    (root / "cat" / "folder.jpg").mkdir()
    (root / "cat" / "loop.png").symlink_to(root / "cat" / "loop.png")
    (root / "dog" / "gone.png").symlink_to(root / "dog" / "nowhere.png")
    with pytest.warns(UserWarning, match=r"3 files of") as said:
        data = load_dataset(root)
    text = str(said[0].message)
    assert "loose.PNG stands beside the class folders" in text
    assert "loop.png is a link that leads nowhere" in text
    assert "gone.png is a link that leads nowhere" in text
    assert len(data["train"]) == 6


def test_linked_class_folders_say_how_to_follow_them(tmp_path: Path) -> None:
    real = folder_of_classes(tmp_path / "all")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "cat").symlink_to(real / "cat", target_is_directory=True)
    links = tmp_path / "some" / "dog"
    links.mkdir()
    (links / "a.png").symlink_to(real / "dog" / "0.png")
    (tmp_path / "some" / "cat").unlink()
    with pytest.raises(DatasetError, match=r"the class dog has no image .*follow_links"):
        load_dataset(tmp_path / "some")
    assert len(load_dataset(tmp_path / "some", follow_links=True)["train"]) == 1


def test_malformed_exif_is_a_broken_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "hello"
    held = io.BytesIO()
    picture(size=(16, 16)).save(held, "JPEG", exif=exif)
    for place in range(20, 80):
        content = bytearray(held.getvalue())
        content[place] = 9
        (tmp_path / "a.jpg").write_bytes(bytes(content))
        with contextlib.suppress(BadImageError):  # nothing else may come out
            assert files.read_image(tmp_path / "a.jpg").shape[0] == 3


def test_a_name_is_never_the_folder_that_happens_to_lie_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of_classes(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"photos is the data set of that name: write \./photos for the folder here"):
        assert len(load_dataset("photos")["train"]) == 2500
    assert located(Config(data="photos")).data == "photos"
    assert evaluation_name("photos", "photos", EvaluationConfig()) == "evaluation-photos.json"
    with pytest.warns(UserWarning, match="write"):
        assert Pictures.of("photos").path is None
    assert load_dataset("./photos").classes == load_dataset(Path("photos")).classes == ("cat", "dog")
    assert located(Config(data="./photos")).data == str(tmp_path / "photos")
    assert Pictures.of("./photos").path == Path("photos")


def test_names_given_as_paths() -> None:
    assert load_dataset(Path("photos")).name == "photos"
    with pytest.raises(DatasetError, match="classes selects subfolders"):
        load_dataset("photos", classes="list.txt")


def test_classes_are_not_chosen_of_a_folder_that_holds_cifar(tmp_path: Path) -> None:
    write_cifar(tmp_path / cifar.LAYOUTS["cifar10"].folder, cifar.LAYOUTS["cifar10"])
    (tmp_path / "list.txt").write_text("c1")
    with pytest.raises(DatasetError, match="classes selects subfolders"):
        load_dataset(tmp_path, classes=tmp_path / "list.txt")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root.mkdir(), "holds no images"),
        (lambda root: (root / "cat").mkdir(parents=True), "the class cat has no image"),
        (lambda root: None, "no data set"),
        (lambda root: root.write_text("hello"), "expected a folder, a .npz"),
    ],
)
def test_folders_that_are_not(tmp_path: Path, make: object, message: str) -> None:
    root = tmp_path / "pets"
    make(root)  # type: ignore[operator]
    with pytest.raises(DatasetError, match=message):
        load_dataset(root)


def test_a_class_whose_only_image_is_broken(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "pets")
    (root / "emu").mkdir()
    truncated_jpeg(root / "emu" / "a.jpg")
    with pytest.raises(DatasetError, match="the class emu has no whole image"):
        load_dataset(root)


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(DatasetError, match="no data set 'cifar': did you mean cifar10"):
        load_dataset("cifar")


@pytest.mark.parametrize("recipe", [name for name, config in RECIPES.items() if config.data not in load.NAMED])
def test_data_that_cannot_be_downloaded_needs_a_path(recipe: str) -> None:
    for name in (recipe, RECIPES[recipe].data):
        with pytest.raises(DatasetError, match=rf"{name} cannot be downloaded .* give its path \(--data PATH\)"):
            load_dataset(name)


# pickles


class Command:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_a_command_is_refused(tmp_path: Path, protocol: int) -> None:
    ran = tmp_path / "ran"
    hostile = pickle.dumps({b"data": Command(ran)}, protocol=protocol)
    with pytest.raises(DatasetError, match=r"it asks for .*system\. Nothing of it was run"):
        load_numpy_pickle(io.BytesIO(hostile), "evil", 1000)
    assert not ran.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", b"cbuiltins\neval\n(S'1'\ntR.", b"c_codecs\nencode\n(Vx\nVzip\ntR."]
)
def test_broken_and_tricky_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(DatasetError, match="evil"):
        load_numpy_pickle(io.BytesIO(content), "evil", 1000)


@pytest.mark.parametrize(
    "name", ["_codecs encode", "numpy dtype", "numpy.core.multiarray scalar", "numpy.core.multiarray _reconstruct"]
)
@pytest.mark.parametrize("attribute", ["__defaults__", "_made", "value"])
def test_a_pickle_cannot_change_what_reads_it(name: str, attribute: str) -> None:
    module, called = name.split()
    state = f"(N}}V{attribute}\n(Vlatin1\ntst"  # (None, {attribute: ("latin1",)}), set by `b`
    with pytest.raises(DatasetError, match="evil"):
        load_numpy_pickle(io.BytesIO(f"c{module}\n{called}\n{state}b.".encode()), "evil", 1000)
    assert pickles._encoded.__defaults__ is None
    assert pickles._Array.value is None
    assert load_numpy_pickle(io.BytesIO(b"c_codecs\nencode\n(Va\nVlatin1\ntR."), "good", 1000) == b"a"


class Forged:
    """Pickles as a call of its first part, and then a state if there is one."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple:
        return self.parts


def forged_dtype() -> Forged:
    """A field of pointers that says it has none."""
    return Forged(np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0))


RECONSTRUCT = np.zeros(1).__reduce__()[0]
POINTER = struct.pack("<Q", 0x4141414141414141)


@pytest.mark.parametrize(
    "held",
    [
        Forged(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), forged_dtype(), False, POINTER)),
        Forged(np.float64(1).__reduce__()[0], (forged_dtype(), POINTER)),
        Forged(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), np.dtype("O"), False, POINTER)),
        Forged(RECONSTRUCT, (np.ndarray, (300_000, 3072), b"B")),
        np.array([object], dtype=object),
        np.zeros(2, dtype=[("a", "i4")]),
    ],
)
def test_forged_arrays_are_refused_not_followed(held: object) -> None:
    hostile = pickle.dumps({b"data": [held, held]}, protocol=2)
    with pytest.raises(DatasetError, match="evil is not a pickle of numpy arrays"):
        load_numpy_pickle(io.BytesIO(hostile), "evil", 1000)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_arrays_are_read(protocol: int) -> None:
    held = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2], b"x": np.float64(2.5), b"n": b"ab"}
    read = load_numpy_pickle(io.BytesIO(pickle.dumps(held, protocol=protocol)), "good", 1000)
    assert read[b"labels"] == [1, 2]
    assert np.array_equal(read[b"data"], held[b"data"])
    assert read[b"x"] == 2.5
    more = [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">i2"),
        np.array(["ab", "c"]),
        np.ones(2) > 0,
    ]
    for array, again in zip(
        more, load_numpy_pickle(io.BytesIO(pickle.dumps(more, protocol=protocol)), "good", 1000), strict=True
    ):
        assert np.array_equal(array, again)
        assert array.dtype == again.dtype
    assert read[b"n"] == b"ab"


# CIFAR


def write_cifar(folder: Path, layout: cifar.Layout, each: int = 4) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name in (*layout.train, layout.test):
        data = random.integers(0, 256, (each, 3072), dtype=np.uint8)
        batch = {b"data": data, layout.label: list(range(each))}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / layout.meta).write_bytes(pickle.dumps({layout.names: [f"c{k}".encode() for k in range(10)]}, protocol=2))


def archive_of(folder: Path, layout: cifar.Layout) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        tar.add(folder, layout.folder)
    return held.getvalue()


@pytest.fixture(params=["cifar10", "cifar100"])
def layout(request: pytest.FixtureRequest) -> cifar.Layout:
    return cifar.LAYOUTS[request.param]


def test_cifar_from_its_folder_and_its_archive(
    tmp_path: Path, layout: cifar.Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path / layout.folder, layout)
    held = archive_of(tmp_path / layout.folder, layout)
    known = known_as(layout, held)
    monkeypatch.setitem(cifar.LAYOUTS, layout.name, known)
    (tmp_path / "b").mkdir()
    archive = tmp_path / "b" / layout.archive
    archive.write_bytes(held)
    monkeypatch.setenv("MANYVIEWS_DATA", str(tmp_path))
    loaded = [load_dataset(p) for p in (tmp_path / layout.folder, tmp_path, archive, layout.name)]
    for data in loaded:
        assert data.name == layout.name
        assert len(data["train"]) == 4 * len(layout.train)
        assert data.classes[3] == "c3"
        assert torch.equal(data["train"].images, loaded[0]["train"].images)
        assert data["test"].labels.tolist() == [0, 1, 2, 3]
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [layout.archive]


def known_as(layout: cifar.Layout, content: bytes) -> cifar.Layout:
    parts = {**vars(layout), "md5": hashlib.md5(content).hexdigest()}
    return cifar.Layout(**parts)


def test_a_wrong_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(b"not it")
    with pytest.raises(DatasetError, match=r"has the MD5 checksum .* expected c58f30108f718f92721af3b95e74349a"):
        load_dataset(archive)


def test_an_incomplete_or_hostile_folder_is_refused(tmp_path: Path) -> None:
    layout = cifar.LAYOUTS["cifar10"]
    folder = tmp_path / layout.folder
    write_cifar(folder, layout)
    (folder / "data_batch_3").unlink()
    with pytest.raises(DatasetError, match="holds no data_batch_3"):
        load_dataset(tmp_path)
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": Command(tmp_path / "ran"), b"labels": []}))
    with pytest.raises(DatasetError, match="data_batch_3 is not a pickle of numpy arrays"):
        load_dataset(tmp_path)
    assert not (tmp_path / "ran").exists()
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": np.zeros((2, 10), np.uint8), b"labels": [1, 2]}))
    with pytest.raises(DatasetError, match="expected uint8 data"):
        load_dataset(tmp_path)


# downloads, from a server on this machine


class Server(BaseHTTPRequestHandler):
    asked: ClassVar[list[int]] = []

    def __init__(self, content: bytes, cut: list[int], pause: float, *args: object) -> None:
        self.content, self.cut, self.pause = content, cut, pause
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        self.asked.append(start)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        end = self.cut.pop() if self.cut else len(self.content)
        self.wfile.write(self.content[start : start + 1000])
        time.sleep(self.pause)
        self.wfile.write(self.content[start + 1000 : end])

    def log_message(self, *args: object) -> None:
        pass


Serve = Callable[..., str]
"""From a content, and where to cut it off, to its address."""


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(content: bytes, *cut: int, pause: float = 0.0) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, content, list(cut), pause))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/file"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_download_is_resumed_and_checked(tmp_path: Path, serve: Serve) -> None:
    content = os.urandom(3_000_000)
    md5 = hashlib.md5(content).hexdigest()
    address = serve(content, 1_200_000)
    file = tmp_path / "sub" / "file"
    Server.asked.clear()
    with pytest.raises(DatasetError, match=r"broke off at 1,200,000 of 3,000,000 bytes: try again"):
        download.download(address, file, md5)
    assert not file.exists()
    download.download(address, file, md5)
    assert Server.asked == [0, 1_200_000]
    assert file.read_bytes() == content
    assert [p.name for p in file.parent.iterdir()] == ["file"]


FETCH = """
import sys
from pathlib import Path
from manyviews.data.download import download
download(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
"""


def test_of_two_processes_one_downloads(tmp_path: Path, serve: Serve) -> None:
    content = os.urandom(3_000_000)
    address, file = serve(content, pause=2.0), tmp_path / "file"
    Server.asked.clear()
    words = [sys.executable, "-c", FETCH, address, file, hashlib.md5(content).hexdigest()]
    both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert Server.asked == [0]
    assert file.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_download_with_a_wrong_checksum_leaves_nothing(tmp_path: Path, serve: Serve) -> None:
    address = serve(b"something else")
    with pytest.raises(DatasetError, match="has the MD5 checksum"):
        download.download(address, tmp_path / "file", "0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_offline_says_what_to_fetch_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot download http://127\.0\.0\.1:9/x .* put it at .*file"):
        download.download("http://127.0.0.1:9/x", tmp_path / "file", "0" * 32)
    assert list(tmp_path.iterdir()) == []


# arrays


def test_arrays(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", images)
    split = load_dataset(tmp_path / "a.npy")["train"]
    assert torch.equal(split.images, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert split.labels is None
    np.savez(
        tmp_path / "b.npz",
        x_train=images,
        y_train=np.arange(5),
        test_images=images[..., 0],
        test_labels=[1, 0, 1, 0, 1],
    )
    data = load_dataset(tmp_path / "b.npz")
    assert data["train"].labels.tolist() == list(range(5))
    assert data["test"].images.shape == (5, 1, 6, 7)
    assert data.classes == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (
            {"images": np.array([np.zeros((2, 2, 3), np.uint8), np.zeros((3, 3, 3), np.uint8)], dtype=object)},
            "different sizes",
        ),
        ({"images": np.zeros((2, 4, 4, 3))}, "must be uint8 from 0 to 255, got float64"),
        ({"images": np.zeros((2, 4, 4, 5), np.uint8)}, "must be .n, height, width, 3."),
        ({"images": np.zeros((0, 4, 4, 3), np.uint8)}, "must be"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.arange(3)}, "same instances"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(2)}, "labels must be integers"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.array([0, 2**63 + 5], np.uint64)}, "from 0"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "train_images": np.zeros((2, 4, 4, 3), np.uint8)}, "twice"),
        ({"labels": np.arange(3)}, "no images to train on"),
    ],
)
def test_arrays_that_are_not_images(tmp_path: Path, held: dict, message: str) -> None:
    np.savez(tmp_path / "a.npz", **held)
    with pytest.raises(DatasetError, match=message):
        load_dataset(tmp_path / "a.npz")


def test_an_array_file_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((10, 256, 256, 3), np.uint8))
    monkeypatch.setattr(budget, "MIN_BUDGET_BYTES", 10_000)
    with pytest.raises(DatasetError, match="would take more than"):
        load_dataset(tmp_path / "a.npz")


def test_broken_array_files(tmp_path: Path) -> None:
    for name in ("a.npz", "a.npy"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
        with pytest.raises(DatasetError, match="no whole"):
            load_dataset(tmp_path / name)


# splits, and views of images on disk


def test_a_split_needs_as_many_of_everything() -> None:
    with pytest.raises(DatasetError, match="same instances"):
        Split({"text": torch.zeros(3, 2), "audio": torch.zeros(4, 2)})
    with pytest.raises(DatasetError, match="no images, only text"):
        _ = Split({"text": torch.zeros(3, 2)}).images
    with pytest.raises(DatasetError, match="no split 'valid', only train, test"):
        load_dataset("photos")["valid"]


@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_images_on_disk_do_not_depend_on_workers(tmp_path: Path, workers: int) -> None:
    images = load_dataset(folder_of_classes(tmp_path / "pets", sizes=True))["train"].images
    assert isinstance(images, ImageFiles)
    policy = SimCLRPolicy(8, strength=1.0)
    indices = batches(len(images), 2, seed=0, epoch=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        found = list(ViewBatches(images, policy, views=3, seed=4, workers=workers)(1, indices))
    assert len(found) == 3
    for views, index in found:
        expected = policy([images[int(i)] for i in index], views=3, seed=4, epoch=1, index=index)
        assert torch.equal(views, expected)


def test_multi_crop_of_images_on_disk_and_in_memory(tmp_path: Path) -> None:
    crops = MultiCrop([(SimCLRPolicy(8), 2), (SimCLRPolicy(4, scale=(0.05, 0.4)), 3)])
    on_disk = load_dataset(folder_of_classes(tmp_path / "pets", sizes=True))["train"].images
    (groups, index), *_ = ViewBatches(on_disk, crops, seed=4)(1, batches(len(on_disk), 2, seed=0, epoch=1))
    expected = crops([on_disk[int(i)] for i in index], seed=4, epoch=1, index=index)
    assert [tuple(group.shape) for group in groups] == [(2, 2, 3, 8, 8), (2, 3, 3, 4, 4)]
    assert all(torch.equal(a, b) for a, b in zip(groups, expected, strict=True))
    in_memory = load_dataset("photos")["test"].images
    (groups, index), *_ = ViewBatches(in_memory, crops)(0, batches(len(in_memory), 4, seed=0, epoch=0))
    assert torch.equal(groups[1], crops(in_memory[index], seed=0, epoch=0, index=index)[1])
    with pytest.raises(ValueError, match="a MultiCrop has its own"):
        ViewBatches(in_memory, crops, views=4)


def test_views_of_images_in_memory() -> None:
    images = load_dataset("photos")["train"].images
    policy = SimCLRPolicy(32)
    (views, index), *_ = ViewBatches(images, policy, views=2)(0, batches(len(images), 64, 0, 0))
    assert torch.equal(views, policy(images[index], views=2, seed=0, epoch=0, index=index))


@pytest.mark.skipif(not REAL_CIFAR.exists(), reason="MANYVIEWS_TEST_CIFAR names no folder with the real CIFAR-10")
def test_real_cifar_and_the_photos_drawn_from_it() -> None:
    real, photos = load_dataset(REAL_CIFAR), load_dataset("photos")
    assert len(real["train"]) == 50_000
    assert real.classes == photos.classes
    for split, each in (("train", 250), ("test", 100)):
        images, labels = real[split].images, real[split].labels
        first = torch.cat([(labels == label).nonzero()[:each, 0] for label in range(10)])
        assert torch.equal(photos[split].images, images[first])
