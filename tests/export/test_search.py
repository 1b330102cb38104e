"""Pictures of a folder and of a data set, encoded as they come, and the nearest of them."""

import os
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.data import DatasetError
from manyviews.data.files import walk_images
from manyviews.export import Pictures, nearest, query_of
from manyviews.models import ImageEncoder, get_encoder
from manyviews.views import plain
from manyviews.views.plain import plain_files
from tests.training.small import folder_of_images


@pytest.fixture
def encoder() -> ImageEncoder:
    torch.manual_seed(0)
    return ImageEncoder(get_encoder("resnet-small", width=0.125), size=16)


def everything(pictures: Pictures, encoder: ImageEncoder, workers: int = 0) -> tuple[list[str], torch.Tensor, list]:
    left_out: list[str] = []
    batches = list(pictures.encoded(encoder, workers, left_out.append))
    return [name for names, _ in batches for name in names], torch.cat([h for _, h in batches]), left_out


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_is_encoded_in_the_order_of_names(
    tmp_path: Path, encoder: ImageEncoder, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "PIECE", 4)
    folder_of_images(tmp_path, count=11)
    (tmp_path / "b" / "broken.png").write_bytes(b"nothing")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "c.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no image")
    names, h, left_out = everything(Pictures.of(tmp_path), encoder, workers)
    expected = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("[abc]/[0-9]*.png"))
    assert names == expected
    assert len(names) == 11
    torch.testing.assert_close(h, encoder([tmp_path / name for name in names]))
    assert len(left_out) == 1
    assert "broken.png is no whole image" in left_out[0]


def test_links_are_taken_inside_the_folder_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    folder_of_images(inside, count=2, labelled=False)
    folder_of_images(outside, count=1, labelled=False)
    (inside / "own.png").symlink_to(inside / "000.png")
    (inside / "away.png").symlink_to(outside / "000.png")
    (inside / "round").symlink_to(inside, target_is_directory=True)
    left_out: list[str] = []
    found = [Path(path).name for path in walk_images(inside, left_out.append)]
    assert found == ["000.png", "001.png", "own.png"]
    assert [line.split("/")[-1] for line in left_out] == [
        "away.png is a link out of the folder (follow_links or --follow-links takes it)",
        "round is a link to a folder, which is not followed",
    ]
    assert "away.png" in [Path(path).name for path in walk_images(inside, left_out.append, follow_links=True)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    """A pipe would be waited for."""
    folder_of_images(tmp_path, count=1, labelled=False)
    os.mkfifo(tmp_path / "pipe.png")
    left_out: list[str] = []
    assert [Path(path).name for path in walk_images(tmp_path, left_out.append)] == ["000.png"]
    assert left_out == [f"{tmp_path}/pipe.png is no file"]


def test_a_folder_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of_images(tmp_path, count=3)
    listing = os.scandir

    def guarded(where: str) -> object:
        if Path(where).name == "b":
            raise PermissionError(13, "Permission denied")
        return listing(where)

    monkeypatch.setattr(os, "scandir", guarded)
    left_out: list[str] = []
    assert [Path(path).name for path in walk_images(tmp_path, left_out.append)] == ["000.png", "002.png"]
    assert left_out == [f"{tmp_path}/b cannot be listed: [Errno 13] Permission denied"]


def test_files_are_read_as_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: no more names are taken than the batch needs and the workers read ahead."""
    monkeypatch.setattr(plain, "PIECE", 4)
    (path,) = folder_of_images(tmp_path, count=1, labelled=False).iterdir()
    asked = 0

    def endless() -> object:
        nonlocal asked
        while True:
            asked += 1
            yield str(path)

    batches = plain_files(endless(), 16)
    assert len(next(batches)) == 4
    assert asked == 4
    assert len(next(batches)) == 4
    assert asked == 8
    batches.close()
    asked = 0
    batches = plain_files(endless(), 16, workers=2)
    assert len(next(batches)) == 4
    assert asked <= 4 + 2 * 16
    batches.close()


def test_a_data_set_and_a_single_image(tmp_path: Path, encoder: ImageEncoder) -> None:
    photos = mv.load_dataset("photos")
    names, h, _ = everything(Pictures.of("photos"), encoder)
    assert len(names) == 3500
    assert names[2499:2501] == ["train/2499", "test/0"]
    torch.testing.assert_close(h[2500:2600], encoder(photos["test"].images[:100]))
    path = folder_of_images(tmp_path, count=1, labelled=False) / "000.png"
    assert everything(Pictures.of(path), encoder)[0] == ["000.png"]


def test_where_nothing_can_be_read_is_named(tmp_path: Path, encoder: ImageEncoder) -> None:
    with pytest.raises(DatasetError, match="no data set"):
        Pictures.of(tmp_path / "nowhere")
    (tmp_path / "a.png").write_bytes(b"broken")
    with pytest.raises(DatasetError, match="holds no image that can be read"):
        everything(Pictures.of(tmp_path), encoder)


def test_the_nearest_are_those_of_a_whole_comparison(encoder: ImageEncoder) -> None:
    pictures = Pictures.of("photos")
    queries = [query_of(name, pictures) for name in ("test/3", "train/7")]
    found = nearest(encoder, queries, pictures, count=5)
    names, h, _ = everything(pictures, encoder)
    h = normalize(h, dim=1)
    for query in queries:
        cosine = h @ h[names.index(query.name)]
        cosine[names.index(query.name)] = -2
        best = cosine.topk(5)
        assert [name for name, _ in found[query.name]] == [names[place] for place in best.indices]
        assert [c for _, c in found[query.name]] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_a_query_is_a_file_or_an_id(tmp_path: Path, encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of_images(tmp_path / "images", count=6)
    pictures = Pictures.of(folder)
    monkeypatch.chdir(folder / "a")
    by_file, by_id = query_of("000.png", pictures), query_of("a/000.png", pictures)
    assert by_file.own == by_id.own == "a/000.png"
    found = nearest(encoder, [by_file], pictures, count=100)["000.png"]
    assert {name for name, _ in found} == {"a/003.png", "b/001.png", "b/004.png", "c/002.png", "c/005.png"}
    (folder / "a" / "link.png").symlink_to(folder / "a" / "000.png")
    link = query_of("link.png", pictures)
    assert link.own == "a/link.png"
    first, *_ = nearest(encoder, [link], pictures)["link.png"]
    assert first == ("a/000.png", pytest.approx(1))
    outside = folder_of_images(tmp_path / "else", count=1, labelled=False) / "000.png"
    assert query_of(str(outside), pictures).own is None
    (tmp_path / "text.jpg").write_text("text")
    for name, message in (
        ("nothing.jpg", "the query nothing.jpg is neither a file nor an image of"),
        (str(tmp_path / "text.jpg"), r"text\.jpg is no whole image"),
    ):
        with pytest.raises(DatasetError, match=message):
            query_of(name, pictures)
    with pytest.raises(DatasetError, match="neither a file nor an image of photos"):
        query_of("test/1000", Pictures.of("photos"))
    with pytest.raises(ValueError, match="count must be >= 1"):
        nearest(encoder, [by_file], pictures, count=0)


def test_an_encoder_that_is_not_finite_finds_nothing(encoder: ImageEncoder) -> None:
    encoder.encoder.conv1.weight.fill_(torch.nan)
    pictures = Pictures.of("digits")
    with pytest.raises(ValueError, match="representations of train/0 and others must be finite"):
        everything(pictures, encoder)
    with pytest.raises(ValueError, match="representations of the queries must be finite"):
        nearest(encoder, [query_of("test/3", pictures)], pictures)
