"""Outputs of frozen encoders, computed once for modalities whose views are not random and used in every step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from manyviews.loading import EncodedModality, ViewLoader, ViewSpec, choose_loader_batch_size
from manyviews.models import AdaptedEncoder, MultiViewModel, ViewBatch, eval_mode
from manyviews.utils import EVAL_EPOCH, get_available_memory, logger, track

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from manyviews.training.task import TrainingTask

MAX_MEMORY_FRACTION = 0.5
"""Maximum fraction of the available memory for the outputs of all frozen encoders, over all processes of a machine."""


def explain_random(loader: ViewLoader, encoder: str) -> str:
    """Return why the views of an encoder are not the same in every epoch; empty if they are."""
    items = [i for i, item in enumerate(loader.spec.items) if item.encoder == encoder]
    transforms = [loader.transforms[i] for i in items]
    if any(transform is not None and transform.is_random for transform in transforms):
        return "its views are random"
    if len({loader.spec.items[i].size for i in items}) > 1:
        return "its views have several sizes"
    modalities = {loader.spec.items[i].modality for i in items}
    if any(reader.replace_corrupt for name, reader in loader.file_readers.items() if name in modalities):
        return "other images replace those that cannot be read"
    return ""


def make_encoding_loaders(loader: ViewLoader, frozen: Collection[str]) -> dict[str, ViewLoader]:
    """Make a loader of one view of each modality whose encoder is frozen, if its views are not random."""
    loaders = {}
    for item, transform in zip(loader.spec.items, loader.transforms, strict=True):
        if item.encoder in frozen and not explain_random(loader, item.encoder):
            spec = ViewSpec((replace(item, count=1),))
            loaders[item.modality] = ViewLoader(
                loader.dataset, spec, [transform], num_workers=loader.num_workers, device=loader.device
            )
    return loaders


def encode_frozen(task: TrainingTask, model: MultiViewModel, fabric: Fabric) -> dict[str, EncodedModality]:
    """Compute the outputs of frozen encoders for all instances, by modality.

    Those whose views are random, or whose outputs do not fit into memory, are left out; the log has the reason.
    """
    encoded: dict[str, EncodedModality] = {}
    for key in task.frozen_encoders:
        encoder = model.encoder.get_adapted_encoder(key)
        loaders = {name: part for name, part in task.encoding_loaders.items() if task.spec.encoders[name] == key}
        num_bytes = sum(_count_bytes(loader, encoder) for loader in loaders.values())
        size = f"{num_bytes / 2**20:,.1f} MB"
        reason = explain_random(task.view_loader, key)
        if not reason and num_bytes > _get_memory_limit(fabric):
            reason = f"its outputs, {size}, would take too much memory"
        if reason:
            logger.info(f"  the frozen encoder of {key} runs at each step, without gradient: {reason}")
            continue
        logger.info(f"  the frozen encoder of {key} runs once, its outputs stay in memory ({size})")
        encoded |= {name: _encode_modality(encoder, loader, fabric) for name, loader in loaders.items()}
    return encoded


def _encode_modality(encoder: AdaptedEncoder, loader: ViewLoader, fabric: Fabric) -> EncodedModality:
    """Encode the instances that have the modality of a loader; each rank encodes a part of the batches."""
    (reader,) = loader.readers.values()
    mask = torch.zeros(len(loader.dataset), dtype=torch.bool)
    index = reader.column.get_mask().nonzero().squeeze(1)
    with eval_mode(encoder) as reference:
        values = torch.zeros(len(mask), encoder.encoder_dim, dtype=reference.dtype)
        steps = _encode_batches(encoder, loader, index, reference, fabric)
        for rows, h in track(steps, "running the frozen encoder once", len(index), lambda step: len(step[0])):
            values[rows], mask[rows] = h, True
    loader.stop_workers()
    return EncodedModality(values, mask)


def _encode_batches(
    encoder: AdaptedEncoder, loader: ViewLoader, index: Tensor, reference: Tensor, fabric: Fabric
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices (P,) and outputs (P, n) of each batch, on the CPU. All ranks get those of all ranks.

    The batches do not depend on the number of ranks, so neither do the bits of the outputs.
    """
    size, ranks, rank = choose_loader_batch_size(loader), fabric.world_size, fabric.global_rank
    batches = index.split(size)
    own = loader(EVAL_EPOCH, batches[rank::ranks])
    for _, batch in zip_longest(range(0, len(batches), ranks), own):
        rows = torch.full((size,), -1, device=reference.device)
        h = reference.new_zeros(size, encoder.encoder_dim)
        if batch is not None and len(exists := _get_existing(batch)):
            (group,) = batch.to(reference).groups
            rows[: len(exists)] = exists.to(rows)
            with fabric.autocast():
                h[: len(exists)] = encoder.encode(group.values, group.lengths).to(h)
        all_rows, all_h = (_gather(part, fabric).cpu() for part in (rows, h))
        yield all_rows[all_rows >= 0], all_h[all_rows >= 0]


def _get_existing(batch: ViewBatch) -> Tensor:
    """Return the indices of the instances of a batch that have its only view."""
    return batch.indices if batch.mask is None else batch.indices[batch.mask[:, 0].cpu()]


def _gather(rows: Tensor, fabric: Fabric) -> Tensor:
    """Concatenate the rows (B, ...) of all ranks."""
    if fabric.world_size == 1:
        return rows
    gathered = [torch.empty_like(rows) for _ in range(fabric.world_size)]
    dist.all_gather(gathered, rows)
    return torch.cat(gathered)


def _count_bytes(loader: ViewLoader, encoder: AdaptedEncoder) -> int:
    reference = next(encoder.parameters(), torch.zeros(()))
    return len(loader.dataset) * encoder.encoder_dim * reference.element_size()


def _get_memory_limit(fabric: Fabric) -> int:
    """Return the bytes that the outputs may take in each process, the same on all ranks."""
    processes = getattr(fabric.strategy, "num_processes", 1)
    limit = torch.tensor(int(MAX_MEMORY_FRACTION * get_available_memory() / processes), device=fabric.device)
    reduced = fabric.all_reduce(limit, reduce_op="min")
    assert isinstance(reduced, Tensor)
    return int(reduced)
