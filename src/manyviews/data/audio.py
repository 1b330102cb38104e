"""Audio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from manyviews.data.media import Media

SAMPLING_RATE = 16_000
"""Samples per second, as speech encoders take them."""
MAX_SECONDS = 10.0
"""Maximum duration of a view."""


@dataclass(frozen=True, eq=False, repr=False)
class Audio(Media):
    """Audio files of any format, one per instance; the audio track of a video is audio, too."""

    kind = "audio"
    default_encoder = "spectrogram"
    sampling_rate: int = field(default=SAMPLING_RATE, kw_only=True)
    """Samples per second of a view."""
    max_seconds: float = field(default=MAX_SECONDS, kw_only=True)
    """Maximum duration of a view."""

    def prepare(self, preprocessing: Mapping[str, Any]) -> Audio:
        """Return the audio with the sampling rate and the maximum duration of an encoder."""
        options = {name: preprocessing[name] for name in ("sampling_rate", "max_seconds") if name in preprocessing}
        return replace(self, **options)

    def describe(self) -> str:
        return "audio"

    def show(self, i: int) -> str:
        return f"audio {self.values.get_name(i)}"
