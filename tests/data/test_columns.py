"""Columns: texts as bytes, several images of an instance, and what is shown of each kind."""

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image

from manyviews.data import Column, Dataset, DatasetError, Images, LazyImages, Sequences, Texts, Vectors
from manyviews.data.texts import MAX_BYTES, NUM_HASHES

TEXTS = ("a cat", "", "café", "日本" * 100, "x" * 300, "\ud800 lone", "y" * 255 + "é")


def cut_slowly(text: str) -> bytes:
    """Return the UTF-8 bytes of as many characters as fit."""
    out = b""
    for char in text:
        encoded = char.encode("utf-8", "replace")
        if len(out + encoded) > MAX_BYTES:
            break
        out += encoded
    return out


def test_texts_are_their_bytes_cut_at_whole_characters() -> None:
    texts = Texts(TEXTS)
    tokens, lengths = texts.load(torch.arange(len(TEXTS)))
    assert tokens.dtype == torch.uint8
    assert tokens.shape == (len(TEXTS), MAX_BYTES)
    for i, text in enumerate(TEXTS):
        expected = cut_slowly(text) or b"\0"
        assert int(lengths[i]) == len(expected)
        assert bytes(tokens[i, : lengths[i]].tolist()) == expected
        assert not tokens[i, lengths[i] :].any()
    assert [int(n) for n in lengths] == [5, 1, 5, 255, 256, 6, 255]  # 85 characters of three bytes; no half é
    tokens, lengths = texts.load(torch.tensor([2, 0]))
    assert (tokens.shape, lengths.tolist()) == ((2, 5), [5, 5])
    assert texts.show_view(tokens[0]) == "café"
    assert texts.load(torch.empty(0, dtype=torch.long))[0].shape == (0, 1)


def test_an_empty_text_is_missing() -> None:
    texts = Texts(("a", "", "b", ""), mask=torch.tensor([False, True, True, True]))
    assert texts.get_mask().tolist() == [False, False, True, False]
    assert texts.select(torch.tensor([2, 1, 0])).get_mask().tolist() == [True, False, False]
    assert texts.drop(torch.tensor([False, False, True, False])).get_mask().any().item() is False
    assert Texts(("a", "b")).mask is None
    assert texts.load(torch.tensor([0]))[0].tolist() == [[0]]  # a missing text is not read
    assert texts.describe_lengths() == "1 to 1, median 1"
    with pytest.raises(DatasetError, match="texts must be str, got"):
        Texts(("a", 3))


def test_texts_are_summarized_by_their_trigrams() -> None:
    texts = Texts(("a cat", "A CAT", "a dog", "", "cat a"))
    features = texts.make_raw_features(texts)
    assert features.shape == (5, NUM_HASHES)
    assert torch.equal(features[0], features[1])
    assert features.norm(dim=1).tolist() == pytest.approx([1, 1, 1, 0, 1])
    assert (features[0] @ features[4]) > (features[0] @ features[2])
    grams = {" a cat "[i : i + 3] for i in range(5)}
    assert int((features[0] > 0).sum()) == len(grams)


def test_contents_of_texts_differ_if_their_borders_do() -> None:
    def get_bytes(column: Column) -> list[bytes]:
        return [part if isinstance(part, bytes) else part.numpy().tobytes() for part in column.list_content()]

    assert get_bytes(Texts(("ab", "c"))) != get_bytes(Texts(("a", "bc")))
    assert get_bytes(Texts(("ab", "c"))) != get_bytes(Texts(("ab", "c"), mask=torch.tensor([True, False])))
    pixels = torch.zeros(5, 1, 2, 2, dtype=torch.uint8)
    assert get_bytes(Images(pixels, torch.tensor([2, 3]))) != get_bytes(Images(pixels, torch.tensor([3, 2])))


def test_images_of_instances_are_selected_with_them() -> None:
    """Pixels have the number of their image; a loop selects them one by one."""
    counts = torch.tensor([2, 0, 3, 1, 4])
    pixels = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 2, 2).contiguous()
    images = Images(pixels, counts)
    assert len(images) == 5
    assert images.get_mask().tolist() == [True, False, True, True, True]
    assert images.starts.tolist() == [0, 2, 2, 5, 6]
    index = torch.tensor([4, 1, 0, 4, 2])
    selected = images.select(index)
    expected = [int(images.starts[i]) + k for i in index.tolist() for k in range(int(counts[i]))]
    assert selected.values[:, 0, 0, 0].tolist() == expected
    assert selected.counts.tolist() == [4, 0, 2, 4, 3]
    assert selected.get_mask().tolist() == [True, False, True, True, True]
    assert [int(images.show(i)[0, 0, 0]) for i in (0, 2, 3, 4)] == [0, 2, 5, 6]
    assert images.describe() == "images of 1 x 2 x 2, 1 to 4 per instance"
    assert Images(pixels, torch.tensor([5, 5])).describe() == "images of 1 x 2 x 2, 5 per instance"
    nothing = images.select(torch.tensor([1]))
    assert (len(nothing), len(nothing.values), nothing.get_mask().tolist()) == (1, 0, [False])


def test_files_of_instances_are_selected_with_them() -> None:
    files = LazyImages(tuple(Path(f"{i}.png") for i in range(6)))
    selected = Images(files, torch.tensor([1, 3, 2])).select(torch.tensor([2, 1]))
    assert [path.name for path in selected.values.paths] == ["4.png", "5.png", "1.png", "2.png", "3.png"]
    assert selected.reads_files
    assert selected.paths == ()  # an instance has no single file
    assert Images(files).select(torch.tensor([2, 1])).paths == (Path("2.png"), Path("1.png"))


@pytest.mark.parametrize("counts", [[1, 1], [4, -1], [[1, 2]], [3, 1]])
def test_counts_that_do_not_fit_raise(counts: list) -> None:
    pixels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(DatasetError, match="counts must be the number of images of each instance, 3 in total, got"):
        Images(pixels, torch.tensor(counts))


def test_what_is_shown_of_each_kind() -> None:
    vectors = Vectors(torch.tensor([[1.0, 5.0], [3.0, 5.0], [99.0, 9.0]]), mask=torch.tensor([True, True, False]))
    assert vectors.show(0).tolist() == [-1.0, 0.0]  # a constant feature is 0, and missing rows do not count
    sequences = Sequences(torch.tensor([[[1.0], [3.0], [0.0]], [[5.0], [7.0], [9.0]]]), torch.tensor([2, 3]))
    scaled = (torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0]) - 5) / 8**0.5
    torch.testing.assert_close(sequences.show(0)[:, 0], scaled[:2])
    torch.testing.assert_close(sequences.show(1)[:, 0], scaled[2:])
    assert Texts(("a", "b")).show(1) == "b"


def test_the_first_image_and_text_that_an_instance_has(tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"{i}.png" for i in range(3))
    for path in paths[:2]:
        Image.new("RGB", (4, 4), "red").save(path)
    paths[2].write_bytes(b"broken")
    green = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    green[:, 1] = 255
    split = Dataset(
        {
            "audio": torch.randn(3, 2),
            "file": Images(LazyImages(paths), mask=torch.tensor([True, False, True])),
            "green": green,
            "title": Texts(("", "title", "")),
            "caption": Texts(("caption", "other", "")),
        }
    )
    assert [split.get_image(i)[:, 0, 0].tolist() for i in range(3)] == [[255, 0, 0], [0, 255, 0], [0, 255, 0]]
    assert [split.get_text(i) for i in range(3)] == ["caption", "title", ""]
    without = dataclasses.replace(split, modalities={"audio": split["audio"]})
    assert without.get_image(0) is None
    assert without.get_text(0) == ""


def test_features_are_float32_and_may_be_nan_only_where_they_are_missing() -> None:
    values = torch.tensor([[1.0, torch.nan], [2.0, 3.0]], dtype=torch.float64)
    vectors = Vectors(values, mask=torch.tensor([False, True]))
    assert vectors.values.dtype == torch.float32
    assert vectors.find_nonfinite() is None
    assert Vectors(values).find_nonfinite() == 0
    sequences = Sequences(torch.ones(2, 3, 4, dtype=torch.float16))
    assert sequences.values.dtype == torch.float32
    assert sequences.find_nonfinite() is None


def test_columns_are_shown_by_their_class_and_length() -> None:
    assert repr(Images(torch.zeros(5, 3, 4, 4, dtype=torch.uint8))) == "Images(5 instances)"
    assert repr(Texts(("a", "b"))) == "Texts(2 instances)"


def test_one_text_is_not_a_list_of_texts() -> None:
    for make in (Texts, Texts.from_values):
        with pytest.raises(DatasetError, match="expected a list of texts, got the text 'hello': put it into a list"):
            make("hello")


def test_lists_of_str_become_texts() -> None:
    split = Dataset({"caption": ["a", "b"], "audio": torch.randn(2, 3)})
    assert isinstance(split["caption"], Texts)
    assert repr(split) == "Dataset(2 instances, caption (text), audio (vector), no labels)"
    with pytest.raises(TypeError, match="caption must be a tensor"):
        Dataset({"caption": ["a", 3]})
