"""A map of images: each at its coordinates, framed in the color of its class."""

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from manyviews.export.contact_sheet import GAP, draw_cell, load_font, make_visible

COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#999999", "#6b4c2a", "#111111")
"""Colors of classes (the first six by Okabe and Ito); further classes repeat them."""
FRAME = 2
LEGEND_PX = 20
"""Height of a line of the legend."""


def draw_image_map(
    coords: Tensor,
    images: Sequence[Tensor | str],
    labels: Sequence[str] | None = None,
    *,
    width: int = 960,
    cell: int = 28,
) -> Image.Image:
    """Draw images (C, H, W), uint8 or in [0, 1], as thumbnails of `cell` pixels at their coordinates (n, 2).

    Later images cover earlier ones. With labels, each image has a frame in the color of its class, and there is a
    legend. Instances that are not images are drawn as in `draw_contact_sheet`.

    Examples:
        >>> coords = torch.tensor([[0.0, 0.0], [2.0, 1.0]])
        >>> draw_image_map(coords, [torch.zeros(3, 8, 8), torch.ones(3, 8, 8)], width=100, cell=10).size
        (100, 61)
    """
    if coords.shape != (len(images), 2):
        raise ValueError(f"coords must be ({len(images)}, 2), as there are as many images, got {tuple(coords.shape)}")
    if labels is not None and len(labels) != len(images):
        raise ValueError(f"there must be as many labels as images, {len(images)}, got {len(labels)}")
    if not coords.isfinite().all():
        raise ValueError("coords must be finite, got NaN or infinity")
    side = cell + 2 * FRAME
    if width < 2 * side:
        raise ValueError(f"width must be >= {2 * side} for cells of {cell} pixels, got {width}")
    names = sorted(set(labels or ()))
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    legend, top = _draw_legend(colors, width)
    coords = coords.detach().cpu().float()
    low, high = (coords.amin(0), coords.amax(0)) if len(images) else (torch.zeros(2), torch.zeros(2))
    scale = (width - side - 2 * GAP) / max(high - low).clamp_min(1e-9).item()
    corners = ((coords - low) * scale + GAP).round().int().tolist()
    height = round(float(high[1] - low[1]) * scale) + side + 2 * GAP
    sheet = Image.new("RGB", (width, top + height), "white")
    sheet.paste(legend, (0, 0))
    for i, (x, y) in enumerate(corners):
        framed = Image.new("RGB", (side, side), "white" if labels is None else colors[labels[i]])
        framed.paste(draw_cell(images[i], cell), (FRAME, FRAME))
        sheet.paste(framed, (x, top + y))
    return sheet


def _draw_legend(colors: dict[str, str], width: int) -> tuple[Image.Image, int]:
    """Draw the names of classes next to their colors; also return the height."""
    font, _ = load_font()
    image = Image.new("RGB", (width, LEGEND_PX * (len(colors) + 1)), "white")
    draw, x, y = ImageDraw.Draw(image), GAP, 0
    for name, color in colors.items():
        text = make_visible(name)
        length = LEGEND_PX + round(draw.textlength(text, font)) + 3 * GAP
        if x > GAP and x + length > width:
            x, y = GAP, y + LEGEND_PX
        draw.rectangle((x, y + 5, x + 10, y + 15), fill=color)
        draw.text((x + 16, y + 4), text, "black", font)
        x += length
    height = y + LEGEND_PX if colors else 0
    return image.crop((0, 0, width, height)), height
