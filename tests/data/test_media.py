"""Audio and video files: decoded clips and frames equal those of PyAV called by hand; errors name the file."""

from __future__ import annotations

import math
import sys
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from torch import Tensor

from manyviews.data import (
    Audio,
    CorruptMediaError,
    DatasetError,
    FileBlobs,
    Video,
    compute_log_mel,
    count_frames,
    load_dataset,
    load_table,
    media_files,
)
from manyviews.data.audio_files import read_audio_clips
from manyviews.data.video_files import iterate_frames
from tests.helpers.media import RATE, make_frames, make_tone, write_audio, write_clips, write_video

POSITIONS = [0.99, 0.0, 0.3, 0.31, 0.62, 0.62, 0.9]


def decode_audio(path: Path) -> tuple[np.ndarray, int]:
    """Decode all samples, as the mean over the channels (n,)."""
    with av.open(str(path)) as container:
        frames = list(container.decode(audio=0))
    parts = []
    for frame in frames:
        values = frame.to_ndarray().astype(np.float64)
        values = values if frame.format.is_planar else values.reshape(-1, len(frame.layout.channels)).T
        parts.append(values.mean(0) / {"s16": 2**15, "s32": 2**31}.get(frame.format.name.rstrip("p"), 1))
    return np.concatenate(parts).astype(np.float32).clip(-1, 1), frames[0].sample_rate


def resample_by_hand(samples: np.ndarray, source: int, target: int) -> np.ndarray:
    frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
    frame.sample_rate = source
    resampler = av.AudioResampler(format="flt", layout="mono", rate=target)
    return np.concatenate([f.to_ndarray()[0] for f in (*resampler.resample(frame), *resampler.resample(None))])


def decode_frames(path: Path) -> list[Tensor]:
    with av.open(str(path)) as container:
        return [torch.from_numpy(f.to_ndarray(format="rgb24")).permute(2, 0, 1) for f in container.decode(video=0)]


@pytest.fixture
def seeks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each seek ended where it should."""
    results: list[bool] = []
    seek = media_files.PacketTable.seek

    def record(self: Any, *args: Any) -> Any:
        frames = seek(self, *args)
        results.append(frames is not None)
        return frames

    monkeypatch.setattr(media_files.PacketTable, "seek", record)
    return results


@pytest.mark.parametrize(
    ("name", "channels", "tolerance", "can_seek"),
    [
        ("a.wav", 1, 0.0, True),
        ("stereo.wav", 2, 0.0, True),
        ("a.flac", 1, 0.0, True),
        ("a.mp3", 1, 1e-6, True),
        ("a.m4a", 1, 1e-4, True),
        ("a.ogg", 1, 0.0, False),
    ],
)
def test_clips_are_slices_of_the_decoded_file(
    name: str, channels: int, tolerance: float, can_seek: bool, tmp_path: Path, seeks: list[bool]
) -> None:
    rate = 48_000 if name.endswith(".ogg") else 44_100
    path = write_audio(tmp_path / name, make_tone(6, 300, rate, channels), rate)
    samples, source_rate = decode_audio(path)
    with path.open("rb") as file:
        clips = read_audio_clips(file, name, source_rate, 0.5, [0.0, 0.7])
    assert [len(clip) for clip in clips] == [rate // 2] * 2
    assert torch.equal(clips[0], torch.from_numpy(samples[: rate // 2]))
    start = find_start(clips[1], samples, tolerance)
    assert abs(start / (5.5 * rate) - 0.7) < 0.01
    assert seeks == [can_seek]


def find_start(clip: Tensor, samples: np.ndarray, tolerance: float) -> int:
    """Return where a clip is in samples; raise unless it is a slice of them."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, len(clip))
    candidates = np.flatnonzero(np.abs(samples[: len(windows)] - clip[0].item()) <= tolerance)
    return int(next(i for i in candidates if np.abs(windows[i] - clip.numpy()).max() <= tolerance))


def test_audio_is_resampled_after_it_is_cut(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav", make_tone(3, 300, 44_100), 44_100)
    samples, rate = decode_audio(path)
    audio = Audio(FileBlobs((path,))).prepare({"sampling_rate": 16_000, "max_seconds": 0.25})
    (clip,) = audio.read_clips(0, [0.5])
    count = rate // 4
    start = (len(samples) - count + 1) // 2
    assert torch.equal(clip, torch.from_numpy(resample_by_hand(samples[start : start + count], rate, 16_000)))
    assert len(clip) == 4_000
    (whole,) = audio.prepare({"max_seconds": 5.0}).read_clips(0, [0.9])
    assert torch.equal(whole, torch.from_numpy(resample_by_hand(samples, rate, 16_000)))


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "mpeg4", {"g": "6"}),
        ("b.mp4", "libx264", {"g": "8", "bf": "2"}),
        ("a.webm", "libvpx-vp9", {"g": "8"}),
        ("a.avi", "mpeg4", {"g": "8", "bf": "2"}),
        ("a.mkv", "libx264", {"g": "8"}),
    ],
)
def test_frames_are_those_of_the_decoded_file(
    name: str, codec: str, options: dict[str, str], tmp_path: Path, seeks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / name, make_frames(30), codec, **options)
    expected = decode_frames(path)
    assert len(expected) == 30
    video = Video(FileBlobs((path,)))
    frames = dict(video.iterate_frames(0, POSITIONS))
    assert all(torch.equal(frames[i], expected[int(p * 30)]) for i, p in enumerate(POSITIONS))
    assert seeks
    assert all(seeks)
    monkeypatch.setattr(media_files.PacketTable, "seek", lambda *_: None)
    linear = dict(video.iterate_frames(0, POSITIONS))
    assert all(torch.equal(frames[i], linear[i]) for i in frames)


def test_a_file_whose_packets_have_no_times_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", make_frames(10))
    expected = decode_frames(path)
    monkeypatch.setattr(media_files.PacketTable, "has_times", property(lambda _: False, lambda *_: None), raising=False)
    with path.open("rb") as file:
        frames = dict(iterate_frames(file, "a.mp4", [0.95, 0.05]))
    assert torch.equal(frames[0], expected[9])
    assert torch.equal(frames[1], expected[0])


def test_a_rotated_video_is_shown_upright(tmp_path: Path) -> None:
    """A phone that is held upright records a rotated video, and its matrix turns it by 90 degrees clockwise."""
    path = write_video(tmp_path / "a.mp4", make_frames(3))
    (expected, *_) = decode_frames(path)
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 44
    matrix = [0, 1 << 16, 0, -1 << 16, 0, 0, expected.shape[1] << 16, 0, 1 << 30]
    content[start : start + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in matrix)
    path.write_bytes(content)
    frame = Video(FileBlobs((path,))).show(0)
    assert torch.equal(frame, decode_frames(path)[1].rot90(-1, (1, 2)))
    assert frame.shape == (3, 48, 32)


def test_the_audio_track_of_a_video_is_audio(tmp_path: Path) -> None:
    sound = make_tone(2, 300, 48_000)
    path = write_video(tmp_path / "a.mp4", make_frames(20), sound=sound)
    (clip,) = Audio(FileBlobs((path,)), sampling_rate=48_000).read_clips(0, [0.5])
    assert np.corrcoef(clip[4_000:90_000], sound[0, 4_000:90_000])[0, 1] > 0.95


def test_errors_name_the_file_and_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = write_video(tmp_path / "silent.mp4", make_frames(10))
    sound = write_audio(tmp_path / "a.wav", make_tone(1, 300))
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(silent.read_bytes()[:1000])
    short = tmp_path / "short.wav"
    short.write_bytes(sound.read_bytes()[:5000])
    with wave.open(str(tmp_path / "empty.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
    (tmp_path / "text.mp3").write_text("no audio")
    cases = [
        (Audio, silent, r"silent\.mp4 has no audio stream \(its streams: video\)"),
        (Video, sound, r"a\.wav has no video stream \(its streams: audio\)"),
        (Video, cut, r"cut\.mp4 cannot be decoded as video: Invalid data"),
        (Audio, short, r"short\.wav is truncated or corrupt"),
        (Audio, tmp_path / "empty.wav", r"empty\.wav has no samples"),
        (Audio, tmp_path / "text.mp3", r"text\.mp3 cannot be decoded as audio: Invalid data"),
        (Audio, tmp_path / "gone.wav", r"gone\.wav cannot be read: .*No such file"),
    ]
    for kind, path, message in cases:
        with pytest.raises(CorruptMediaError, match=message):
            kind(FileBlobs((path,))).show(0)
    monkeypatch.setattr(media_files, "MAX_PIXELS", 1000)
    with pytest.raises(DatasetError, match=r"silent\.mp4 has frames of 48 x 32 pixels: shrink the video"):
        Video(FileBlobs((silent,))).show(0)
    monkeypatch.setattr(media_files, "MAX_PACKETS", 1)
    with pytest.raises(DatasetError, match=r"a\.wav is longer than 1 packets"):
        Audio(FileBlobs((sound,))).show(0)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DatasetError, match=r"pip install 'manyviews\[media\]'"):
        Audio(FileBlobs((sound,))).show(0)


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile {path}\n",
    ],
    ids=["playlist", "concat"],
)
@pytest.mark.parametrize("extension", [".mp4", ".m3u8"])
def test_a_file_cannot_make_ffmpeg_open_another(text: str, extension: str, tmp_path: Path) -> None:
    secret = write_video(tmp_path / "secret.mp4", make_frames(5))
    path = tmp_path / f"list{extension}"
    path.write_text(text.format(path=secret))
    with pytest.raises(CorruptMediaError, match="cannot be decoded as video"):
        Video(FileBlobs((path,))).show(0)


def test_columns_check_what_they_are_given() -> None:
    with pytest.raises(DatasetError, match=r"audio must be Blobs, such as FileBlobs\(PATHS\), got"):
        Audio(["a.wav"])  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=r"expected a list of paths, got a str"):
        Audio.from_values("a.wav")
    with pytest.raises(DatasetError, match=r"no such file: gone\.mp4"):
        Video.from_values(["gone.mp4"])
    audio, video = Audio(FileBlobs(())), Video(FileBlobs(()))
    for preprocessing in ({"sampling_rate": 10}, {"max_seconds": math.nan}, {"max_seconds": 1e9}):
        with pytest.raises(DatasetError, match="sampling_rate must be from 1,000 to 192,000"):
            audio.prepare(preprocessing)
    with pytest.raises(DatasetError, match="num_frames must be from 1 to 512, got 0"):
        video.prepare({"num_frames": 0})


def test_a_table_has_columns_of_audio_and_video(tmp_path: Path) -> None:
    path = write_clips(tmp_path)
    data = load_dataset(path)
    assert not data.warnings
    train = data["train"]
    assert {name: column.kind for name, column in train.modalities.items()} == {
        "audio": "audio", "video": "video", "caption": "text",
    }  # fmt: skip
    assert train["audio"].get_mask().tolist() == [True, True, True, False, *[True] * 5]
    assert train["audio"].describe_lengths() == "1.5 to 2.5 s, median 2.0 s"
    assert train.get_image(0) is not None
    assert train.get_text(0) == "a low tone 0"
    sounds = load_table(path, kinds={"caption": "skip", "video": "skip"})["train"]
    assert sounds.get_text(0) == "audio, 1.5 s"
    assert sounds.get_image(0) is None


def test_errors_of_a_table_name_row_and_column(tmp_path: Path) -> None:
    path = write_clips(tmp_path, 4, 0.5)
    table = path.read_text()

    def load(cell: str, **options: Any) -> Any:
        path.write_text(table.replace("2.wav", cell))
        return load_table(path, **options)

    with pytest.raises(DatasetError, match=r"row 4.*column audio: the file 'gone\.wav' does not exist"):
        load("gone.wav")
    with pytest.raises(DatasetError, match=r"row 4.*column audio: .*is a URL"):
        load("https://example.org/a.wav")
    with pytest.raises(DatasetError, match=r"row 2, column caption: the file 'a low tone 0' does not exist"):
        load("2.wav", kinds=["caption=audio"])
    data = load("2.mp4")
    assert "row 4, column audio: " in data.warnings[0]
    assert "2.mp4 has no audio stream (its streams: video); it counts as missing" in data.warnings[0]
    assert data["train"]["audio"].get_mask().tolist() == [True, True, False]
    with pytest.raises(CorruptMediaError, match=r"row 4, column audio: .*2\.mp4 has no audio stream"):
        load("2.mp4", raise_on_corrupt=True)


def test_the_fingerprint_does_not_open_missing_files(tmp_path: Path) -> None:
    paths = tuple(write_audio(tmp_path / f"{i}.wav", make_tone(0.2 + i / 10, 300)) for i in range(2))
    audio = Audio(FileBlobs((*paths, tmp_path / "gone.wav")), mask=torch.tensor([True, True, False]))
    other = Audio(FileBlobs((*paths, tmp_path / "other.wav")), mask=torch.tensor([True, True, False]))
    assert [bytes(part) for part in audio.list_content()[:2]] == [bytes(part) for part in other.list_content()[:2]]
    assert len(audio.select(torch.tensor([2, 0]))) == 2


def test_log_mel_equals_its_definition() -> None:
    rate = 8_000
    wave_form = torch.from_numpy(make_tone(0.1, 440, rate)[0])
    result = compute_log_mel(wave_form[None], rate)[0]
    assert result.shape == (8, 80)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    edges = [700 * (10 ** (k / 81 * math.log10(1 + rate / 2 / 700)) - 1) for k in range(82)]
    frequencies = np.arange(101) * rate / 200
    for i in range(8):
        power = np.abs(np.fft.rfft(wave_form.numpy()[80 * i : 80 * i + 200] * window)) ** 2
        for band in (30, 60, 79):
            low, center, high = edges[band : band + 3]
            weights = np.minimum((frequencies - low) / (center - low), (high - frequencies) / (high - center)).clip(0)
            expected = math.log(max(1e-6, float(weights @ power)))
            if weights.any():
                assert result[i, band].item() == pytest.approx(expected, abs=1e-2)


def test_padding_does_not_change_the_frames_of_a_spectrogram() -> None:
    waves = torch.randn(1, 1_000)
    padded = torch.nn.functional.pad(waves, (0, 3_000))
    count = int(count_frames(torch.tensor([1_000]), RATE))
    torch.testing.assert_close(compute_log_mel(waves, RATE), compute_log_mel(padded, RATE)[:, :count])
