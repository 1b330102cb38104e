"""`Collection` and `VectorModel` for data of several modalities: vectors, order, labels, search across modalities."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from manyviews.cli.search_command import search_command
from manyviews.data import Dataset, DatasetDict, DatasetError, Images, Texts, Vectors
from manyviews.export import Collection, VectorModel, find_nearest, make_query
from manyviews.export.neighbors import encode_query
from manyviews.loading import make_eval_loader
from manyviews.models import Encoder, EncoderConfig, EncoderSpec, MultiViewEncoder, MultiViewHead, MultiViewModel
from tests.helpers.tiny_run import folder_of_images

COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


class FirstLetter(nn.Module):
    """Maps a text to a one-hot vector of its first letter: r, g or b."""

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        assert len(lengths) == len(tokens)
        return torch.stack([tokens[:, 0] == ord(color[0]) for color in COLORS], 1).float()


def make_matching_model() -> MultiViewModel:
    """Make a model that maps an image of a color, and the name of the color, to the same embedding."""
    encoder = MultiViewEncoder(
        {"image": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), "caption": FirstLetter()},
        encoder_dims={"image": 3, "caption": 3},
    )
    specs = {"image": EncoderSpec("image", "custom", {}, 8), "caption": EncoderSpec("text", "custom")}
    encoder.config = EncoderConfig(specs, {"image": "image", "caption": "caption"})
    return MultiViewModel(encoder, MultiViewHead({"image": nn.Identity(), "caption": nn.Identity()}, 3)).eval()


def make_colored() -> DatasetDict:
    """Images of one color, and captions that name the color; some are missing, and row 7 has the wrong caption."""
    names = list(COLORS)
    pixels = torch.tensor([COLORS[names[label]] for label in LABELS], dtype=torch.uint8)[:, :, None, None]
    captions = [f"{names[label]} thing" for label in LABELS]
    captions[2], captions[3], captions[7] = "", "", "blue in fact green"
    images = Images(pixels.expand(-1, -1, 8, 8).contiguous(), mask=torch.arange(8) != 2)
    split = Dataset({"image": images, "caption": Texts(tuple(captions))}, LABELS)
    first = split.select(torch.arange(5))
    second = split.select(torch.arange(5, 8))
    return DatasetDict("colored", {"train": first, "test": second}, tuple(names))


@pytest.fixture
def colored() -> Collection:
    return Collection("colored", None, make_colored())


def search(collection: Collection, name: str, kind: str, modalities: tuple[str, ...] = (), k: int = 8) -> list:
    model = VectorModel(make_matching_model(), kind, modalities)
    return find_nearest(model, [make_query(name, collection, model.encoder)], collection, k=k)[name]


def test_a_text_finds_the_images_that_match(colored: Collection) -> None:
    nearest = dict(search(colored, "red", "z", ("image",)))
    assert nearest == {
        "train/0": pytest.approx(1), "train/3": pytest.approx(1), "test/1": pytest.approx(1),
        **{name: pytest.approx(0) for name in ("train/1", "train/4", "test/0", "test/2")},
    }  # fmt: skip
    assert "train/2" not in nearest  # it has no image
    assert [name for name, _ in search(colored, "green leaf", "z", ("image",), k=3)] == ["train/1", "train/4", "test/2"]


def test_neighbors_are_compared_by_the_target_modality(colored: Collection) -> None:
    by_caption, by_both = (dict(search(colored, "blue", "z", names)) for names in (("caption",), ("image", "caption")))
    assert by_caption["test/2"] == pytest.approx(1)  # the wrong caption
    assert by_both["test/2"] == pytest.approx(0.5**0.5)  # the mean of green and blue
    assert "train/3" not in by_caption  # it has no caption
    assert by_both["train/3"] == pytest.approx(0)
    assert "train/2" not in by_both  # it has nothing
    with pytest.raises(ValueError, match="there is no modality 'speech', only image, caption"):
        search(colored, "blue", "z", ("speech",))


def test_a_text_is_by_default_not_compared_with_texts(colored: Collection, tmp_path: Path) -> None:
    """Otherwise the nearest instances are those that have nothing but texts."""
    assert search(colored, "blue", "z") == search(colored, "blue", "z", ("image",))
    path = tmp_path / "blue.png"
    Image.new("RGB", (20, 30), COLORS["blue"]).save(path)
    model = VectorModel(make_matching_model(), "z")
    queries = [make_query(name, colored, model.encoder) for name in (str(path), "blue")]  # in one call
    by_image, by_text = find_nearest(model, queries, colored).values()
    assert by_image == search(colored, str(path), "z", ("image", "caption"))
    assert by_text == search(colored, "blue", "z")


def test_a_modality_of_an_instance_finds_another_one_of_it(colored: Collection) -> None:
    """The caption of test/2 is that of another color than its image."""
    model = VectorModel(make_matching_model(), "z")
    by_caption, by_image = (make_query("test/2", colored, model.encoder, name) for name in ("caption", "image"))
    assert encode_query(model, by_caption).tolist() == [0, 0, 1]
    assert encode_query(model, by_image).tolist() == [0, 1, 0]
    nearest = dict(find_nearest(model, [by_caption], colored)["test/2"])
    assert nearest["test/2"] == pytest.approx(0)  # its image
    by_both = dict(find_nearest(model, [by_image], colored)["test/2"])
    assert "test/2" not in by_both
    with pytest.raises(DatasetError, match="query train/3 has none of the modalities caption"):
        encode_query(model, make_query("train/3", colored, model.encoder, "caption"))


def test_an_image_file_or_an_instance_finds_captions(colored: Collection, tmp_path: Path) -> None:
    path = tmp_path / "green.png"
    Image.new("RGB", (20, 30), COLORS["green"]).save(path)
    nearest = dict(search(colored, str(path), "z", ("caption",)))
    assert {name for name, cosine in nearest.items() if cosine > 0.9} == {"train/1", "train/4"}
    by_id = search(colored, "train/1", "z", k=2)
    assert by_id[0] == ("train/4", pytest.approx(1))
    assert "train/1" not in dict(search(colored, "train/1", "z"))
    with pytest.raises(DatasetError, match="query train/2 has none of the modalities image, caption"):
        search(colored, "train/2", "z")


def test_queries_of_each_kind(colored: Collection, tmp_path: Path) -> None:
    encoder = Encoder(make_matching_model().encoder)
    text = make_query("red and a \0 in it", colored, encoder)
    assert (text.shown, text.values, text.id) == ("red and a \0 in it", {"caption": ["red and a \0 in it"]}, None)
    by_caption = make_query("train/0", colored, encoder, "caption")
    assert (by_caption.id, by_caption.modality, by_caption.values) == ("train/0", "caption", None)
    split, i = colored.find("train/0")
    model = VectorModel(make_matching_model(), "z")
    as_text = make_query(split["caption"].show(i), colored, encoder)
    assert torch.equal(encode_query(model, by_caption), encode_query(model, as_text))
    by_image = make_query("train/0", colored, encoder, "image")
    both = encode_query(model, by_caption) + encode_query(model, by_image)
    torch.testing.assert_close(encode_query(model, make_query("train/0", colored, encoder)), normalize(both, dim=0))
    by_id = make_query("test/0", colored, encoder)
    assert by_id.id == "test/0"
    assert torch.equal(by_id.shown, colored.show("test/0"))
    with pytest.raises(DatasetError, match="there is no modality 'speech', only image, caption"):
        make_query("red", colored, encoder, "speech")
    images = EncoderConfig({"image": EncoderSpec("image", "resnet-small", {"width": 0.125}, 8)}, {"image": "image"})
    with pytest.raises(DatasetError, match="query red is neither a file nor an instance of colored"):
        make_query("red", colored, Encoder(MultiViewEncoder.from_config(images)))


def test_search_command_draws_images_and_texts(
    colored: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    model = make_matching_model()
    monkeypatch.setattr("manyviews.load_encoder", lambda _: Encoder(model.encoder))
    monkeypatch.setattr(
        "manyviews.export.load_vector_model",
        lambda _, kind, modalities, device: VectorModel(model, kind, modalities),
    )
    monkeypatch.setattr("manyviews.export.Collection.open", lambda *_: colored)
    sheet = tmp_path / "sheet.png"
    search_command(Path("run"), "colored", ("blue",), sheet, 2, target_modality="caption")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "blue: test/0 (1.000), test/2 (1.000)"
    assert lines[1] == f"{sheet}: nearest neighbors in colored of 1 query"
    with Image.open(sheet) as drawn:
        assert drawn.getpixel((4 + 116 + 4 + 50, 4 + 50)) == COLORS["blue"]
        assert drawn.getpixel((4 + 2 * 116 + 4 + 50, 4 + 50)) == COLORS["green"]
        assert drawn.getpixel((5, 5)) == (238, 238, 238)  # the text of the query
    search_command(Path("run"), "colored", ("blue",), sheet, 1, target_modality="image")
    assert capsys.readouterr().out.startswith("blue: test/0 (1.000)\n")


@pytest.mark.parametrize("kind", ["h", "z", "each-modality"])
def test_vectors_are_equal_to_those_of_each_instance(colored: Collection, kind: str) -> None:
    model = make_matching_model()
    model.encoder.mean_representation.copy_(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]))
    vector_model = VectorModel(model, kind)
    encoded = list(colored.encode(vector_model))
    ids = [name for (names, _, _), _ in encoded for name in names]
    labels = [label for (_, _, part), _ in encoded for label in part]
    assert ids == [*(f"train/{i}" for i in range(5)), *(f"test/{i}" for i in range(3))]
    assert labels == [list(COLORS)[label] for label in LABELS]
    vectors, mask = torch.cat([part for (_, part, _), _ in encoded]), torch.cat([part for _, part in encoded])
    assert mask.tolist() == [i != 2 for i in range(8)]
    assert vectors.shape[-1] == vector_model.dim
    colors = one_hot(LABELS, 3).float()
    for i in range(8):
        captions = colors[2] if i == 7 else colors[LABELS[i]]
        parts = [None if i == 2 else colors[LABELS[i]], None if i in (2, 3) else captions]
        if kind == "h":
            means = model.encoder.mean_representation
            expected = torch.cat([mean if part is None else part for part, mean in zip(parts, means, strict=True)])
        elif kind == "z":
            expected = normalize(sum((part for part in parts if part is not None), torch.zeros(3)), dim=0)
        else:
            expected = torch.stack([torch.full((3,), torch.nan) if part is None else part for part in parts])
        torch.testing.assert_close(vectors[i], expected, equal_nan=True)


def test_rows_of_split_data_are_in_the_order_of_the_file() -> None:
    """The library split the data: ids are rows, and vectors of a later row are of a higher one."""
    values, order = torch.randn(23, 4), torch.randperm(23, generator=torch.Generator().manual_seed(0))
    splits = {}
    for name, rows in (("train", order[:15]), ("test", order[15:])):
        mask = rows % 7 != 0
        column = Vectors(values[rows], mask=mask)
        splits[name] = Dataset({"audio": column}, rows % 3, tuple(str(row) for row in rows.tolist()))
    data = DatasetDict("rows", splits, ("a", "b", "c"), split_rule="every third row")
    encoder = MultiViewEncoder.from_config(
        EncoderConfig({"audio": EncoderSpec("vector", "mlp", {"features": 4, "dim": 8})}, {"audio": "audio"})
    )
    collection, model = Collection("rows", None, data), VectorModel(Encoder(encoder), "h")
    (((ids, vectors, labels), mask),) = collection.encode(model)
    assert ids == [str(row) for row in range(23)]
    assert labels == ["abc"[row % 3] for row in range(23)]
    assert mask.tolist() == [row % 7 != 0 for row in range(23)]
    torch.testing.assert_close(vectors[mask], encoder.get_encoder("audio")(values)[mask])
    split, i = collection.find("17")
    assert split.ids[i] == "17"
    with pytest.raises(KeyError):
        collection.find("test/17")


def test_an_image_folder_is_encoded_by_the_first_modality_of_images(tmp_path: Path) -> None:
    """The other modality is missing; in a dataset that lacks it, that is an error."""
    folder = folder_of_images(tmp_path / "images", count=3, labelled=False)
    model = VectorModel(make_matching_model(), "each-modality")
    (((ids, vectors, _), mask),) = Collection.open(folder).encode(model)
    assert ids == ["000.png", "001.png", "002.png"]
    assert mask.all()
    assert vectors[:, 0].isfinite().all()
    assert vectors[:, 1].isnan().all()
    with pytest.raises(DatasetError, match="no modality 'caption': the split has image"):
        next(iter(Collection.open("photos").encode(model)))


def test_what_stands_for_an_instance(colored: Collection) -> None:
    assert colored.show("test/1").shape == (3, 8, 8)
    assert colored.show("train/2") == ""
    captions = DatasetDict("captions", {"train": Dataset({"caption": ["a cat", "a dog"]})})
    assert Collection("captions", None, captions).show("train/1") == "a dog"
    for name in ("train/8", "valid/0", "0", "train/"):
        with pytest.raises(KeyError):
            colored.show(name)


def test_embeddings_need_a_model_with_heads() -> None:
    encoder = Encoder(make_matching_model().encoder)
    with pytest.raises(ValueError, match="z needs a model with projection heads"):
        VectorModel(encoder, "z")
    assert VectorModel(encoder, "h").dim == 6
    assert VectorModel(encoder, "each-modality").dim == 3
    assert not VectorModel(encoder, "h").is_small
    loader = make_eval_loader(make_colored()["train"], encoder.encoder)
    vectors, _ = VectorModel(encoder, "h")(loader.load(torch.tensor([1])))
    assert vectors.tolist() == [[0.0, 1.0, 0.0, 0.0, 1.0, 0.0]]
