"""`ModalityReader`: loads one modality of a batch of instances; files are decoded and cropped here, in a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from manyviews.data import BatchColumn, Column, CorruptFileError, DatasetError, Images, Media
from manyviews.transforms import CenterCrop, ClipTransform, ImageTransform, Transform
from manyviews.utils import hash_key

T = TypeVar("T")
PHOTO_STREAM = 1 << 20
"""Random key of the choice among several images of an instance."""


class Loaded(NamedTuple):
    """One modality of B instances, P of which have it."""

    values: list[Tensor]
    """For each item of the spec: crops (P, V, C, S, S) or clips (P, V, ...); for other kinds one tensor (P, ...)."""
    lengths: list[Tensor] | None
    """Number of steps (P,) of sequences and texts, or (P, V) of the clips of audio, for each of `values`."""
    mask: Tensor
    """bool (B,), false where the modality is missing or corrupt."""
    indices: Tensor
    """Indices (B,) of the instances: those given, or of those that replace corrupt ones."""
    errors: list[str]


class EncodedModality(NamedTuple):
    """Outputs (n, d) of a frozen encoder for one modality of n instances, and the mask (n,) of those that have it."""

    values: Tensor
    mask: Tensor

    def load(self, index: Tensor) -> Loaded:
        mask = self.mask[index]
        return Loaded([self.values[index[mask]]], None, mask, index, [])


@dataclass(frozen=True)
class ModalityReader:
    """Reads one modality: `counts[i]` views by `transforms[i]` that start at the position `first_views[i]`."""

    column: Column
    counts: Sequence[int]
    transforms: Sequence[Transform | None]
    first_views: Sequence[int]
    seed: int = 0
    replace_corrupt: bool = False
    """Whether the next readable instance replaces one with a corrupt file, which is otherwise missing."""
    pixels: Tensor | None = field(default=None, repr=False)
    """Images in memory, on the device where views are made."""

    @property
    def uses_workers(self) -> bool:
        """Whether worker processes read the modality."""
        return isinstance(self.column, Media) or (isinstance(self.column, Images) and self.pixels is None)

    def read(self, index: Tensor, epoch: int) -> Loaded:
        mask = self.column.get_mask()[index]
        rows = index[mask]
        if isinstance(self.column, BatchColumn):
            values, lengths = self.column.load(rows)
            return Loaded([values], None if lengths is None else [lengths], mask, index, [])
        if isinstance(self.column, Media):
            views, mask, index, errors = self._read_each(index, mask, epoch, self._read_clips)
            return Loaded(*self._collate_clips(views), mask, index, errors)
        if not len(rows):
            return Loaded(self._make_empty(), None, mask, index, [])
        if self.pixels is not None:
            return Loaded(self._crop_pixels(self.pixels, rows, epoch), None, mask, index, [])
        crops, mask, index, errors = self._read_each(index, mask, epoch, self._crop_files)
        if not mask.any():
            return Loaded(self._make_empty(), None, mask, index, errors)
        return Loaded([torch.cat(item) for item in zip(*crops, strict=True)], None, mask, index, errors)

    def _crop_pixels(self, pixels: Tensor, rows: Tensor, epoch: int) -> list[Tensor]:
        photos, crops, start = self._choose_photos(rows, epoch), [], 0
        for count, transform, first_view in self._list_items():
            if photos is None:
                local = rows.to(pixels.device)
                crops.append(
                    transform.crop(
                        pixels.index_select(0, local),
                        views=count,
                        seed=self.seed,
                        epoch=epoch,
                        index=local,
                        first_view=first_view,
                    )
                )
            else:
                parts = [
                    self._crop(pixels[photos[:, start + v].to(pixels.device)], transform, rows, epoch, first_view + v)
                    for v in range(count)
                ]
                crops.append(torch.cat(parts, 1))
            start += count
        return crops

    def _crop(
        self, images: Tensor | list[Tensor], transform: ImageTransform, rows: Tensor, epoch: int, view: int
    ) -> Tensor:
        index = rows.to(images[0].device)
        return transform.crop(images, views=1, seed=self.seed, epoch=epoch, index=index, first_view=view)

    def _read_each(
        self, index: Tensor, mask: Tensor, epoch: int, read: Callable[[int, int], T]
    ) -> tuple[list[T], Tensor, Tensor, list[str]]:
        """Read each instance that exists: the results, the mask and indices of what was read, and the errors."""
        results: list[T] = []
        errors: list[str] = []
        mask, actual = mask.clone(), index.clone()
        for i in mask.nonzero().squeeze(1).tolist():
            result, actual[i] = self._read_instance(int(index[i]), epoch, read, errors)
            mask[i] = result is not None
            results += [] if result is None else [result]
        return results, mask, actual, errors

    def _read_instance(
        self, i: int, epoch: int, read: Callable[[int, int], T], errors: list[str]
    ) -> tuple[T | None, int]:
        """Read an instance, or the next one that can be read, and its index; None if it is missing."""
        assert isinstance(self.column, Images | Media)
        total, exists = len(self.column), self.column.get_mask()
        for step in range(total if self.replace_corrupt else 1):
            candidate = (i + step) % total
            if not exists[candidate]:
                continue
            try:
                return read(candidate, epoch), candidate
            except CorruptFileError as error:
                if self.column.raise_on_corrupt:
                    raise
                errors.append(str(error))
        if self.replace_corrupt:
            name = "images" if isinstance(self.column, Images) else "files"
            raise DatasetError(f"none of {total} {name} can be read, first: {errors[0]}")
        return None, i

    def _read_clips(self, i: int, epoch: int) -> list[list[Tensor]]:
        """Read the views of a recording for each item of the spec."""
        assert isinstance(self.column, Media)
        return [
            transform.read_views(self.column, i, views=count, seed=self.seed, epoch=epoch, first_view=first_view)
            for count, transform, first_view in zip(self.counts, self._clip_transforms, self.first_views, strict=True)
        ]

    def _collate_clips(self, views: list[list[list[Tensor]]]) -> tuple[list[Tensor], list[Tensor] | None]:
        """Make batches (P, V, ...) and lengths (P, V) of the clips of P instances, for each item of the spec."""
        assert isinstance(self.column, Media)
        values, lengths = [], []
        for i, (count, transform) in enumerate(zip(self.counts, self._clip_transforms, strict=True)):
            clips = [clip for instance in views for clip in instance[i]]
            batch, batch_lengths = transform.collate(clips, self.column)
            values.append(batch.unflatten(0, (-1, count)) if clips else batch[:, None])
            if batch_lengths is not None:
                lengths.append(batch_lengths.view(-1, count) if clips else batch_lengths[:, None])
        return values, lengths or None

    @property
    def _clip_transforms(self) -> list[ClipTransform[Any]]:
        return [transform for transform in self.transforms if isinstance(transform, ClipTransform)]

    def _crop_files(self, i: int, epoch: int) -> list[Tensor]:
        """Read and crop the images of an instance: (1, V, C, S, S) for each item of the spec."""
        assert isinstance(self.column, Images)
        row = torch.tensor([i])
        photos = self._choose_photos(row, epoch)
        if photos is None:
            images = [self.column.values[i]]
            return [
                transform.crop(images, views=count, seed=self.seed, epoch=epoch, index=row, first_view=first_view)
                for count, transform, first_view in self._list_items()
            ]
        decoded = {photo: self.column.values[photo] for photo in sorted(set(photos[0].tolist()))}
        crops, start = [], 0
        for count, transform, first_view in self._list_items():
            numbers = photos[0, start : start + count].tolist()
            parts = [
                self._crop([decoded[photo]], transform, row, epoch, first_view + v) for v, photo in enumerate(numbers)
            ]
            crops.append(torch.cat(parts, 1))
            start += count
        return crops

    def _list_items(self) -> list[tuple[int, ImageTransform, int]]:
        items = []
        for count, transform, first_view in zip(self.counts, self.transforms, self.first_views, strict=True):
            assert isinstance(transform, ImageTransform)
            items.append((count, transform, first_view))
        return items

    def _choose_photos(self, rows: Tensor, epoch: int) -> Tensor | None:
        """Choose the image of each view (B, V) among those of an instance; None if every instance has one.

        Views take the images in a random order, each again only when all were taken. Center crops are of the first one.
        """
        assert isinstance(self.column, Images)
        if self.column.counts is None:
            return None
        counts, starts = self.column.counts[rows], self.column.starts[rows]
        views = torch.arange(sum(self.counts))
        if isinstance(self.transforms[0], CenterCrop):
            return starts[:, None].expand(-1, len(views))
        number = torch.arange(int(counts.max()))
        keys = hash_key(self.seed, epoch, rows[:, None], PHOTO_STREAM, number)
        order = keys.masked_fill(number >= counts[:, None], torch.iinfo(torch.int64).max).argsort(1)
        return starts[:, None] + order.take_along_dim(views % counts[:, None], 1)

    def _make_empty(self) -> list[Tensor]:
        """Return no crops, for a batch in which the modality is missing."""
        channels = 3 if self.pixels is None else self.pixels.shape[1]
        return [
            torch.empty(0, 1, channels, transform.size, transform.size, dtype=torch.uint8)
            for _, transform, _ in self._list_items()
        ]
