"""`ViewBatch`: the views of a batch of instances, as a `MultiViewModel` takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from manyviews.utils import describe_type


class ViewGroup(NamedTuple):
    """Views of one shape that one encoder maps to representations in one call."""

    encoder: str
    """Name of the encoder."""
    views: tuple[int, ...]
    """Positions of the V views among the N views of an instance."""
    values: Tensor
    """The views (P, ...) that exist, instance by instance: P = B V if none is missing."""
    lengths: Tensor | None = None
    """Number of steps (P,) of sequences and texts."""
    is_encoded: bool = False
    """Whether the values are outputs (P, n) of the encoder, which was run before."""


class ViewBatch(NamedTuple):
    """The views of B instances in groups of one shape. Absent views are in no group: they cost nothing.

    Examples:
        >>> batch = ViewBatch.from_views([torch.rand(8, 2, 3, 32, 32), torch.rand(8, 6, 3, 16, 16)])
        >>> batch.num_instances, batch.num_views, [tuple(group.values.shape) for group in batch.groups]
        (8, 8, [(16, 3, 32, 32), (48, 3, 16, 16)])
    """

    groups: tuple[ViewGroup, ...]
    indices: Tensor
    """Indices (B,) of the instances in their dataset."""
    mask: Tensor | None = None
    """bool (B, N), true where a view exists; None if none is missing."""

    @classmethod
    def from_views(cls, views: Tensor | Sequence[Tensor], encoder: str = "") -> ViewBatch:
        """Make a batch from views (B, N, ...), or from several such groups of different shapes."""
        parts = [views] if isinstance(views, Tensor) else list(views)
        if any(not isinstance(part, Tensor) for part in parts):
            raise TypeError(f"views must be (instances, views, ...), or a list of such, got {describe_type(views)}")
        if not parts or any(part.dim() < 3 or len(part) != len(parts[0]) for part in parts):
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise ValueError(f"views must be (instances, views, ...), such as (B, N, C, H, W), got {shapes or 'none'}")
        shapes_to_parts: dict[torch.Size, list[tuple[list[int], Tensor]]] = {}
        start = 0
        for part in parts:
            numbers = list(range(start, start + part.shape[1]))
            shapes_to_parts.setdefault(part.shape[2:], []).append((numbers, part))
            start += part.shape[1]
        groups = []
        for same_shape in shapes_to_parts.values():
            values = same_shape[0][1] if len(same_shape) == 1 else torch.cat([part for _, part in same_shape], 1)
            positions = tuple(view for numbers, _ in same_shape for view in numbers)
            groups.append(ViewGroup(encoder, positions, values.flatten(0, 1)))
        return cls(tuple(groups), torch.arange(len(parts[0])))

    @property
    def num_instances(self) -> int:
        return len(self.indices)

    @property
    def num_views(self) -> int:
        return sum(len(group.views) for group in self.groups)

    def to(self, reference: Tensor) -> ViewBatch:
        """Move all tensors but the indices to the device of a tensor, and floats to its dtype."""
        device = reference.device

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        groups = []
        for group in self.groups:
            dtype = reference.dtype if group.values.is_floating_point() else group.values.dtype
            values = group.values.to(device, dtype, non_blocking=True)
            groups.append(group._replace(values=values, lengths=move(group.lengths)))
        return ViewBatch(tuple(groups), self.indices, move(self.mask))

    def split(self, size: int) -> Iterator[ViewBatch]:
        """Split into batches of up to `size` instances."""
        bounds = [*range(0, self.num_instances, size), self.num_instances]
        rows = [self._count_rows(group, bounds) for group in self.groups]
        for i, (start, stop) in enumerate(pairwise(bounds)):
            groups = []
            for group, counts in zip(self.groups, rows, strict=True):
                part = slice(counts[i], counts[i + 1])
                lengths = None if group.lengths is None else group.lengths[part]
                groups.append(group._replace(values=group.values[part], lengths=lengths))
            mask = None if self.mask is None else self.mask[start:stop]
            yield ViewBatch(tuple(groups), self.indices[start:stop], mask)

    def _count_rows(self, group: ViewGroup, bounds: list[int]) -> list[int]:
        """Count the rows of a group that belong to the instances before each bound."""
        if self.mask is None:
            return [bound * len(group.views) for bound in bounds]
        counts = self.mask[:, list(group.views)].sum(1).cumsum(0).tolist()
        return [counts[bound - 1] if bound else 0 for bound in bounds]

    def unpack(self) -> list[list[Tensor | None]]:
        """Return the views of each instance, without padding; None where a view is absent."""
        unpacked: list[list[Tensor | None]] = [[None] * self.num_views for _ in range(self.num_instances)]
        for group in self.groups:
            mask = torch.ones(self.num_instances, self.num_views).bool() if self.mask is None else self.mask
            for row, (i, position) in enumerate(mask[:, list(group.views)].nonzero().tolist()):
                length = None if group.lengths is None else int(group.lengths[row])
                unpacked[i][group.views[position]] = group.values[row][:length]
        return unpacked

    def gather(self, features: Tensor, views: Sequence[int]) -> Tensor:
        """Return the rows (P, d) of those of some views in (B, N, d) that exist, instance by instance."""
        every = list(views) == list(range(features.shape[1]))
        part = features if every else features[:, list(views)]
        return part.flatten(0, 1) if self.mask is None else part[self.mask[:, list(views)]]

    def scatter(self, rows: Sequence[Tensor], views: Sequence[Sequence[int]]) -> Tensor:
        """Arrange rows (P, d) of some views each as (B, N, d); absent views are zeros."""
        if self.mask is None:
            order = [view for part in views for view in part]
            for part, positions in zip(rows, views, strict=True):
                self._check_rows(part, positions, self.num_instances * len(positions))
            out = torch.cat([part.unflatten(0, (self.num_instances, -1)) for part in rows], 1)
            return out if order == sorted(order) else out[:, torch.tensor(order).argsort().to(out.device)]
        dtype = rows[0].dtype
        for part in rows:
            dtype = torch.promote_types(dtype, part.dtype)
        out = rows[0].new_zeros(self.num_instances, self.num_views, rows[0].shape[1], dtype=dtype)
        for part, positions in zip(rows, views, strict=True):
            instance, number = self.mask[:, list(positions)].nonzero(as_tuple=True)
            self._check_rows(part, positions, len(instance))
            out[instance, torch.tensor(positions, device=out.device)[number]] = part.to(dtype)
        return out

    def _check_rows(self, rows: Tensor, views: Sequence[int], expected: int) -> None:
        if len(rows) != expected:
            raise ValueError(
                f"{self.num_instances} instances have {expected} of the views {', '.join(map(str, views))}, "
                f"but there are {len(rows)} rows"
            )
