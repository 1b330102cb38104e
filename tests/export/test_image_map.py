"""Maps of images and sheets of views."""

import numpy as np
import pytest
import torch
from PIL import Image

import manyviews as mv
from manyviews.export import draw_image_map, draw_views

CORNERS = torch.tensor([[0.0, 0.0], [10.0, 5.0]])


def test_images_stand_at_their_coordinates_in_the_color_of_their_class() -> None:
    images = [torch.zeros(3, 8, 8), torch.full((3, 4, 4), 255, dtype=torch.uint8)]
    sheet = draw_image_map(CORNERS, images, ["b", "a"], width=200, cell=10)
    pixels, height = np.asarray(sheet), sheet.height
    assert sheet.width == 200
    assert (pixels[-height + 20 + 6 + 4, 4 + 2 + 4] == 0).all()  # a legend of 20 pixels, a gap and a frame
    assert (pixels[height - 4 - 2 - 4, 200 - 4 - 2 - 4] == 255).all()
    frames = [tuple(pixels[24, 4]), tuple(pixels[height - 5, 200 - 5])]
    assert frames == [(0xE6, 0x9F, 0x00), (0x00, 0x72, 0xB2)]
    assert {tuple(color) for color in pixels[10]} >= set(frames)  # the legend


def test_the_scale_is_that_of_both_axes() -> None:
    assert draw_image_map(CORNERS, [torch.zeros(3, 8, 8)] * 2, width=222, cell=10).height == 14 + 8 + 100


def test_identical_points_and_one_image_are_drawn() -> None:
    assert draw_image_map(torch.zeros(3, 2), [torch.zeros(1, 8, 8)] * 3, width=100, cell=10).size == (100, 22)


def test_many_classes_have_a_legend_of_several_lines() -> None:
    labels = [f"a long name {i}" for i in range(12)]
    heights = [
        draw_image_map(torch.zeros(12, 2), ["text"] * 12, names, width=300, cell=10).height for names in (None, labels)
    ]
    assert heights[1] - heights[0] >= 80


@pytest.mark.parametrize(
    ("coords", "labels", "width", "message"),
    [
        (torch.zeros(3, 2), None, 100, r"coords must be \(2, 2\), as there are as many images, got \(3, 2\)"),
        (CORNERS, ["a"], 100, "as many labels as images, 2, got 1"),
        (CORNERS * torch.nan, None, 100, "coords must be finite"),
        (CORNERS, None, 20, "width must be >= 28 for cells of 10 pixels, got 20"),
    ],
)
def test_wrong_arguments_are_refused(coords: torch.Tensor, labels: list[str] | None, width: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_image_map(coords, [torch.zeros(3, 8, 8)] * 2, labels, width=width, cell=10)


def test_views_are_those_of_the_epoch() -> None:
    config = mv.Config(views=2, max_instances=64)
    first, again, other = (draw_views(config, 3, epoch) for epoch in (0, 0, 1))
    assert first == again
    assert first != other
    originals = [sheet.crop((0, 0, 100, sheet.height)) for sheet in (first, other)]
    assert originals[0] == originals[1]
    assert isinstance(first, Image.Image)


def test_no_instances_are_refused() -> None:
    with pytest.raises(ValueError, match="instances must be >= 1, got 0"):
        draw_views(mv.Config(), 0)
