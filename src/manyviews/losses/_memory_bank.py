"""Embeddings of earlier batches as further negatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from manyviews.losses._accumulate import RegisteredKernel
from manyviews.losses._batch import GatheredBatch
from manyviews.losses._dense import matmul
from manyviews.losses._masked import masked_logsumexp, safe_logaddexp
from manyviews.losses._tiled import TILE_ROWS, Pairs

BUFFERS = ("embeddings", "mask", "ids", "has_id")


class MemoryBank(nn.Module):
    """The unit embeddings (K, N, d) of the last K instances, the latest first, with their mask and ids (K,).

    The buffers are created by the first batch, or by `load_state_dict`. Each rank adds the batch of all ranks, so their
    banks are equal.
    """

    embeddings: Tensor | None
    mask: Tensor | None
    ids: Tensor | None
    has_id: Tensor | None

    def __init__(self, size: int) -> None:
        super().__init__()
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"memory_bank must be a number of instances (an integer >= 0), got {size!r}")
        self.size = size
        for name in BUFFERS:
            self.register_buffer(name, None)

    @property
    def is_empty(self) -> bool:
        return self.embeddings is None

    def add(self, batch: GatheredBatch) -> None:
        """Add the instances of a batch, and forget the oldest."""
        z = batch.z.detach()
        M, N, d = z.shape
        mask = z.new_ones(M, N, dtype=torch.bool) if batch.mask is None else batch.mask
        ids = torch.zeros(M, dtype=torch.int64, device=z.device) if batch.ids is None else batch.ids.long()
        has_id = torch.full((M,), batch.ids is not None, device=z.device)
        if self.embeddings is None:
            self.embeddings = z.new_zeros(self.size, N, d)
            self.mask = mask.new_zeros(self.size, N)
            self.ids, self.has_id = ids.new_zeros(self.size), has_id.new_zeros(self.size)
        with torch.no_grad():
            for name, latest in zip(BUFFERS, (z.to(self.embeddings), mask, ids, has_id), strict=True):
                setattr(self, name, torch.cat([latest, getattr(self, name)])[: self.size])

    def get_views(self, like: Tensor) -> BankViews:
        """Return the embeddings (K, N, d) with mask and ids; entries that are not filled yet are missing views."""
        assert self.embeddings is not None
        assert self.mask is not None
        assert self.ids is not None
        assert self.has_id is not None
        if self.embeddings.shape[1:] != like.shape[1:] or self.embeddings.device != like.device:
            raise ValueError(
                f"the memory bank has embeddings {tuple(self.embeddings.shape)} on {self.embeddings.device}, but the "
                f"batch {tuple(like.shape)} on {like.device}: use another loss object for other embeddings"
            )
        return BankViews(self.embeddings.to(like), self.mask, self.ids, self.has_id)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in BUFFERS:
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and len(saved) != self.size:
                raise ValueError(f"the saved memory bank has {len(saved)} instances, this loss has {self.size}")
            setattr(self, name, torch.empty_like(saved) if isinstance(saved, Tensor) else None)
        super()._load_from_state_dict(state_dict, prefix, *args)


class BankViews(NamedTuple):
    """Views (K, N, d) in the memory bank with their mask (K, N) and ids (K,), where `has_id` (K,)."""

    keys: Tensor
    mask: Tensor
    ids: Tensor
    has_id: Tensor


def compute_bank_energies(
    x: Tensor,
    bank: BankViews,
    required: Pairs,
    mask: Tensor | None,
    ids: Tensor | None,
    *,
    kernel: RegisteredKernel,
    parameters: tuple[Tensor, ...],
    log_space: bool,
) -> Tensor:
    """Compute energies (M, N, N) of rows x (M, N, d) over all instances in the bank, in chunks."""
    instances, views, _ = x.shape
    fill = -torch.inf if log_space else 0.0
    chunk_size = TILE_ROWS.get(x.device.type, TILE_ROWS["cuda"])

    def sum_chunk(rows: Tensor, keys: Tensor, excluded: Tensor, *parameters: Tensor) -> Tensor:
        values = kernel.function(matmul(rows, keys.T), *parameters).masked_fill(excluded, fill)
        return masked_logsumexp(values, 1) if log_space else values.sum(1)

    empty = x.new_full((instances,), fill)
    columns = [[empty] * views for _ in range(views)]
    for l, m in sorted(required):
        for start in range(0, len(bank.keys), chunk_size):
            chunk = slice(start, start + chunk_size)
            excluded = ~bank.mask[None, chunk, m]
            if mask is not None:
                excluded = excluded | ~mask[:, l, None]
            if ids is not None:
                excluded = excluded | ((ids[:, None] == bank.ids[chunk]) & bank.has_id[chunk])
            arguments = (x[:, l], bank.keys[chunk, m], excluded.expand(instances, -1), *parameters)
            # The values of a chunk are computed again in the backward pass.
            part = checkpoint(sum_chunk, *arguments, use_reentrant=False, preserve_rng_state=False)
            columns[l][m] = safe_logaddexp(columns[l][m], part) if log_space else columns[l][m] + part
    return torch.stack([torch.stack(column, 1) for column in columns], 1)
