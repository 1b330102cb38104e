"""The batch of all ranks, with exact gradients.

An objective on W ranks sees all their instances and returns the loss of the whole batch, the same on
every rank. Gradients are to be *averaged* over ranks, as DistributedDataParallel and Fabric do: what
each parameter then gets is the gradient of one process with the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, autograd
from torch import distributed as dist


def ranks(gather: bool) -> dist.ProcessGroup | None:
    """The group to gather over, None for a single process."""
    if gather and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.group.WORLD
    return None


def agree(shape: tuple[int, ...], masked: bool, ok: bool, group: dist.ProcessGroup) -> bool:
    """Raise on every rank if one has failed or brings another shape; True if one has a mask.

    Every rank must come here, above all the one that is about to fail: the others wait for it.
    """
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    told = torch.tensor([ok, masked, *(*shape, 0, 0, 0)[:3]], dtype=torch.int64, device=device)
    heard = torch.empty(dist.get_world_size(group) * len(told), dtype=told.dtype, device=device)
    dist.all_gather_into_tensor(heard, told, group=group)
    answers = heard.view(-1, len(told)).tolist()
    if not ok:
        return False
    for rank, (good, _, *theirs) in enumerate(answers):
        if not good:
            raise ValueError(f"rank {rank} was given bad input (its own error says what)")
        if theirs != list(shape):
            raise ValueError(
                f"embeddings of shape {tuple(theirs)} on rank {rank} but {shape} on rank "
                f"{dist.get_rank(group)}: every rank must bring as many instances (drop_last=True)"
            )
    return any(mask for _, mask, *_ in answers)


class _AllGather(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.length = group, len(x)
        gathered = x.new_empty(dist.get_world_size(group) * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(gathered, x.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        if dist.get_backend(ctx.group) == "nccl":
            own = grad.new_empty(ctx.length, *grad.shape[1:])
            dist.reduce_scatter_tensor(own, grad, group=ctx.group)
            return own, None
        summed = grad.clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed.split(ctx.length)[dist.get_rank(ctx.group)], None


def all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Rows of every rank, in rank order; the gradient is summed over ranks."""
    gathered: Tensor = _AllGather.apply(x, group)
    return gathered
