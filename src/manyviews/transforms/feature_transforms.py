"""Transforms from features to N views of each: `SequenceTransform` for sequences, `VectorTransform` for vectors.

Both change features relative to the mean and the standard deviation of the training split. Each random number is a
function of (seed, epoch, index of the instance, view, stream, counter), and so is each view, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from manyviews.transforms.transform import FeatureTransform
from manyviews.utils import draw_normal, draw_uniform

MAX_CHUNK_ELEMENTS = 1 << 22
"""Elements of views that are made at once, which limits the memory of their random numbers."""

# Random streams of a view. Only append to them: renumbering changes the views of every seed.
NOISE_STREAM, SCALING_STREAM, FEATURE_MASK_STREAM, CROP_STREAM, TIME_MASK_STREAM = range(5)


@dataclass(frozen=True)
class _Key:
    """Random key of the views of B instances; a draw has a number for each view (B, N, 1) and counter (k,)."""

    seed: int
    epoch: int
    index: Tensor
    """(B, 1, 1)"""
    view: Tensor
    """(N, 1)"""

    def draw_uniform(self, stream: int, count: int) -> Tensor:
        """Return uniform numbers (B, N, count) in [0, 1)."""
        counter = torch.arange(count, device=self.index.device)
        return draw_uniform(self.seed, self.epoch, self.index, self.view, stream, counter)

    def draw_normal(self, stream: int, count: int) -> Tensor:
        """Return standard normal numbers (B, N, count)."""
        counter = torch.arange(count, device=self.index.device)
        return draw_normal(self.seed, self.epoch, self.index, self.view, stream, counter)


@dataclass(frozen=True, eq=False)
class VectorTransform(FeatureTransform):
    """Adds noise to vectors and masks features.

    Maps vectors (B, d) to views (B, N, d). Each random number is a function of (seed, epoch, index of the instance,
    view), so the views do not depend on the batch, worker, rank or device.

    Args:
        mean: mean of each feature of the training split (d,); a masked feature has this value.
        std: standard deviation of each feature of the training split (d,); 0 for a feature that gets no noise.
        noise: standard deviation of the Gaussian noise, relative to `std`.
        feature_mask: probability that a feature is masked.

    Examples:
        >>> transform = VectorTransform(torch.zeros(40), torch.ones(40), noise=0.1, feature_mask=0.2)
        >>> views, _ = transform.make_views(torch.randn(8, 40), None, views=2, seed=0, epoch=0, index=torch.arange(8))
        >>> views.shape
        torch.Size([8, 2, 40])
    """

    mean: Tensor = field(repr=False)
    std: Tensor = field(repr=False)
    noise: float = 0.0
    feature_mask: float = 0.0

    def __post_init__(self) -> None:
        _check_statistics(self.mean, self.std)
        _check_strength("noise", self.noise)
        _check_fraction("feature_mask", self.feature_mask)

    def make_views(
        self,
        values: Tensor,
        lengths: Tensor | None,
        *,
        views: int,
        seed: int,
        epoch: int,
        index: Tensor,
        first_view: int = 0,
    ) -> tuple[Tensor, None]:
        """Map vectors (B, d) to views (B, N, d); `first_view` is the index of the first view."""
        _check_batch("vectors", values, 2, len(self.mean), index, views)
        if lengths is not None:
            raise ValueError("vectors have no lengths: use SequenceTransform")
        step = _choose_chunk_size(views * values.shape[1])
        parts = [
            self._transform(chunk, _make_key(seed, epoch, rows, values.device, first_view, views))
            for chunk, rows in zip(values.split(step), index.split(step), strict=True)
        ]
        return torch.cat(parts), None

    def _transform(self, values: Tensor, key: _Key) -> Tensor:
        mean, std = self.mean.to(values), self.std.to(values)
        x = values[:, None].expand(-1, len(key.view), -1)
        if self.noise:
            x = x + self.noise * std * key.draw_normal(NOISE_STREAM, values.shape[1])
        if self.feature_mask:
            x = torch.where(key.draw_uniform(FEATURE_MASK_STREAM, values.shape[1]) < self.feature_mask, mean, x)
        return x


@dataclass(frozen=True, eq=False)
class SequenceTransform(FeatureTransform):
    """Crops and resamples sequences in time, scales features, adds noise, and masks features and time steps.

    Maps sequences (B, T, d) with lengths (B,) to views (B, N, T, d) with lengths (B, N) of at least 1; the steps after
    the length of a view are zeros. Each random number is a function of (seed, epoch, index of the instance, view), so
    the views do not depend on the batch, worker, rank or device, nor on the padding.

    Args:
        mean: mean of each feature of the training split (d,); masked features and steps have this value.
        std: standard deviation of each feature of the training split (d,); 0 for a feature that gets no noise.
        min_crop: minimum duration of a crop, as a fraction of the sequence. The crop is resampled linearly to another
            random fraction, at least `min_crop`, of the sequence's steps, so its speed changes too. 1: no crop.
        scaling: standard deviation of the logarithm of the factor by which the difference of a feature from its mean
            is multiplied, one factor for all steps of a view.
        noise: standard deviation of the Gaussian noise of each step and feature, relative to `std`.
        feature_mask: probability that a feature is masked in all steps of a view.
        time_mask: maximum number of successive steps that are masked, as a fraction of the view's.

    Examples:
        >>> transform = SequenceTransform(torch.zeros(6), torch.ones(6), min_crop=0.5, noise=0.1)
        >>> values, lengths = torch.randn(8, 50, 6), torch.full((8,), 50)
        >>> views, view_lengths = transform.make_views(values, lengths, views=2, seed=0, epoch=0, index=torch.arange(8))
        >>> views.shape, view_lengths.shape, int(view_lengths.min()) >= 25
        (torch.Size([8, 2, 50, 6]), torch.Size([8, 2]), True)
    """

    mean: Tensor = field(repr=False)
    std: Tensor = field(repr=False)
    min_crop: float = 1.0
    scaling: float = 0.0
    noise: float = 0.0
    feature_mask: float = 0.0
    time_mask: float = 0.0

    def __post_init__(self) -> None:
        _check_statistics(self.mean, self.std)
        if not 0 < self.min_crop <= 1:
            raise ValueError(f"min_crop must be in (0, 1], got {self.min_crop}")
        for name in ("noise", "scaling"):
            _check_strength(name, getattr(self, name))
        for name in ("feature_mask", "time_mask"):
            _check_fraction(name, getattr(self, name))

    def make_views(
        self,
        values: Tensor,
        lengths: Tensor | None,
        *,
        views: int,
        seed: int,
        epoch: int,
        index: Tensor,
        first_view: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Map sequences (B, T, d) and lengths (B,) to views (B, N, T, d) and lengths (B, N)."""
        _check_batch("sequences", values, 3, len(self.mean), index, views)
        if lengths is None or lengths.shape != values.shape[:1]:
            got = None if lengths is None else tuple(lengths.shape)
            raise ValueError(f"lengths must be ({len(values)},), got {got}")
        lengths = lengths.to(values.device).clamp(1, values.shape[1])
        step = _choose_chunk_size(views * values.shape[1] * values.shape[2])
        parts = [
            self._transform(chunk, steps, _make_key(seed, epoch, rows, values.device, first_view, views))
            for chunk, steps, rows in zip(values.split(step), lengths.split(step), index.split(step), strict=True)
        ]
        x, view_lengths = map(torch.cat, zip(*parts, strict=True))
        return x, view_lengths

    def _transform(self, values: Tensor, lengths: Tensor, key: _Key) -> tuple[Tensor, Tensor]:
        (_, T, d), N = values.shape, len(key.view)
        mean, std = self.mean.to(values), self.std.to(values)
        if self.min_crop < 1:
            x, steps = self._crop(values, lengths, key)
        else:
            x, steps = values[:, None].expand(-1, N, -1, -1), lengths[:, None].expand(-1, N)
        if self.scaling:
            factor = (self.scaling * key.draw_normal(SCALING_STREAM, d)).exp()[:, :, None]
            x = mean + (x - mean) * factor
        if self.noise:
            # The counter of an element is step * d + feature, so it does not depend on the padding.
            x = x + self.noise * std * key.draw_normal(NOISE_STREAM, T * d).unflatten(2, (T, d))
        time = torch.arange(T, device=values.device)
        if self.feature_mask:
            masked = key.draw_uniform(FEATURE_MASK_STREAM, d) < self.feature_mask
            x = torch.where(masked[:, :, None], mean, x)
        if self.time_mask:
            fraction, position = key.draw_uniform(TIME_MASK_STREAM, 2).unbind(2)
            count = (self.time_mask * fraction * (steps + 1)).long().minimum(steps)
            start = (position * (steps - count + 1)).long()
            masked = (time >= start[..., None]) & (time < (start + count)[..., None])
            x = torch.where(masked[..., None], mean, x)
        return torch.where((time < steps[..., None])[..., None], x, 0.0), steps

    def _crop(self, values: Tensor, lengths: Tensor, key: _Key) -> tuple[Tensor, Tensor]:
        """Crop and resample: (B, N, T, d) and lengths (B, N)."""
        (B, T, d), N = values.shape, len(key.view)
        duration, kept, position = key.draw_uniform(CROP_STREAM, 3).unbind(2)
        duration, kept = (self.min_crop + (1 - self.min_crop) * u for u in (duration, kept))
        last = (lengths[:, None] - 1).to(duration)  # time of the last step
        steps = (kept * lengths[:, None]).round().long().clamp_min(1)
        start, span = position * (1 - duration) * last, duration * last
        rate = span / (steps - 1).clamp_min(1)
        time = start[..., None] + rate[..., None] * torch.arange(T, device=values.device)
        time = time.minimum(last[..., None])
        before = time.long()
        after = (before + 1).minimum((lengths - 1)[:, None, None])
        weight = (time - before)[..., None].to(values.dtype)
        low, high = (
            values.gather(1, i.flatten(1)[..., None].expand(-1, -1, d)).view(B, N, T, d) for i in (before, after)
        )
        return torch.lerp(low, high, weight), steps


def _make_key(seed: int, epoch: int, index: Tensor, device: torch.device, first_view: int, views: int) -> _Key:
    view = torch.arange(first_view, first_view + views, device=device)[:, None]
    return _Key(seed, epoch, index.to(device).long()[:, None, None], view)


def _choose_chunk_size(elements: int) -> int:
    """Return the number of instances to transform at once, for a number of elements of each."""
    return max(1, MAX_CHUNK_ELEMENTS // elements)


def _check_statistics(mean: Tensor, std: Tensor) -> None:
    if mean.dim() != 1 or mean.shape != std.shape:
        raise ValueError(f"mean and std must be (d,), got {tuple(mean.shape)} and {tuple(std.shape)}")
    if not bool((std >= 0).all() & std.isfinite().all() & mean.isfinite().all()):
        raise ValueError("mean and std must be finite, and std must be >= 0")


def _check_strength(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number >= 0, got {value}")


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def _check_batch(name: str, values: Tensor, dim: int, features: int, index: Tensor, views: int) -> None:
    if values.dim() != dim or values.shape[-1] != features or not values.is_floating_point():
        expected = f"floats ({'B, ' if dim == 2 else 'B, T, '}{features})"
        raise ValueError(f"{name} must be {expected}, got {values.dtype} {tuple(values.shape)}")
    if index.shape != values.shape[:1] or index.is_floating_point() or not len(index):
        got = f"{index.dtype} {tuple(index.shape)}"
        raise ValueError(f"index must have an integer for each of {len(values)} {name}, got {got}")
    if views < 1:
        raise ValueError(f"views must be >= 1, got {views}")
