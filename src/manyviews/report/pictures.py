"""Pictures inside a page: small WebP files as data URIs, and modalities that are no images as drawings."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import interpolate

from manyviews.report.markup import element, number

SIDE = 96
"""Pixels of a picture's longer side, at most."""
THUMB = 32
"""Pixels of a side on a sheet of thumbnails."""
QUALITIES = (80, 60, 40, 20)
MOST_OF_ONE, MOST_OF_ALL = 1_600, 160_000
"""Bytes of a picture, and of a sheet of thumbnails: five runs on different data stay below 3 MB."""
STEPS = 64
"""Of a vector or a sequence that are drawn; of more, neighbours are averaged."""


@dataclass(frozen=True)
class Thumbnails:
    """Square pictures on one sheet, row by row."""

    uri: str
    columns: int
    rows: int


def pil(image: Tensor) -> Image.Image:
    """A picture of an image (C, H, W), uint8 or in [0, 1], grey or RGB."""
    image = image.detach().cpu()
    if image.is_floating_point():
        image = (image * 255).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def data_uri(picture: Image.Image, most: int) -> str:
    """The picture itself, as an address; of lower quality, then smaller, until it has at most so many bytes.

    Examples:
        >>> data_uri(Image.new("L", (8, 8)), most=100)[:23]
        'data:image/webp;base64,'
    """
    for quality in QUALITIES:
        file = io.BytesIO()
        picture.save(file, format="WEBP", quality=quality, method=4)
        if len(file.getvalue()) <= most:
            return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
    return data_uri(picture.resize((max(1, picture.width // 2), max(1, picture.height // 2))), most)


def shown(image: Tensor, alt: str) -> Markup:
    """An image (C, H, W) as an element, whole, no larger than it need be."""
    picture = pil(image)
    if max(picture.size) > SIDE:
        picture = ImageOps.contain(picture, (SIDE, SIDE))
    fine = "fine" if max(picture.size) >= SIDE else None
    return element("img", src=data_uri(picture, MOST_OF_ONE), alt=alt, class_=fine)


def thumbnails(images: Sequence[Tensor]) -> Thumbnails:
    """A sheet of the middle squares of images (C, H, W)."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * THUMB, rows * THUMB))
    for place, image in enumerate(images):
        small = ImageOps.fit(pil(image), (THUMB, THUMB))
        sheet.paste(small, (place % columns * THUMB, place // columns * THUMB))
    return Thumbnails(data_uri(sheet, MOST_OF_ALL), columns, rows)


def drawn(row: Tensor, alt: str) -> Markup:
    """One modality of an instance: an image (C, H, W), a sequence (T, d) or a vector (d,), standardised."""
    if row.dim() == 3:
        return shown(row, alt)
    return _heat(row, alt) if row.dim() == 2 else _profile(row, alt)


def _heat(row: Tensor, alt: str) -> Markup:
    """Steps across, features down, from -2.5 to 2.5 in grey."""
    size = [min(STEPS, row.shape[1]), min(STEPS, row.shape[0])]
    small = interpolate(row.T[None, None].float(), size, mode="area")[0, 0]
    grey = ((small + 2.5) / 5 * 255).clamp(0, 255).byte().numpy().astype(np.uint8)
    return element("img", src=data_uri(Image.fromarray(grey), MOST_OF_ONE), alt=alt, class_="heat")


def _profile(row: Tensor, alt: str) -> Markup:
    """The features one after another as a line."""
    small = interpolate(row[None, None].float(), min(STEPS, len(row)), mode="area")[0, 0]
    values = small.clamp(-3, 3).tolist()
    across = [100 * (place + 0.5) / len(values) for place in range(len(values))]
    points = (f"{number(x)} {number(32 - 10 * value)}" for x, value in zip(across, values, strict=True))
    zero = element("path", d="M0 32H100", class_="grid")
    line = element("path", d="M" + "L".join(points), class_="profile")
    return element("svg", zero, line, viewBox="0 0 100 64", role="img", aria_label=alt, class_="drawn")
