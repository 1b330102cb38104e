"""Encoders of audio and video."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import manyviews as mv
from manyviews.data import Audio, DatasetError, FileBlobs
from manyviews.models import (
    Encoder,
    EncoderConfig,
    EncoderError,
    EncoderSpec,
    MultiViewEncoder,
    SpectrogramEncoder,
    build_encoder,
    load_encoder_file,
    serialize_module,
)
from tests.helpers.media import RATE, make_frames, make_tone, write_audio, write_video

AUDIO = EncoderSpec(
    "audio", "spectrogram", {"sampling_rate": RATE, "dim": 16, "layers": 1, "heads": 2}, 0,
    {"sampling_rate": RATE, "max_seconds": 1.0},
)  # fmt: skip
VIDEO = EncoderSpec("video", "resnet-small", {"width": 0.25}, 16, {"num_frames": 2})


@pytest.fixture(scope="module")
def encoder() -> MultiViewEncoder:
    torch.manual_seed(0)
    config = EncoderConfig({"audio": AUDIO, "video": VIDEO}, {"audio": "audio", "video": "video"}, dim=16)
    return MultiViewEncoder.from_config(config).eval()


def test_padding_and_loudness_do_not_change_a_representation() -> None:
    torch.manual_seed(0)
    encoder = SpectrogramEncoder(RATE, dim=16, layers=2, heads=2).eval()
    waves, lengths = torch.zeros(3, 3_000), torch.tensor([3_000, 1_111, 90])
    for i, length in enumerate(lengths.tolist()):
        waves[i, :length] = torch.from_numpy(make_tone(length / RATE, 300 * (i + 1)))[0, :length]
    together = encoder(waves, lengths)
    alone = torch.cat([encoder(waves[i : i + 1, :n], lengths[i : i + 1]) for i, n in enumerate(lengths.tolist())])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)
    noise = torch.randn(1, 2_000) / 10
    torch.testing.assert_close(encoder(3 * noise, lengths[1:2]), encoder(noise, lengths[1:2]), atol=1e-4, rtol=0)
    assert together.isfinite().all()
    assert encoder(torch.zeros(1, 500), torch.tensor([500])).isfinite().all()  # silence
    with pytest.raises(ValueError, match=r"waveforms must be \(B, T\), got \(2, 3, 4\)"):
        encoder(torch.zeros(2, 3, 4), torch.tensor([3, 3]))


def test_a_video_is_the_mean_of_its_frames() -> None:
    encoder = build_encoder(VIDEO).eval()
    images = build_encoder(EncoderSpec("image", VIDEO.name, VIDEO.options, 16)).eval()
    images.load_state_dict(encoder.image_encoder.state_dict())
    videos = torch.rand(2, 3, 3, 16, 16)
    expected = torch.stack([images(video).mean(0) for video in videos])
    torch.testing.assert_close(encoder(videos), expected)
    with pytest.raises(ValueError, match=r"videos must be \(P, K, 3, H, W\)"):
        encoder(videos[0])


def test_a_loaded_encoder_takes_paths_and_waveforms(encoder: MultiViewEncoder, tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(serialize_module(encoder, encoder.config))
    loaded = Encoder(load_encoder_file(path))
    sounds = [write_audio(tmp_path / f"{i}.wav", make_tone(0.5 + i, 300)) for i in range(2)]
    videos = [str(write_video(tmp_path / f"{i}.mp4", make_frames(5, i))) for i in range(2)]
    h = loaded({"audio": sounds, "video": videos})
    assert h.shape == (2, 32)
    column = Audio(FileBlobs(tuple(sounds))).prepare(AUDIO.preprocessing)
    waves = [column.read_clips(i, [0.5])[0] for i in range(2)]
    torch.testing.assert_close(loaded({"audio": waves})[:, :16], h[:, :16])
    assert loaded({"video": videos}).shape == (2, 32)
    with pytest.raises(ValueError, match="audio must be audio for each instance: no such file: gone"):
        loaded({"audio": ["gone.wav"]})
    with pytest.raises(ValueError, match=r"audio must be paths or float waveforms \(T,\), got torch.int64 \(5,\)"):
        loaded({"audio": [torch.arange(5)]})
    with pytest.raises(DatasetError, match=r"0\.wav has no video stream"):
        loaded({"video": [str(sounds[0])]})


def test_preprocessing_in_a_file_is_checked(encoder: MultiViewEncoder, tmp_path: Path) -> None:
    assert encoder.config is not None
    path = tmp_path / "encoder.safetensors"
    for preprocessing in ({"sampling_rate": 2 * RATE}, {"sampling_rate": "fast"}, {"command": 1}):
        spec = EncoderSpec("audio", "spectrogram", AUDIO.options, 0, preprocessing)
        config = EncoderConfig({"audio": spec, "video": VIDEO}, encoder.config.modalities, 16)
        path.write_bytes(serialize_module(encoder, config))
        with pytest.raises(EncoderError, match="invalid encoder config in the header"):
            mv.load_encoder(path)
