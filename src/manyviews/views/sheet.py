"""A contact sheet: instances and their views, as a person sees them."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

GAP = 4


def contact_sheet(images: list[Tensor], views: Tensor, cell: int = 96) -> Image.Image:
    """Rows of an image (C, H, W) uint8 and its views (B, N, C, H, W) in [0, 1], `cell` pixels each."""
    rows, count = views.shape[:2]
    width = (count + 1) * cell + (count + 3) * GAP
    sheet = torch.full((3, rows * (cell + GAP) + GAP, width), 255, dtype=torch.uint8)
    for row, (image, own) in enumerate(zip(images, views, strict=True)):
        top = GAP + row * (cell + GAP)
        for column, picture in enumerate([image.float() / 255, *own]):
            left = GAP + column * (cell + GAP) + (GAP if column else 0)
            sheet[:, top : top + cell, left : left + cell] = _fitted(picture, cell)
    return Image.fromarray(sheet.permute(1, 2, 0).contiguous().numpy())


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
    """Write a PNG that is there whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        picture.save(part, format="PNG")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ValueError(f"cannot write {path}: {error}") from error
