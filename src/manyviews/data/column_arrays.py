"""Make the column of a modality from its array: missing instances, padding, values that are not finite."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from manyviews.data.column import Column
from manyviews.data.errors import DatasetError
from manyviews.data.images import Images
from manyviews.data.sequences import Sequences
from manyviews.data.vectors import Vectors


class _ModalityArray:
    """The validated values of one modality.

    `values` are float32 (n, d) or (n, T, d) with padding at the end, or images uint8 (n, C, H, W); zeros where the
    modality is missing. `mask` is bool (n,); `lengths` is the number of steps (n,) of sequences.

    Raises:
        DatasetError: the array is invalid; the message has the row.
    """

    def __init__(
        self, array: np.ndarray, lengths: np.ndarray | None, mask: np.ndarray | None, context: str, messages: list[str]
    ) -> None:
        self.context = context
        self.lengths: np.ndarray | None = None
        self.values: np.ndarray
        self.mask = self._parse_mask(mask, len(array))
        if array.dtype == np.uint8 and array.ndim >= 3:
            self.values = to_nchw(array, context).numpy().copy()
            if lengths is not None:
                raise DatasetError(f"{context}: images have no lengths")
            self.values[~self.mask] = 0
            return
        if array.dtype.kind not in "iuf" or array.ndim not in (2, 3) or 0 in array.shape:
            got = f"{array.dtype} {array.shape}"
            raise DatasetError(f"{context}: features must be numeric (n, d) or (n, T, d), got {got}")
        self.values = array.astype(np.float32)
        self._zero_nonfinite(messages)
        if array.ndim == 3:
            self._align_left(lengths, messages)
        elif lengths is not None:
            raise DatasetError(f"{context}: lengths are for sequences (n, T, d), got features {array.shape}")

    def _parse_mask(self, mask: np.ndarray | None, count: int) -> np.ndarray:
        if mask is None:
            return np.ones(count, bool)
        if mask.shape != (count,) or mask.dtype.kind not in "biuf":
            got = f"{mask.dtype} {mask.shape}"
            raise DatasetError(f"{self.context}: the mask must be true or false for {count} rows, got {got}")
        invalid = ~np.isin(mask, (0, 1))
        if invalid.any():
            row = int(np.flatnonzero(invalid)[0])
            raise DatasetError(f"{self.context}: the mask of row {row} must be 0 or 1, got {mask[row]}")
        return mask.astype(bool)

    def _zero_nonfinite(self, messages: list[str]) -> None:
        """Mark rows without any finite value as missing; set other values that are not finite to 0 with a warning."""
        finite: np.ndarray = np.asarray(np.isfinite(self.values))
        self.mask = self.mask & finite.reshape(len(finite), -1).any(1)
        if nonfinite := int((~finite[self.mask]).sum()):
            messages.append(f"{self.context}: {nonfinite:,} values that are not finite are set to 0")
        self.values[~finite] = 0
        self.values[~self.mask] = 0

    def _align_left(self, lengths: np.ndarray | None, messages: list[str]) -> None:
        count, max_length = self.values.shape[:2]
        filled: np.ndarray = np.asarray(self.values.any(2))
        first = filled.argmax(1)
        last = max_length - filled[:, ::-1].argmax(1)
        if lengths is None:
            empty = self.mask & ~filled.any(1)
            if empty.any():
                messages.append(f"{self.context}: {int(empty.sum()):,} rows are all zeros and treated as missing")
                self.mask = self.mask & ~empty
            self.lengths = np.where(self.mask, last - first, 1)
            start = np.where(self.mask, first, 0)
        else:
            self.lengths = self._parse_lengths(lengths, count, max_length)
            # A row is padded at the front if only that fits its length; rows that fit both ways follow the majority.
            fits_back, fits_front = last <= self.lengths, first >= max_length - self.lengths
            majority_front = (fits_front & ~fits_back).sum() > (fits_back & ~fits_front).sum()
            at_front = filled.any(1) & fits_front & (majority_front | ~fits_back)
            start = np.where(at_front, max_length - self.lengths, 0)
            steps = np.arange(max_length)
            outside = (steps < start[:, None]) | (steps >= (start + self.lengths)[:, None])
            if lost := int((filled & outside & self.mask[:, None]).sum()):
                messages.append(
                    f"{self.context}: {lost:,} steps that are not zero are outside the lengths and are skipped"
                )
        if start.any():
            steps = np.minimum(np.arange(max_length) + start[:, None], max_length - 1)
            self.values = np.take_along_axis(self.values, steps[:, :, None], 1)
        self.values[np.arange(max_length) >= self.lengths[:, None]] = 0

    def _parse_lengths(self, lengths: np.ndarray, count: int, max_length: int) -> np.ndarray:
        flat = np.asarray(lengths).reshape(-1)
        if flat.shape != (count,) or flat.dtype.kind not in "iuf":
            got = f"{flat.dtype} {lengths.shape}"
            raise DatasetError(f"{self.context}: lengths must be integers for {count} rows, got {got}")
        invalid = self.mask & ((np.floor(flat) != flat) | (flat < 1) | (flat > max_length))
        if invalid.any():
            row = int(np.flatnonzero(invalid)[0])
            raise DatasetError(
                f"{self.context}: the length of row {row} must be an integer from 1 to {max_length}, got {flat[row]}"
            )
        return np.where(self.mask, flat, 1).astype(np.int64)


def make_column(
    array: np.ndarray, lengths: np.ndarray | None, mask: np.ndarray | None, context: str, messages: list[str]
) -> Column:
    """Make a column from an array: images uint8 (n, H, W, C), vectors (n, d) or padded sequences (n, T, d).

    Raises:
        DatasetError: the array is invalid; the message has the row.
    """
    valid = _ModalityArray(array, lengths, mask, context, messages)
    values, column_mask = torch.from_numpy(valid.values), None if valid.mask.all() else torch.from_numpy(valid.mask)
    if valid.lengths is not None:
        return Sequences(values, torch.from_numpy(valid.lengths), mask=column_mask)
    return Images(values, mask=column_mask) if values.dim() == 4 else Vectors(values, mask=column_mask)


def to_nchw(array: np.ndarray, context: str) -> Tensor:
    """Convert (n, H, W), (n, H, W, C) or (n, C, H, W) to uint8 (n, C, H, W); C is 1 or 3."""
    if array.dtype != np.uint8:
        raise DatasetError(f"{context}: images must be uint8 from 0 to 255, got {array.dtype}")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise DatasetError(
            f"{context}: images must be (n, height, width, 3) or (n, 3, height, width), got {array.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(array))
