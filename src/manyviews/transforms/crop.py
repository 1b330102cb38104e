"""Random resized crops: boxes from uniform numbers, and PIL's resizing.

A box is (top, left, height, width) in integer pixels. Resizing is bicubic (a = -0.5) and antialiased. The filter
sees only the pixels inside the box, as if the box were cut out first.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import interpolate

MAX_ATTEMPTS = 10
"""Boxes tried before the central one is used, as in torchvision."""
MAX_TABLE_NUMEL = 2**21
"""Largest cached table of resize matrices, in elements: the table of 32 x 32 images."""


def sample_crop_boxes(
    uniforms: Tensor, sizes: Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Map uniform numbers (B, N, 2 * MAX_ATTEMPTS + 2) and image sizes (B, 2) = (height, width) to boxes (B, N, 4).

    The area is a uniform fraction of the image area, the aspect ratio (width / height) is log-uniform. The first
    attempt that fits is used, or else the largest central box with an allowed ratio.
    """
    height, width = sizes.to(torch.float64)[:, None].expand(*uniforms.shape[:2], 2).unbind(-1)
    draws = uniforms[..., : 2 * MAX_ATTEMPTS].unflatten(-1, (2, MAX_ATTEMPTS))
    h, w, valid = (t.squeeze(-1) for t in _propose_sizes(draws[..., :1], height, width, scale, ratio))
    # Most views use their first attempt, so that the others are computed for few.
    rejected = (~valid).nonzero(as_tuple=True)
    proposed = _propose_sizes(draws[rejected][..., 1:], height[rejected], width[rejected], scale, ratio)
    first = proposed[2].to(torch.uint8).argmax(-1, keepdim=True)
    h[rejected], w[rejected], valid[rejected] = (t.gather(-1, first).squeeze(-1) for t in proposed)

    image_ratio = width / height
    central_w = torch.where(image_ratio > ratio[1], (height * ratio[1]).round(), width)
    central_h = torch.where(image_ratio < ratio[0], (width / ratio[0]).round(), height)
    h, w = (torch.where(valid, sampled, central).clamp_min(1) for sampled, central in ((h, central_h), (w, central_w)))
    draw_top, draw_left = uniforms[..., -2:].to(torch.float64).unbind(-1)
    top = torch.where(valid, torch.floor(draw_top * (height - h + 1)), torch.floor((height - h) / 2))
    left = torch.where(valid, torch.floor(draw_left * (width - w + 1)), torch.floor((width - w) / 2))
    return torch.stack([top, left, h, w], -1).to(torch.int64)


def _propose_sizes(
    draws: Tensor, height: Tensor, width: Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Map uniform numbers (..., 2, A) of A attempts to heights, widths and whether they fit, (..., A) each."""
    height, width = height[..., None], width[..., None]
    area_draw, ratio_draw = draws.to(torch.float64).unbind(-2)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * area_draw)
    low, high = (torch.tensor(r, dtype=torch.float64).log() for r in ratio)
    aspect = torch.exp(low + (high - low) * ratio_draw)
    w, h = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
    return h, w, (w > 0) & (w <= width) & (h > 0) & (h <= height)


def make_resize_matrix(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """Return matrices (V, size, pixels) that resize the pixels [start, start + length) of an image row to `size`."""
    start, length = (t.to(torch.float32)[:, None, None] for t in (start, length))
    step = length / size
    center = (torch.arange(size, dtype=torch.float32, device=start.device)[:, None] + 0.5) * step
    pixel = torch.arange(pixels, dtype=torch.float32, device=start.device) - start
    x = (pixel + 0.5 - center).mul_(1 / step.clamp_min(1.0)).abs_().clamp_(max=2.0)
    # Keys' cubic with a = -0.5: (1 - x)(2 - x)^2 / 2 for x < 2, plus u^2 (1 - 2u) with u = 1 - x for x < 1.
    u = 1 - x
    kernel = (2 - x).square_().mul_(u).mul_(0.5)
    u.clamp_(min=0.0)
    kernel.add_((1 - 2 * u).mul_(u).mul_(u))
    kernel.mul_((pixel >= 0) & (pixel < length))
    return kernel.div_(kernel.sum(2, keepdim=True))


@lru_cache(maxsize=8)
def _make_resize_table(pixels: int, size: int, device: torch.device) -> Tensor:
    """Return the matrices of every box of a short row (2 * pixels * pixels, size, pixels): plain, then flipped."""
    start = torch.arange(pixels, device=device).repeat_interleave(pixels)
    length = torch.arange(1, pixels + 1, device=device).repeat(pixels)
    plain = make_resize_matrix(start, torch.minimum(length, pixels - start), pixels, size)
    return torch.cat([plain, plain.flip(1)])


def _lookup_resize_matrix(start: Tensor, length: Tensor, hflip: Tensor, pixels: int, size: int) -> Tensor:
    if pixels**3 * size <= MAX_TABLE_NUMEL:
        table = _make_resize_table(pixels, size, start.device)
        return table.index_select(0, (hflip * pixels + start) * pixels + length - 1)
    plain = make_resize_matrix(start, length, pixels, size)
    return torch.where(hflip[:, None, None], plain.flip(1), plain)


def crop_resize_batch(images: Tensor, box: Tensor, size: int, hflip: Tensor, out: Tensor) -> None:
    """Write the boxes (B, N, 4) of images (B, C, H, W) to `out` (B, N, C, size, size), in [0, 1], on any device."""
    B, C, H, W = images.shape
    N = box.shape[1]
    top, left, h, w = box.flatten(0, 1).unbind(-1)
    rows = images.to(torch.float32).mul_(1 / 255).transpose(1, 2).reshape(B, H, C * W)
    hflip = hflip.flatten()
    down = _lookup_resize_matrix(top, h, torch.zeros_like(hflip), H, size).view(B, N * size, H)
    across = _lookup_resize_matrix(left, w, hflip, W, size)
    columns = torch.bmm(down, rows).view(B * N, size * C, W)
    views = torch.bmm(columns, across.mT).view(B, N, size, C, size)
    torch.clamp(views.transpose(2, 3), 0.0, 1.0, out=out)


def crop_resize(image: Tensor, box: Tensor, size: int, hflip: Tensor) -> Tensor:
    """Resize the boxes (N, 4) of one uint8 image (C, H, W) to uint8 (N, C, size, size); `hflip` (N,) flips views."""
    image = image[None].contiguous(memory_format=torch.channels_last)
    integer_path = image.device.type == "cpu"  # torch resizes uint8 exactly like PIL, but only on CPUs
    out = []
    for (top, left, h, w), flip in zip(box.tolist(), hflip.tolist(), strict=True):
        patch = image[:, :, top : top + h, left : left + w]
        view = interpolate(patch if integer_path else patch.float(), (size, size), mode="bicubic", antialias=True)
        view = view if integer_path else view.round().clamp(0, 255).to(torch.uint8)
        out.append(view.flip(3) if flip else view)
    return torch.cat(out)


def get_image_sizes(images: Tensor | Sequence[Tensor]) -> Tensor:
    """Return heights and widths (B, 2)."""
    if isinstance(images, Tensor):
        return torch.tensor(images.shape[-2:], device=images.device).expand(len(images), 2)
    return torch.tensor([tuple(image.shape[-2:]) for image in images])
