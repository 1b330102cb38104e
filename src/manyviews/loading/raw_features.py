"""Raw features: what a baseline without a trained encoder takes of each modality."""

from __future__ import annotations

from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from manyviews.data import (
    NUM_MELS,
    Audio,
    BatchColumn,
    Dataset,
    Images,
    Media,
    Video,
    compute_log_mel,
    count_frames,
    standardize,
)
from manyviews.loading.encoding import encode_instances, make_eval_loader
from manyviews.models import CUSTOM, EncoderConfig, EncoderSpec, FrameEncoder, MultiViewEncoder

Instances: TypeAlias = tuple[Dataset, Tensor]
"""A dataset and the indices (n,) of some of its instances."""


def load_raw_features(
    modality: str,
    instances: Instances,
    reference: Instances,
    *,
    size: int = 0,
    summary: str = "",
    num_workers: int = 0,
) -> Tensor:
    """Load the raw features (n, d) of one modality.

    They are the pixels of center crops of `size`, those of the mean frame of a video, mean and standard deviation over
    time of the log-mel spectrogram of audio, or `Column.make_raw_features`.

    `reference` are the training instances, whose statistics standardize features.

    Examples:
        >>> import torch
        >>> from manyviews.data import load_dataset
        >>> photos = load_dataset("photos")["test"], torch.arange(5)
        >>> load_raw_features("image", photos, photos, size=8).shape
        torch.Size([5, 192])
    """
    dataset, index = instances
    if isinstance(dataset[modality], Images):  # of any size, perhaps on disk
        encoder = make_flatten_encoder(modality, size)
        return encode_instances(encoder, make_eval_loader(dataset, encoder, num_workers), index)[0][:, 0]
    recordings = dataset[modality]
    if isinstance(recordings, Media):
        encoder = _make_media_encoder(modality, recordings, size)
        (h, mask), (reference_h, reference_mask) = (
            encode_instances(encoder, make_eval_loader(part, encoder, num_workers), selected)
            for part, selected in (instances, reference)
        )
        return torch.where(mask, standardize(h[:, 0], reference_h[:, 0][reference_mask[:, 0]]), 0)
    column, fitted = (cast("BatchColumn", part[modality]).select(selected) for part, selected in (instances, reference))
    return column.make_raw_features(fitted, summary)


def _make_media_encoder(modality: str, column: Media, size: int) -> MultiViewEncoder:
    """Make an encoder of one modality of recordings without weights: statistics of spectrograms, or the mean frame."""
    module: nn.Module = FrameEncoder(nn.Flatten())
    dim, preprocessing = 3 * size * size, {}
    if isinstance(column, Audio):
        module, dim = _SpectrogramStatistics(column.sampling_rate), 2 * NUM_MELS
        preprocessing = {"sampling_rate": column.sampling_rate, "max_seconds": column.max_seconds}
    elif isinstance(column, Video):
        preprocessing = {"num_frames": column.num_frames}
    encoder = MultiViewEncoder({modality: module}, encoder_dims={modality: dim})
    spec = EncoderSpec(column.kind, CUSTOM, size=size, preprocessing=preprocessing)
    encoder.config = EncoderConfig({modality: spec}, {modality: modality})
    return encoder


class _SpectrogramStatistics(nn.Module):
    """Mean and standard deviation over time of the log-mel spectrograms of waveforms (P, T): (P, 2 NUM_MELS)."""

    def __init__(self, sampling_rate: int) -> None:
        super().__init__()
        self.sampling_rate = sampling_rate

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        frames, counts = compute_log_mel(waves, self.sampling_rate), count_frames(lengths, self.sampling_rate)
        mask = (torch.arange(frames.shape[1], device=frames.device) < counts[:, None])[..., None]
        mean = (frames * mask).sum(1) / counts[:, None]
        variance = ((frames - mean[:, None]) * mask).square().sum(1) / counts[:, None]
        return torch.cat([mean, variance.sqrt()], 1)


def make_flatten_encoder(modality: str, size: int) -> MultiViewEncoder:
    """Make an encoder of one image modality whose representations are the pixels of center crops."""
    encoder = MultiViewEncoder({modality: nn.Flatten()}, encoder_dims={modality: 3 * size * size})
    encoder.config = EncoderConfig({modality: EncoderSpec(Images.kind, CUSTOM, size=size)}, {modality: modality})
    return encoder
