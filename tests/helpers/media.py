"""Tiny audio and video files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

RATE = 8_000
"""Sampling rate of files that need no other one."""


def make_tone(seconds: float, frequency: float, rate: int = RATE, channels: int = 1) -> np.ndarray:
    """Return a tone (channels, n) that rises slowly, so that no two parts of it are equal."""
    time = np.arange(round(seconds * rate)) / rate
    tone = 0.5 * np.sin(2 * np.pi * frequency * time * (1 + 0.05 * time))
    return np.stack([tone * (1 - 0.3 * channel) for channel in range(channels)]).astype(np.float32)


def write_audio(path: Path, samples: np.ndarray, rate: int = RATE, codec: str = "") -> Path:
    """Write samples (channels, n) in the format of the extension."""
    import av

    codecs = {".wav": "pcm_s16le", ".flac": "flac", ".mp3": "libmp3lame", ".m4a": "aac", ".ogg": "libopus"}
    with av.open(str(path), "w") as container:
        layout = "mono" if len(samples) == 1 else "stereo"
        stream: Any = container.add_stream(codec or codecs[path.suffix], rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return path


def make_frames(count: int, color: int = 0, size: tuple[int, int] = (32, 48)) -> np.ndarray:
    """Return frames (count, H, W, 3), each of which is another."""
    frames = np.zeros((count, *size, 3), np.uint8)
    frames[..., color] = np.linspace(80, 250, size[1])
    for i, frame in enumerate(frames):
        frame[(2 * i) % size[0] :: size[0] // 2] = 255
        frame[:, :4] = 255 * i // count
    return frames


def write_video(
    path: Path, frames: np.ndarray, codec: str = "mpeg4", sound: np.ndarray | None = None, **options: str
) -> Path:
    """Write frames (n, H, W, 3), ten per second, with the audio track `sound` (1, n) at 48 kHz."""
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=10)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        stream.codec_context.options = options
        track: Any = None if sound is None else container.add_stream("aac", rate=48_000, layout="mono")
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
        if sound is not None:
            audio = av.AudioFrame.from_ndarray(sound, format="fltp", layout="mono")
            audio.sample_rate, audio.pts = 48_000, 0
            container.mux([*track.encode(audio), *track.encode(None)])
    return path


def write_clips(folder: Path, count: int = 12, seconds: float = 1.5) -> Path:
    """Write a table of clips of three classes, with audio, video and text; some audio and video is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["audio,video,caption,label,split"]
    for i in range(count):
        name = ("low", "middle", "high")[i % 3]
        write_audio(folder / f"{i}.wav", make_tone(seconds + 0.1 * i, 200 * (1 + i % 3) + 10 * i))
        write_video(folder / f"{i}.mp4", make_frames(10 + i, i % 3), g="4")
        audio, video = ("" if i == 4 else f"{i}.wav"), ("" if i == 7 else f"{i}.mp4")
        rows.append(f"{audio},{video},a {name} tone {i},{name},{'test' if i % 4 == 3 else 'train'}")
    path = folder / "clips.csv"
    path.write_text("\n".join(rows) + "\n")
    return path
