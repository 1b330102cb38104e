"""Video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from manyviews.data.media import Media

NUM_FRAMES = 8
"""Frames of a view, as in TSN (Wang et al. 2016)."""


@dataclass(frozen=True, eq=False, repr=False)
class Video(Media):
    """Video files of any format, one per instance."""

    kind = "video"
    default_encoder = "resnet-small"
    min_size = 1
    uses_batch_norm = True
    num_frames: int = field(default=NUM_FRAMES, kw_only=True)
    """Number of frames of a view."""

    def prepare(self, preprocessing: Mapping[str, Any]) -> Video:
        """Return the video with the number of frames of an encoder."""
        return replace(self, num_frames=preprocessing.get("num_frames", self.num_frames))

    def describe(self) -> str:
        return "video"

    def choose_size(self, size: int, default: int) -> int:
        return size or default

    def show(self, i: int) -> str:
        return f"video {self.values.get_name(i)}"
