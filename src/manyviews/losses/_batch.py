"""Validation, normalization and gathering of a batch of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

import torch
from torch import Tensor
from torch import distributed as dist

from manyviews.losses._distributed import all_gather, check_ranks_agree, encode_inputs, has_ranks

if TYPE_CHECKING:
    from manyviews.losses.base import MultiViewLoss

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
STACK_HINT = "pass separate views as a list, loss([z1, z2])"


class NonFiniteInputError(ValueError):
    """Non-finite or zero embeddings, or an invalid temperature; usually the training has diverged."""


class GatheredBatch(NamedTuple):
    """Embeddings (M, N, d), mask (M, N), labels (M,) and ids (M,) of all ranks."""

    z: Tensor
    mask: Tensor | None
    labels: Tensor | None
    ids: Tensor | None
    validate: bool
    """Values may be read on the host."""
    is_distributed: bool

    def local_shard(self, values: Tensor) -> Tensor:
        """Return the part of this rank in a tensor with one value per instance."""
        return values.chunk(dist.get_world_size())[dist.get_rank()] if self.is_distributed else values


def normalize_and_gather(
    loss: MultiViewLoss, z: Tensor | Sequence[Tensor], mask: Tensor | None, labels: Tensor | None, ids: Tensor | None
) -> GatheredBatch:
    """Check a batch, convert it to float32 or float64, normalize it, and gather it.

    If values are checked, loss, options and temperature must be the same on all ranks.
    """
    is_distributed = loss.gather_distributed and has_ranks()
    validate = True if loss.validate is None else loss.validate
    try:
        z = stack_views(z)
        check_embeddings(z, mask, labels, ids)
        if loss.validate is None:
            validate = z.device.type == "cpu" and not torch.compiler.is_compiling()
        if validate and loss.temperature is not None:
            check_temperature(loss.temperature)
        local = convert_embeddings(z, mask, loss.normalize, validate)
    except (TypeError, ValueError):
        if is_distributed and validate:
            check_ranks_agree(None, False)
        raise
    if is_distributed:
        if validate:
            inputs = encode_inputs(z, labels, ids, loss.temperature, loss.options_text)
            if check_ranks_agree(inputs, mask is not None) and mask is None:
                mask = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
        local = all_gather(local)
        mask, labels, ids = (None if tensor is None else all_gather(tensor) for tensor in (mask, labels, ids))
    if len(local) < 2:
        raise ValueError(f"instances must be >= 2, got {len(local)}: there are no negatives")
    if validate and mask is not None:
        check_has_pairs(mask, has_labels=labels is not None)
    return GatheredBatch(local, mask, labels, ids, validate, is_distributed)


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


def check_embeddings(
    z: Tensor, mask: Tensor | None = None, labels: Tensor | None = None, ids: Tensor | None = None
) -> None:
    """Check the types, shapes and devices of embeddings (M, N, d), mask (M, N), labels (M,) and ids (M,)."""
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
    for name, value in (("labels", labels), ("ids", ids)):
        if value is not None:
            if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
                raise TypeError(f"{name} must be an integer tensor (instances,), got {_describe_dtype(value)}")
            _check_fits(name, value, "(instances,)", z.shape[:1], z.device)


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


def convert_embeddings(z: Tensor, mask: Tensor | None, normalize: bool, validate: bool) -> Tensor:
    """Return the embeddings in float32 (or float64), 0 for missing views, as unit vectors if `normalize`.

    NaN, inf and, if `normalize`, zero vectors are an error if `validate`, otherwise NaN.
    """
    if z.dtype in (torch.float16, torch.bfloat16):
        z = z.float()
    if mask is not None:
        z = z.masked_fill(~mask[:, :, None], 0.0)
    norms = torch.linalg.vector_norm(z, dim=2, keepdim=True)
    if mask is not None:
        norms = norms.masked_fill(~mask[:, :, None], 1.0)
    # Squares of shorter vectors lose precision.
    min_norm = 1e3 * math.sqrt(torch.finfo(z.dtype).tiny) if normalize else -1.0
    if validate and norms.numel():
        low, high = torch.stack(norms.detach().aminmax()).tolist()
        if not (low > min_norm and high < math.inf):  # NaN too
            raise NonFiniteInputError(_describe_bad_embedding(z.detach(), norms.detach().squeeze(2), min_norm))
    if not normalize:
        return z
    if not validate:
        norms = torch.where((norms > min_norm) & (norms < math.inf), norms, torch.nan)
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


def check_has_pairs(mask: Tensor, has_labels: bool) -> None:
    """Check that there are positives (an instance with two views) and negatives (another instance)."""
    views = mask.sum(1)
    max_views, num_nonempty = torch.stack([views.max(), (views > 0).sum()]).tolist()
    if max_views < 2 and not has_labels:
        raise ValueError("no instance has two views: there are no positives")
    if num_nonempty < 2:
        raise ValueError(f"only {num_nonempty} of {len(mask)} instances have a view: there are no negatives")


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
