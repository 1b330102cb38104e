"""Collectives with exact gradients.

On W ranks a loss gathers the instances of all ranks and returns the loss of the global batch, the same on every rank.
If gradients are *averaged* over ranks, as DistributedDataParallel and Fabric do, each parameter gets the gradient that
one process with the global batch would compute.
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor
from torch import distributed as dist

_DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.int16]


def _gather(x: Tensor) -> Tensor:
    gathered = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])
    # torch 2.13 renamed the function and deprecated the old name; a build without distributed has neither.
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(gathered, x.contiguous())
    return gathered


def has_ranks() -> bool:
    """Return whether there are other ranks to gather from."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def encode_inputs(
    z: Tensor, labels: Tensor | None, ids: Tensor | None, temperature: float | Tensor | None, options: str
) -> list[int]:
    """Encode the inputs of a loss as integers that must be equal on all ranks; `options` identifies the loss."""
    dtypes = [-1 if tensor is None else _get_dtype_code(tensor) for tensor in (z, labels, ids)]
    number = -1.0 if temperature is None else float(torch.as_tensor(temperature).detach())
    packed = hashlib.sha256(options.encode()).digest()[:8], struct.pack("d", number)
    codes = [int.from_bytes(data, "little", signed=True) for data in packed]
    return [*z.shape, dtypes[0], z.requires_grad and torch.is_grad_enabled(), *dtypes[1:], *codes]


def check_ranks_agree(inputs: list[int] | None, has_mask: bool) -> bool:
    """Raise on every rank if one has invalid inputs (None) or inputs that differ; True if any rank has a mask.

    Collective: call it on every rank, also on the one that is about to raise.
    """
    encoded = [0] * (5 + len(_MUST_AGREE)) if inputs is None else [1, has_mask, *inputs]
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    packed = torch.tensor([int(value) for value in encoded], device=device)
    gathered = _gather(packed)
    if inputs is None:
        return False
    local_rank, per_rank = dist.get_rank(), gathered.view(-1, len(packed)).tolist()
    for rank, (is_valid, _, *remote) in enumerate(per_rank):
        if not is_valid:
            raise ValueError(f"invalid input on rank {rank} (see the error of that rank)")
        if remote[:3] != inputs[:3]:
            raise ValueError(
                f"embeddings have shape {tuple(remote[:3])} on rank {rank} but {tuple(inputs[:3])} on rank "
                f"{local_rank}: every rank must have the same number of instances (drop_last=True)"
            )
        for name, local_value, remote_value in zip(_MUST_AGREE, inputs[3:], remote[3:], strict=True):
            if local_value != remote_value:
                raise ValueError(f"{name} must be the same on all ranks, but rank {rank} and rank {local_rank} differ")
    return any(mask for _, mask, *_ in per_rank)


_MUST_AGREE = (
    "the dtype of embeddings",
    "requires_grad",
    "labels (their dtype, and whether they are given)",
    "ids (their dtype, and whether they are given)",
    "the loss and its options",
    "the temperature (if it is learned, average its gradient over ranks)",
)


def _get_dtype_code(tensor: Tensor) -> int:
    return _DTYPES.index(tensor.dtype) if tensor.dtype in _DTYPES else len(_DTYPES)


# Operators, so that a compiled loss has no graph break here.
@torch.library.custom_op("manyviews::all_gather", mutates_args=())
def _all_gather(x: Tensor) -> Tensor:
    return _gather(x)


@torch.library.custom_op("manyviews::reduce_scatter", mutates_args=())
def _reduce_scatter(x: Tensor) -> Tensor:
    length, x = len(x) // dist.get_world_size(), x.contiguous()
    if dist.get_backend() == "nccl":
        local = x.new_empty(length, *x.shape[1:])
        (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(local, x)
        return local
    summed = x.clone()
    dist.all_reduce(summed)
    return summed.split(length)[dist.get_rank()].clone()


@_all_gather.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])


@_reduce_scatter.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(len(x) // dist.get_world_size(), *x.shape[1:])


_all_gather.register_autograd(lambda _, grad: _reduce_scatter(grad))


def all_gather(x: Tensor) -> Tensor:
    """Concatenate the tensors of all ranks, in rank order; the gradient is summed over ranks."""
    gathered: Tensor = _all_gather(x)
    return gathered
