"""Captions of contact sheets can be read."""

import pytest
import torch
from PIL import Image, ImageChops

from manyviews.views import contact_sheet


def drawn(caption: str) -> Image.Image:
    return contact_sheet([[torch.ones(3, 8, 8)]], [[caption]], cell=96)


@pytest.mark.parametrize(("one", "other"), ["жф", "αω", "éà", "日本", "😀🎉", "\x1b\x9b", "\udcff\udcfe"])
def test_letters_are_not_drawn_as_the_same_box(one: str, other: str) -> None:
    """A font draws the same box for every character that it has no glyph for."""
    assert ImageChops.difference(drawn(one), drawn(other)).getbbox() is not None


def test_what_has_no_glyph_is_drawn_as_an_escape() -> None:
    assert drawn("日.png") == drawn(r"\u65e5.png")
    assert drawn("a\x1b[31m") == drawn(r"a\x1b[31m")
