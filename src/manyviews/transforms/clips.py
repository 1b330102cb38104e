"""Clips of recordings -> views: which part of a recording a view shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from manyviews.data import Audio, Media, Video
from manyviews.transforms.center_crop import CenterCrop
from manyviews.transforms.transform import ClipTransform, ImageTransform
from manyviews.utils import EVAL_EPOCH, draw_normal, draw_uniform

# Random streams of a view of audio or video. Only append to them: renumbering changes the views of every seed.
POSITION_STREAM, CUT_STREAM, NOISE_STREAM = range(1 << 21, (1 << 21) + 3)


@dataclass(frozen=True)
class AudioClip(ClipTransform[Audio]):
    """A clip of audio (T,) at most `max_seconds` of the column long: a random one, or the one in the middle.

    With several views of an instance, which would be equal if the recording is short, views are cut further and get
    noise. Each random number is a function of (seed, epoch, index of the instance, view).

    Args:
        is_random: whether clips are random, as in training.
        min_crop: minimum fraction of the clip that a random cut keeps. 1: no cut.
        noise: standard deviation of the Gaussian noise, relative to that of the clip.

    Examples:
        >>> import tempfile, wave
        >>> from pathlib import Path
        >>> from manyviews.data import FileBlobs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.wav"
        ...     with wave.open(str(path), "wb") as file:
        ...         file.setparams((1, 2, 16_000, 0, "NONE", ""))
        ...         file.writeframes(bytes(2 * 16_000))
        ...     column = Audio(FileBlobs((path,)), max_seconds=0.5)
        ...     [clip.shape for clip in AudioClip(is_random=True).read_views(column, 0, views=2, seed=0, epoch=0)]
        [torch.Size([8000]), torch.Size([8000])]
    """

    is_random: bool = False
    min_crop: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.min_crop <= 1 or not self.noise >= 0:
            raise ValueError(f"min_crop must be in (0, 1] and noise >= 0, got {self.min_crop} and {self.noise}")

    def read_views(
        self, column: Audio, i: int, *, views: int, seed: int, epoch: int, first_view: int = 0
    ) -> list[Tensor]:
        if not self.is_random:
            return column.read_clips(i, [0.5]) * views
        keys = [(seed, epoch, i, view) for view in range(first_view, first_view + views)]
        clips = column.read_clips(i, [float(draw_uniform(*key, POSITION_STREAM)) for key in keys])
        return [self._augment(clip, key) for clip, key in zip(clips, keys, strict=True)]

    def collate(self, views: Sequence[Tensor], column: Audio) -> tuple[Tensor, Tensor]:  # noqa: ARG002 (for videos)
        lengths = torch.tensor([len(view) for view in views], dtype=torch.long)
        return pad_sequence(list(views), batch_first=True) if views else torch.empty(0, 1), lengths

    def _augment(self, clip: Tensor, key: tuple[int, ...]) -> Tensor:
        if self.min_crop < 1:
            fraction, position = draw_uniform(*key, CUT_STREAM, torch.arange(2)).tolist()
            length = max(1, round(len(clip) * (self.min_crop + (1 - self.min_crop) * fraction)))
            start = int(position * (len(clip) - length + 1))
            clip = clip[start : start + length]
        if self.noise:
            scale = self.noise * clip.std(correction=0)
            clip = (clip + scale * draw_normal(*key, NOISE_STREAM, torch.arange(len(clip)))).clamp(-1, 1)
        return clip


@dataclass(frozen=True)
class VideoClip(ClipTransform[Video]):
    """Frames of a video (K, 3, size, size) with an image transform, whose random numbers the frames of a view share.

    The video is cut into as many equal parts as the column's `num_frames` K, and a view has a random frame of each
    (Wang et al. 2016), or the one in the middle. Random numbers are functions of (seed, epoch, index of the instance,
    view).

    Args:
        transform: the transform of the frames.
        is_random: whether frames are random, as in training.

    Examples:
        >>> from manyviews.transforms import SimCLRTransform
        >>> transform = VideoClip(SimCLRTransform(112), is_random=True)
        >>> transform.size
        112
    """

    transform: ImageTransform
    is_random: bool = False

    @property
    def size(self) -> int:
        return self.transform.size

    def read_views(
        self, column: Video, i: int, *, views: int, seed: int, epoch: int, first_view: int = 0
    ) -> list[Tensor]:
        count, index = column.num_frames, torch.tensor([i])
        frame, view = torch.arange(count), torch.arange(first_view, first_view + views)[:, None]
        offsets = draw_uniform(seed, epoch, i, view, POSITION_STREAM, frame) if self.is_random else torch.tensor(0.5)
        positions = ((frame + offsets.double()) / count).expand(views, count).flatten().tolist()
        crops: list[Tensor | None] = [None] * len(positions)
        for slot, image in column.iterate_frames(i, positions):
            crops[slot] = self.transform.crop(
                [image], views=1, seed=seed, epoch=epoch, index=index, first_view=first_view + slot // count
            )[0, 0]
        return list(torch.stack([crop for crop in crops if crop is not None]).unflatten(0, (views, count)))

    def collate(self, views: Sequence[Tensor], column: Video) -> tuple[Tensor, None]:
        empty = torch.empty(0, column.num_frames, 3, self.size, self.size, dtype=torch.uint8)
        return torch.stack(list(views)) if views else empty, None

    def finish_views(self, values: Tensor, *, seed: int, epoch: int, index: Tensor, first_view: int = 0) -> Tensor:
        """Augment the colors of frames (B, N, K, 3, S, S), and convert them to floats in [0, 1]."""
        frames = values.transpose(1, 2)
        colored = self.transform.augment_color(
            frames.flatten(0, 1),
            seed=seed,
            epoch=epoch,
            index=index.repeat_interleave(frames.shape[1]),
            first_view=first_view,
        )
        return colored.unflatten(0, frames.shape[:2]).transpose(1, 2)


EVAL_TRANSFORMS: Mapping[str, Callable[[int], ImageTransform | ClipTransform[Any]]] = {
    "image": CenterCrop, "audio": lambda _: AudioClip(), "video": lambda size: VideoClip(CenterCrop(size)),
}  # fmt: skip
"""Transforms of evaluation by kind, for views of a size: without randomness."""


def make_eval_transform(kind: str, size: int) -> ImageTransform | ClipTransform[Any] | None:
    """Make the transform of evaluation for a kind of modality; None for features and texts.

    Examples:
        >>> make_eval_transform("video", 32)
        VideoClip(transform=CenterCrop(size=32), is_random=False)
    """
    build = EVAL_TRANSFORMS.get(kind)
    return None if build is None else build(size)


def load_clips(column: Media, size: int) -> tuple[Tensor, Tensor | None]:
    """Load the views of evaluation (P, ...) of all recordings that are not missing, and the lengths (P,) of audio."""
    transform = make_eval_transform(column.kind, size)
    assert isinstance(transform, ClipTransform)
    views = [
        transform.read_views(column, i, views=1, seed=0, epoch=EVAL_EPOCH)[0]
        for i in column.get_mask().nonzero().squeeze(1).tolist()
    ]
    values, lengths = transform.collate(views, column)
    floats = transform.finish_views(values[:, None], seed=0, epoch=EVAL_EPOCH, index=torch.arange(len(values)))[:, 0]
    return floats, lengths
