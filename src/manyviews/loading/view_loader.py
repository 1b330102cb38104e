"""`ViewLoader`: batches of views of a dataset, made in this process or, for files, in worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils import data as torch_data

from manyviews.data import Dataset, Images, Media, check_split
from manyviews.loading.modality_reader import EncodedModality, Loaded, ModalityReader
from manyviews.loading.view_spec import ViewSpec
from manyviews.loading.workers import make_item_loader
from manyviews.models import ViewBatch, ViewGroup
from manyviews.transforms import ClipTransform, ImageTransform, Transform
from manyviews.utils import EVAL_EPOCH

PREFETCH_BATCHES = 2
"""Batches that each worker reads ahead."""


class ViewLoader:
    """Yields the views of each batch of an epoch as a `ViewBatch`.

    Files are decoded and cropped in `num_workers` processes; everything else happens in this process, in batches, on
    `device`. Views do not depend on the number of workers.

    Args:
        dataset: the instances.
        spec: the views of each instance, resolved for the dataset.
        transforms: a transform for each item of the spec; None repeats features as they are.
        seed: seed of the transforms.
        num_workers: number of processes that read files.
        device: device of the views. Default: the CPU.
        replace_corrupt: replace an instance with a corrupt file by the next one that can be read. Otherwise, and if the
            spec has several modalities, the modality counts as missing. Both give a warning, or an error with
            `raise_on_corrupt`.
        keep_workers: let the processes live until `stop_workers`, instead of for one epoch.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> spec = ViewSpec.parse(["pixels", "fourier"]).resolve(digits)
        >>> for batch in ViewLoader(digits["train"], spec, [None, None])(0, [torch.tensor([3, 1, 4])]):
        ...     print([tuple(group.values.shape) for group in batch.groups], batch.indices)
        [(3, 64), (3, 40)] tensor([3, 1, 4])
    """

    def __init__(
        self,
        dataset: Dataset,
        spec: ViewSpec,
        transforms: Sequence[Transform | None],
        *,
        seed: int = 0,
        num_workers: int = 0,
        device: torch.device | None = None,
        replace_corrupt: bool = False,
        keep_workers: bool = True,
    ) -> None:
        check_split(dataset)
        if len(transforms) != len(spec.items):
            raise ValueError(
                f"expected a transform for each of {len(spec.items)} items of views, got {len(transforms)}"
            )
        for item, transform in zip(spec.items, transforms, strict=True):
            column = dataset[item.modality]
            if isinstance(column, Images) != isinstance(transform, ImageTransform):
                raise ValueError(f"images, and no other views, need an image transform, got {transform} for {item}")
            if isinstance(column, Media) != isinstance(transform, ClipTransform):
                raise ValueError(
                    f"audio and video, and no other views, need a clip transform, got {transform} for {item}"
                )
        self.dataset, self.spec, self.transforms, self.seed = dataset, spec, list(transforms), seed
        self.num_workers, self.device = num_workers, device or torch.device("cpu")
        self.keep_workers = keep_workers
        self.corrupt: set[str] = set()  # errors that were reported
        self.items = {
            name: [i for i, item in enumerate(spec.items) if item.modality == name] for name in spec.modalities
        }
        self.readers = {
            name: self._make_reader(name, items, replace_corrupt and len(self.items) == 1)
            for name, items in self.items.items()
        }
        self.file_readers = {name: reader for name, reader in self.readers.items() if reader.uses_workers}
        self.encoded: dict[str, EncodedModality] = {}
        self.has_missing = any(reader.column.mask is not None for reader in self.readers.values()) or any(
            not reader.replace_corrupt for reader in self.file_readers.values()
        )

    def _make_reader(self, name: str, items: list[int], replace_corrupt: bool) -> ModalityReader:
        column = self.dataset[name]
        pixels = column.values if isinstance(column, Images) and isinstance(column.values, Tensor) else None
        transforms = [self.transforms[i] for i in items]
        if any(isinstance(transform, ImageTransform) and transform.uses_workers for transform in transforms):
            pixels = None
        return ModalityReader(
            column,
            [self.spec.items[i].count for i in items],
            transforms,
            [self.spec.first_views[i] for i in items],
            self.seed,
            replace_corrupt,
            None if pixels is None else pixels.to(self.device),
        )

    def use_encoded(self, encoded: Mapping[str, EncodedModality]) -> None:
        """Yield these outputs of encoders instead of the views of their modalities, whose values are no longer read."""
        self.encoded = dict(encoded)

    def __call__(self, epoch: int, batches: Iterable[Tensor]) -> Iterator[ViewBatch]:
        """Yield the views of each batch of indices; the augmentations are those of the epoch."""
        names = self.file_readers.keys() - self.encoded.keys()
        if not names:
            for index in batches:
                yield self._make_batch({}, index, epoch)
            return
        # Workers that run already have all readers, so each batch says which ones it needs.
        self._sampler.batches = ((epoch, index, names) for index in batches)
        for index, files in self._workers:
            errors = {line for loaded in files.values() for line in loaded.errors} - self.corrupt
            self.corrupt |= errors
            is_replaced = any(reader.replace_corrupt for reader in self.file_readers.values())
            action = "replaced by the next instance" if is_replaced else "it counts as missing"
            for line in sorted(errors):
                warnings.warn(f"{line}; {action} ({len(self.corrupt)} so far)", stacklevel=2)
            yield self._make_batch(files, index, epoch)

    def load(self, index: Tensor, epoch: int = EVAL_EPOCH) -> ViewBatch:
        """Load the views of one batch of indices in this process."""
        return self._make_batch({}, index, epoch)

    def show(self, index: Tensor, epoch: int = EVAL_EPOCH) -> list[list[Tensor | str | None]]:
        """Return what is shown of the views of instances, see `Column.show_view`; None where a view is missing."""
        columns = [self.dataset[item.modality] for item in self.spec.items for _ in range(item.count)]
        return [
            [None if view is None else column.show_view(view.cpu()) for column, view in zip(columns, row, strict=True)]
            for row in self.load(index, epoch).unpack()
        ]

    def start_workers(self) -> None:
        """Start the worker processes now, for instance before other threads or process groups exist."""
        if self.file_readers and self.num_workers and self.keep_workers:
            iter(self._workers)

    def stop_workers(self) -> None:
        """Stop the worker processes; the next epoch starts new ones."""
        vars(self).pop("_workers", None)

    @cached_property
    def _sampler(self) -> _BatchSampler:
        return _BatchSampler()

    @cached_property
    def _workers(self) -> torch_data.DataLoader[tuple[Tensor, dict[str, Loaded]]]:
        """The workers that read files."""
        reader, pin_memory = _FileDataset(self.file_readers), self.device.type == "cuda"
        return make_item_loader(
            reader, self._sampler, self.num_workers, PREFETCH_BATCHES, pin_memory, persistent=self.keep_workers
        )

    def _make_batch(self, files: dict[str, Loaded], index: Tensor, epoch: int) -> ViewBatch:
        loaded = {name: encoded.load(index) for name, encoded in self.encoded.items()} | files
        loaded |= {name: self.readers[name].read(index, epoch) for name in self.readers if name not in loaded}
        if len(loaded) == 1:
            index = next(iter(loaded.values())).indices
        groups = [
            self._make_group(encoder, members, views, loaded, epoch)
            for encoder, members, views in self.spec.list_groups()
        ]
        mask = None
        if self.has_missing:
            columns = [loaded[item.modality].mask for item in self.spec.items for _ in range(item.count)]
            mask = self._copy_to_device(torch.stack(columns, 1))
        return ViewBatch(tuple(groups), index, mask)

    def _copy_to_device(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device, from pinned memory, so that the copy does not wait for it."""
        if self.device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _make_group(
        self, encoder: str, members: list[int], views: tuple[int, ...], loaded: dict[str, Loaded], epoch: int
    ) -> ViewGroup:
        parts = [self._augment(i, loaded[self.spec.items[i].modality], epoch) for i in members]
        masks = [loaded[self.spec.items[i].modality].mask for i in members]
        values, lengths = (
            _merge(parts, masks) if len(parts) > 1 else (x if x is None else x.flatten(0, 1) for x in parts[0])
        )
        assert values is not None
        is_encoded = self.spec.items[members[0]].modality in self.encoded
        return ViewGroup(encoder, views, values, lengths, is_encoded)

    def _augment(self, i: int, loaded: Loaded, epoch: int) -> tuple[Tensor, Tensor | None]:
        """Make the views (P, V, ...) of an item, and their lengths (P, V), on the device."""
        item, first_view = self.spec.items[i], self.spec.first_views[i]
        transform = None if item.modality in self.encoded else self.transforms[i]
        members = self.items[item.modality]
        part = members.index(i) if len(loaded.values) > 1 else 0
        values = self._copy_to_device(loaded.values[part])
        lengths = None if loaded.lengths is None else self._copy_to_device(loaded.lengths[part])
        index = loaded.indices[loaded.mask]
        if isinstance(transform, ImageTransform):
            if not len(values):
                return values.expand(-1, item.count, -1, -1, -1).float(), None
            return (
                transform.augment_color(values, seed=self.seed, epoch=epoch, index=index, first_view=first_view), None
            )  # fmt: skip
        if isinstance(transform, ClipTransform):
            if len(values):
                values = transform.finish_views(values, seed=self.seed, epoch=epoch, index=index, first_view=first_view)
            return values.float(), lengths
        if transform is None or not len(values):
            repeated = values[:, None].expand(-1, item.count, *values.shape[1:])
            return repeated, None if lengths is None else lengths[:, None].expand(-1, item.count)
        return transform.make_views(
            values, lengths, views=item.count, seed=self.seed, epoch=epoch, index=index, first_view=first_view
        )


def _merge(parts: Sequence[tuple[Tensor, Tensor | None]], masks: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Merge views (P, V, ...) of several items into rows, instance by instance.

    Sequences are padded to one length, and gray images among colored ones become RGB.
    """
    longest = max(values.shape[2] for values, lengths in parts if lengths is not None) if parts[0][1] is not None else 0
    padded = []
    for values, lengths in parts:
        amount = longest - values.shape[2] if lengths is not None else 0
        padded.append(pad(values, (0, 0) * (values.dim() - 3) + (0, amount)) if amount else values)
    if len({values.shape[2:] for values in padded}) > 1:
        padded = [values.expand(-1, -1, 3, -1, -1) for values in padded]
    repeats = [values.shape[1] for values in padded]
    present = torch.cat([mask[:, None].expand(-1, count) for mask, count in zip(masks, repeats, strict=True)], 1)
    position = (present.flatten().cumsum(0) - 1).view(present.shape)
    order, start = [], 0
    for mask, count in zip(masks, repeats, strict=True):
        order.append(position[mask, start : start + count].flatten())
        start += count
    inverse = torch.cat(order).argsort().to(padded[0].device)
    lengths = None
    if parts[0][1] is not None:
        lengths = torch.cat([part.flatten() for _, part in parts if part is not None])[inverse]
    return torch.cat([values.flatten(0, 1) for values in padded])[inverse], lengths


_FileBatch: TypeAlias = tuple[int, Tensor, Collection[str]]
"""The epoch, the indices of the instances, and the modalities to read."""


class _BatchSampler(Iterable[_FileBatch]):
    """Yields what to read for each batch of an epoch; it is replaced for each epoch."""

    def __init__(self) -> None:
        self.batches: Iterable[_FileBatch] = ()

    def __iter__(self) -> Iterator[_FileBatch]:
        return iter(self.batches)


@dataclass(frozen=True)
class _FileDataset(torch_data.Dataset[tuple[Tensor, dict[str, Loaded]]]):
    """Reads the files of a batch: one message to the main process."""

    readers: dict[str, ModalityReader]

    def __getitem__(self, batch: _FileBatch) -> tuple[Tensor, dict[str, Loaded]]:
        epoch, index, names = batch
        return index, {name: self.readers[name].read(index, epoch) for name in self.readers if name in names}
