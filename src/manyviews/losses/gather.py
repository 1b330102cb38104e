"""The batch of all ranks, with exact gradients.

An objective on W ranks sees all their instances and returns the loss of the whole batch, the same on every rank.
Gradients are to be *averaged* over ranks, as DistributedDataParallel and Fabric do: what each parameter then gets is
the gradient of one process with the whole batch.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

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


class Local(NamedTuple):
    """Input of a loss on this rank, which must fit that of the others."""

    z: Tensor
    has_mask: bool
    labels: Tensor | None
    temperature: float | Tensor
    options: str
    """The loss and its options in words."""

    def encode(self) -> list[int]:
        """The same numbers on every rank, except for the first, which tells whether there is a mask."""
        digest = hashlib.sha256(self.options.encode()).digest()[:8]
        temperature = struct.pack("d", float(torch.as_tensor(self.temperature).detach()))
        return [
            self.has_mask,
            *self.z.shape,
            _code(self.z),
            self.z.requires_grad and torch.is_grad_enabled(),
            -1 if self.labels is None else _code(self.labels),
            int.from_bytes(digest, "little", signed=True),
            int.from_bytes(temperature, "little", signed=True),
        ]


def check_ranks_agree(local: Local, ok: bool, group: dist.ProcessGroup) -> bool:
    """Raise on every rank if the input of one is bad or does not fit; True if one has a mask.

    This is a collective: the rank with bad input (`ok` is false) must call it before it raises, since the others wait.
    """
    numbers = [int(ok), *(local.encode() if ok else [0] * 9)]
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    packed = torch.tensor([int(number) for number in numbers], device=device)
    gathered = packed.new_empty(dist.get_world_size(group) * len(packed))
    _all_gather(gathered, packed, group)
    if not ok:
        return False
    here, ranks = dist.get_rank(group), gathered.view(-1, len(packed)).tolist()
    for rank, (is_good, _, *remote) in enumerate(ranks):
        if not is_good:
            raise ValueError(f"rank {rank} was given bad input (its own error says what)")
        if remote[:3] != numbers[2:5]:
            raise ValueError(
                f"embeddings of shape {tuple(remote[:3])} on rank {rank} but {tuple(local.z.shape)} on rank {here}: "
                "every rank must bring as many instances (drop_last=True)"
            )
        for what, mine, other in zip(_MUST_AGREE, numbers[5:], remote[3:], strict=True):
            if mine != other:
                raise ValueError(f"{what} on rank {rank} than on rank {here}: they must be the same on all ranks")
    return any(has_mask for _, has_mask, *_ in ranks)


_MUST_AGREE = (
    "another dtype",
    "another requires_grad",
    "other labels (none, or of another dtype)",
    "another loss, or other options of it,",
    "another temperature (if it is learned, average its gradient over ranks)",
)


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
