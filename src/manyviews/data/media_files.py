"""Open audio and video files with PyAV: known formats only, nothing but the file itself, and a table of its packets."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Literal

from manyviews.data.errors import CorruptFileError, DatasetError
from manyviews.utils import get_memory_limit

if TYPE_CHECKING:
    from av.container import InputContainer

AUDIO_EXTENSIONS = {".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".aac"}
VIDEO_EXTENSIONS = {".mp4", ".m4v", ".mkv", ".webm", ".avi", ".mov"}
FORMATS = "wav,flac,mp3,ogg,aac,mov,matroska,avi"
"""Demuxers of FFmpeg that may open a file, whatever its name. Others read devices, or files that a file names."""
CODECS = (
    "pcm_u8,pcm_s16le,pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,pcm_f32le,pcm_f32be,pcm_f64le,pcm_mulaw,"
    "pcm_alaw,adpcm_ms,adpcm_ima_wav,flac,alac,mp3,mp3float,mp2,mp2float,aac,ac3,eac3,vorbis,opus,libopus,"
    "h264,hevc,vp8,vp9,libvpx,libvpx-vp9,av1,libdav1d,mpeg4,msmpeg4v2,msmpeg4,h263,mpeg1video,mpeg2video,mjpeg,theora,"
    "ffv1,rawvideo,prores"
)
"""Decoders of FFmpeg that may be used."""
MAX_PIXELS = 36_000_000
"""Largest frames, more than 8K."""
MAX_PACKETS = 5_000_000
"""Longest recording: more than a day of audio."""

Kind = Literal["audio", "video"]


class CorruptMediaError(CorruptFileError):
    """A file is not audio or video, has no stream of the kind, or is truncated or corrupt."""


def import_av() -> Any:
    """Import PyAV, or raise a DatasetError that says how to install it."""
    try:
        import av
    except ImportError as error:
        raise DatasetError(f"audio and video need PyAV: pip install 'manyviews[media]' ({error})") from error
    return av


@contextmanager
def open_media(file: IO[bytes], name: str, kind: Kind) -> Iterator[tuple[InputContainer, Any]]:
    """Open a container from its start, with its first stream of a kind; the package opens media only here.

    Raises:
        CorruptMediaError: the file cannot be decoded, or has no such stream; also within the context.
        DatasetError: frames are too large, or PyAV is missing.
    """
    av = import_av()
    options = {"format_whitelist": FORMATS, "codec_whitelist": CODECS, "protocol_whitelist": "none"}
    try:
        file.seek(0)
        if file.read(12)[8:] == b"WAVE":  # FFmpeg reads more of it in search of other codecs, which takes 30 ms
            options["probesize"] = "32768"
        file.seek(0)
        with av.open(file, options=options, io_open=_refuse_file, metadata_errors="replace") as container:
            yield container, _find_stream(container, name, kind)
    except DatasetError:
        raise
    # PyAV raises FFmpeg's errors, and ValueError, TypeError and others for streams that it does not expect.
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CorruptMediaError(f"{name} cannot be decoded as {kind}: {reason}") from error


def _refuse_file(url: str, *_: Any) -> None:
    raise PermissionError(f"it refers to another file, {url!r}")


def _find_stream(container: InputContainer, name: str, kind: Kind) -> Any:
    from av.stream import Disposition

    streams = [s for s in container.streams if s.type == kind and not s.disposition & Disposition.attached_pic]
    if not streams:
        types = ", ".join(sorted({str(s.type) for s in container.streams})) or "none"
        raise CorruptMediaError(f"{name} has no {kind} stream (its streams: {types})")
    stream: Any = streams[0]
    codec = stream.codec_context
    if codec is None or codec.name not in CODECS.split(","):
        reason = "its codec is unknown" if codec is None else f"its codec {codec.name} is not supported: convert it"
        raise CorruptMediaError(f"{name} cannot be decoded as {kind}: {reason}")
    codec.thread_count = 1  # workers are processes
    if kind == "video":
        codec.options = {"max_pixels": str(_get_max_pixels())}
        check_frame_size(name, codec.width, codec.height)
    return stream


def _get_max_pixels() -> int:
    return min(MAX_PIXELS, get_memory_limit() // 16)


def check_frame_size(name: str, width: int, height: int) -> None:
    """Raise a DatasetError for frames that are too large to decode."""
    if not 0 < width * height <= _get_max_pixels():
        raise DatasetError(f"{name} has frames of {width} x {height} pixels: shrink the video, or remove it")


def read_seconds(file: IO[bytes], name: str, kind: Kind) -> float:
    """Read the duration from the header, 0 if it has none; raise unless the file has a stream of the kind."""
    with open_media(file, name, kind) as (container, stream):
        if stream.duration is not None:
            return float(stream.duration * stream.time_base)
        return (container.duration or 0) / 1e6


class PacketTable:
    """Times and positions of the packets of a stream, which are read without decoding them.

    What a header says about durations and numbers of frames may be wrong or absent; this is not.
    """

    def __init__(self, file: IO[bytes], name: str, kind: Kind) -> None:
        self.times, self.ends, self.positions = array("q"), array("q"), array("q")
        self.key_times = array("q")
        self.has_times = True
        """Whether every packet has a time of its own."""
        with open_media(file, name, kind) as (container, stream):
            self.time_base, self.sampling_rate = stream.time_base, int(getattr(stream, "rate", 0) or 0)
            for packet in container.demux(stream):
                if packet.size and not packet.is_discard:
                    self._append(packet, name)
        if not self.times and self.has_times:
            raise CorruptMediaError(f"{name} has no {'samples' if kind == 'audio' else 'frames'}")
        self.has_times = self.has_times and len(set(self.times)) == len(self.times)

    def _append(self, packet: Any, name: str) -> None:
        if packet.is_corrupt:
            raise CorruptMediaError(f"{name} is truncated or corrupt")
        if len(self.times) >= MAX_PACKETS:
            raise DatasetError(f"{name} is longer than {MAX_PACKETS:,} packets: split it")
        if packet.pts is None:
            self.has_times = False
            return
        self.times.append(packet.pts)
        self.ends.append(packet.pts + (packet.duration or 0))
        self.positions.append(-1 if packet.pos is None else packet.pos)
        if packet.is_keyframe:
            self.key_times.append(packet.pts)

    @cached_property
    def sorted_times(self) -> list[int]:
        return sorted(self.times)

    @cached_property
    def _sorted_keys(self) -> list[int]:
        return sorted(self.key_times)

    @cached_property
    def _position_by_time(self) -> dict[int, int]:
        return dict(zip(self.times, self.positions, strict=True))

    def find_key(self, time: int) -> int | None:
        """Return the time of the last key packet that is not after `time`, from which decoding can start."""
        i = bisect_right(self._sorted_keys, time)
        return self._sorted_keys[i - 1] if i else None

    def seek(self, container: InputContainer, stream: Any, time: int) -> Iterator[Any] | None:
        """Seek to the packet of a key time and return the frames from there; None if FFmpeg ends up elsewhere."""
        container.seek(time, stream=stream)
        packets = container.demux(stream)
        first = next(packets, None)
        if first is None or first.pts != time or first.pos != self._position_by_time[time]:
            return None
        return (frame for packet in chain([first], packets) for frame in packet.decode())
