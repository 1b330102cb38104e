"""Views of audio and video: functions of their key, whatever the batch and the number of workers."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from manyviews.data import Audio, CorruptMediaError, Dataset, DatasetDict, DatasetError, FileBlobs, Video
from manyviews.loading import ViewLoader, ViewSpec, load_raw_features, make_eval_loader
from manyviews.models import EncoderConfig, EncoderSpec
from manyviews.transforms import AudioClip, CenterCrop, SimCLRTransform, Transform, VideoClip
from tests.helpers.media import RATE, make_frames, make_tone, write_audio, write_video


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clips")
    for i in range(5):
        write_audio(path / f"{i}.wav", make_tone(1 + i, 100 * (i + 1)))
        write_video(path / f"{i}.mp4", make_frames(8 + i, i % 3), g="4")
    return path


def make_dataset(folder: Path, count: int = 5) -> Dataset:
    mask = torch.arange(count) != 3
    audio = Audio(FileBlobs(tuple(folder / f"{i}.wav" for i in range(count))), mask=mask)
    video = Video(FileBlobs(tuple(folder / f"{i}.mp4" for i in range(count))), num_frames=3)
    return Dataset({"audio": audio.prepare({"sampling_rate": RATE, "max_seconds": 2.0}), "video": video})


def make_loader(dataset: Dataset, views: list[str], transforms: list[Transform | None], **options: int) -> ViewLoader:
    spec = ViewSpec.parse(views).resolve(DatasetDict("clips", {"train": dataset}))
    return ViewLoader(dataset, spec, transforms, **options)


RANDOM: list[Transform | None] = [
    AudioClip(is_random=True, min_crop=0.5, noise=0.1), VideoClip(SimCLRTransform(8), is_random=True),
]  # fmt: skip


@pytest.mark.parametrize("num_workers", [pytest.param(2, marks=pytest.mark.slow), 0])
def test_views_do_not_depend_on_batches_and_workers(num_workers: int, folder: Path) -> None:
    dataset = make_dataset(folder)
    reference = make_loader(dataset, ["audio:2", "video:2"], RANDOM, seed=3)
    loader = make_loader(dataset, ["audio:2", "video:2"], RANDOM, seed=3, num_workers=num_workers)
    batches = list(loader(1, [torch.tensor([4, 3, 0]), torch.tensor([1, 2])]))
    loader.stop_workers()
    together = reference.load(torch.arange(5), epoch=1).unpack()
    other_epoch = reference.load(torch.arange(5), epoch=2).unpack()
    for batch in batches:
        for i, views in zip(batch.indices.tolist(), batch.unpack(), strict=True):
            assert (i == 3) == (views[0] is None)
            for view, same, other in zip(views, together[i], other_epoch[i], strict=True):
                if view is not None:
                    assert same is not None
                    assert other is not None
                    assert torch.equal(view, same)
                    assert view.shape != other.shape or not torch.equal(view, other)


def test_a_random_clip_is_a_part_of_the_recording(folder: Path) -> None:
    dataset = make_dataset(folder)
    loader = make_loader(dataset, ["audio:2", "video"], [AudioClip(is_random=True), VideoClip(CenterCrop(8))])
    (audio, _) = loader.load(torch.tensor([4, 0]), epoch=0).groups
    assert audio.lengths is not None
    assert audio.lengths.tolist() == [2 * RATE, 2 * RATE, RATE, RATE]
    assert not torch.equal(audio.values[0], audio.values[1])
    column = dataset["audio"]
    assert isinstance(column, Audio)
    (whole,) = column.prepare({"max_seconds": 10}).read_clips(4, [0.0])
    for clip in audio.values[:2]:
        starts = (whole[: 1 - len(clip)] == clip[0]).nonzero().squeeze(1).tolist()
        assert any(torch.equal(whole[start : start + len(clip)], clip) for start in starts)
    assert torch.equal(audio.values[2], audio.values[3])  # short audio is not cut


def test_frames_are_of_equal_parts_and_share_the_transform(folder: Path) -> None:
    dataset, transform = make_dataset(folder), SimCLRTransform(8)
    column = dataset["video"]
    assert isinstance(column, Video)
    frames = [frame for _, frame in column.iterate_frames(4, [(i + 0.5) / 12 for i in range(12)])]
    loader = make_loader(dataset, ["video:2"], [VideoClip(transform, is_random=True)], seed=7)
    (group,) = loader.load(torch.tensor([4]), epoch=5).groups
    for view in range(2):
        for part in range(3):
            expected = [
                transform([frame], seed=7, epoch=5, index=torch.tensor([4]), first_view=view)[0, 0]
                for frame in frames[4 * part : 4 * part + 4]
            ]
            distances = torch.stack([(group.values[view, part] - other).abs().max() for other in expected])
            assert distances.min() < 1e-6


def test_evaluation_takes_the_middle(folder: Path) -> None:
    dataset = make_dataset(folder)
    encoders = {
        "audio": EncoderSpec(
            "audio", "spectrogram", {"sampling_rate": RATE}, 0, {"sampling_rate": RATE, "max_seconds": 1.0}
        ),
        "video": EncoderSpec("video", "resnet-small", {}, 16, {"num_frames": 2}),
    }
    loader = make_eval_loader(dataset, EncoderConfig(encoders, {"audio": "audio", "video": "video"}))
    audio, video = loader.load(torch.tensor([4])).groups
    column = dataset["audio"]
    assert isinstance(column, Audio)
    (whole,) = column.prepare({"max_seconds": 10}).read_clips(4, [0.0])
    start = (len(whole) - RATE + 1) // 2
    assert torch.equal(audio.values[0], whole[start : start + RATE])
    videos = dataset["video"]
    assert isinstance(videos, Video)
    frames = dict(videos.iterate_frames(4, [0.25, 0.75]))
    expected = torch.stack([CenterCrop(16).crop([frames[i]], views=1)[0, 0] for i in range(2)]) / 255
    assert torch.equal(video.values[0], expected)


def test_corrupt_recordings_are_replaced_or_missing(folder: Path, tmp_path: Path) -> None:
    paths = [folder / "0.wav", tmp_path / "broken.wav", folder / "2.wav"]
    paths[1].write_bytes(b"no audio")
    audio = Audio(FileBlobs(tuple(paths)), sampling_rate=RATE)
    video = Video(FileBlobs(tuple(folder / f"{i}.mp4" for i in range(3))), num_frames=2)
    clip, index = AudioClip(), [torch.tensor([1, 0])]
    spec = ViewSpec.parse(["audio"]).resolve(DatasetDict("clips", {"train": Dataset({"audio": audio})}))
    loader = ViewLoader(Dataset({"audio": audio}), spec, [clip], replace_corrupt=True)
    with pytest.warns(UserWarning, match=r"broken\.wav cannot be decoded as audio.*replaced by the next instance"):
        (batch,) = loader(0, index)
    assert batch.indices.tolist() == [2, 0]
    both = make_loader(Dataset({"audio": audio, "video": video}), ["audio", "video"], [clip, VideoClip(CenterCrop(8))])
    with pytest.warns(UserWarning, match=r"broken\.wav cannot be decoded as audio.*it counts as missing \(1 so far\)"):
        (batch,) = both(0, index)
    assert batch.mask is not None
    assert batch.mask.tolist() == [[False, True], [True, True]]
    with warnings.catch_warnings():  # each file is reported once
        warnings.simplefilter("error")
        (batch,) = both(1, [torch.tensor([1])])
    assert batch.groups[0].values.shape[0] == 0
    strict = Dataset({"audio": Audio(FileBlobs(tuple(paths)), raise_on_corrupt=True)})
    with pytest.raises(CorruptMediaError, match=r"broken\.wav"):
        make_loader(strict, ["audio"], [clip]).load(torch.tensor([1]))
    broken = Dataset({"audio": Audio(FileBlobs((paths[1],) * 2))})
    with pytest.raises(DatasetError, match="none of 2 files can be read, first: "):
        ViewLoader(broken, spec, [clip], replace_corrupt=True).load(torch.tensor([0]))


def test_recordings_need_a_clip_transform(folder: Path) -> None:
    with pytest.raises(ValueError, match="audio and video, and no other views, need a clip transform, got None"):
        make_loader(make_dataset(folder), ["audio"], [None])


def test_raw_features_are_standardized_statistics(folder: Path) -> None:
    dataset = make_dataset(folder)
    instances = dataset, torch.arange(5)
    audio = load_raw_features("audio", instances, instances)
    assert audio.shape == (5, 160)
    assert not audio[3].any()
    exists = dataset["audio"].get_mask()
    torch.testing.assert_close(audio[exists].mean(0), torch.zeros(160), atol=1e-2, rtol=0)
    video = load_raw_features("video", instances, instances, size=8)
    assert video.shape == (5, 3 * 8 * 8)


def test_views_are_shown_as_pictures(folder: Path) -> None:
    dataset = make_dataset(folder)
    loader = make_loader(dataset, ["audio", "video"], [AudioClip(), VideoClip(CenterCrop(8))])
    ((audio, video),) = loader.show(torch.tensor([0]))
    assert isinstance(audio, Tensor)
    assert isinstance(video, Tensor)
    assert audio.shape == (98, 80)  # a spectrogram
    assert video.shape == (3, 16, 16)  # three frames and an empty place
    assert (video[:, 8:, 8:] == 1).all()
