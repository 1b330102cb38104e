"""Hugging Face datasets: features become columns, files are read lazily, folders without network, and every error."""

import io
import json
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import manyviews as mv
from manyviews.data import (
    ArrowBlobs,
    BlobImages,
    CorruptImageError,
    DatasetError,
    DatasetWarning,
    Images,
    convert_dataset,
    find_problems,
    hf_datasets,
    load_dataset,
)
from manyviews.training import Config, with_absolute_paths
from tests.helpers.command_line import manyviews
from tests.helpers.tiny_run import assert_same_run, tiny_config

WORDS = ("cat", "dog", "owl")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also datasets that are already imported work offline, with an empty cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()


def make_pixels(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, (10 + i % 3, 12, 3), np.uint8)


def png(i: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(make_pixels(i)).save(file, "PNG")
    return file.getvalue()


def make_dataset(count: int, first: int = 0, **columns: Any) -> datasets.Dataset:
    """Photos, captions, classes in an order that is not sorted, vectors and sequences."""
    numbers = range(first, first + count)
    features = datasets.Features({
        "photo": datasets.Image(),
        "caption": datasets.Value("string"),
        "animal": datasets.ClassLabel(names=["owl", "cat", "dog"]),
        "vector": datasets.List(datasets.Value("float32"), length=3),
        "steps": datasets.List(datasets.List(datasets.Value("float64"))),
        "matrix": datasets.Array2D((2, 3), "float32"),
    })  # fmt: skip
    values = {
        "photo": [{"bytes": png(i), "path": None} for i in numbers],
        "caption": [f"a photo of {WORDS[i % 3]} {i}" for i in numbers],
        "animal": [i % 3 for i in numbers],
        "vector": [[i, i + 0.5, -i] for i in numbers],
        "steps": [[[i, 1.0]] * (i % 4 + 1) for i in numbers],
        "matrix": [np.full((2, 3), i, np.float32) for i in numbers],
    }
    return datasets.Dataset.from_dict(values, features=features)


def add_audio(dataset: datasets.Dataset, name: str = "sound") -> datasets.Dataset:
    """Add a column of audio; `datasets` itself would need torchcodec to encode one."""
    cells = [{"bytes": b"RIFF%d" % i, "path": None} if i != 1 else None for i in range(len(dataset))]
    struct = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    return dataset.add_column(name, cells, feature=struct).cast_column(name, datasets.Audio(decode=False))


def load(source: str | Path, **options: Any) -> mv.DatasetDict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatasetWarning)
        return load_dataset(source, **options)


def write_parquet(dataset: datasets.Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.to_parquet(path)
    return path


def check_columns(data: mv.Dataset, numbers: list[int]) -> None:
    """Compare all values with those of `make_dataset`."""
    kinds = {name: column.kind for name, column in data.modalities.items()}
    assert kinds == {
        "photo": "image", "caption": "text", "vector": "vector", "steps": "sequence", "matrix": "sequence",
    }  # fmt: skip
    for i, number in enumerate(numbers):
        assert torch.equal(data["photo"].show(i).permute(1, 2, 0), torch.from_numpy(make_pixels(number)))  # type: ignore[union-attr]
    assert data["caption"].values == tuple(f"a photo of {WORDS[i % 3]} {i}" for i in numbers)  # type: ignore[attr-defined]
    assert data["vector"].values.tolist() == [[i, i + 0.5, -i] for i in numbers]  # type: ignore[attr-defined]
    assert data["steps"].lengths.tolist() == [i % 4 + 1 for i in numbers]  # type: ignore[attr-defined]
    assert data["matrix"].values[:, 1, 2].tolist() == numbers  # type: ignore[attr-defined]
    assert data.labels is not None
    assert data.labels.tolist() == [i % 3 for i in numbers]


def test_features_become_columns_and_class_names_keep_their_order() -> None:
    data = convert_dataset(make_dataset(9))
    assert list(data.splits) == ["train"]
    assert data.class_names == ("owl", "cat", "dog")
    assert data["train"].ids == tuple("012345678")
    check_columns(data["train"], list(range(9)))


def test_selected_shuffled_and_formatted_datasets_are_read_in_their_order() -> None:
    dataset = make_dataset(9).select([7, 2, 5]).with_format("torch")
    check_columns(convert_dataset(dataset)["train"], [7, 2, 5])


def test_only_columns_of_the_format_are_used() -> None:
    dataset = make_dataset(4).with_format("torch", columns=["vector", "animal"])
    data = convert_dataset(dataset)
    assert list(data["train"].modalities) == ["vector"]
    assert data.class_names == ("owl", "cat", "dog")


def test_classes_in_another_order_in_another_split_are_an_error() -> None:
    other = make_dataset(2).cast_column("animal", datasets.ClassLabel(names=["cat", "dog", "owl"]))
    with pytest.raises(DatasetError, match="animal has the classes owl, cat, dog in train and cat, dog, owl in test"):
        convert_dataset({"train": make_dataset(2), "test": other})


def test_a_dict_of_splits_has_their_usual_names() -> None:
    parts = {"train": make_dataset(5), "validation": make_dataset(3, 5), "test": make_dataset(2, 8)}
    for source in (parts, datasets.DatasetDict(parts)):
        data = convert_dataset(source)
        assert {name: len(split) for name, split in data.splits.items()} == {"train": 5, "valid": 3, "test": 2}
        check_columns(data["valid"], [5, 6, 7])
        assert data["valid"].ids == ("0", "1", "2")
        assert not any("ids are in both" in problem for problem in find_problems(data))


def test_images_are_not_decoded_at_load_and_workers_get_no_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(40).save_to_disk(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", None)
        images = load(tmp_path)["train"]["photo"]
    assert isinstance(images, Images)
    assert isinstance(images.values, BlobImages)
    assert images.reads_files
    assert len(pickle.dumps(images.values)) < 10_000  # the images have more
    again = pickle.loads(pickle.dumps(images.values.select([3])))
    assert torch.equal(again[0], images.values[3])


@pytest.mark.slow
def test_missing_and_named_files_are_read_or_masked(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(4))
    cells = [{"bytes": png(0), "path": None}, None, {"bytes": None, "path": str(tmp_path / "a.png")}]
    features = datasets.Features({"photo": datasets.Image(), "text": datasets.Value("string")})
    dataset = datasets.Dataset.from_dict({"photo": cells, "text": ["a", "b", "c"]}, features=features)
    images = convert_dataset(dataset)["train"]["photo"]
    assert images.get_mask().tolist() == [True, False, True]
    assert torch.equal(images.show(2).permute(1, 2, 0), torch.from_numpy(make_pixels(4)))  # type: ignore[union-attr]
    # A folder from the internet must not name files of this machine.
    write_parquet(dataset, tmp_path / "hub" / "train.parquet")
    data = load(tmp_path / "hub", label_column="text")
    images = data["train"]["photo"].values  # type: ignore[attr-defined]
    read, _, errors = images.read_or_next(1)
    assert torch.equal(read.permute(1, 2, 0), torch.from_numpy(make_pixels(0)))
    assert "column photo, row train/2 cannot be read: the file" in errors[0]
    assert "is outside of the dataset" in errors[0]
    strict = load(tmp_path / "hub", label_column="text", raise_on_corrupt=True)["train"]["photo"].values  # type: ignore[attr-defined]
    with pytest.raises(CorruptImageError, match="is outside of the dataset"):
        strict[1]
    trusted = load(tmp_path / "hub", label_column="text", follow_symlinks=True)["train"]["photo"].values  # type: ignore[attr-defined]
    assert torch.equal(trusted[1].permute(1, 2, 0), torch.from_numpy(make_pixels(4)))


@pytest.mark.parametrize("path", ["../a.png", "a\0.png", "~nobody/a.png", "http://host/a.png", "x" * 5000])
def test_a_path_that_is_none_is_a_corrupt_image(path: str, tmp_path: Path) -> None:
    features = datasets.Features({"photo": datasets.Image()})
    column = datasets.Dataset.from_dict({"photo": [{"bytes": None, "path": path}]}, features=features)
    for roots in (None, [tmp_path]):
        blobs = ArrowBlobs.make(column.with_format("arrow"), "photo", (("train", 1),), roots)
        with pytest.raises(CorruptImageError, match="row train/0 cannot be read"):
            BlobImages(blobs)[0]


def test_audio_is_a_column_of_its_bytes() -> None:
    audio = convert_dataset(add_audio(make_dataset(3)))["train"]["sound"]
    assert audio.kind == "audio"
    assert audio.get_mask().tolist() == [True, False, True]
    assert isinstance(audio.values, ArrowBlobs)  # type: ignore[attr-defined]
    with audio.values.open(2) as file:  # type: ignore[attr-defined]
        assert file.read() == b"RIFF2"
    assert audio.values.get_name(2) == "the dataset, column sound, row train/2"  # type: ignore[attr-defined]


def test_columns_that_are_no_modality_are_named_and_skipped() -> None:
    dataset = datasets.Dataset.from_dict({
        "text": ["a", "b"], "width": [3, 4], "tree": [{"a": 1}, {"a": 2}], "day": pa.array([1, 2], pa.date32()),
        "raw": [b"x", b"y"], "tags": [["a"], ["b"]], "cube": [[[[1.0]]], [[[2.0]]]],
    })  # fmt: skip
    with pytest.warns(DatasetWarning) as caught:
        data = convert_dataset(dataset)
    assert list(data["train"].modalities) == ["text"]
    text = "\n".join(str(warning.message) for warning in caught)
    for name in ("width", "tree", "day", "raw", "tags", "cube"):
        assert name in text


def test_ragged_numbers_are_sequences_and_nulls_are_missing() -> None:
    dataset = datasets.Dataset.from_dict({"curve": [[1.0, 2.0], [3.0], None], "text": ["a", "b", "c"]})
    curve = convert_dataset(dataset)["train"]["curve"]
    assert curve.kind == "sequence"
    assert curve.get_mask().tolist() == [True, True, False]
    assert curve.lengths.tolist() == [2, 1, 1]  # type: ignore[attr-defined]


def test_a_dataset_with_a_function_as_transform_is_used_item_by_item() -> None:
    dataset = datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0]})
    dataset.set_transform(lambda batch: {"vector": [torch.tensor([x, 2 * x]) for x in batch["x"]]})
    assert convert_dataset(dataset)["train"]["vector"].values.tolist() == [[1, 2], [2, 4], [3, 6]]  # type: ignore[attr-defined]


def test_a_streamed_dataset_is_an_error() -> None:
    with pytest.raises(DatasetError, match="load it without streaming=True"):
        convert_dataset(make_dataset(2).to_iterable_dataset())
    with pytest.raises(DatasetError, match="load it without streaming=True"):
        convert_dataset({"train": make_dataset(2).to_iterable_dataset()})


@pytest.mark.parametrize(
    "files",
    [
        ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"),
        pytest.param(("train/0000.parquet", "train/0001.parquet", "test/0000.parquet"), marks=pytest.mark.slow),
        pytest.param(("train.parquet", "train2.parquet", "test.parquet"), marks=pytest.mark.slow),
    ],
)
def test_parquet_folders_are_read_as_the_hub_lays_them_out(tmp_path: Path, files: tuple[str, ...]) -> None:
    first, second, test = files
    write_parquet(make_dataset(4), tmp_path / "pets" / first)
    write_parquet(make_dataset(3, 4), tmp_path / "pets" / second)
    write_parquet(make_dataset(2, 7), tmp_path / "pets" / test)
    for source in (tmp_path / "pets", f"hf:{tmp_path / 'pets'}"):
        data = load(source)
        assert data.name == "pets"
        check_columns(data["train"], list(range(7)))
        check_columns(data["test"], [7, 8])


@pytest.mark.slow
def test_names_of_folders_are_not_patterns(tmp_path: Path) -> None:
    for name, first in (("a[0]*", 0), ("a[0]bc", 4)):
        write_parquet(make_dataset(4, first), tmp_path / name / "train" / "0.parquet")
        write_parquet(make_dataset(2, first), tmp_path / name / "test" / "0.parquet")
    check_columns(load(tmp_path / "a[0]*")["train"], list(range(4)))
    shutil.copytree(tmp_path / "a[0]*", tmp_path / "a::b")
    with pytest.raises(DatasetError, match="has '::' in its name"):
        load(tmp_path / "a::b")


@pytest.mark.slow
def test_configurations_are_chosen_by_their_folders(tmp_path: Path) -> None:
    write_parquet(make_dataset(4), tmp_path / "small" / "train" / "0000.parquet")
    write_parquet(make_dataset(6), tmp_path / "large" / "train" / "0000.parquet")
    with pytest.raises(DatasetError, match=r"several configurations: choose one, as in hf:.*large"):
        load(f"hf:{tmp_path}")
    data = load(f"hf:{tmp_path}/large")
    assert sum(map(len, data.splits.values())) == 6


@pytest.mark.slow
def test_without_splits_a_random_fifth_is_for_testing(tmp_path: Path) -> None:
    write_parquet(make_dataset(30), tmp_path / "0000.parquet")
    data = load(tmp_path)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 24, "test": 6}
    assert data.split_rule


def test_output_of_save_to_disk_is_read(tmp_path: Path) -> None:
    parts = datasets.DatasetDict({"train": make_dataset(5), "test": make_dataset(2, 5)})
    parts.save_to_disk(tmp_path / "dict")
    for source in (tmp_path / "dict", f"hf:{tmp_path / 'dict'}"):
        data = load(source)
        check_columns(data["train"], list(range(5)))
        check_columns(data["test"], [5, 6])
    parts["train"].save_to_disk(tmp_path / "one")
    assert sum(map(len, load(tmp_path / "one").splits.values())) == 5


@pytest.mark.slow
def test_options_of_tables_choose_columns(tmp_path: Path) -> None:
    dataset = make_dataset(6).add_column("name", list("abcdef")).add_column("fold", ["train"] * 4 + ["dev", "test"])
    write_parquet(dataset, tmp_path / "0.parquet")
    options = {"id_column": "name", "split_column": "fold", "label_column": "caption", "kinds": ["matrix=skip"]}
    data = load(tmp_path, **options)
    assert {name: split.ids for name, split in data.splits.items()} == {
        "train": ("a", "b", "c", "d"), "valid": ("e",), "test": ("f",),
    }  # fmt: skip
    assert "matrix" not in data["train"].modalities
    assert len(data.class_names) == 6
    with pytest.raises(DatasetError, match="has no column 'capton'"):
        load(tmp_path, label_column="capton")


@pytest.mark.slow
def test_binary_columns_are_images_if_told(tmp_path: Path) -> None:
    table = pa.table({"raw": [png(i) for i in range(5)], "text": list("abcde")})
    tmp_path.joinpath("train").mkdir()
    pq.write_table(table, tmp_path / "train" / "0.parquet")
    assert list(load(tmp_path)["train"].modalities) == ["text"]
    assert load(tmp_path, kinds={"raw": "image"})["train"]["raw"].kind == "image"


@pytest.mark.slow
def test_a_corrupt_file_or_one_that_claims_too_much_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(make_dataset(4), tmp_path / "train" / "0.parquet")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DatasetError, match=r"cannot read .*0\.parquet: "):
        load(tmp_path)
    monkeypatch.setattr(hf_datasets, "MIN_BUDGET_BYTES", 2**20)
    monkeypatch.setattr(hf_datasets, "MAX_EXPANSION", 2)
    pq.write_table(pa.table({"text": ["a" * 1000] * 100_000}), path, compression="zstd")
    with pytest.raises(DatasetError, match=r"cannot read .*0\.parquet: .*(File too large|large)"):
        load(tmp_path)


def test_a_name_that_is_not_cached_says_what_to_fetch() -> None:
    with pytest.raises(DatasetError, match=r"`hf download --repo-type dataset org/pets --local-dir FOLDER`"):
        load("hf:org/pets/large")
    with pytest.raises(DatasetError, match=r"no folder ./pets: hf: takes NAME"):
        load("hf:./pets")
    with pytest.raises(DatasetError, match=r"has no \.parquet files"):
        load(f"hf:{Path(__file__).parent}")


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_datasets, "find_spec", lambda name: None)
    with pytest.raises(DatasetError, match=r'needs datasets: pip install "manyviews\[hf\]"'):
        load("hf:org/pets")


def test_a_folder_of_images_is_not_a_folder_of_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(0))
    (tmp_path / "b.png").write_bytes(png(1))
    write_parquet(make_dataset(2), tmp_path / "metadata.parquet")
    assert list(load(tmp_path)["train"].modalities) == ["image"]


def test_relative_folders_are_made_absolute_and_names_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    assert with_absolute_paths(Config(data="hf:pets")).data == f"hf:{tmp_path / 'pets'}"
    assert with_absolute_paths(Config(data="hf:org/pets/large")).data == "hf:org/pets/large"


@pytest.mark.slow
def test_commands_take_a_folder(tmp_path: Path) -> None:
    write_parquet(make_dataset(48), tmp_path / "pets" / "train" / "0.parquet")
    write_parquet(make_dataset(9, 48), tmp_path / "pets" / "test" / "0.parquet")
    config = tiny_config(data=f"hf:{tmp_path / 'pets'}", views=("photo:2", "caption"), epochs=2, num_workers=2)
    mv.train(config, output=tmp_path / "whole", quiet=True)

    run = tmp_path / "whole"
    assert "Traceback" not in manyviews("evaluate", str(run)).stderr
    manyviews("embed", str(run), f"hf:{tmp_path / 'pets'}", "--output", str(tmp_path / "z.npz"))
    with np.load(tmp_path / "z.npz") as arrays:
        assert "test/8" in set(arrays["ids"].tolist())
    assert "images on disk of 10 x 12 to 12 x 12" in manyviews("inspect", f"hf:{tmp_path / 'pets'}").stdout


@pytest.mark.slow
def test_training_on_an_object_equals_training_on_its_folder(tmp_path: Path) -> None:
    parts = datasets.DatasetDict({"train": make_dataset(48), "test": make_dataset(9, 48)})
    parts.save_to_disk(tmp_path / "pets")
    fields = tiny_config(views=("photo:2", "caption"), epochs=1)
    mv.train(parts, config=fields, output=tmp_path / "object", quiet=True)
    mv.train(str(tmp_path / "pets"), config=fields, output=tmp_path / "folder", quiet=True)
    assert_same_run(tmp_path / "object", tmp_path / "folder")


def test_a_cached_name_is_read_without_network(tmp_path: Path) -> None:
    builder = datasets.load_dataset_builder(
        "parquet",
        data_files={"train": str(write_parquet(make_dataset(5), tmp_path / "a.parquet"))},
        cache_dir=str(tmp_path / "other"),
    )
    builder.download_and_prepare()
    cached = tmp_path / "hf-cache" / "org___pets" / "default" / "0.0.0" / "0123456789abcdef"
    shutil.copytree(builder.cache_dir, cached)
    (cached / "parquet-train.arrow").rename(cached / "pets-train.arrow")
    info = json.loads((cached / "dataset_info.json").read_text())
    (cached / "dataset_info.json").write_text(json.dumps(info | {"dataset_name": "pets", "builder_name": "parquet"}))
    data = load("hf:org/pets")
    assert data.name == "pets"
    assert sum(map(len, data.splits.values())) == 5
