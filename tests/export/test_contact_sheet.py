"""Contact sheets: captions are legible, and every kind of value has a cell."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops

from manyviews.export import draw_contact_sheet


def draw(caption: str) -> Image.Image:
    return draw_contact_sheet([[torch.ones(3, 8, 8)]], [[caption]], cell=96)


@pytest.mark.parametrize(("one", "other"), ["жф", "αω", "éà", "日本", "😀🎉", "\x1b\x9b", "\udcff\udcfe"])
def test_different_captions_draw_different_pixels(one: str, other: str) -> None:
    """A font draws the same box for every character without a glyph."""
    assert ImageChops.difference(draw(one), draw(other)).getbbox() is not None


def test_characters_without_a_glyph_are_drawn_as_escapes() -> None:
    assert draw("日.png") == draw(r"\u65e5.png")
    assert draw("a\x1b[31m") == draw(r"a\x1b[31m")


def draw_cell(shown: torch.Tensor | str | None, cell: int = 60) -> np.ndarray:
    """Return the pixels (cell, cell) of the only cell of a sheet, and assert that they are gray."""
    pixels = np.asarray(draw_contact_sheet([[shown]], cell=cell))[4 : cell + 4, 4 : cell + 4]
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


def test_a_text_stands_in_its_cell() -> None:
    text = draw_cell("a cat on a very long sofa, which does not fit into the cell at all, and neither does this")
    assert text[0, 0] == 0xEE
    assert (text < 100).sum() > 100
    assert (text[:4] == 0xEE).all()
    assert (text[-4:] == 0xEE).all()
    assert (draw_cell("a cat") == draw_cell(" a \n\t cat ")).all()
    assert (draw_cell("a cat") != draw_cell("a hat")).any()
    assert (draw_cell("日") == draw_cell(r"\u65e5")).all()
    assert (draw_cell("") == 0xEE).all()


def test_a_vector_is_a_line_of_its_features() -> None:
    """Zero is in the middle, three deviations are at the edge, and larger ones are cut."""
    assert [np.flatnonzero(draw_cell(torch.zeros(7))[:, x] == 0).tolist() for x in (0, 30, 59)] == [[30], [30], [30]]
    assert np.flatnonzero(draw_cell(torch.full((7,), 1.5))[:, 30] == 0).tolist() == [15]
    assert np.flatnonzero(draw_cell(torch.full((7,), 99.0))[:, 30] == 0).tolist() == [0]
    falling = draw_cell(torch.tensor([1.5, -1.5]))
    heights = [np.flatnonzero(falling[:, x] == 0).mean() for x in range(60)]
    assert heights == pytest.approx(np.linspace(15, 45, 60).tolist(), abs=1)


def test_a_sequence_has_a_gray_level_for_each_step_and_feature() -> None:
    steps = torch.tensor([[-2.5, 0.0], [2.5, 1.0], [-9.0, 9.0]])
    pixels = draw_cell(steps)
    for step in range(3):
        for feature in range(2):
            block = pixels[30 * feature : 30 * (feature + 1), 20 * step : 20 * (step + 1)]
            level = min(max((float(steps[step, feature]) + 2.5) / 5, 0), 1)
            assert (block == round(255 * level)).all()


def test_a_missing_view_is_an_empty_cell() -> None:
    assert (draw_cell(None) == 255).all()
    mixed = draw_contact_sheet(
        [[torch.zeros(3, 8, 8), "text", None], [None, torch.zeros(4), torch.zeros(5, 4)]],
        [["image", "text", "missing"], ["missing", "vector", "sequence"]],
        cell=60,
    )
    assert mixed.size == (3 * 64 + 8, 2 * (60 + 13 + 4) + 4)
