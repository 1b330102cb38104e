"""Random resized crops: boxes from uniform numbers, and resizing as PIL does it.

A box is (top, left, height, width) in whole pixels. Resizing is bicubic (a = -0.5) with the filter widened when
it shrinks, its weights confined to the box: as if the box were cut out first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import interpolate

ATTEMPTS = 10
"""How often a box is drawn before a central one is taken, as torchvision does."""
TABLE = 2**21
"""Largest table of weights to keep, in numbers: that of 32 x 32 images."""


def boxes(uniforms: Tensor, sizes: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Boxes (B, N, 4) from uniform numbers (B, N, 2 * ATTEMPTS + 2) and image sizes (B, 2) = (height, width).

    The area is a uniform share of the image's, the aspect ratio (width / height) log-uniform; the first attempt
    that fits is taken, else the largest central box of an allowed ratio.
    """
    height, width = sizes.to(torch.float64)[:, None, None].unbind(-1)
    area_draw, ratio_draw = uniforms[..., : 2 * ATTEMPTS].to(torch.float64).unflatten(-1, (2, ATTEMPTS)).unbind(-2)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * area_draw)
    low, high = (torch.tensor(r, dtype=torch.float64).log() for r in ratio)
    aspect = torch.exp(low + (high - low) * ratio_draw)
    w, h = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.to(torch.uint8).argmax(-1, keepdim=True)
    h, w, found = (t.gather(-1, first).squeeze(-1) for t in (h, w, fits))

    height, width = height.squeeze(-1), width.squeeze(-1)
    whole = width / height
    central_w = torch.where(whole > ratio[1], (height * ratio[1]).round(), width)
    central_h = torch.where(whole < ratio[0], (width / ratio[0]).round(), height)
    h, w = (torch.where(found, drawn, central).clamp_min(1) for drawn, central in ((h, central_h), (w, central_w)))
    draw_top, draw_left = uniforms[..., -2:].to(torch.float64).unbind(-1)
    top = torch.where(found, torch.floor(draw_top * (height - h + 1)), torch.floor((height - h) / 2))
    left = torch.where(found, torch.floor(draw_left * (width - w + 1)), torch.floor((width - w) / 2))
    return torch.stack([top, left, h, w], -1).to(torch.int64)


def weights(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """Matrices (V, size, pixels) that resize the pixels [start, start + length) of a row to `size`."""
    start, length = (t.to(torch.float32)[:, None, None] for t in (start, length))
    step = length / size
    centre = (torch.arange(size, dtype=torch.float32, device=start.device)[:, None] + 0.5) * step
    pixel = torch.arange(pixels, dtype=torch.float32, device=start.device) - start
    x = (pixel + 0.5 - centre).mul_(1 / step.clamp_min(1.0)).abs_().clamp_(max=2.0)
    # Keys' cubic with a = -0.5: (1 - x)(2 - x)^2 / 2 up to 2, and u^2 (1 - 2u), u = 1 - x, more below 1.
    u = 1 - x
    kernel = (2 - x).square_().mul_(u).mul_(0.5)
    u.clamp_(min=0.0)
    kernel.add_((1 - 2 * u).mul_(u).mul_(u))
    kernel.mul_((pixel >= 0) & (pixel < length))
    return kernel.div_(kernel.sum(2, keepdim=True))


@lru_cache(maxsize=8)
def _all_weights(pixels: int, size: int, device: torch.device) -> Tensor:
    """The weights of every box of a row of few pixels (2 * pixels * pixels, size, pixels): plain, then mirrored."""
    start = torch.arange(pixels, device=device).repeat_interleave(pixels)
    length = torch.arange(1, pixels + 1, device=device).repeat(pixels)
    plain = weights(start, torch.minimum(length, pixels - start), pixels, size)
    return torch.cat([plain, plain.flip(1)])


def _weights(start: Tensor, length: Tensor, mirrored: Tensor, pixels: int, size: int) -> Tensor:
    if pixels**3 * size <= TABLE:
        table = _all_weights(pixels, size, start.device)
        return table[(mirrored * pixels + start) * pixels + length - 1]
    plain = weights(start, length, pixels, size)
    return torch.where(mirrored[:, None, None], plain.flip(1), plain)


def resized_batch(images: Tensor, box: Tensor, size: int, mirrored: Tensor, out: Tensor) -> None:
    """Boxes (B, N, 4) of equally large images (B, C, H, W) into views (B, N, C, size, size) in [0, 1]."""
    B, C, H, W = images.shape
    N = box.shape[1]
    top, left, h, w = box.flatten(0, 1).unbind(-1)
    rows = images.to(torch.float32).mul_(1 / 255).transpose(1, 2).reshape(B, H, C * W)
    mirrored = mirrored.flatten()
    down = _weights(top, h, torch.zeros_like(mirrored), H, size).view(B, N * size, H)
    across = _weights(left, w, mirrored, W, size)
    tall = torch.bmm(down, rows).view(B * N, size * C, W)
    views = torch.bmm(tall, across.mT).view(B, N, size, C, size)
    torch.clamp(views.transpose(2, 3), 0.0, 1.0, out=out)


def resized_each(image: Tensor, box: Tensor, size: int, mirrored: Tensor) -> Tensor:
    """Boxes (N, 4) of one image (C, H, W) uint8 as (N, C, size, size) uint8, mirrored where said."""
    image = image[None].contiguous(memory_format=torch.channels_last)
    whole = image.device.type == "cpu"  # torch resizes whole numbers there, and PIL's way; elsewhere floats alone
    out = []
    for (top, left, h, w), mirror in zip(box.tolist(), mirrored.tolist(), strict=True):
        part = image[:, :, top : top + h, left : left + w]
        view = interpolate(part if whole else part.float(), (size, size), mode="bicubic", antialias=True)
        view = view if whole else view.round().clamp(0, 255).to(torch.uint8)
        out.append(view.flip(3) if mirror else view)
    return torch.cat(out)


def sizes_of(images: Tensor | Sequence[Tensor]) -> Tensor:
    """(B, 2) heights and widths."""
    if isinstance(images, Tensor):
        return torch.tensor(images.shape[-2:], device=images.device).expand(len(images), 2)
    return torch.tensor([tuple(image.shape[-2:]) for image in images])
