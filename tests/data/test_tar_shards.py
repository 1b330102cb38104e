"""Tar files in the WebDataset layout: columns, splits, the index, reading by offset, training, and every refusal."""

import io
import json
import os
import pickle
import random
import tarfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import manyviews as mv
from manyviews.data import BlobImages, DatasetError, DatasetWarning, Images, TarBlobs, load_dataset, read_image
from manyviews.data import tar_index as index_module
from manyviews.training import Config, with_absolute_paths
from tests.helpers.command_line import manyviews
from tests.helpers.tiny_run import assert_same_run, flags, run_to_end, start, tiny_config

Members = Iterable[tuple[str, bytes]]


def write_tar(path: Path, members: Members, tar_format: int = tarfile.PAX_FORMAT, **fields: Any) -> Path:
    """Write files in the given order; `fields` are attributes of all members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in fields.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(content))
    return path


def png(seed: int, size: tuple[int, int] = (12, 10)) -> bytes:
    rng = np.random.default_rng(seed)
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def samples(numbers: Iterable[int]) -> Members:
    for i in numbers:
        yield f"a/{i:04d}.png", png(i)
        yield f"a/{i:04d}.txt", f"thing {i}".encode()
        yield f"a/{i:04d}.cls", str(i % 2).encode()


def load(source: str | Path, **options: Any) -> mv.DatasetDict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatasetWarning)
        return load_dataset(source, **options)


def test_every_extension_becomes_a_column(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(6, 3)).astype(np.float32)
    members: list[tuple[str, bytes]] = []
    for i in range(6):
        content = {"jpg": png(i), "left.png": png(i + 10), "txt": f"text {i}".encode(), "npy": npy(vectors[i])}
        content |= {"steps.npy": npy(np.ones((i + 1, 2))), "cls": str(i % 3).encode(), "wav": b"RIFF", "mp4": b"ftyp"}
        content["json"] = json.dumps({"caption": f"a {i}", "width": 5, "tags": ["x"], "box": [1, 2]}).encode()
        members += [(f"{i}.{extension}", value) for extension, value in content.items()]
    path = write_tar(tmp_path / "train.tar", members)
    data = load(path)
    assert any("column width has numbers and is skipped" in line for line in data.warnings)
    assert any("column tags has lists of texts and is skipped" in line for line in data.warnings)
    train = data["train"]
    kinds = {name: column.kind for name, column in train.modalities.items()}
    assert kinds == {
        "image": "image", "left": "image", "audio": "audio", "video": "video", "features": "vector",
        "steps": "sequence", "text": "text", "caption": "text", "box": "vector",
    }  # fmt: skip
    assert data.class_names == ("0", "1", "2")
    assert train.labels is not None
    assert train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert train.ids == tuple("012345")
    assert torch.equal(train["features"].values, torch.from_numpy(vectors))  # type: ignore[attr-defined]
    assert train["steps"].lengths.tolist() == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]
    assert train["caption"].values[4] == "a 4"  # type: ignore[attr-defined]
    with train["audio"].values.open(3) as file:  # type: ignore[attr-defined]
        assert file.read() == b"RIFF"
    (tmp_path / "b.png").write_bytes(png(13))
    assert torch.equal(train["left"].values[3], read_image(tmp_path / "b.png"))  # type: ignore[attr-defined]


def test_missing_members_are_masked_and_extensions_of_one_group_are_merged(tmp_path: Path) -> None:
    members = [("a.jpg", png(0)), ("b.png", png(1)), ("c.txt", b"only text"), ("d.webp", png(3)), ("d.txt", b"both")]
    data = load(write_tar(tmp_path / "train.tar", members))["train"]
    assert data["image"].get_mask().tolist() == [True, True, False, True]
    assert data["text"].get_mask().tolist() == [False, False, True, True]
    assert torch.equal(data["image"].show(3), read_image_bytes(png(3)))  # type: ignore[arg-type]


def read_image_bytes(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(io.BytesIO(content)))).permute(2, 0, 1)


def test_two_images_of_a_key_are_named_by_their_extensions(tmp_path: Path) -> None:
    members = [("a.jpg", png(0)), ("a.png", png(1)), ("b.jpg", png(2)), ("b.png", png(3)), ("a.x.jpg", png(4))]
    data = load(write_tar(tmp_path / "train.tar", members))["train"]
    assert set(data.modalities) == {"jpg", "png", "x"}


def test_fields_with_the_name_of_a_column_are_prefixed_and_a_label_of_json_is_the_label(tmp_path: Path) -> None:
    members = []
    for i in range(4):
        fields = {"text": "json", "label": "odd" if i % 2 else "even", "digits": str(i), "file": "a.jpg"}
        members += [(f"{i}.txt", b"txt"), (f"{i}.json", json.dumps(fields).encode())]
    data = load(write_tar(tmp_path / "train.tar", members), kinds=["digits=text"])
    assert data.class_names == ("even", "odd")
    assert {name: column.values[0] for name, column in data["train"].modalities.items()} == {  # type: ignore[attr-defined]
        "text": "txt", "json.text": "json", "digits": "0", "file": "a.jpg",
    }  # fmt: skip


def test_braces_and_wildcards_name_shards_and_their_names_have_the_splits(tmp_path: Path) -> None:
    for i in range(3):
        write_tar(tmp_path / "shards" / f"train-{i:03d}.tar", samples(range(4 * i, 4 * i + 4)))
    write_tar(tmp_path / "shards" / "val-000.tar", samples(range(20, 23)))
    data = load(f"{tmp_path}/shards/{{train-{{000..002}},val-000}}.tar")
    assert data.name == "shards"
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 12, "valid": 3}
    assert data["train"].ids[5] == "a/0005"
    globbed = load(str(tmp_path / "shards" / "*.tar"))
    assert globbed["train"].ids == data["train"].ids
    only_train = load(f"{tmp_path}/shards/train-{{000..002}}.tar")
    assert list(only_train.splits) == ["train"]
    assert only_train.name == "train"
    with pytest.raises(DatasetError, match=r"no file .*train-003\.tar \(of "):
        load(f"{tmp_path}/shards/train-{{000..003}}.tar")
    write_tar(tmp_path / "shards" / "000.tar", samples([50]))
    with pytest.raises(DatasetError, match="put train, valid or test into the names of all files"):
        load(str(tmp_path / "shards" / "*.tar"))


def test_without_splits_a_random_fifth_is_for_testing_and_keys_of_two_shards_may_be_equal(tmp_path: Path) -> None:
    for i in range(2):
        write_tar(tmp_path / f"{i}.tar", samples(range(10)))
    data = load(f"{tmp_path}/{{0,1}}.tar")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 16, "test": 4}
    assert "0/a/0000" in {*data["train"].ids, *data["test"].ids}
    assert data.split_rule


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_index_has_what_tarfile_finds(tmp_path: Path, tar_format: int) -> None:
    rng = random.Random(tar_format)
    members = [
        (
            f"{'deep/' * (i % 3)}{'é' if i % 4 == 0 and tar_format != tarfile.USTAR_FORMAT else 'e'}{i}.txt",
            rng.randbytes(i),
        )
        for i in range(40)
    ]
    if tar_format != tarfile.USTAR_FORMAT:
        members += [("x" * 150 + f"/{i}.txt", rng.randbytes(600)) for i in range(3)]
    path = write_tar(tmp_path / "a.tar", members, tar_format, mtime=12.5 if tar_format == tarfile.PAX_FORMAT else 12)
    index = index_module.load_index(path)
    with tarfile.open(path) as tar:
        expected = [(member.name, member.offset_data, member.size) for member in tar]
    assert list(zip(index.names, index.offsets.tolist(), index.sizes.tolist(), strict=True)) == expected


def test_the_index_is_made_in_one_pass_and_reused_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = []
    frombuf = tarfile.TarInfo.frombuf.__func__  # type: ignore[attr-defined]
    counted = classmethod(lambda cls, block, *rest: headers.append(block) or frombuf(cls, block, *rest))
    monkeypatch.setattr(tarfile.TarInfo, "frombuf", counted)
    path = write_tar(tmp_path / "train.tar", samples(range(50)))
    data = load(path)
    assert len(headers) == 150
    assert (tmp_path / "train.tar.index.npz").is_file()
    again = load(path)
    assert len(headers) == 150
    assert again["train"].ids == data["train"].ids
    write_tar(path, samples(range(60)))
    assert len(load(path)["train"]) == 60
    before = len(headers)
    index = tmp_path / "train.tar.index.npz"
    index.write_bytes(index.read_bytes()[:-100])
    assert len(load(path)["train"]) == 60
    assert len(headers) > before


def test_the_index_is_in_the_cache_if_the_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANYVIEWS_DATA", str(tmp_path / "cache"))
    path = write_tar(tmp_path / "data" / "train.tar", samples(range(5)))
    (tmp_path / "data" / "train.tar.index.npz").mkdir()  # root may write into any folder
    load(path)
    assert [file.suffix for file in (tmp_path / "cache" / "tar-index").iterdir()] == [".npz"]
    monkeypatch.setattr(index_module, "make_index", None)
    assert len(load(path)["train"]) == 5


def test_an_index_that_leads_out_of_the_file_is_made_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "train.tar", samples(range(5)))
    index = index_module.load_index(path)
    for field, value in (("offsets", 10**9), ("sizes", -1), ("sizes", 2**62)):
        broken = {"offsets": index.offsets.copy(), "sizes": index.sizes.copy()}
        broken[field][3] = value
        status = path.stat()
        stamp = np.array([index_module.INDEX_VERSION, status.st_size, status.st_mtime_ns])
        names = np.frombuffer("\0".join(index.names).encode(), np.uint8)
        np.savez(tmp_path / "train.tar.index.npz", stamp=stamp, names=names, **broken)
        assert index_module.load_index(path).offsets.tolist() == index.offsets.tolist()


def test_blobs_are_small_seek_and_read_only_their_member(tmp_path: Path) -> None:
    contents = [random.Random(i).randbytes(300_000 + i) for i in range(4)]
    path = write_tar(tmp_path / "train.tar", [(f"{i}.wav", content) for i, content in enumerate(contents)])
    blobs = load(path)["train"]["audio"].values.select([3, 1])  # type: ignore[attr-defined]
    assert isinstance(blobs, TarBlobs)
    assert len(pickle.dumps(blobs)) < 2000
    with blobs.open(0) as file:
        assert file.seek(-5, os.SEEK_END) == len(contents[3]) - 5
        assert file.read() == contents[3][-5:]
        file.seek(299_000)
        assert file.read(10) == contents[3][299_000:299_010]
        file.seek(0)
        assert file.read() == contents[3]
        assert file.read(1) == b""
    with blobs.open(1) as file:
        assert file.read() == contents[1]
    assert blobs.get_name(1) == f"{path}, member 1.wav"


def symlink(path: Path, kind: bytes) -> Path:
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("folder"))
        member = tarfile.TarInfo("a.txt")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    return path


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "a link"),
        (tarfile.LNKTYPE, "a link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a named pipe"),
    ],
)
def test_links_and_devices_are_refused_by_name(tmp_path: Path, kind: bytes, word: str) -> None:
    with pytest.raises(DatasetError, match=rf"train\.tar, member 'a\.txt' is {word}"):
        load(symlink(tmp_path / "train.tar", kind))


def test_folders_of_shards_and_compressed_shards_say_what_to_use(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"a")])
    with pytest.raises(DatasetError, match=r"for its tar shards, use '.*/\*\.tar'"):
        load(tmp_path)
    with pytest.raises(DatasetError, match=r"unpack it to \.tar, whose members are read by their offsets"):
        load(path.rename(tmp_path / "a.tar.gz"))


def test_an_empty_name_of_a_field_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{i}.json", b'{"": "a"}') for i in range(6)])
    with pytest.raises(DatasetError, match="invalid modality name '': it is empty"):
        load(path)


@pytest.mark.parametrize("name", ["../a.txt", "/etc/a.txt", "b/../../a.txt", "C:/a.txt", "b\\..\\a.txt"])
def test_names_that_leave_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    path = write_tar(tmp_path / "train.tar", [("ok.txt", b"x"), (name, b"y")])
    with pytest.raises(DatasetError, match=r"train\.tar, member .* leads out of the archive"):
        load(path)


def test_duplicates_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"train\.tar, member 'a\.txt': there are two members of this name"):
        load(write_tar(tmp_path / "train.tar", [("a.txt", b"x"), ("a.txt", b"y")]))
    with pytest.raises(DatasetError, match=r"train\.tar, member 'a\.TXT': its key has two members \.txt"):
        load(write_tar(tmp_path / "train.tar", [("a.txt", b"x"), ("a.TXT", b"y")]))


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    content = write_tar(tmp_path / "train.tar", samples(range(3))).read_bytes()
    end = len(content.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(1, end, 131), *range(512, end + 1, 512)]:
        (tmp_path / "cut.tar").write_bytes(content[:length])
        with pytest.raises(DatasetError, match=r"cut\.tar( is truncated|, member .*: the file is trunc| is not a tar)"):
            load(tmp_path / "cut.tar")
    corrupt = bytearray(content)
    corrupt[1024 + 20] ^= 1  # the name of the second member: the checksum is wrong
    (tmp_path / "cut.tar").write_bytes(corrupt)
    with pytest.raises(DatasetError, match=r"cut\.tar is corrupt: there is no header of a member at 1,024"):
        load(tmp_path / "cut.tar")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"\xff\xfe", "it is not UTF-8"),
        ("a.json", b"[1]", "expected a JSON object, got"),
        ("a.json", b"{", "it is not JSON"),
        ("a.json", b"[" * 100_000, "it is not JSON"),
        ("a.npy", b"x", "cannot parse it as .npy"),
        ("a.npy", npy(np.array([{}]), allow_pickle=True), "Python objects"),
        ("a.npy", npy(np.zeros((2, 2, 2))), "expected numbers"),
        ("a.npy", npy(np.array(["x"])), "expected numbers"),
        ("a.npy", npy(np.zeros(9))[:-8], "it ends after 64 of 72 bytes"),
    ],
)
def test_a_corrupt_member_is_an_error_with_shard_and_member(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(DatasetError, match=rf"train\.tar, member {name}.*{message}"):
        load(write_tar(tmp_path / "train.tar", [("b.txt", b"ok"), (name, content)]))


def test_other_members_are_skipped_with_a_warning_and_none_is_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "train.tar", [("a.txt", b"x"), ("README", b""), (".DS_Store", b""), ("a.xyz", b"")])
    first, second, third = load(path).warnings
    assert first.startswith("1 members without a key and an extension are skipped, first: ")
    assert second.startswith("1 members .ds_store are skipped, first: ")
    assert third == f"1 members .xyz are skipped, first: {path}, member a.xyz"
    with pytest.raises(DatasetError, match=r"has no members such as 0001\.jpg"):
        load(write_tar(tmp_path / "none.tar", []))
    (tmp_path / "a.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(DatasetError, match="is not a tar file: unpack it with gunzip"):
        load(tmp_path / "a.tar")


def test_a_corrupt_image_is_a_problem_with_shard_and_member(tmp_path: Path) -> None:
    members = [(f"{i}.png", png(i) if i != 2 else png(i)[:40]) for i in range(4)]
    data = load(write_tar(tmp_path / "train.tar", members))
    problems = mv.data.find_problems(data)
    assert any(
        "1 images in train are corrupt, such as" in line and "train.tar, member 2.png" in line for line in problems
    )
    images = data["train"]["image"]
    assert isinstance(images, Images)
    assert isinstance(images.values, BlobImages)
    assert images.values.read_or_next(2)[1] == 3


def test_relative_patterns_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "a-0.tar", samples(range(2)))
    assert with_absolute_paths(Config(data="a-{0..1}.tar")).data == str(tmp_path / "a-{0..1}.tar")
    assert with_absolute_paths(Config(data="a-0.tar")).data == str(tmp_path / "a-0.tar")


def small_shards(folder: Path) -> str:
    write_tar(folder / "train-0.tar", samples(range(24)))
    write_tar(folder / "train-1.tar", samples(range(24, 48)))
    write_tar(folder / "test-0.tar", samples(range(48, 60)))
    return f"{folder}/{{train-0,train-1,test-0}}.tar"


@pytest.mark.slow
def test_commands_take_shards(tmp_path: Path) -> None:
    source, run = small_shards(tmp_path), tmp_path / "run"
    config = tiny_config(data=source, views=("image:2", "text"), epochs=1)
    mv.train(config, output=run, quiet=True)
    manyviews("evaluate", str(run))
    manyviews("embed", str(run), source, "--output", str(tmp_path / "z.npz"))
    with np.load(tmp_path / "z.npz") as arrays:
        assert "test/a/0048" in set(arrays["ids"].tolist())
    assert (
        "test/a/0050"
        in manyviews("search", str(run), source, "--query", "test/a/0050", "-o", str(tmp_path / "s.png")).stdout
    )
    assert "images on disk of 10 x 12" in manyviews("inspect", source).stdout


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    config = tiny_config(
        data=small_shards(tmp_path / "shards"), views=("image:2", "text"), num_workers=2, epochs=3,
        checkpoint_every_steps=1,
    )  # fmt: skip
    mv.train(config, output=tmp_path / "whole", quiet=True)
    process = start(*flags(config), "--output", tmp_path / "killed")
    while not ((metrics := tmp_path / "killed" / "metrics.csv").exists() and metrics.read_bytes().count(b"\n") > 2):
        assert process.poll() is None
    os.killpg(process.pid, 9)
    process.communicate(timeout=120)
    run_to_end("--resume", tmp_path / "killed")
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
