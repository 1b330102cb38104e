"""A contact sheet: pictures in rows, as a person sees them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate

from manyviews.utils.text import escape_control_characters

GAP = 4
LINE = 13
"""Pixels of a line of writing."""


def contact_sheet(
    rows: Sequence[Sequence[Tensor]], captions: Sequence[Sequence[str]] | None = None, cell: int = 96
) -> Image.Image:
    """Rows of pictures (C, H, W), uint8 or in [0, 1], `cell` pixels each; the first of a row stands apart.

    A caption is written under its picture, a line for each of its lines, cut to its width. Characters that
    DejaVu Sans has no glyph for are written as escapes.

    Examples:
        >>> contact_sheet([[torch.zeros(3, 8, 8), torch.ones(3, 8, 8)]], cell=16).size
        (48, 24)
    """
    lines = max((text.count("\n") + 1 for row in captions or () for text in row), default=0)
    height, columns = cell + lines * LINE + GAP, max(len(row) for row in rows)
    sheet = Image.new("RGB", (columns * (cell + GAP) + 2 * GAP, len(rows) * height + GAP), "white")
    for number, row in enumerate(rows):
        top = GAP + number * height
        for column, picture in enumerate(row):
            left = GAP + column * (cell + GAP) + (GAP if column else 0)
            shown = picture.float() / 255 if picture.dtype == torch.uint8 else picture
            sheet.paste(Image.fromarray(_fitted(shown, cell).permute(1, 2, 0).contiguous().numpy()), (left, top))
            if captions:
                _write(sheet, captions[number][column], left, top + cell, cell)
    return sheet


def _write(sheet: Image.Image, text: str, left: int, top: int, width: int) -> None:
    draw, (font, characters) = ImageDraw.Draw(sheet), _load_font()
    for number, line in enumerate(text.split("\n")):
        # A character without a glyph would be a box, and a name in such letters a row of boxes.
        shown = "".join(
            sign if sign in characters else sign.encode("ascii", "backslashreplace").decode()
            for sign in escape_control_characters(line)
        )
        # Of a name that is too long the end is kept: it tells files apart.
        while len(shown) > 2 and draw.textlength(shown, font) > width:
            shown = "…" + shown[2:]
        draw.text((left, top + number * LINE), shown, "black", font)


@cache
def _load_font() -> tuple[ImageFont.FreeTypeFont, frozenset[str]]:
    """DejaVu Sans, which matplotlib brings, and the characters it has glyphs for."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    path = str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
    return ImageFont.truetype(path, LINE - 3), frozenset(map(chr, FT2Font(path).get_charmap()))


def _fitted(picture: Tensor, cell: int) -> Tensor:
    """A picture (C, H, W) in [0, 1] as uint8 (3, cell, cell), whole, centred on white."""
    scale = cell / max(picture.shape[1:])
    size = [max(1, round(side * scale)) for side in picture.shape[1:]]
    mode = "nearest" if scale > 1 else "bilinear"
    antialias = {"antialias": True} if mode == "bilinear" else {}
    fitted = interpolate(picture[None], size, mode=mode, **antialias)[0].expand(3, *size)
    out = torch.full((3, cell, cell), 255, dtype=torch.uint8)
    top, left = (cell - size[0]) // 2, (cell - size[1]) // 2
    out[:, top : top + size[0], left : left + size[1]] = (fitted * 255).round().clamp(0, 255).to(torch.uint8)
    return out


def save_png(picture: Image.Image, path: Path) -> None:
    """Write a PNG that is there whole or not at all.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_png(contact_sheet([[torch.zeros(3, 8, 8)]]), Path(folder) / "sheet.png")
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        picture.save(part, format="PNG")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ValueError(f"cannot write {path}: {error}") from error
