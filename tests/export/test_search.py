"""Encoding the instances of a folder and of a dataset as a stream, and nearest-neighbor search among them."""

import os
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.data import DatasetError, walk_images
from manyviews.export import Collection, VectorModel, find_nearest, make_query
from manyviews.loading import encoding, iterate_file_crops
from manyviews.models import Encoder, EncoderConfig, EncoderSpec, MultiViewEncoder
from tests.helpers.tiny_run import folder_of_images


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    spec = EncoderSpec("image", "resnet-small", {"width": 0.125}, 16)
    return Encoder(MultiViewEncoder.from_config(EncoderConfig({"image": spec}, {"image": "image"})))


def encode_all(images: Collection, encoder: Encoder, workers: int = 0) -> tuple[list[str], torch.Tensor, list]:
    skipped: list[str] = []
    encoded = list(images.encode(VectorModel(encoder, "h"), workers, skipped.append))
    assert all(mask.all() for _, mask in encoded)
    batches = [batch[:2] for batch, _ in encoded]
    return [name for names, _ in batches for name in names], torch.cat([h for _, h in batches]), skipped


@pytest.mark.parametrize("workers", [0, 2])
def test_folder_is_encoded_in_the_order_of_names(
    tmp_path: Path, encoder: Encoder, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "EVAL_BATCH_SIZE", 4)
    folder_of_images(tmp_path, count=11)
    (tmp_path / "b" / "broken.png").write_bytes(b"nothing")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "c.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no image")
    names, h, skipped = encode_all(Collection.open(tmp_path), encoder, workers)
    expected = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("[abc]/[0-9]*.png"))
    assert names == expected
    assert len(names) == 11
    torch.testing.assert_close(h, encoder([tmp_path / name for name in names]))
    assert len(skipped) == 1
    assert "broken.png cannot be decoded" in skipped[0]


def test_only_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    folder_of_images(inside, count=2, labelled=False)
    folder_of_images(outside, count=1, labelled=False)
    (inside / "own.png").symlink_to(inside / "000.png")
    (inside / "away.png").symlink_to(outside / "000.png")
    (inside / "round").symlink_to(inside, target_is_directory=True)
    skipped: list[str] = []
    names = [Path(path).name for path in walk_images(inside, skipped.append)]
    assert names == ["000.png", "001.png", "own.png"]
    assert [line.split("/")[-1] for line in skipped] == [
        "away.png is a link out of the folder (include it with follow_symlinks or --follow-symlinks)",
        "round is a link to a folder, which is not followed",
    ]
    assert "away.png" in [Path(path).name for path in walk_images(inside, skipped.append, follow_symlinks=True)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_entries_that_are_not_files_are_skipped(tmp_path: Path) -> None:
    """Reading a pipe would block."""
    folder_of_images(tmp_path, count=1, labelled=False)
    os.mkfifo(tmp_path / "pipe.png")
    skipped: list[str] = []
    assert [Path(path).name for path in walk_images(tmp_path, skipped.append)] == ["000.png"]
    assert skipped == [f"{tmp_path}/pipe.png is not a file"]


def test_unreadable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of_images(tmp_path, count=3)
    scandir = os.scandir

    def deny_b(folder: str) -> object:
        if Path(folder).name == "b":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", deny_b)
    skipped: list[str] = []
    assert [Path(path).name for path in walk_images(tmp_path, skipped.append)] == ["000.png", "002.png"]
    assert skipped == [f"{tmp_path}/b cannot be listed: [Errno 13] Permission denied"]


def test_files_are_read_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path iterator advances only as far as the batch and the workers' prefetching require."""
    monkeypatch.setattr(encoding, "EVAL_BATCH_SIZE", 4)
    (path,) = folder_of_images(tmp_path, count=1, labelled=False).iterdir()
    num_paths = 0

    def endless() -> object:
        nonlocal num_paths
        while True:
            num_paths += 1
            yield str(path)

    batches = iterate_file_crops(endless(), 16)
    assert len(next(batches)) == 4
    assert num_paths == 4
    assert len(next(batches)) == 4
    assert num_paths == 8
    batches.close()
    num_paths = 0
    batches = iterate_file_crops(endless(), 16, num_workers=2)
    assert len(next(batches)) == 4
    assert num_paths <= 4 + 2 * 16
    batches.close()


def test_dataset_and_single_image_are_encoded(tmp_path: Path, encoder: Encoder) -> None:
    photos = mv.load_dataset("photos")
    names, h, _ = encode_all(Collection.open("photos"), encoder)
    assert len(names) == 3500
    assert names[2499:2501] == ["train/2499", "test/0"]
    torch.testing.assert_close(h[2500:2600], encoder(photos["test"].images[:100]))
    path = folder_of_images(tmp_path, count=1, labelled=False) / "000.png"
    assert encode_all(Collection.open(path), encoder)[0] == ["000.png"]


def test_source_without_readable_images_is_reported(tmp_path: Path, encoder: Encoder) -> None:
    with pytest.raises(DatasetError, match="no dataset"):
        Collection.open(tmp_path / "nowhere")
    (tmp_path / "a.png").write_bytes(b"broken")
    with pytest.raises(DatasetError, match="contains no readable image"):
        encode_all(Collection.open(tmp_path), encoder)


def test_nearest_equal_brute_force_search(encoder: Encoder) -> None:
    images = Collection.open("photos")
    queries = [make_query(name, images, encoder) for name in ("test/3", "train/7")]
    neighbors = find_nearest(VectorModel(encoder, "h"), queries, images, k=5)
    names, h, _ = encode_all(images, encoder)
    h = normalize(h, dim=1)
    for query in queries:
        cosine = h @ h[names.index(query.name)]
        cosine[names.index(query.name)] = -2
        best = cosine.topk(5)
        assert [name for name, _ in neighbors[query.name]] == [names[i] for i in best.indices]
        assert [c for _, c in neighbors[query.name]] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_query_is_a_file_or_an_id(tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of_images(tmp_path / "images", count=6)
    images = Collection.open(folder)
    monkeypatch.chdir(folder / "a")
    by_file, by_id = make_query("000.png", images, encoder), make_query("a/000.png", images, encoder)
    assert by_file.id == by_id.id == "a/000.png"
    neighbors = find_nearest(VectorModel(encoder, "h"), [by_file], images, k=100)["000.png"]
    assert {name for name, _ in neighbors} == {"a/003.png", "b/001.png", "b/004.png", "c/002.png", "c/005.png"}
    (folder / "a" / "link.png").symlink_to(folder / "a" / "000.png")
    link = make_query("link.png", images, encoder)
    assert link.id == "a/link.png"
    first, *_ = find_nearest(VectorModel(encoder, "h"), [link], images)["link.png"]
    assert first == ("a/000.png", pytest.approx(1))
    outside = folder_of_images(tmp_path / "else", count=1, labelled=False) / "000.png"
    assert make_query(str(outside), images, encoder).id is None
    (tmp_path / "text.jpg").write_text("text")
    for name, message in (
        ("nothing.jpg", "query nothing.jpg is neither a file nor an instance of"),
        (str(tmp_path / "text.jpg"), r"text\.jpg cannot be decoded"),
    ):
        with pytest.raises(DatasetError, match=message):
            make_query(name, images, encoder)
    with pytest.raises(DatasetError, match="neither a file nor an instance of photos"):
        make_query("test/1000", Collection.open("photos"), encoder)
    with pytest.raises(ValueError, match=r"\(k\) must be >= 1"):
        find_nearest(VectorModel(encoder, "h"), [by_file], images, k=0)


def test_non_finite_representations_are_refused(encoder: Encoder) -> None:
    encoder.encoder.get_encoder("image").conv1.weight.fill_(torch.nan)
    images = Collection.open("digits")
    with pytest.raises(ValueError, match="vectors of train/0 and others must be finite"):
        encode_all(images, encoder)
    with pytest.raises(ValueError, match="vectors of query test/3 must be finite"):
        find_nearest(VectorModel(encoder, "h"), [make_query("test/3", images, encoder)], images)
