"""Every kind of dataset: valid, corrupt and hostile."""

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
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from manyviews.data import (
    CorruptImageError,
    Dataset,
    DatasetError,
    LazyImages,
    cifar,
    load_dataset,
    read_image,
    safe_pickle,
)
from manyviews.data.download import download
from manyviews.data.load import BUILTIN_DATASETS
from manyviews.data.safe_pickle import load_numpy_pickle
from manyviews.evaluation import EvaluationConfig, get_evaluation_filename
from manyviews.export import Collection
from manyviews.training import RECIPES, Config, with_absolute_paths
from manyviews.utils import untrusted

REAL_CIFAR = Path(os.environ.get("MANYVIEWS_TEST_CIFAR", "nowhere"))


def make_image(seed: int = 0, size: tuple[int, int] = (12, 8), mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).convert(mode)


def make_class_folders(root: Path, splits: tuple[str, ...] = ("",), sizes: bool = False) -> Path:
    for split in splits:
        for label, name in enumerate(("cat", "dog")):
            (root / split / name).mkdir(parents=True)
            for i in range(3):
                size = (12 + i * sizes, 8)
                make_image(label * 10 + i, size).save(root / split / name / f"{i}.png")
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
    shapes = {name: tuple(column.values.shape[1:]) for name, column in digits["train"].modalities.items()}
    assert shapes == {"image": (1, 8, 8), "pixels": (64,), "fourier": (40,), "profiles": (16,), "gradients": (32,)}
    train, test = digits["train"], digits["test"]
    for name in ("pixels", "fourier", "profiles", "gradients"):
        # Each view predicts the digit: 1-nearest-neighbor classification by that view alone.
        x, y = train[name].values, test[name].values
        scale = x.std(0) + 1e-6
        nearest = torch.cdist(y / scale, x / scale).argmin(1)
        assert (train.labels[nearest] == test.labels).float().mean() > 0.7, name


# folders


def test_class_folders_become_labels(tmp_path: Path) -> None:
    data = load_dataset(make_class_folders(tmp_path / "pets"))
    assert data.class_names == ("cat", "dog")
    assert data["train"].images.shape == (6, 3, 8, 12)
    assert data["train"].labels.tolist() == [0, 0, 0, 1, 1, 1]
    expected = torch.from_numpy(np.array(make_image(11))).permute(2, 0, 1)
    assert torch.equal(data["train"].images[4], expected)


def test_split_folders_and_a_class_list(tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "pets", ("train", "val"))
    assert set(load_dataset(root).splits) == {"train", "valid"}
    chosen = tmp_path / "classes.txt"
    chosen.write_text("# mine\ndog  domestic\n\n")
    data = load_dataset(root, class_list=chosen)
    assert data.class_names == ("dog",)
    assert len(data["train"]) == 3
    chosen.write_text("dog\nwolf\n")
    with pytest.raises(DatasetError, match="no folder for 1 listed classes, such as wolf"):
        load_dataset(root, class_list=chosen)
    chosen.write_text("\ufeffcat\n", encoding="utf-8")
    assert load_dataset(root, class_list=chosen).class_names == ("cat",)
    chosen.write_text("dog\ndog\n")
    with pytest.raises(DatasetError, match="has dog twice"):
        load_dataset(root, class_list=chosen)
    chosen.write_text("")
    with pytest.raises(DatasetError, match=r"the class list .*classes\.txt is empty"):
        load_dataset(root, class_list=chosen)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for i in range(3):
        make_image(i, (10 + i, 8)).save(tmp_path / f"{i}.jpg")
    split = load_dataset(tmp_path)["train"]
    assert split.labels is None
    assert isinstance(split.images, LazyImages)
    assert [tuple(image.shape) for image in split.images] == [(3, 8, 10), (3, 8, 11), (3, 8, 12)]


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "gif", "tif"])
def test_every_format_is_decoded(tmp_path: Path, suffix: str) -> None:
    make_image().save(tmp_path / f"a.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
    image = read_image(tmp_path / f"a.{suffix}")
    assert image.shape == (3, 8, 12)
    if suffix not in ("jpg", "gif"):
        assert torch.equal(image, torch.from_numpy(np.array(make_image())).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1", "I;16"])
def test_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    if mode == "I;16":
        gray = Image.fromarray(np.full((8, 12), 32896, dtype=np.uint16))
    else:
        gray = Image.new("RGB", (12, 8), (128, 128, 128))
        gray = gray.quantize(4) if mode == "P" else gray.convert(mode)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    gray.save(path)
    image = read_image(path).float()
    assert image.shape == (3, 8, 12)
    assert mode == "1" or (image - 128).abs().max() <= 2


def test_transparency_is_over_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    clear.putpixel((0, 0), (10, 20, 30, 255))
    clear.save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png")
    assert image[:, 0, 0].tolist() == [10, 20, 30]
    assert image[:, 3, 3].tolist() == [255, 255, 255]


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    make_image(size=(20, 10)).save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").shape == (3, 20, 10)


# hostile files


def write_truncated_jpeg(path: Path, size: tuple[int, int] = (64, 64)) -> None:
    """Write an image that ends in the middle of its pixels; the header is intact."""
    out = io.BytesIO()
    make_image(size=size).save(out, "JPEG")
    pixels = out.getvalue().index(b"\xff\xda")
    path.write_bytes(out.getvalue()[: (pixels + len(out.getvalue())) // 2])


def write_bomb_png(path: Path, side: int) -> None:
    """A file of a few kilobytes whose header claims hundreds of millions of pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 10_000_000)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def test_corrupt_images_are_skipped_with_a_warning(tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "pets")
    write_truncated_jpeg(root / "cat" / "half.jpg", (12, 8))
    (root / "dog" / "fake.png").write_text("I am not a picture")
    (root / "dog" / "empty.jpg").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"skipped 3 files of ") as caught:
        data = load_dataset(root)
    (warning,) = caught
    assert all(name in str(warning.message) for name in ("half", "fake.png", "empty.jpg"))
    assert len(data["train"]) == 6
    assert len(data.warnings) == 3
    with pytest.raises(CorruptImageError, match=r"empty\.jpg cannot be decoded"):
        load_dataset(root, raise_on_corrupt=True)  # headers first
    for name in ("fake.png", "empty.jpg"):
        (root / "dog" / name).unlink()
    with pytest.raises(CorruptImageError, match=r"half\.jpg cannot be decoded"):
        load_dataset(root, raise_on_corrupt=True)


@pytest.mark.parametrize("side", [12_000, 20_000])
def test_a_decompression_bomb_is_refused(tmp_path: Path, side: int) -> None:
    root = make_class_folders(tmp_path / "pets")
    write_bomb_png(root / "cat" / "bomb.png", side)
    with pytest.raises(DatasetError, match=r"bomb\.png.*decompression bomb"):
        load_dataset(root)


def test_a_link_out_of_the_folder_is_skipped(tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "pets")
    outside = tmp_path / "secret.png"
    make_image(99).save(outside)
    (root / "cat" / "link.png").symlink_to(outside)
    (root / "cat" / "inside.png").symlink_to(root / "cat" / "0.png")
    with pytest.warns(UserWarning, match="link out of the folder"):
        assert len(load_dataset(root)["train"]) == 7
    assert len(load_dataset(root, follow_symlinks=True)["train"]) == 8
    with pytest.raises(DatasetError, match="link out of the folder"):
        load_dataset(root, raise_on_corrupt=True)


def test_only_headers_of_images_of_different_sizes_are_checked(tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "pets")
    (root / "dog" / "fake.png").write_text("no")
    write_truncated_jpeg(root / "dog" / "half.jpg")
    with pytest.warns(UserWarning, match="1 file of"):
        images = load_dataset(root)["train"].images
    assert isinstance(images, LazyImages)
    assert len(images) == 7
    with pytest.raises(CorruptImageError, match=r"half\.jpg"):
        list(images)


def test_a_class_in_the_train_folder_may_be_named_train(tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "traffic", ("train",))
    (root / "train" / "cat").rename(root / "train" / "train")
    assert load_dataset(root).class_names == ("dog", "train")


@pytest.mark.parametrize("name", ["train", "Train", "training"])
def test_a_folder_next_to_train_must_be_a_split(tmp_path: Path, name: str) -> None:
    root = make_class_folders(tmp_path / "pets", (name, "extra", "test"))
    with pytest.raises(
        DatasetError, match=rf"pets has {name} and also extra, which is not a split \(train, .* dev, test"
    ):
        load_dataset(root)


@pytest.mark.parametrize(
    ("name", "split"), [("val", "valid"), ("dev", "valid"), ("Validation", "valid"), ("testing", "test")]
)
def test_split_names_are_the_same_for_all_formats(tmp_path: Path, name: str, split: str) -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "images.npz", images=images, **{f"{name}_images": images})
    np.savez(tmp_path / "multimodal.npz", text=np.ones((2, 3)), **{f"{name}/text": np.ones((2, 3))})
    (tmp_path / "sims.pkl").write_bytes(pickle.dumps({part: {"text": np.ones((2, 3))} for part in ("train", name)}))
    make_class_folders(tmp_path / "pets", ("train", name))
    for source in ("images.npz", "multimodal.npz", "sims.pkl", "pets"):
        assert list(load_dataset(tmp_path / source).splits) == ["train", split]


def test_two_folders_of_one_split_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="are both the valid split"):
        load_dataset(make_class_folders(tmp_path / "pets", ("train", "val", "validation")))


def test_a_flat_test_split_has_no_labels(tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "pets", ("train",))
    (root / "test").mkdir()
    make_image(5).save(root / "test" / "a.png")
    data = load_dataset(root)
    assert data["train"].labels is not None
    assert data["test"].labels is None


def test_images_outside_class_folders_and_broken_links_are_skipped(tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "pets")
    make_image(7).save(root / "stray.PNG")
    (root / "cat" / ".cache").mkdir()
    make_image(8).save(root / "cat" / ".cache" / "hidden.png")
    (root / "cat" / "folder.jpg").mkdir()
    (root / "cat" / "loop.png").symlink_to(root / "cat" / "loop.png")
    (root / "dog" / "gone.png").symlink_to(root / "dog" / "nowhere.png")
    with pytest.warns(UserWarning, match=r"3 files of") as caught:
        data = load_dataset(root)
    message = str(caught[0].message)
    assert "stray.PNG is not in a class folder" in message
    assert "loop.png is a broken link" in message
    assert "gone.png is a broken link" in message
    assert len(data["train"]) == 6


def test_the_error_for_linked_images_has_the_option_to_follow_them(tmp_path: Path) -> None:
    real = make_class_folders(tmp_path / "all")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "cat").symlink_to(real / "cat", target_is_directory=True)
    links = tmp_path / "some" / "dog"
    links.mkdir()
    (links / "a.png").symlink_to(real / "dog" / "0.png")
    (tmp_path / "some" / "cat").unlink()
    with pytest.raises(DatasetError, match=r"the class dog has no image .*follow_symlinks"):
        load_dataset(tmp_path / "some")
    assert len(load_dataset(tmp_path / "some", follow_symlinks=True)["train"]) == 1


def test_malformed_exif_is_a_corrupt_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "hello"
    out = io.BytesIO()
    make_image(size=(16, 16)).save(out, "JPEG", exif=exif)
    for offset in range(20, 80):
        content = bytearray(out.getvalue())
        content[offset] = 9
        (tmp_path / "a.jpg").write_bytes(bytes(content))
        with contextlib.suppress(CorruptImageError):  # any other error fails
            assert read_image(tmp_path / "a.jpg").shape[0] == 3


def test_a_builtin_name_is_never_a_folder_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_class_folders(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"photos is the built-in dataset: use \./photos for the folder"):
        assert len(load_dataset("photos")["train"]) == 2500
    assert with_absolute_paths(Config(data="photos")).data == "photos"
    assert get_evaluation_filename("photos", "photos", EvaluationConfig()) == "evaluation-photos.json"
    with pytest.warns(UserWarning, match="use"):
        assert Collection.open("photos").path is None
    assert load_dataset("./photos").class_names == load_dataset(Path("photos")).class_names == ("cat", "dog")
    assert with_absolute_paths(Config(data="./photos")).data == str(tmp_path / "photos")
    assert Collection.open("./photos").path == Path("photos")


def test_a_builtin_name_may_be_a_path_object() -> None:
    assert load_dataset(Path("photos")).name == "photos"
    with pytest.raises(DatasetError, match="a class list selects subfolders"):
        load_dataset("photos", class_list="list.txt")


def test_a_class_list_for_a_cifar_folder_is_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path / cifar.CIFAR_SPECS["cifar10"].folder, cifar.CIFAR_SPECS["cifar10"])
    (tmp_path / "list.txt").write_text("c1")
    with pytest.raises(DatasetError, match="a class list selects subfolders"):
        load_dataset(tmp_path, class_list=tmp_path / "list.txt")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root.mkdir(), "has no images"),
        (lambda root: (root / "cat").mkdir(parents=True), "the class cat has no image"),
        (lambda root: None, "no dataset or path"),
        (lambda root: root.write_text("hello"), "expected a folder, a table"),
    ],
)
def test_invalid_sources_are_refused(tmp_path: Path, make: object, message: str) -> None:
    root = tmp_path / "pets"
    make(root)  # type: ignore[operator]
    with pytest.raises(DatasetError, match=message):
        load_dataset(root)


def test_a_class_without_a_readable_image_is_refused(tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "pets")
    (root / "emu").mkdir()
    write_truncated_jpeg(root / "emu" / "a.jpg", (12, 8))
    with pytest.raises(DatasetError, match="the class emu has no readable image"):
        load_dataset(root)


def test_the_error_for_an_unknown_name_has_a_suggestion() -> None:
    with pytest.raises(DatasetError, match="no dataset or path 'cifar': did you mean cifar10 or cifar100"):
        load_dataset("cifar")


@pytest.mark.parametrize("recipe", [name for name, config in RECIPES.items() if config.data not in BUILTIN_DATASETS])
def test_datasets_without_a_download_need_a_path(recipe: str) -> None:
    for name in (recipe, RECIPES[recipe].data):
        with pytest.raises(DatasetError, match=rf"{name} cannot be downloaded .* pass its path \(--data PATH\)"):
            load_dataset(name)


# pickles


class Command:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_with_a_command_is_refused(tmp_path: Path, protocol: int) -> None:
    ran = tmp_path / "ran"
    hostile = pickle.dumps({b"data": Command(ran)}, protocol=protocol)
    with pytest.raises(DatasetError, match=r"nothing in it was executed\): it calls .*system"):
        load_numpy_pickle(io.BytesIO(hostile), "evil", 1000)
    assert not ran.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", b"cbuiltins\neval\n(S'1'\ntR.", b"c_codecs\nencode\n(Vx\nVzip\ntR."]
)
def test_corrupt_and_hostile_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(DatasetError, match="evil"):
        load_numpy_pickle(io.BytesIO(content), "evil", 1000)


@pytest.mark.parametrize(
    "name", ["_codecs encode", "numpy dtype", "numpy.core.multiarray scalar", "numpy.core.multiarray _reconstruct"]
)
@pytest.mark.parametrize("attribute", ["__defaults__", "_function", "value"])
def test_a_pickle_cannot_change_its_reader(name: str, attribute: str) -> None:
    module, called = name.split()
    state = f"(N}}V{attribute}\n(Vlatin1\ntst"  # (None, {attribute: ("latin1",)}), set by `b`
    with pytest.raises(DatasetError, match="evil"):
        load_numpy_pickle(io.BytesIO(f"c{module}\n{called}\n{state}b.".encode()), "evil", 1000)
    assert safe_pickle._encode_text.__defaults__ is None
    assert safe_pickle._Array.value is None
    assert load_numpy_pickle(io.BytesIO(b"c_codecs\nencode\n(Va\nVlatin1\ntR."), "good", 1000) == b"a"


class Forged:
    """Pickles as the given parts of `__reduce__`: function, arguments, optional state."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple:
        return self.parts


def make_forged_dtype() -> Forged:
    """A dtype with a field of pointers and flags that deny it."""
    return Forged(np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0))


RECONSTRUCT = np.zeros(1).__reduce__()[0]
POINTER = struct.pack("<Q", 0x4141414141414141)


@pytest.mark.parametrize(
    "content",
    [
        Forged(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), make_forged_dtype(), False, POINTER)),
        Forged(np.float64(1).__reduce__()[0], (make_forged_dtype(), POINTER)),
        Forged(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), np.dtype("O"), False, POINTER)),
        Forged(RECONSTRUCT, (np.ndarray, (300_000, 3072), b"B")),
        np.array([object], dtype=object),
        np.zeros(2, dtype=[("a", "i4")]),
    ],
)
def test_forged_arrays_are_refused(content: object) -> None:
    hostile = pickle.dumps({b"data": [content, content]}, protocol=2)
    with pytest.raises(DatasetError, match="evil is not a pickle of numpy arrays"):
        load_numpy_pickle(io.BytesIO(hostile), "evil", 1000)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_arrays_are_loaded(protocol: int) -> None:
    content = {
        b"data": np.arange(6, dtype=np.uint8).reshape(2, 3),
        b"labels": [1, 2],
        b"x": np.float64(2.5),
        b"n": b"ab",
    }
    read = load_numpy_pickle(io.BytesIO(pickle.dumps(content, protocol=protocol)), "good", 1000)
    assert read[b"labels"] == [1, 2]
    assert np.array_equal(read[b"data"], content[b"data"])
    assert read[b"x"] == 2.5
    arrays = [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">i2"),
        np.array(["ab", "c"]),
        np.ones(2) > 0,
    ]
    loaded = load_numpy_pickle(io.BytesIO(pickle.dumps(arrays, protocol=protocol)), "good", 1000)
    for array, expected in zip(loaded, arrays, strict=True):
        assert np.array_equal(array, expected)
        assert array.dtype == expected.dtype
    assert read[b"n"] == b"ab"


# CIFAR


def write_cifar(folder: Path, spec: cifar.CifarSpec, each: int = 4) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*spec.train, spec.test):
        data = rng.integers(0, 256, (each, 3072), dtype=np.uint8)
        batch = {b"data": data, spec.label: list(range(each))}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / spec.meta).write_bytes(pickle.dumps({spec.names: [f"c{k}".encode() for k in range(10)]}, protocol=2))


def make_archive(folder: Path, spec: cifar.CifarSpec) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(folder, spec.folder)
    return out.getvalue()


@pytest.fixture(params=["cifar10", "cifar100"])
def spec(request: pytest.FixtureRequest) -> cifar.CifarSpec:
    return cifar.CIFAR_SPECS[request.param]


def test_cifar_is_loaded_from_a_folder_or_an_archive(
    tmp_path: Path, spec: cifar.CifarSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path / spec.folder, spec)
    content = make_archive(tmp_path / spec.folder, spec)
    md5 = hashlib.md5(content).hexdigest()
    monkeypatch.setitem(cifar.CIFAR_SPECS, spec.name, replace(spec, md5=md5))
    (tmp_path / "b").mkdir()
    archive = tmp_path / "b" / spec.archive
    archive.write_bytes(content)
    monkeypatch.setenv("MANYVIEWS_DATA", str(tmp_path))
    loaded = [load_dataset(p) for p in (tmp_path / spec.folder, tmp_path, archive, spec.name)]
    for data in loaded:
        assert data.name == spec.name
        assert len(data["train"]) == 4 * len(spec.train)
        assert data.class_names[3] == "c3"
        assert torch.equal(data["train"].images, loaded[0]["train"].images)
        assert data["test"].labels.tolist() == [0, 1, 2, 3]
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [spec.archive]


def test_an_archive_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(b"not it")
    with pytest.raises(DatasetError, match=r"has the MD5 checksum .* expected c58f30108f718f92721af3b95e74349a"):
        load_dataset(archive)


def test_an_incomplete_or_hostile_cifar_folder_is_refused(tmp_path: Path) -> None:
    spec = cifar.CIFAR_SPECS["cifar10"]
    folder = tmp_path / spec.folder
    write_cifar(folder, spec)
    (folder / "data_batch_3").unlink()
    with pytest.raises(DatasetError, match="has no data_batch_3"):
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
    starts: ClassVar[list[int]] = []

    def __init__(self, content: bytes, cut: list[int], pause: float, *args: object) -> None:
        self.content, self.cut, self.pause = content, cut, pause
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        requested = self.headers.get("Range")
        start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested else 0
        self.starts.append(start)
        self.send_response(206 if requested else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        end = self.cut.pop() if self.cut else len(self.content)
        self.wfile.write(self.content[start : start + 1000])
        time.sleep(self.pause)
        self.wfile.write(self.content[start + 1000 : end])

    def log_message(self, *args: object) -> None:
        pass


Serve = Callable[..., str]
"""Maps content, and offsets at which responses are cut, to a URL."""


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
    url = serve(content, 1_200_000)
    file = tmp_path / "sub" / "file"
    Server.starts.clear()
    with pytest.raises(DatasetError, match=r"stopped at 1,200,000 of 3,000,000 bytes: run it again"):
        download(url, file, md5)
    assert not file.exists()
    download(url, file, md5)
    assert Server.starts == [0, 1_200_000]
    assert file.read_bytes() == content
    assert [p.name for p in file.parent.iterdir()] == ["file"]


FETCH = """
import sys
from pathlib import Path
from manyviews.data.download import download
download(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
"""


@pytest.mark.slow
def test_only_one_of_two_processes_downloads(tmp_path: Path, serve: Serve) -> None:
    content = os.urandom(3_000_000)
    url, file = serve(content, pause=2.0), tmp_path / "file"
    Server.starts.clear()
    command = [sys.executable, "-c", FETCH, url, file, hashlib.md5(content).hexdigest()]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert Server.starts == [0]
    assert file.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_download_with_a_wrong_checksum_is_deleted(tmp_path: Path, serve: Serve) -> None:
    url = serve(b"something else")
    with pytest.raises(DatasetError, match="has the MD5 checksum"):
        download(url, tmp_path / "file", "0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_a_failed_download_has_url_and_path(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot download http://127\.0\.0\.1:9/x .* put it at .*file"):
        download("http://127.0.0.1:9/x", tmp_path / "file", "0" * 32)
    assert list(tmp_path.iterdir()) == []


# arrays


def test_arrays_of_images(tmp_path: Path) -> None:
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
    assert data.class_names == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"images": np.array([np.zeros((2, 2, 3), np.uint8), np.zeros((3, 3, 3), np.uint8)], dtype=object)},
            "different sizes",
        ),
        ({"images": np.zeros((2, 4, 4, 3))}, "must be uint8 from 0 to 255, got float64"),
        ({"images": np.zeros((2, 4, 4, 5), np.uint8)}, "must be .n, height, width, 3."),
        ({"images": np.zeros((0, 4, 4, 3), np.uint8)}, "must be"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.arange(3)}, "same number of instances"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(2)}, "labels must be integers"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.array([0, 2**63 + 5], np.uint64)}, "from 0"),
        (
            {"images": np.zeros((2, 4, 4, 3), np.uint8), "train_images": np.zeros((2, 4, 4, 3), np.uint8)},
            "duplicate images",
        ),
        ({"labels": np.arange(3)}, "no training images"),
    ],
)
def test_invalid_arrays_are_refused(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DatasetError, match=message):
        load_dataset(tmp_path / "a.npz")


def test_an_array_file_over_its_budget_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((10, 256, 256, 3), np.uint8))
    monkeypatch.setattr(untrusted, "MIN_BUDGET_BYTES", 10_000)
    with pytest.raises(DatasetError, match="would take more than"):
        load_dataset(tmp_path / "a.npz")


def test_corrupt_array_files_are_refused(tmp_path: Path) -> None:
    for name in ("a.npz", "a.npy"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
        with pytest.raises(DatasetError, match="cannot parse"):
            load_dataset(tmp_path / name)


# splits


def test_a_dataset_needs_equal_counts_of_instances() -> None:
    with pytest.raises(DatasetError, match="same number of instances"):
        Dataset({"text": torch.zeros(3, 2), "audio": torch.zeros(4, 2)})
    with pytest.raises(DatasetError, match="no images, only text"):
        _ = Dataset({"text": torch.zeros(3, 2)}).images
    with pytest.raises(DatasetError, match="no split 'valid', only train, test"):
        load_dataset("photos")["valid"]


@pytest.mark.skipif(
    not REAL_CIFAR.exists(), reason="MANYVIEWS_TEST_CIFAR is not set to a folder with the real CIFAR-10"
)
def test_photos_are_the_first_images_of_each_class_of_cifar10() -> None:
    real, photos = load_dataset(REAL_CIFAR), load_dataset("photos")
    assert len(real["train"]) == 50_000
    assert real.class_names == photos.class_names
    for split, each in (("train", 250), ("test", 100)):
        images, labels = real[split].images, real[split].labels
        first = torch.cat([(labels == label).nonzero()[:each, 0] for label in range(10)])
        assert torch.equal(photos[split].images, images[first])
