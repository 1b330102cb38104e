"""The batch of all ranks, with exact gradients.

An objective on W ranks sees all their instances and returns the loss of the whole batch, the same on every rank.
Gradients are to be *averaged* over ranks, as DistributedDataParallel and Fabric do: what each parameter then gets is
the gradient of one process with the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, autograd
from torch import distributed as dist

_DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.int16]


def _all_gather(out: Tensor, x: Tensor, group: dist.ProcessGroup) -> None:
    # torch 2.13 renamed it and warns of the old name; a torch without distributed has neither.
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(out, x, group=group)


def _reduce_scatter(out: Tensor, x: Tensor, group: dist.ProcessGroup) -> None:
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(out, x, group=group)


def ranks(gather: bool) -> dist.ProcessGroup | None:
    """The group to gather over, None for a single process."""
    if gather and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.group.WORLD
    return None


def agree(z: object, masked: bool, labels: Tensor | None, ok: bool, group: dist.ProcessGroup) -> bool:
    """Raise on every rank if one has failed or brings something else; True if one has a mask.

    Every rank must come here, above all the one that is about to fail: the others wait for it.
    """
    brought: list[Any] = [(), -1, False, -1]
    if ok and isinstance(z, Tensor):
        kind = -1 if labels is None else _code(labels)
        brought = [tuple(z.shape), _code(z), z.requires_grad and torch.is_grad_enabled(), kind]
    shape, *rest = brought
    told = [ok, masked, *(*shape, 0, 0, 0)[:3], *rest]
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    mine = torch.tensor([int(part) for part in told], device=device)
    heard = mine.new_empty(dist.get_world_size(group) * len(mine))
    _all_gather(heard, mine, group)
    if not ok:
        return False
    answers = heard.view(-1, len(mine)).tolist()
    for rank, (good, _, *theirs) in enumerate(answers):
        if not good:
            raise ValueError(f"rank {rank} was given bad input (its own error says what)")
        if theirs[:3] != list(shape):
            raise ValueError(
                f"embeddings of shape {tuple(theirs[:3])} on rank {rank} but {shape} on rank {dist.get_rank(group)}: "
                "every rank must bring as many instances (drop_last=True)"
            )
        names = ("another dtype", "requires_grad otherwise", "labels otherwise (none, or of another dtype)")
        for name, here, there in zip(names, mine[5:].tolist(), theirs[3:], strict=True):
            if here != there:
                raise ValueError(f"rank {rank} brings {name} than rank {dist.get_rank(group)}: all must be alike")
    return any(mask for _, mask, *_ in answers)


def _code(tensor: Tensor) -> int:
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
            own = grad.new_empty(ctx.length, *grad.shape[1:])
            _reduce_scatter(own, grad, ctx.group)
            return own, None
        summed = grad.clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed.split(ctx.length)[dist.get_rank(ctx.group)], None


def all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Rows of every rank, in rank order; the gradient is summed over ranks."""
    gathered: Tensor = _AllGather.apply(x, group)
    return gathered
