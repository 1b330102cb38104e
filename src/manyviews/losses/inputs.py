"""What an objective accepts, and what it says when it does not."""

from __future__ import annotations

import math
from typing import NamedTuple, get_args

import torch
from torch import Tensor
from torch import distributed as dist

from manyviews.losses import gather

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
STACK = "stack views that are tensors of their own, torch.stack([z1, z2], 1)"
"""What to do with embeddings as losses of two views take them."""


class DegenerateError(ValueError):
    """Embeddings without a direction (NaN, inf, zero), or no such temperature: what a diverging training comes to."""


class Batch(NamedTuple):
    """Unit embeddings (M, N, d) of all ranks, what of them is present (M, N), labels (M,)."""

    z: Tensor
    present: Tensor | None
    labels: Tensor | None
    group: dist.ProcessGroup | None

    def local(self, values: Tensor) -> Tensor:
        """The part of this rank in a value for each instance."""
        if self.group is None:
            return values
        return values.chunk(dist.get_world_size(self.group))[dist.get_rank(self.group)]


def prepare(
    z: Tensor,
    present: Tensor | None,
    labels: Tensor | None,
    temperature: float | Tensor,
    options: str,
    group: dist.ProcessGroup | None,
) -> Batch:
    """Check, normalise in float32 or float64, and gather a batch.

    `options` describes the loss: on several ranks it must be the same, as must the temperature.
    """
    local = gather.Local(z, present is not None, labels, temperature, options)
    try:
        check_temperature(temperature)
        check(z, present, labels)
        unit_z = unit(z, present)
    except (TypeError, ValueError):
        if group is not None:
            gather.check_ranks_agree(local, False, group)
        raise
    if group is not None:
        if gather.check_ranks_agree(local, True, group) and present is None:
            present = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
        unit_z = gather.all_gather(unit_z, group)
        present = None if present is None else gather.all_gather(present, group)
        labels = None if labels is None else gather.all_gather(labels, group)
    check_counts(unit_z, present, labels)
    return Batch(unit_z, present, labels, group)


def check(z: Tensor, present: Tensor | None = None, labels: Tensor | None = None) -> None:
    if not isinstance(z, Tensor):
        raise TypeError(f"embeddings must be a torch.Tensor, got {type(z).__name__}")
    shape = tuple(z.shape)
    if z.dim() != 3:
        raise ValueError(f"embeddings must be (instances, views, dim), got shape {shape}: {STACK}")
    if z.shape[1] < 2:
        raise ValueError(
            f"views must be >= 2, got {z.shape[1]} in shape {shape}: "
            "a contrastive objective needs at least two views of each instance"
        )
    if z.shape[2] < 1:
        raise ValueError(f"embeddings must have a dimension, got shape {shape}")
    if z.dtype not in FLOATS:
        raise TypeError(f"embeddings must be {', '.join(map(str, FLOATS))}, got {z.dtype}: call .float() on them")
    if present is not None:
        _check_present(present, z)
    if labels is not None:
        _check_labels(labels, z)


def _check_present(present: Tensor, z: Tensor) -> None:
    if not isinstance(present, Tensor) or present.dtype != torch.bool:
        kind = present.dtype if isinstance(present, Tensor) else type(present).__name__
        hint = f": {STACK}" if isinstance(present, Tensor) and present.shape == z.shape else ""
        raise TypeError(f"present must be a bool tensor (instances, views), got {kind}{hint}")
    if present.shape != z.shape[:2]:
        raise ValueError(
            f"present must be (instances, views) = {tuple(z.shape[:2])} as the embeddings, got {tuple(present.shape)}"
        )
    if present.device != z.device:
        raise ValueError(f"present is on {present.device} but the embeddings are on {z.device}")


def _check_labels(labels: Tensor, z: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be an integer tensor (instances,), got {kind}")
    if labels.shape != z.shape[:1]:
        raise ValueError(f"labels must be (instances,) = {tuple(z.shape[:1])}, got {tuple(labels.shape)}")
    if labels.device != z.device:
        raise ValueError(f"labels are on {labels.device} but the embeddings are on {z.device}")


def unit(z: Tensor, present: Tensor | None) -> Tensor:
    """Unit vectors in float32 (or float64), 0 where absent; NaN, inf and zero vectors are errors."""
    if z.dtype in (torch.float16, torch.bfloat16):
        z = z.float()
    if present is not None:
        z = z.masked_fill(~present[:, :, None], 0.0)
    norms = torch.linalg.vector_norm(z, dim=2, keepdim=True)
    if present is not None:
        norms = norms.masked_fill(~present[:, :, None], 1.0)
    if norms.numel():
        least, most = torch.stack(norms.detach().aminmax()).tolist()
        if not (least > _least_norm(z) and most < math.inf):  # false for NaN too
            raise DegenerateError(_first_bad(z, norms))
    return z / norms


def _least_norm(z: Tensor) -> float:
    """A shorter vector's squares lose their digits."""
    return 1e3 * math.sqrt(torch.finfo(z.dtype).tiny)


def _first_bad(z: Tensor, norms: Tensor) -> str:
    norms = norms.detach().squeeze(2)
    bad = ~((norms > _least_norm(z)) & (norms < math.inf))
    instance, view = bad.nonzero()[0].tolist()
    row = z.detach()[instance, view]
    where = f"first at instance {instance}, view {view} ({int(bad.sum())} of {bad.numel()} vectors are bad)"
    if row.isnan().any():
        return f"embeddings contain NaN, {where}"
    if row.isinf().any():
        return f"embeddings contain inf, {where}"
    if not row.any():
        return f"embeddings contain a zero vector, which has no direction, {where}"
    extreme = "large" if norms[instance, view] > 1 else "small"
    return f"embeddings are too {extreme} for the norm of a vector in {z.dtype}, {where}"


def check_counts(z: Tensor, present: Tensor | None, labels: Tensor | None) -> None:
    """An objective needs one instance with two views and another to contrast it with."""
    if present is None:
        if len(z) < 2:
            raise ValueError(f"instances must be >= 2, got {len(z)}: there are no negatives")
        return
    views = present.sum(1)
    most, contrasts = torch.stack([views.max(), (views > 0).sum()]).tolist() if len(z) else (0, 0)
    if most < 2 and labels is None:
        raise ValueError("no instance has two present views: there are no positives")
    if contrasts < 2:
        raise ValueError(f"{contrasts} of {len(z)} instances has a present view: no negatives")


def check_temperature(temperature: float | Tensor) -> None:
    """A temperature so small that 1/temperature has no digits left for cosines is refused too."""
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1 or temperature.is_meta:
            raise ValueError(f"temperature must be one number, got a tensor {tuple(temperature.shape)}")
        temperature = float(temperature.detach())
    if not isinstance(temperature, (int, float)):
        raise TypeError(f"temperature must be a number or a scalar tensor, got {type(temperature).__name__}")
    if not 1e-6 <= temperature < math.inf:
        raise DegenerateError(f"temperature must be a finite number > 0 (at least 1e-6), got {temperature}")


def check_choice(name: str, value: str, options: object) -> None:
    if value not in get_args(options):
        raise ValueError(f"{name} must be one of {', '.join(get_args(options))}, got {value!r}")
