"""Decode clips of audio files, and resample them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from manyviews.data.media_files import CorruptMediaError, PacketTable, import_av, open_media

MAX_SOURCE_RATE = 768_000
PREROLL_SECONDS = 0.5
"""Decoded before a clip in the middle of a file, because frames of lossy codecs depend on earlier ones."""
MAX_CHECKED_TIMES = 1000
SLACK_SECONDS = 1.0
"""Durations of packets may differ from what is decoded by less than this."""
INT_SCALES = {np.dtype(np.uint8): 2**7, np.dtype(np.int16): 2**15, np.dtype(np.int32): 2**31}


def read_audio_clips(
    file: IO[bytes], name: str, sampling_rate: int, max_seconds: float, positions: Sequence[float]
) -> list[Tensor]:
    """Read a clip (T,) for each position, float32 in [-1, 1], the mean over the channels, at a sampling rate.

    A position in [0, 1] is that of the clip among all clips of `max_seconds`, from the first to the last. Shorter audio
    is one clip as a whole. A clip is cut at the sampling rate of the file and then resampled.

    Raises:
        CorruptMediaError: the file cannot be decoded, or has no audio.
    """
    table = PacketTable(file, name, "audio")
    source_rate = table.sampling_rate
    if not 0 < source_rate <= MAX_SOURCE_RATE:
        raise CorruptMediaError(
            f"{name} has the sampling rate {source_rate:,}, at most {MAX_SOURCE_RATE:,} is possible"
        )
    count = max(1, round(max_seconds * source_rate))
    seconds = (max(table.ends) - min(table.times)) * table.time_base if table.has_times else 0
    total = int(seconds * source_rate)
    slack = round(SLACK_SECONDS * source_rate)
    if total <= count + slack:
        samples = _read_samples(file, name, table, 0, count + 2 * slack)
        starts = [int(position * max(0, len(samples) - count + 1)) for position in positions]
        clips = [samples[start : start + count] for start in starts]
    else:
        starts = [int(position * (total - count + 1)) for position in positions]
        clips = [_read_samples(file, name, table, start, start + count) for start in starts]
    resampled = [torch.from_numpy(resample(clip, source_rate, sampling_rate)) for clip in clips]
    if not all(map(len, resampled)):
        raise CorruptMediaError(f"{name} is too short: {min(map(len, clips))} samples at {source_rate:,} Hz")
    return resampled


def _read_samples(file: IO[bytes], name: str, table: PacketTable, start: int, stop: int) -> np.ndarray:
    """Decode the samples [start, stop) of the mean over the channels, or those of them that exist, at least one."""
    with open_media(file, name, "audio") as (container, stream):
        frames = container.decode(stream)
        blocks = _seek(container, stream, table, next(frames, None), start)
        samples = None if blocks is None else _collect(*blocks, start, stop)
    if samples is None:
        with open_media(file, name, "audio") as (container, stream):
            samples = _collect(0, container.decode(stream), start, stop)
    if not len(samples):
        raise CorruptMediaError(f"{name} has no samples{' where a clip starts: is it truncated?' if start else ''}")
    return np.nan_to_num(samples, posinf=1.0, neginf=-1.0).clip(-1, 1)


def _seek(container: Any, stream: Any, table: PacketTable, first: Any, start: int) -> tuple[int, Iterator[Any]] | None:
    """Seek to before the sample `start`: return the index of a sample and the frames from it, or None to count them.

    `first` is the first frame of the file. Only exact times say which samples a frame has.
    """
    if first is None or first.pts is None or not table.has_times:
        return None
    samples_per_time = stream.time_base * first.sample_rate
    target = start - round(PREROLL_SECONDS * first.sample_rate)
    if target <= 0 or any((time * samples_per_time).denominator > 1 for time in table.times[:MAX_CHECKED_TIMES]):
        return None
    key = table.find_key(first.pts + int(target / samples_per_time))
    frames = None if key is None else table.seek(container, stream, key)
    head = None if frames is None else next(frames, None)
    if frames is None or head is None or head.pts is None:
        return None
    offset = (head.pts - first.pts) * samples_per_time
    return (int(offset), chain([head], frames)) if offset.denominator == 1 and 0 <= offset <= start else None


def _collect(offset: int, frames: Iterator[Any], start: int, stop: int) -> np.ndarray:
    """Collect the samples [start, stop) of frames, the first of which starts at the sample `offset`."""
    parts = [np.empty(0, np.float32)]
    for frame in frames:
        end = offset + frame.samples
        if end > start:
            parts.append(_to_mono(frame)[max(0, start - offset) : stop - offset])
        if end >= stop:
            break
        offset = end
    return np.concatenate(parts)


def _to_mono(frame: Any) -> np.ndarray:
    """Return the mean over the channels (n,) of a frame, float32; full scale is 1."""
    values = frame.to_ndarray()
    samples = values.reshape(-1, len(frame.layout.channels)).T if not frame.format.is_planar else values
    scale = INT_SCALES.get(samples.dtype, 1)
    center = scale if samples.dtype == np.uint8 else 0
    mean: np.ndarray = ((samples.astype(np.float64).mean(0) - center) / scale).astype(np.float32)
    return mean


def resample(samples: np.ndarray, source_rate: int, sampling_rate: int) -> np.ndarray:
    """Resample (n,) float32 samples by FFmpeg's polyphase filter.

    Examples:
        >>> resample(np.zeros(44_100, np.float32), 44_100, 16_000).shape
        (16000,)
    """
    if source_rate == sampling_rate:
        return samples
    av = import_av()
    frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
    frame.sample_rate = source_rate
    resampler = av.AudioResampler(format="flt", layout="mono", rate=sampling_rate)
    # A few samples are less than the filter needs, and give nothing.
    parts = [np.empty(0, np.float32)]
    parts += [part.to_ndarray()[0] for part in (*resampler.resample(frame), *resampler.resample(None))]
    resampled: np.ndarray = np.concatenate(parts)[: max(1, math.ceil(len(samples) * sampling_rate / source_rate))]
    return resampled.clip(-1, 1)
