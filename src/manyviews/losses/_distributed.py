"""Collectives with exact gradients.

On W ranks a loss gathers the instances of all ranks and returns the loss of the global batch, the same on every rank.
If gradients are *averaged* over ranks, as DistributedDataParallel and Fabric do, each parameter gets the gradient that
one process with the global batch would compute.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import torch
from torch import Tensor, autograd
from torch import distributed as dist

_DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.int16]


def _all_gather(out: Tensor, x: Tensor, group: dist.ProcessGroup) -> None:
    # torch 2.13 renamed the function and deprecated the old name; a build without distributed has neither.
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(out, x, group=group)


def get_process_group(enabled: bool) -> dist.ProcessGroup | None:
    """Return the group to gather over, or None for a single process."""
    if enabled and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.group.WORLD
    return None


def encode_inputs(z: Tensor, labels: Tensor | None, temperature: float | Tensor, options: str) -> list[int]:
    """Encode the inputs of a loss as integers that must be equal on all ranks; `options` identifies the loss."""
    dtypes = [-1 if tensor is None else _get_dtype_code(tensor) for tensor in (z, labels)]
    temperature = float(torch.as_tensor(temperature).detach())
    packed = hashlib.sha256(options.encode()).digest()[:8], struct.pack("d", temperature)
    codes = [int.from_bytes(data, "little", signed=True) for data in packed]
    return [*z.shape, dtypes[0], z.requires_grad and torch.is_grad_enabled(), dtypes[1], *codes]


def check_ranks_agree(inputs: list[int] | None, has_mask: bool, group: dist.ProcessGroup) -> bool:
    """Raise on every rank if one has invalid inputs (None) or inputs that differ; True if any rank has a mask.

    Collective: call it on every rank, also on the one that is about to raise.
    """
    encoded = [0] * 10 if inputs is None else [1, has_mask, *inputs]
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    packed = torch.tensor([int(value) for value in encoded], device=device)
    gathered = packed.new_empty(dist.get_world_size(group) * len(packed))
    _all_gather(gathered, packed, group)
    if inputs is None:
        return False
    local_rank, per_rank = dist.get_rank(group), gathered.view(-1, len(packed)).tolist()
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
    "the loss and its options",
    "the temperature (if it is learned, average its gradient over ranks)",
)


def _get_dtype_code(tensor: Tensor) -> int:
    return _DTYPES.index(tensor.dtype) if tensor.dtype in _DTYPES else len(_DTYPES)


class _AllGather(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.length = group, len(x)
        gathered = x.new_empty(dist.get_world_size(group) * len(x), *x.shape[1:])
        _all_gather(gathered, x.contiguous(), group)
        return gathered

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        if dist.get_backend(ctx.group) == "nccl":
            local = grad.new_empty(ctx.length, *grad.shape[1:])
            reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            reduce_scatter(local, grad, group=ctx.group)
            return local, None
        summed = grad.clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed.split(ctx.length)[dist.get_rank(ctx.group)], None


def all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Concatenate the tensors of all ranks, in rank order; the gradient is summed over ranks."""
    gathered: Tensor = _AllGather.apply(x, group)
    return gathered
