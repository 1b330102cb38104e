"""Validation, normalization and gathering of a batch of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor
from torch import distributed as dist

from manyviews.losses._distributed import all_gather, check_ranks_agree, encode_inputs

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
STACK_HINT = "pass separate views as a list, loss([z1, z2])"


class NonFiniteInputError(ValueError):
    """Non-finite or zero embeddings, or an invalid temperature; usually the training has diverged."""


class GatheredBatch(NamedTuple):
    """Unit embeddings (M, N, d), mask (M, N) and labels (M,) of all ranks."""

    z: Tensor
    mask: Tensor | None
    labels: Tensor | None
    group: dist.ProcessGroup | None

    def local_shard(self, values: Tensor) -> Tensor:
        """Return the part of this rank in a tensor with one value per instance."""
        if self.group is None:
            return values
        return values.chunk(dist.get_world_size(self.group))[dist.get_rank(self.group)]


def normalize_and_gather(
    z: Tensor | Sequence[Tensor],
    mask: Tensor | None,
    labels: Tensor | None,
    temperature: float | Tensor,
    options: str,
    group: dist.ProcessGroup | None,
) -> GatheredBatch:
    """Check a batch, normalize it in float32 or float64, and gather it.

    `options` identifies the loss: it must be the same on all ranks, as must the temperature.
    """
    try:
        check_temperature(temperature)
        z = stack_views(z)
        check_embeddings(z, mask, labels)
        unit_z = normalize_embeddings(z, mask)
    except (TypeError, ValueError):
        if group is not None:
            check_ranks_agree(None, False, group)
        raise
    if group is not None:
        inputs = encode_inputs(z, labels, temperature, options)
        if check_ranks_agree(inputs, mask is not None, group) and mask is None:
            mask = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
        unit_z = all_gather(unit_z, group)
        mask = None if mask is None else all_gather(mask, group)
        labels = None if labels is None else all_gather(labels, group)
    check_has_pairs(unit_z, mask, labels)
    return GatheredBatch(unit_z, mask, labels, group)


def stack_views(z: Tensor | Sequence[Tensor]) -> Tensor:
    """Stack a list or tuple of N views (M, d) into (M, N, d); any other value is returned unchanged."""
    if not isinstance(z, (list, tuple)):
        return z  # type: ignore[return-value]
    if not z:
        raise ValueError("embeddings must be a tensor or a list of at least two views, got an empty list")
    for i, view in enumerate(z):
        if not isinstance(view, Tensor):
            raise TypeError(f"views must be tensors (instances, dim), got {type(view).__name__} for view {i}")
        if view.dim() != 2:
            raise ValueError(f"views must be (instances, dim), got shape {tuple(view.shape)} for view {i}")
        shapes, devices = (tuple(z[0].shape), tuple(view.shape)), (z[0].device, view.device)
        for requirement, (first, other) in {"have the same shape": shapes, "be on the same device": devices}.items():
            if first != other:
                raise ValueError(f"views must {requirement}, got {first} for view 0 and {other} for view {i}")
        _check_dtype(view)
    return torch.stack(list(z), 1)


def check_embeddings(z: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> None:
    """Check the types, shapes and devices of embeddings (M, N, d), mask (M, N) and labels (M,)."""
    if not isinstance(z, Tensor):
        raise TypeError(f"embeddings must be a torch.Tensor, got {type(z).__name__}")
    shape = tuple(z.shape)
    if z.dim() != 3:
        raise ValueError(f"embeddings must be (instances, views, dim), got shape {shape}: {STACK_HINT}")
    if z.shape[1] < 2:
        reason = "a contrastive loss needs at least two views of each instance"
        raise ValueError(f"views must be >= 2, got {z.shape[1]} in shape {shape}: {reason}")
    if z.shape[2] < 1:
        raise ValueError(f"embeddings must have at least one dimension, got shape {shape}")
    _check_dtype(z)
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            hint = f": {STACK_HINT}" if isinstance(mask, Tensor) and mask.shape == z.shape else ""
            raise TypeError(f"mask must be a bool tensor (instances, views), got {_describe_dtype(mask)}{hint}")
        _check_fits("mask", mask, "(instances, views)", z.shape[:2], z.device)
    if labels is not None:
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
            raise TypeError(f"labels must be an integer tensor (instances,), got {_describe_dtype(labels)}")
        _check_fits("labels", labels, "(instances,)", z.shape[:1], z.device)


def _check_dtype(z: Tensor) -> None:
    if z.dtype not in FLOATS:
        raise TypeError(f"embeddings must be {', '.join(map(str, FLOATS))}, got {z.dtype}: call .float() on them")


def _describe_dtype(value: object) -> object:
    return value.dtype if isinstance(value, Tensor) else type(value).__name__


def _check_fits(name: str, value: Tensor, dims: str, shape: torch.Size, device: torch.device) -> None:
    if value.shape != shape:
        raise ValueError(f"{name} must be {dims} = {tuple(shape)}, got {tuple(value.shape)}")
    if value.device != device:
        raise ValueError(f"the {name} tensor is on {value.device} but the embeddings are on {device}")


def normalize_embeddings(z: Tensor, mask: Tensor | None) -> Tensor:
    """Return unit vectors in float32 (or float64), 0 for missing views; raise for NaN, inf and zero vectors."""
    if z.dtype in (torch.float16, torch.bfloat16):
        z = z.float()
    if mask is not None:
        z = z.masked_fill(~mask[:, :, None], 0.0)
    norms = torch.linalg.vector_norm(z, dim=2, keepdim=True)
    if mask is not None:
        norms = norms.masked_fill(~mask[:, :, None], 1.0)
    # Squares of shorter vectors lose precision.
    min_norm = 1e3 * math.sqrt(torch.finfo(z.dtype).tiny)
    if norms.numel():
        low, high = torch.stack(norms.detach().aminmax()).tolist()
        if not (low > min_norm and high < math.inf):  # NaN too
            raise NonFiniteInputError(_describe_bad_embedding(z.detach(), norms.detach().squeeze(2), min_norm))
    return z / norms


def _describe_bad_embedding(z: Tensor, norms: Tensor, min_norm: float) -> str:
    bad = ~((norms > min_norm) & (norms < math.inf))
    instance, view = bad.nonzero()[0].tolist()
    vector = z[instance, view]
    location = f"first at instance {instance}, view {view} ({int(bad.sum())} of {bad.numel()} vectors are bad)"
    if vector.isnan().any():
        return f"embeddings contain NaN, {location}"
    if vector.isinf().any():
        return f"embeddings contain inf, {location}"
    if not vector.any():
        return f"embeddings contain a zero vector, which has no direction, {location}"
    extreme = "large" if norms[instance, view] > 1 else "small"
    return f"embeddings are too {extreme} for the norm of a vector in {z.dtype}, {location}"


def check_has_pairs(z: Tensor, mask: Tensor | None, labels: Tensor | None) -> None:
    """Check that there are positives (an instance with two views) and negatives (another instance)."""
    if mask is None:
        if len(z) < 2:
            raise ValueError(f"instances must be >= 2, got {len(z)}: there are no negatives")
        return
    views = mask.sum(1)
    max_views, num_nonempty = torch.stack([views.max(), (views > 0).sum()]).tolist() if len(z) else (0, 0)
    if max_views < 2 and labels is None:
        raise ValueError("no instance has two views: there are no positives")
    if num_nonempty < 2:
        raise ValueError(f"only {num_nonempty} of {len(z)} instances have a view: there are no negatives")


def check_temperature(temperature: float | Tensor) -> None:
    """Raise unless the temperature is one number >= 1e-6, so that cosines / temperature are precise."""
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1 or temperature.is_meta:
            raise ValueError(f"temperature must be one number, got a tensor {tuple(temperature.shape)}")
        temperature = float(temperature.detach())
    if not isinstance(temperature, (int, float)):
        raise TypeError(f"temperature must be a number or a scalar tensor, got {type(temperature).__name__}")
    if not 1e-6 <= temperature < math.inf:
        raise NonFiniteInputError(f"temperature must be a finite number > 0 (at least 1e-6), got {temperature}")


def check_choice(name: str, value: str, options: object) -> None:
    if value not in get_args(options):
        raise ValueError(f"{name} must be one of {', '.join(get_args(options))}, got {value!r}")
