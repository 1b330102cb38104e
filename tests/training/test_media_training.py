"""Trainings on audio and video."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ViTModel

import manyviews as mv
from manyviews.api import train
from manyviews.data import FileBlobs, Video, load_dataset
from manyviews.report import write_report
from manyviews.training import Config, ConfigError, TrainingInterrupted, load_data, resolve_task
from tests.helpers.media import make_frames, write_clips, write_video
from tests.helpers.pretrained import save_models
from tests.helpers.tiny_run import assert_same_run
from tests.training.test_trainer import stop_after


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clips(tmp_path_factory.mktemp("clips"), 16, 0.5)


def make_config(clips: Path, **changes: Any) -> Config:
    config = Config(
        data=str(clips), epochs=4, batch_size=4, monitor_size=0, monitor_every=100, num_frames=2, max_seconds=0.5,
        sampling_rate=8_000, image_size=8, width_mult=0.25, hidden_dim=16, transformer_layers=1, transformer_heads=2,
        num_workers=0, cpu_threads=1, evaluate_at_end=False, device="cpu",
    )  # fmt: skip
    return dataclasses.replace(config, **changes)


@pytest.mark.slow
def test_a_stopped_training_resumes_exactly_with_any_number_of_workers(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(clips, views=("audio:2", "video:2", "caption"))
    full = train(config, output=tmp_path / "full", quiet=True)
    stop_after(monkeypatch, 3)
    with pytest.raises(TrainingInterrupted):
        train(dataclasses.replace(config, num_workers=2), output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(full.path, tmp_path / "stopped")
    encoder = full.load_encoder()
    folder = clips.parent
    assert encoder({"audio": [folder / "0.wav"], "video": [folder / "1.mp4"]}).shape == (1, 48)
    assert encoder.config.get_spec("audio").preprocessing == {"sampling_rate": 8_000, "max_seconds": 0.5}


@pytest.mark.slow
def test_a_run_is_evaluated_and_reported(clips: Path, tmp_path: Path) -> None:
    run = train(make_config(clips, epochs=1), output=tmp_path / "run", quiet=True)
    result = mv.evaluate(run.path, device="cpu")
    assert [subset.modalities for subset in result.subsets[:3]] == [("audio",), ("video",), ("caption",)]
    assert all("raw" in subset.scores for subset in result.subsets)
    assert write_report([run.path], tmp_path / "report.html", num_workers=0, device="cpu")
    page = (tmp_path / "report.html").read_text()
    assert "A gray image of audio is its log-mel spectrogram" in page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": ("caption:2",), "num_frames": 4}, "num_frames is for video views, got caption:2"),
        ({"views": ("video:2",), "sampling_rate": 8_000}, "sampling_rate is for audio views, got video:2"),
        ({"views": ("audio@8", "video")}, "audio@8: only views of images and videos have a size, audio has neither"),
        ({"encoder": ("audio=resnet18",)}, "no encoder 'resnet18' for audio"),
        ({"encoder": ("video=spectrogram",)}, "no encoder 'spectrogram' for video"),
    ],
)
def test_options_that_do_not_fit_raise(clips: Path, changes: dict[str, Any], message: str) -> None:
    defaults = {"num_frames": 8, "max_seconds": 10.0, "sampling_rate": None, "image_size": None, "width_mult": None}
    config = make_config(clips, **{**defaults, "transformer_layers": None, "transformer_heads": 8, **changes})
    with pytest.raises(ValueError, match=message):
        resolve_task(config, load_data(config), ranks=1)


@pytest.mark.parametrize(
    ("field", "value"), [("sampling_rate", 0), ("max_seconds", 0), ("max_seconds", 1e6), ("num_frames", 0)]
)
def test_bounds(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be "):
        Config(**{field: value}).check()  # type: ignore[arg-type]


def test_audio_is_augmented_if_an_instance_has_several_views(clips: Path) -> None:
    config = make_config(clips, views=("audio:2", "video"))
    several = resolve_task(config, load_data(config), ranks=1).transforms[0]
    alone = dataclasses.replace(config, views=("audio", "video"))
    single = resolve_task(alone, load_data(alone), ranks=1).transforms[0]
    assert several == mv.transforms.AudioClip(is_random=True, min_crop=0.8, noise=0.1)
    assert single == mv.transforms.AudioClip(is_random=True)


def test_frames_of_videos_may_have_an_image_encoder_by_name(tmp_path: Path) -> None:
    paths = tuple(write_video(tmp_path / f"{i}.mp4", make_frames(4, i % 3, (40, 60))) for i in range(4))
    data = mv.DatasetDict("videos", {"train": mv.Dataset({"video": Video(FileBlobs(paths))})})
    config = Config(encoder=("video=resnet18",), views=("video:2",), num_frames=2, batch_size=2, num_workers=0)
    task = resolve_task(config, data, ranks=1)
    assert (task.config.image_size, task.config.stem) == (40, "small")
    model = task.build_model()
    h, _ = model(task.make_loader(0).load(torch.arange(2)))
    assert h.shape == (2, 2, 512)


def test_frames_may_have_a_pretrained_encoder(clips: Path, tmp_path: Path) -> None:
    save_models(tmp_path)
    defaults = {"sampling_rate": None, "image_size": None, "width_mult": None}
    encoder = (f"audio=hf:{tmp_path / 'hubert'}", f"video=hf:{tmp_path / 'vit'}")
    config = make_config(clips, views=("audio", "video"), encoder=encoder, **defaults)
    task = resolve_task(config, load_data(config), ranks=1)
    assert task.encoder_config.encoders["video"].preprocessing == {"num_frames": 2}
    batch = task.make_loader(0).load(task.train_indices[:2])
    h, _ = task.build_model().eval()(batch)
    model = ViTModel.from_pretrained(tmp_path / "vit").eval()
    frames = (batch.groups[1].values - 0.5) / torch.tensor([0.5, 0.25, 0.5])[:, None, None]
    outputs = [model(pixel_values=video).last_hidden_state[:, 0].mean(0) for video in frames]
    torch.testing.assert_close(h[:, 1], torch.stack(outputs), atol=1e-5, rtol=1e-4)


def test_the_table_is_trained_as_the_dataset(clips: Path) -> None:
    data = load_dataset(clips)
    config = make_config(clips)
    assert resolve_task(config, data, ranks=1).compute_fingerprint() == (
        resolve_task(config, load_data(config), ranks=1).compute_fingerprint()
    )
