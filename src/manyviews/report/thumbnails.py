"""Images inside a page: small WebP data URIs, and drawings of modalities that are not images."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import interpolate

from manyviews.report.markup import format_coordinate, make_element

MAX_SIDE_PX = 96
"""Max longer side of an image."""
THUMBNAIL_PX = 32
"""Side of a thumbnail."""
QUALITIES = (80, 60, 40, 20)
MAX_IMAGE_BYTES, MAX_SHEET_BYTES = 1_600, 160_000
"""Max size of an image and of a thumbnail sheet: five runs on different data stay below 3 MB."""
MAX_STEPS = 64
"""Max length of a drawn vector or sequence; longer ones are averaged."""


@dataclass(frozen=True)
class Thumbnails:
    """Square images on one sheet, row by row."""

    uri: str
    columns: int
    rows: int


def to_pil(image: Tensor) -> Image.Image:
    """Convert an image (C, H, W), uint8 or in [0, 1], gray or RGB."""
    image = image.detach().cpu()
    if image.is_floating_point():
        image = (image * 255).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def make_data_uri(image: Image.Image, max_bytes: int) -> str:
    """Encode an image as a data URI; reduce its quality, then its size, until it has at most `max_bytes`.

    Examples:
        >>> make_data_uri(Image.new("L", (8, 8)), max_bytes=100)[:23]
        'data:image/webp;base64,'
    """
    for quality in QUALITIES:
        file = io.BytesIO()
        image.save(file, format="WEBP", quality=quality, method=4)
        if len(file.getvalue()) <= max_bytes:
            return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
    return make_data_uri(image.resize((max(1, image.width // 2), max(1, image.height // 2))), max_bytes)


def make_img_tag(image: Tensor, alt: str) -> Markup:
    """Make an <img> of an image (C, H, W), downscaled if it is large."""
    pil_image = to_pil(image)
    if max(pil_image.size) > MAX_SIDE_PX:
        pil_image = ImageOps.contain(pil_image, (MAX_SIDE_PX, MAX_SIDE_PX))
    css_class = "fine" if max(pil_image.size) >= MAX_SIDE_PX else None
    return make_element("img", src=make_data_uri(pil_image, MAX_IMAGE_BYTES), alt=alt, class_=css_class)


def make_thumbnails(images: Sequence[Tensor]) -> Thumbnails:
    """Make a sheet of the center squares of images (C, H, W)."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * THUMBNAIL_PX, rows * THUMBNAIL_PX))
    for i, image in enumerate(images):
        thumbnail = ImageOps.fit(to_pil(image), (THUMBNAIL_PX, THUMBNAIL_PX))
        sheet.paste(thumbnail, (i % columns * THUMBNAIL_PX, i // columns * THUMBNAIL_PX))
    return Thumbnails(make_data_uri(sheet, MAX_SHEET_BYTES), columns, rows)


def draw_modality(features: Tensor, alt: str) -> Markup:
    """Draw one modality of an instance: an image (C, H, W), or a standardized sequence (T, d) or vector (d,)."""
    return DRAWINGS[features.dim()](features, alt)


def _draw_heatmap(sequence: Tensor, alt: str) -> Markup:
    """Draw steps from left to right, features from top to bottom, values from -2.5 (black) to 2.5 (white)."""
    size = [min(MAX_STEPS, sequence.shape[1]), min(MAX_STEPS, sequence.shape[0])]
    resized = interpolate(sequence.T[None, None].float(), size, mode="area")[0, 0]
    gray = ((resized + 2.5) / 5 * 255).clamp(0, 255).byte().numpy().astype(np.uint8)
    return make_element("img", src=make_data_uri(Image.fromarray(gray), MAX_IMAGE_BYTES), alt=alt, class_="heat")


def _draw_profile(vector: Tensor, alt: str) -> Markup:
    """Draw the features as a line."""
    resized = interpolate(vector[None, None].float(), min(MAX_STEPS, len(vector)), mode="area")[0, 0]
    values = resized.clamp(-3, 3).tolist()
    xs = [100 * (i + 0.5) / len(values) for i in range(len(values))]
    points = (
        f"{format_coordinate(x)} {format_coordinate(32 - 10 * value)}" for x, value in zip(xs, values, strict=True)
    )
    zero = make_element("path", d="M0 32H100", class_="grid")
    line = make_element("path", d="M" + "L".join(points), class_="profile")
    return make_element("svg", zero, line, viewBox="0 0 100 64", role="img", aria_label=alt, class_="drawn")


DRAWINGS: dict[int, Callable[[Tensor, str], Markup]] = {1: _draw_profile, 2: _draw_heatmap, 3: make_img_tag}
"""Drawings by the number of dimensions of what `Column.show` returns."""
