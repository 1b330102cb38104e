"""Encoders of recordings: a transformer on spectrograms of audio, an image encoder on the frames of videos."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from manyviews.data import NUM_MELS, compute_log_mel, count_frames
from manyviews.models.feature_encoders import TransformerEncoder

PATCH_FRAMES = 4
"""Frames of a spectrogram that are one step of the transformer: 40 ms."""
MIN_STD = 1e-3


class SpectrogramEncoder(TransformerEncoder):
    """A transformer from waveforms (B, T) with lengths (B,) to (B, dim).

    Its steps are four successive frames of the log-mel spectrogram, which has zero mean and unit variance, so the
    loudness of a recording hardly matters.

    Examples:
        >>> encoder = SpectrogramEncoder(sampling_rate=16_000)
        >>> encoder(torch.randn(2, 16_000), torch.tensor([16_000, 9_000])).shape
        torch.Size([2, 128])
    """

    def __init__(
        self, sampling_rate: int, dim: int = 128, layers: int = 3, heads: int = 8, dropout: float = 0.1
    ) -> None:
        super().__init__(nn.Linear(PATCH_FRAMES * NUM_MELS, dim), dim, layers, heads, dropout)
        self.sampling_rate = sampling_rate

    def forward(self, steps: Tensor, lengths: Tensor) -> Tensor:
        if steps.dim() != 2:
            raise ValueError(f"waveforms must be (B, T), got {tuple(steps.shape)}")
        frames, counts = compute_log_mel(steps, self.sampling_rate), count_frames(lengths, self.sampling_rate)
        valid = (torch.arange(frames.shape[1], device=frames.device) < counts[:, None])[..., None]
        frames = _standardize(frames, valid)
        patches = pad(frames, (0, 0, 0, -frames.shape[1] % PATCH_FRAMES)).unflatten(1, (-1, PATCH_FRAMES)).flatten(2)
        return super().forward(patches.to(self.project.weight.dtype), (counts + PATCH_FRAMES - 1) // PATCH_FRAMES)


def _standardize(frames: Tensor, valid: Tensor) -> Tensor:
    """Standardize each of the spectrograms (B, F, d) over its valid (B, F, 1) frames; the others become zeros."""
    count = valid.sum((1, 2), keepdim=True) * frames.shape[2]
    centered = (frames - (frames * valid).sum((1, 2), keepdim=True) / count) * valid
    std = (centered.square().sum((1, 2), keepdim=True) / count).sqrt()
    return centered / std.clamp_min(MIN_STD)


class FrameEncoder(nn.Module):
    """Encodes videos (P, K, 3, H, W) in [0, 1]: the mean over the frames of the representations of an image encoder.

    Examples:
        >>> from manyviews.models import resnet18
        >>> FrameEncoder(resnet18(stem="small"))(torch.rand(2, 4, 3, 32, 32)).shape
        torch.Size([2, 512])
    """

    def __init__(self, image_encoder: nn.Module) -> None:
        super().__init__()
        self.image_encoder = image_encoder

    def forward(self, videos: Tensor) -> Tensor:
        if videos.dim() != 5:
            raise ValueError(f"videos must be (P, K, 3, H, W), got {tuple(videos.shape)}")
        h: Tensor = self.image_encoder(videos.flatten(0, 1))
        return h.unflatten(0, videos.shape[:2]).mean(1)
