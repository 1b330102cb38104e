"""`ViewSpec`: every form of `--views`, what it becomes for a dataset, and the error of every invalid one."""

import pytest
import torch

from manyviews.data import Dataset, DatasetDict, DatasetError, Texts
from manyviews.loading import ModalityViews, ViewSpec
from manyviews.training import Config, ConfigError


def make_data(*names: str, default: tuple[str, ...] = ()) -> DatasetDict:
    """Make a dataset; names with a capital have images, `caption` is a text, all others are vectors."""
    pixels = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
    columns = {
        name: Texts(("a", "b", "c")) if name == "caption" else pixels if name[0].isupper() else torch.randn(3, 4)
        for name in names
    }
    return DatasetDict("things", {"train": Dataset(columns)}, default_modalities=default)


def describe(spec: ViewSpec) -> list[tuple[str, int, int, str]]:
    return [(item.modality, item.count, item.size, item.encoder) for item in spec.items]


@pytest.mark.parametrize(
    ("texts", "names", "expected"),
    [
        ("4", ("Image",), [("Image", 4, 0, "Image")]),
        ("4", ("Image", "caption", "audio"), [("Image", 4, 0, "Image")]),  # the only one of images
        ("3", ("audio",), [("audio", 3, 0, "audio")]),
        ("", ("Image",), [("Image", 4, 0, "Image")]),
        ("", ("audio",), [("audio", 4, 0, "audio")]),
        ("", ("text", "audio"), [("text", 1, 0, "text"), ("audio", 1, 0, "audio")]),
        ("", ("Image", "caption"), [("Image", 1, 0, "Image"), ("caption", 1, 0, "caption")]),
        ("Image:4", ("Image",), [("Image", 4, 0, "Image")]),
        ("Image:4@16", ("Image",), [("Image", 4, 16, "Image")]),
        ("text audio vision", ("vision", "audio", "text"), [(n, 1, 0, n) for n in ("text", "audio", "vision")]),
        ("Image:2@224 Image:6@96", ("Image",), [("Image", 2, 224, "Image"), ("Image", 6, 96, "Image")]),
        ("Image:2 caption", ("Image", "caption"), [("Image", 2, 0, "Image"), ("caption", 1, 0, "caption")]),
        ("Image@32 caption:2", ("Image", "caption"), [("Image", 1, 32, "Image"), ("caption", 2, 0, "caption")]),
        ("Front Side Top", ("Front", "Side", "Top"), [(n, 1, 0, "image") for n in ("Front", "Side", "Top")]),
        ("Front:2 audio Side", ("Front", "Side", "audio"),
         [("Front", 2, 0, "image"), ("audio", 1, 0, "audio"), ("Side", 1, 0, "image")]),
        ("Front Side image", ("Front", "Side", "image"),
         [("Front", 1, 0, "shared image"), ("Side", 1, 0, "shared image"), ("image", 1, 0, "image")]),
        ("Front caption", ("Front", "Side", "caption"), [("Front", 1, 0, "Front"), ("caption", 1, 0, "caption")]),
    ],
)  # fmt: skip
def test_views_of_a_dataset(texts: str, names: tuple[str, ...], expected: list) -> None:
    spec = ViewSpec.parse(texts.split()).resolve(make_data(*names))
    assert describe(spec) == expected
    assert spec.num_views == sum(count for _, count, _, _ in expected)
    assert ViewSpec.parse(spec.to_texts()).resolve(make_data(*names)) == spec


def test_default_modalities_of_the_data_are_the_default_views() -> None:
    data = make_data("Image", "pixels", "fourier", default=("pixels", "fourier"))
    assert ViewSpec.parse([]).resolve(data).modalities == ("pixels", "fourier")
    assert ViewSpec.parse(["2"]).resolve(data).to_texts() == ("Image:2",)


def test_image_modalities_have_encoders_of_their_own_if_separate() -> None:
    spec = ViewSpec.parse(["Front", "Side:2", "audio"])
    data = make_data("Front", "Side", "audio")
    assert spec.resolve(data).encoders == {"Front": "image", "Side": "image", "audio": "audio"}
    separate = spec.resolve(data, separate_encoders=True)
    assert separate.encoders == {"Front": "Front", "Side": "Side", "audio": "audio"}
    assert [(encoder, views) for encoder, _, views in spec.resolve(data).list_groups()] == [
        ("image", (0, 1, 2)),
        ("audio", (3,)),
    ]
    assert [encoder for encoder, _, _ in separate.list_groups()] == ["Front", "Side", "audio"]


def test_positions_names_and_groups_of_views() -> None:
    """Items of one modality need not follow one another."""
    texts = ["Image:2@32", "caption", "Image:3@16", "Image@32"]
    spec = ViewSpec.parse(texts).resolve(make_data("Image", "caption"))
    assert spec.num_views == 7
    assert spec.modalities == ("Image", "caption")
    assert spec.first_views == [0, 2, 3, 6]
    assert spec.view_names == ("Image 1", "Image 2", "caption", "Image 3", "Image 4", "Image 5", "Image 6")
    assert spec.list_modality_views("Image") == [0, 1, 3, 4, 5, 6]
    assert (spec.get_size("Image"), spec.get_size("caption")) == (32, 0)
    groups = list(spec.list_groups())
    assert groups == [("Image", [0, 3], (0, 1, 6)), ("caption", [1], (2,)), ("Image", [2], (3, 4, 5))]
    assert spec.to_texts() == tuple(texts)


def test_names_may_contain_colons_and_at_signs() -> None:
    assert ViewSpec.parse(["a:b:2", "c@d", "e:x@9"]).items == (
        ModalityViews("a:b", 2), ModalityViews("c@d"), ModalityViews("e:x", 1, 9)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("0", "invalid view '0': expected for instance 4, image:4, text audio vision"),
        ("image:0", "invalid view 'image:0'"),
        ("image@0", "invalid view 'image@0'"),
        ("2 image", "a number of views cannot be combined with others, got 2 image"),
        ("image 2", "a number of views cannot be combined with others, got image 2"),
    ],
)
def test_invalid_views_raise(texts: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViewSpec.parse(texts.split())


def test_empty_view_raises() -> None:
    with pytest.raises(ValueError, match="invalid view ''"):
        ViewSpec.parse([""])


@pytest.mark.parametrize(
    ("texts", "names", "message"),
    [
        ("imag:2", ("image", "text"), "things has no modality 'imag': did you mean image"),
        ("audio@32", ("audio",), "audio@32: only views of images and videos have a size, audio has neither"),
        ("2", ("text", "audio"), "a number of views is for data with one image modality, things has text, audio"),
        ("2", ("Front", "Side"), "has Front, Side: name them, such as --views Front:2 Side"),
    ],
)
def test_views_that_the_data_lacks_raise(texts: str, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        ViewSpec.parse(texts.split()).resolve(make_data(*names))


def test_config_accepts_numbers_and_texts() -> None:
    assert Config(views=4).views == ("4",)
    assert Config(views="image:2 caption").views == ("image:2", "caption")
    assert Config(views=("text", "audio")).num_views == 2
    assert Config().num_views == 0
    for views in ("image", ("caption",)):
        with pytest.raises(ConfigError, match="at least two views are required"):
            Config(views=views).check()
    with pytest.raises(ConfigError, match="invalid view '0'"):
        Config(views=0).check()
