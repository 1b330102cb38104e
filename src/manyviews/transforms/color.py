"""Color operations on batches of views (V, 3, H, W) in [0, 1], in place, with one parameter per view (V,).

Each operation matches PIL's, without PIL's rounding to integers between operations.
"""

from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, one_hot, pad

from manyviews.transforms import image_ops

LUMA = (0.299, 0.587, 0.114)
ORDERS = list(permutations(range(4)))
"""All orders of brightness, contrast, saturation and hue."""
MIN_CHROMA = 1e-30
"""Lower bound of the chroma that the hue is divided by; a gray pixel has the hue 0."""
CHUNK_VIEWS = 512
"""Views per call: enough to amortize the call overhead, few enough for a CPU cache."""


def compute_luma(views: Tensor) -> Tensor:
    """Return gray values (V, 1, H, W)."""
    red, green, blue = views.split(1, 1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def adjust_brightness_(views: Tensor, factor: Tensor) -> Tensor:
    return views.mul_(_per_view(factor)).clamp_(0.0, 1.0)


def adjust_contrast_(views: Tensor, factor: Tensor) -> Tensor:
    """Interpolate with (or extrapolate from) the mean gray value of the view, rounded to an integer as in PIL."""
    mean = (views.mean((2, 3)) @ views.new_tensor(LUMA)).mul_(255).round_().div_(255)
    return views.mul_(_per_view(factor)).add_(_per_view(mean * (1 - factor))).clamp_(0.0, 1.0)


def adjust_saturation_(views: Tensor, factor: Tensor) -> Tensor:
    """Interpolate with (or extrapolate from) the grayscale view."""
    factor = _per_view(factor)
    gray = compute_luma(views).mul_(1 - factor)
    return views.mul_(factor).add_(gray).clamp_(0.0, 1.0)


def adjust_hue_(views: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue by a fraction of the color circle, -0.5 to 0.5."""
    red, green, blue = views.unbind(1)
    # Buffers that are used again and again stay in the CPU cache, other than new tensors.
    value, chroma, hue, other, is_other = views.new_empty(5, len(views), *views.shape[2:])
    torch.amax(views, 1, out=value)
    torch.amin(views, 1, out=chroma)
    torch.sub(value, chroma, out=chroma).mul_(6)
    # Hue times chroma; the formula depends on the largest channel. Weights of 0 and 1 select it exactly, and several
    # times faster than torch.where on a CPU.
    torch.sub(blue, red, out=hue).add_(chroma, alpha=1 / 3)
    torch.sub(red, green, out=other).add_(chroma, alpha=2 / 3)
    hue.lerp_(other, torch.sub(value, green, out=is_other).sign_())
    torch.sub(green, blue, out=other).lerp_(hue, torch.sub(value, red, out=is_other).sign_())
    torch.clamp_min(chroma, MIN_CHROMA, out=hue).reciprocal_().mul_(other)
    # In circles, and at least 0 after a shift of up to half a circle back.
    hue.add_((shift + 1)[:, None, None])
    value.sub_(chroma, alpha=1 / 3)
    for channel, offset in enumerate((5 / 6, 3 / 6, 1 / 6)):
        # A channel falls from value to value - chroma while its hue is 1/3 to 1/6 circles away from 1/3.
        distance = torch.add(hue, offset, out=other).frac_().sub_(1 / 3).abs_().clamp_(1 / 6, 1 / 3)
        torch.addcmul(value, chroma, distance, out=views[:, channel])
    return views.clamp_(0.0, 1.0)


def grayscale_(views: Tensor, mask: Tensor) -> Tensor:
    """Convert the views selected by `mask` to grayscale, in place."""
    if mask.any():
        views[mask] = compute_luma(views[mask]).expand(-1, 3, -1, -1)
    return views


def gaussian_blur(views: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Apply a Gaussian blur with a kernel of `kernel` pixels and reflection padding."""
    V, C, H, W = views.shape
    reach = kernel // 2
    x = torch.arange(-reach, reach + 1, dtype=views.dtype, device=views.device)
    taps = torch.exp(-0.5 * (x / sigma[:, None]) ** 2)
    taps = (taps / taps.sum(1, keepdim=True)).repeat_interleave(C, 0)
    padded = pad(views.reshape(1, V * C, H, W), (reach,) * 4, mode="reflect")
    blurred = conv2d(padded, taps[:, None, None, :], groups=V * C)
    return conv2d(blurred, taps[:, None, :, None], groups=V * C).view(V, C, H, W).clamp_(0.0, 1.0)


def augment_color_(views: Tensor, factors: Tensor, order: Tensor, grayscale: Tensor) -> Tensor:
    """Apply color jitter, see `color_jitter_`, and convert the views selected by `grayscale` (V,), in place."""
    if not image_ops.can_run(views):
        return grayscale_(color_jitter_(views, factors, order), grayscale)
    orders = torch.tensor([*ORDERS, (image_ops.SKIP,) * 4])
    last = torch.where(grayscale, 4, image_ops.SKIP)[:, None]
    return image_ops.augment_color_(views, factors, torch.cat([orders[order], last], 1))


def color_jitter_(views: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Apply brightness, contrast, saturation and hue factors (V, 4) in place, in a separate order for each view.

    `order` (V,) is an index into `ORDERS`, or len(ORDERS) for a view that is not changed.
    """
    operations = (adjust_brightness_, adjust_contrast_, adjust_saturation_, adjust_hue_)
    for chosen in (order < len(ORDERS)).nonzero().squeeze(1).split(CHUNK_VIEWS):
        op_order = torch.tensor(ORDERS, device=order.device)[order[chosen]]
        # Sort the views by their first operation, then by their second, and so on.
        sorted_views = op_order.argsort(dim=0, stable=True)
        counts = one_hot(op_order, len(operations)).sum(0).tolist()
        chunk, position = views.index_select(0, chosen[sorted_views[:, 0]]), sorted_views[:, 0].argsort()
        for step, count in enumerate(counts):
            if step:
                chunk = chunk.index_select(0, position[sorted_views[:, step]])
                position = sorted_views[:, step].argsort()
            factor = factors.index_select(0, chosen[sorted_views[:, step]])
            for i, (same_op, values) in enumerate(zip(chunk.split(count), factor.split(count), strict=True)):
                operations[i](same_op, values[:, i])
        views.index_copy_(0, chosen[sorted_views[:, -1]], chunk)
    return views


def _per_view(factor: Tensor) -> Tensor:
    return factor[:, None, None, None]
