"""Log-mel spectrograms of waveforms."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

NUM_MELS = 80
WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.01
MIN_POWER = 1e-6
"""Smaller powers, which are below the rounding errors of 16 bits, count as silence."""


def compute_log_mel(waves: Tensor, sampling_rate: int) -> Tensor:
    """Compute the log of the power in NUM_MELS mel bands of waveforms (P, T): (P, F, NUM_MELS), in float32.

    A frame is a Hann window of 25 ms, and there is one each 10 ms: those that fit into the waveform, at least one. So
    the frames of a waveform are the same with and without padding behind it; `count_frames` says how many they are.

    Examples:
        >>> compute_log_mel(torch.zeros(2, 16_000), 16_000).shape
        torch.Size([2, 98, 80])
    """
    window, hop = get_frame_sizes(sampling_rate)
    waves = pad(waves.float(), (0, max(0, window - waves.shape[1])))
    # FFTs and sums of powers need 32 bits.
    with torch.autocast(waves.device.type, enabled=False):
        hann = torch.hann_window(window, device=waves.device)
        spectrum = torch.stft(waves, window, hop, window=hann, center=False, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        filters = _make_mel_filters(sampling_rate, window).to(waves.device)
        return (filters @ power).clamp_min(MIN_POWER).log().mT


def count_frames(lengths: Tensor, sampling_rate: int) -> Tensor:
    """Count the frames of waveforms of these lengths.

    Examples:
        >>> count_frames(torch.tensor([10, 400, 559, 560, 16_000]), 16_000)
        tensor([ 1,  1,  1,  2, 98])
    """
    window, hop = get_frame_sizes(sampling_rate)
    return (lengths - window).clamp_min(0) // hop + 1


def get_frame_sizes(sampling_rate: int) -> tuple[int, int]:
    """Return the number of samples of a window and of a hop."""
    return round(WINDOW_SECONDS * sampling_rate), round(HOP_SECONDS * sampling_rate)


@lru_cache(maxsize=8)
def _make_mel_filters(sampling_rate: int, window: int) -> Tensor:
    """Return triangular filters (NUM_MELS, window // 2 + 1), equally spaced on the mel scale, with the maximum 1.

    The scale is that of O'Shaughnessy (1987): mel(f) = 2595 log10(1 + f / 700). A filter that is narrower than the
    distance of two frequencies takes the nearest one.
    """
    frequencies = torch.arange(window // 2 + 1, dtype=torch.float64) * (sampling_rate / window)
    top = 2595 * torch.log10(torch.tensor(1 + sampling_rate / 2 / 700, dtype=torch.float64))
    edges = 700 * (10 ** (torch.linspace(0, 1, NUM_MELS + 2, dtype=torch.float64) * top / 2595) - 1)
    low, center, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (center - low), (high - frequencies) / (high - center)
    filters = torch.minimum(rising, falling).clamp_min(0)
    nearest = (frequencies - center).abs().argmin(1)
    is_empty = filters.sum(1) == 0
    filters[is_empty, nearest[is_empty]] = 1
    return filters.float()
