"""Audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from manyviews.data.audio_files import read_audio_clips
from manyviews.data.errors import DatasetError
from manyviews.data.media import Media
from manyviews.data.spectrogram import compute_log_mel

SAMPLING_RATE = 16_000
"""Samples per second, as encoders of speech take them."""
MAX_SECONDS = 10.0
"""Maximum duration of a view: an utterance is mostly shorter, and the attention of encoders is quadratic in it."""
SAMPLING_RATES = (1_000, 192_000)
LONGEST_SECONDS = 3_600


@dataclass(frozen=True, eq=False, repr=False)
class Audio(Media):
    """Audio files of any format, one per instance; the audio track of a video is audio, too.

    Examples:
        >>> import tempfile, wave
        >>> from manyviews.data import FileBlobs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with wave.open(f"{folder}/a.wav", "wb") as file:
        ...         file.setparams((1, 2, 8_000, 0, "NONE", ""))
        ...         file.writeframes(bytes(2 * 8_000))
        ...     audio = Audio.from_values([f"{folder}/a.wav"])
        ...     audio.describe_item(0), audio.read_clips(0, [0.5])[0].shape
        ('audio, 1.0 s', torch.Size([16000]))
    """

    kind = "audio"
    default_encoder = "spectrogram"
    legend = "A gray image of audio is its log-mel spectrogram, with time from left to right."
    sampling_rate: int = field(default=SAMPLING_RATE, kw_only=True)
    """Samples per second of a view."""
    max_seconds: float = field(default=MAX_SECONDS, kw_only=True)
    """Maximum duration of a view."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = SAMPLING_RATES
        if not low <= self.sampling_rate <= high or not 0 < self.max_seconds <= LONGEST_SECONDS:
            raise DatasetError(
                f"sampling_rate must be from {low:,} to {high:,} and max_seconds at most {LONGEST_SECONDS:,}, got "
                f"{self.sampling_rate} and {self.max_seconds}"
            )

    def prepare(self, preprocessing: Mapping[str, Any]) -> Audio:
        """Return the audio with the sampling rate and the maximum duration of an encoder."""
        options = {name: preprocessing[name] for name in ("sampling_rate", "max_seconds") if name in preprocessing}
        return replace(self, **options)

    def read_clips(self, i: int, positions: Sequence[float]) -> list[Tensor]:
        """Read a clip (T,) of at most `max_seconds` for each position in [0, 1), see `read_audio_clips`."""
        with self.open(i) as (file, name):
            return read_audio_clips(file, name, self.sampling_rate, self.max_seconds, positions)

    def show(self, i: int) -> Tensor:
        return self.show_view(self.read_clips(i, [0.5])[0])

    def show_view(self, view: Tensor) -> Tensor:
        """Return the standardized log-mel spectrogram (F, 80) of a waveform (T,), high tones first."""
        log_mel = compute_log_mel(view[None], self.sampling_rate)[0].flip(1)
        return (log_mel - log_mel.mean()) / log_mel.std(correction=0).clamp_min(1e-3)
