"""Colour operations on batches of views (V, 3, H, W) in [0, 1], a parameter (V,) for each view.

Each is PIL's, without its rounding to whole numbers in between.
"""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, one_hot, pad

LUMA = (0.299, 0.587, 0.114)
ORDERS = list(permutations(range(4)))
"""The orders in which brightness, contrast, saturation and hue can be changed."""
TOGETHER = 512
"""Views changed at once: enough for each operation to be worth its call, few enough for a CPU's cache."""


def luma(views: Tensor) -> Tensor:
    """Grey values (V, 1, H, W)."""
    red, green, blue = views.split(1, 1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def brightness(views: Tensor, factor: Tensor) -> Tensor:
    return (views * _each(factor)).clamp_(0.0, 1.0)


def contrast(views: Tensor, factor: Tensor) -> Tensor:
    """Towards (or away from) the mean grey of the view, a whole number as PIL takes it."""
    mean = (views.mean((2, 3)) @ views.new_tensor(LUMA)).mul_(255).round_().div_(255)
    return torch.addcmul(_each(mean * (1 - factor)), views, _each(factor)).clamp_(0.0, 1.0)


def saturation(views: Tensor, factor: Tensor) -> Tensor:
    """Towards (or away from) the view in grey."""
    factor = _each(factor)
    return torch.addcmul(luma(views).mul_(1 - factor), views, factor).clamp_(0.0, 1.0)


def hue(views: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a share of the whole circle, -0.5 to 0.5."""
    red, green, blue = views.unbind(1)
    value = views.amax(1)
    chroma = value - views.amin(1)
    inverse = torch.where(chroma > 0, chroma, 1.0).reciprocal_()
    # The hue in sixths of a circle, by which channel is the largest.
    sixth = torch.where(
        value == red,
        (green - blue) * inverse,
        torch.where(value == green, (blue - red) * inverse + 2, (red - green) * inverse + 4),
    )
    sixth = sixth.add_(6 * turn[:, None, None])
    out = torch.empty_like(views)
    for channel, offset in enumerate((5, 3, 1)):
        k = (sixth + offset).div_(6)
        k = k.sub_(k.floor()).mul_(6)  # a remainder, without torch's slow %
        k = torch.minimum(k, 4 - k).clamp_(0.0, 1.0)
        torch.addcmul(value, k, chroma, value=-1, out=out[:, channel])
    return out


def grey(views: Tensor, chosen: Tensor) -> Tensor:
    """The chosen views in grey, in place."""
    if chosen.any():
        views[chosen] = luma(views[chosen]).expand(-1, 3, -1, -1)
    return views


def blur(views: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur with a kernel of so many pixels, mirrored at the edges."""
    V, C, H, W = views.shape
    reach = kernel // 2
    x = torch.arange(-reach, reach + 1, dtype=views.dtype, device=views.device)
    taps = torch.exp(-0.5 * (x / sigma[:, None]) ** 2)
    taps = (taps / taps.sum(1, keepdim=True)).repeat_interleave(C, 0)
    rows = pad(views.reshape(1, V * C, H, W), (reach,) * 4, mode="reflect")
    rows = conv2d(rows, taps[:, None, None, :], groups=V * C)
    return conv2d(rows, taps[:, None, :, None], groups=V * C).view(V, C, H, W).clamp_(0.0, 1.0)


def jitter(views: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue (V, 4), in place, each view in its own order.

    `order` (V,) is an index into `ORDERS`, or len(ORDERS) for a view that stays as it is.
    """
    operations = (brightness, contrast, saturation, hue)
    for chosen in (order < len(ORDERS)).nonzero().squeeze(1).split(TOGETHER):
        part, factor = views.index_select(0, chosen), factors.index_select(0, chosen)
        turns = torch.tensor(ORDERS, device=order.device)[order[chosen]]
        # First all views that begin with brightness, all that begin with contrast, ..., then what comes second.
        sorted_views = turns.argsort(dim=0, stable=True)
        counts = one_hot(turns, len(operations)).sum(0).tolist()
        for turn, count in enumerate(counts):
            for number, alike in enumerate(sorted_views[:, turn].split(count)):
                changed = operations[number](part.index_select(0, alike), factor[alike, number])
                part.index_copy_(0, alike, changed)
        views.index_copy_(0, chosen, part)
    return views


def _each(factor: Tensor) -> Tensor:
    return factor[:, None, None, None]
