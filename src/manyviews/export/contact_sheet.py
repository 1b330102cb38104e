"""Contact sheets: rows of images with captions."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate

from manyviews.utils import atomic_path, escape_control_characters

GAP = 4
CAPTION_LINE_PX = 13
"""Height of a caption line."""


def draw_contact_sheet(
    rows: Sequence[Sequence[Tensor | str | None]], captions: Sequence[Sequence[str]] | None = None, cell: int = 96
) -> Image.Image:
    """Draw rows of images (C, H, W), uint8 or in [0, 1], in cells of `cell` pixels; the first of a row is set apart.

    A text stands in its cell, standardized features (d,) are a line, sequences (T, d) gray levels; None is empty.

    A caption is written below its image, line by line, truncated to the cell's width. Characters without a glyph
    in DejaVu Sans are written as escapes.

    Examples:
        >>> draw_contact_sheet([[torch.zeros(3, 8, 8), torch.ones(3, 8, 8)]], cell=16).size
        (48, 24)
    """
    lines = max((text.count("\n") + 1 for row in captions or () for text in row), default=0)
    height, columns = cell + lines * CAPTION_LINE_PX + GAP, max(len(row) for row in rows)
    sheet = Image.new("RGB", (columns * (cell + GAP) + 2 * GAP, len(rows) * height + GAP), "white")
    for i, row in enumerate(rows):
        top = GAP + i * height
        for j, shown in enumerate(row):
            left = GAP + j * (cell + GAP) + (GAP if j else 0)
            if shown is not None:
                sheet.paste(draw_cell(shown, cell), (left, top))
            if captions:
                _draw_caption(sheet, captions[i][j], left, top + cell, cell)
    return sheet


def draw_cell(shown: Tensor | str, cell: int) -> Image.Image:
    """Draw what `Column.show` returns in a square of `cell` pixels."""
    # By kind: only a text is not a tensor, whose number of dimensions says how it is drawn.
    return _draw_text(shown, cell) if isinstance(shown, str) else DRAWINGS[shown.dim()](shown, cell)


def _draw_image(image: Tensor, cell: int) -> Image.Image:
    unit = image.float() / 255 if image.dtype == torch.uint8 else image
    return Image.fromarray(_letterbox(unit, cell).permute(1, 2, 0).contiguous().numpy())


def _draw_heatmap(sequence: Tensor, cell: int) -> Image.Image:
    """Draw steps from left to right, features from top to bottom."""
    gray = ((sequence.T[None, None].float() + 2.5) / 5).clamp(0, 1)
    return _draw_image(interpolate(gray, (cell, cell), mode="nearest")[0], cell)


def _draw_profile(vector: Tensor, cell: int) -> Image.Image:
    """Draw the features as a line."""
    image = Image.new("RGB", (cell, cell), "#eeeeee")
    xs, ys = torch.linspace(0, cell - 1, len(vector)), cell * (0.5 - vector.clamp(-3, 3) / 6)
    ImageDraw.Draw(image).line([(x, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)], "black")
    return image


DRAWINGS: dict[int, Callable[[Tensor, int], Image.Image]] = {1: _draw_profile, 2: _draw_heatmap, 3: _draw_image}
"""Drawings by the number of dimensions of what `Column.show` returns."""


def _draw_text(text: str, cell: int) -> Image.Image:
    """Draw the words of a text on a gray cell, as many lines as fit."""
    image = Image.new("RGB", (cell, cell), "#eeeeee")
    draw, (font, _) = ImageDraw.Draw(image), load_font()
    lines = [""]
    for word in make_visible(" ".join(text.split())).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        fits = not lines[-1] or draw.textlength(longer, font) <= cell - 2 * GAP
        lines = [*lines[:-1], longer] if fits else [*lines, word]
    lines = lines[: (cell - 2 * GAP) // CAPTION_LINE_PX]
    top = (cell - len(lines) * CAPTION_LINE_PX) // 2
    for i, line in enumerate(lines):
        draw.text((GAP, top + i * CAPTION_LINE_PX), line, "black", font)
    return image


def make_visible(text: str) -> str:
    """Write control characters, and those that the font would draw as a box, as escapes."""
    glyphs = load_font()[1]
    return "".join(
        char if char in glyphs else char.encode("ascii", "backslashreplace").decode()
        for char in escape_control_characters(text)
    )


def _draw_caption(sheet: Image.Image, text: str, left: int, top: int, width: int) -> None:
    draw, (font, _) = ImageDraw.Draw(sheet), load_font()
    for i, line in enumerate(text.split("\n")):
        visible = make_visible(line)
        # Long names keep their end, which distinguishes files.
        while len(visible) > 2 and draw.textlength(visible, font) > width:
            visible = "…" + visible[2:]
        draw.text((left, top + i * CAPTION_LINE_PX), visible, "black", font)


@cache
def load_font() -> tuple[ImageFont.FreeTypeFont, frozenset[str]]:
    """Load DejaVu Sans, which matplotlib ships, and the set of characters it has glyphs for."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    path = str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
    return ImageFont.truetype(path, CAPTION_LINE_PX - 3), frozenset(map(chr, FT2Font(path).get_charmap()))


def _letterbox(image: Tensor, cell: int) -> Tensor:
    """Fit an image (C, H, W) in [0, 1] into uint8 (3, cell, cell), centered on white."""
    scale = cell / max(image.shape[1:])
    size = [max(1, round(side * scale)) for side in image.shape[1:]]
    mode = "nearest" if scale > 1 else "bilinear"
    antialias = {"antialias": True} if mode == "bilinear" else {}
    resized = interpolate(image[None], size, mode=mode, **antialias)[0].expand(3, *size)
    out = torch.full((3, cell, cell), 255, dtype=torch.uint8)
    top, left = (cell - size[0]) // 2, (cell - size[1]) // 2
    out[:, top : top + size[0], left : left + size[1]] = (resized * 255).round().clamp(0, 255).to(torch.uint8)
    return out


def save_png(image: Image.Image, path: Path) -> None:
    """Write a PNG atomically.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_png(draw_contact_sheet([[torch.zeros(3, 8, 8)]]), Path(folder) / "sheet.png")
    """
    try:
        with atomic_path(path) as temporary:
            image.save(temporary, format="PNG")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error}") from error
