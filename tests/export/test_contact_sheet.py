"""Captions of contact sheets are legible."""

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
