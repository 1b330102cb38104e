"""Video."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from manyviews.data.errors import DatasetError
from manyviews.data.media import Media
from manyviews.data.media_files import open_media
from manyviews.data.video_files import iterate_frames

NUM_FRAMES = 8
"""Frames of a view, as in TSN (Wang et al. 2016)."""
MAX_FRAMES = 512
MAX_INFERRED_SIZE = 112
"""Maximum height and width of views if none is set: a view has several frames."""


@dataclass(frozen=True, eq=False, repr=False)
class Video(Media):
    """Video files of any format, one per instance.

    Examples:
        >>> from pathlib import Path
        >>> from manyviews.data import FileBlobs
        >>> Video(FileBlobs((Path("a.mp4"), Path("b.webm")))).prepare({"num_frames": 4}).num_frames
        4
    """

    kind = "video"
    default_encoder = "resnet-small"
    min_size = 1
    uses_batch_norm = True
    legend = "A view of a video shows its frames, from left to right and from top to bottom."
    num_frames: int = field(default=NUM_FRAMES, kw_only=True)
    """Number of frames of a view."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_frames <= MAX_FRAMES:
            raise DatasetError(f"num_frames must be from 1 to {MAX_FRAMES}, got {self.num_frames}")

    def prepare(self, preprocessing: Mapping[str, Any]) -> Video:
        """Return the video with the number of frames of an encoder."""
        return replace(self, num_frames=preprocessing.get("num_frames", self.num_frames))

    def iterate_frames(self, i: int, positions: Sequence[float]) -> Iterator[tuple[int, Tensor]]:
        """Yield a frame (3, H, W) for each position in [0, 1), in the order of the video, see `iterate_frames`."""
        with self.open(i) as (file, name):
            yield from iterate_frames(file, name, positions)

    def read_size(self, i: int) -> tuple[int, int]:
        """Read height and width of the frames from the header."""
        with self.open(i) as (file, name), open_media(file, name, "video") as (_, stream):
            return stream.height, stream.width

    def is_augmented(self, augment_features: str, num_views: int) -> bool:  # noqa: ARG002 (for features)
        """Return True: videos are always augmented, as images are."""
        return True

    def choose_size(self, size: int, default: int) -> int:
        return size or default

    def infer_size(self) -> int:
        """Return the median shorter side of up to 16 videos, at most MAX_INFERRED_SIZE."""
        valid = self._list_valid()
        return min(
            MAX_INFERRED_SIZE, statistics.median_low(min(self.read_size(i)) for i in valid[:: -(-len(valid) // 16)])
        )

    def show(self, i: int) -> Tensor:
        """Return the frame in the middle (3, H, W)."""
        return next(self.iterate_frames(i, [0.5]))[1]

    def show_view(self, view: Tensor) -> Tensor:
        """Arrange the frames (K, 3, S, S) of a view as one image."""
        columns = math.ceil(math.sqrt(len(view)))
        rows = math.ceil(len(view) / columns)
        white = view.new_full((rows * columns - len(view), *view.shape[1:]), 255 if view.dtype == torch.uint8 else 1)
        grid = torch.cat([view, white]).unflatten(0, (rows, columns))
        return grid.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)

    @classmethod
    def make_example(cls, size: int) -> Tensor:
        """Make a video of one black frame (1, 1, 3, size, size)."""
        return torch.zeros(1, 1, 3, size, size)
