"""One modality of a bundle, checked: what is missing, what is padding, what is not a number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from manyviews.data.dataset import DatasetError


class Modality:
    """Rows of one modality, ready to use.

    `rows` are float32 (n, d) or (n, T, d) with padding at the end, or images uint8 (n, C, H, W); zeros where an
    instance lacks it. `present` is bool (n,), `lengths` the steps (n,) of sequences.

    Raises:
        DatasetError: it cannot be what it is said to be; the message names the row.
    """

    def __init__(
        self, array: np.ndarray, lengths: np.ndarray | None, present: np.ndarray | None, where: str, notes: list[str]
    ) -> None:
        self.where = where
        self.lengths: np.ndarray | None = None
        self.rows: np.ndarray
        self.present = self._presence(present, len(array))
        if array.dtype == np.uint8 and array.ndim >= 3:
            self.rows = as_images(array, where).numpy().copy()
            if lengths is not None:
                raise DatasetError(f"{where}: images have no lengths")
            self.rows[~self.present] = 0
            return
        if array.dtype.kind not in "iuf" or array.ndim not in (2, 3) or 0 in array.shape:
            got = f"{array.dtype} {array.shape}"
            raise DatasetError(f"{where}: features must be numbers (n, d) or (n, T, d), got {got}")
        self.rows = array.astype(np.float32)
        self._finite(notes)
        if array.ndim == 3:
            self._steps(lengths, notes)
        elif lengths is not None:
            raise DatasetError(f"{where}: lengths are for sequences (n, T, d), and it is {array.shape}")

    def _presence(self, present: np.ndarray | None, count: int) -> np.ndarray:
        if present is None:
            return np.ones(count, bool)
        if present.shape != (count,) or present.dtype.kind not in "biuf":
            got = f"{present.dtype} {present.shape}"
            raise DatasetError(f"{self.where}: presence must be true or false for {count} rows, got {got}")
        wrong = ~np.isin(present, (0, 1))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise DatasetError(f"{self.where}: row {row} has a presence of {present[row]}, and must have 0 or 1")
        return present.astype(bool)

    def _finite(self, notes: list[str]) -> None:
        """Rows without a number are missing; other values that are no numbers are taken as 0, and said."""
        finite: np.ndarray = np.asarray(np.isfinite(self.rows))
        self.present = self.present & finite.reshape(len(finite), -1).any(1)
        odd = int((~finite[self.present]).sum())
        if odd:
            notes.append(f"{self.where}: {odd:,} values that are not finite are taken as 0")
        self.rows[~finite] = 0
        self.rows[~self.present] = 0

    def _steps(self, lengths: np.ndarray | None, notes: list[str]) -> None:
        count, most = self.rows.shape[:2]
        filled: np.ndarray = np.asarray(self.rows.any(2))
        first = filled.argmax(1)
        last = most - filled[:, ::-1].argmax(1)
        if lengths is None:
            empty = self.present & ~filled.any(1)
            if empty.any():
                notes.append(f"{self.where}: {int(empty.sum()):,} rows are all zeros, and taken as missing")
                self.present = self.present & ~empty
            self.lengths = np.where(self.present, last - first, 1)
            start = np.where(self.present, first, 0)
        else:
            self.lengths = self._given(lengths, count, most)
            # Padding is at the front of rows that only fit there; rows that fit both ways are as most others.
            fits_back, fits_front = last <= self.lengths, first >= most - self.lengths
            as_most = (fits_front & ~fits_back).sum() > (fits_back & ~fits_front).sum()
            at_front = filled.any(1) & fits_front & (as_most | ~fits_back)
            start = np.where(at_front, most - self.lengths, 0)
            steps = np.arange(most)
            outside = (steps < start[:, None]) | (steps >= (start + self.lengths)[:, None])
            if lost := int((filled & outside & self.present[:, None]).sum()):
                notes.append(f"{self.where}: {lost:,} steps that are not zero lie outside the lengths: left out")
        if start.any():
            steps = np.minimum(np.arange(most) + start[:, None], most - 1)
            self.rows = np.take_along_axis(self.rows, steps[:, :, None], 1)
        self.rows[np.arange(most) >= self.lengths[:, None]] = 0

    def _given(self, lengths: np.ndarray, count: int, most: int) -> np.ndarray:
        flat = np.asarray(lengths).reshape(-1)
        if flat.shape != (count,) or flat.dtype.kind not in "iuf":
            got = f"{flat.dtype} {lengths.shape}"
            raise DatasetError(f"{self.where}: lengths must be a whole number for {count} rows, got {got}")
        wrong = self.present & ((np.floor(flat) != flat) | (flat < 1) | (flat > most))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise DatasetError(
                f"{self.where}: row {row} has a length of {flat[row]}, and must have 1 to {most} whole steps"
            )
        return np.where(self.present, flat, 1).astype(np.int64)


def as_images(array: np.ndarray, where: str) -> Tensor:
    """uint8 (n, C, H, W) from (n, H, W), (n, H, W, C) or (n, C, H, W), C 1 or 3."""
    if array.dtype != np.uint8:
        raise DatasetError(f"{where}: images must be uint8 from 0 to 255, got {array.dtype}")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise DatasetError(f"{where}: images must be (n, height, width, 3) or (n, 3, height, width), got {array.shape}")
    return torch.from_numpy(np.ascontiguousarray(array))
