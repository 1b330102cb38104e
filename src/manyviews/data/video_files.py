"""Decode frames of video files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

import torch
from torch import Tensor

from manyviews.data.media_files import CorruptMediaError, PacketTable, check_frame_size, open_media


def iterate_frames(file: IO[bytes], name: str, positions: Sequence[float]) -> Iterator[tuple[int, Tensor]]:
    """Yield a frame for each position in [0, 1): its index in `positions`, and uint8 (3, H, W), rotated as recorded.

    The frame of position p is number floor(p n) of n. Frames come in the order of the video, and one is in memory at a
    time. Only the packets from the key frame before a frame are decoded, if the file can seek.

    Raises:
        CorruptMediaError: the file cannot be decoded, or has no frames; the frames before may already be yielded.
    """
    table = PacketTable(file, name, "video")
    if not table.has_times:
        yield from _count_frames(file, name, positions)
        return
    count = len(table.times)
    times = [table.sorted_times[min(count - 1, int(position * count))] for position in positions]
    order = sorted(range(len(times)), key=times.__getitem__)
    pending = iter(order)
    done = 0
    for seeks in (True, False):
        with open_media(file, name, "video") as (container, stream):
            for frame in _find_frames(container, stream, table, [times[i] for i in order[done:]], seeks):
                yield next(pending), _to_tensor(frame, name)
                done += 1
        if done == len(order):
            return
    raise CorruptMediaError(f"{name} has no frames that can be decoded")


def _find_frames(container: Any, stream: Any, table: PacketTable, times: Sequence[int], seeks: bool) -> Iterator[Any]:
    """Yield the frame that is shown at each time; stop early if FFmpeg cannot seek to its key frame."""
    frames, frame = container.decode(stream), None
    following: Any = None
    for time in times:
        key = table.find_key(time)
        latest: Any = following or frame
        if seeks and key is not None and (key > table.sorted_times[0] if latest is None else key > latest.pts):
            frames, frame, following = table.seek(container, stream, key), None, None
            if frames is None:
                return
        while following is None or following.pts <= time:
            frame, following = following or frame, next((f for f in frames if f.pts is not None), None)
            if following is None:
                break
        if frame is None and following is None:
            return
        yield frame or following


def _count_frames(file: IO[bytes], name: str, positions: Sequence[float]) -> Iterator[tuple[int, Tensor]]:
    """Do the same by counting all frames of a file without reliable times."""
    with open_media(file, name, "video") as (container, stream):
        count = sum(1 for _ in container.decode(stream))
    if not count:
        raise CorruptMediaError(f"{name} has no frames")
    numbers = [min(count - 1, int(position * count)) for position in positions]
    with open_media(file, name, "video") as (container, stream):
        for number, frame in enumerate(container.decode(stream)):
            for i in (i for i, chosen in enumerate(numbers) if chosen == number):
                yield i, _to_tensor(frame, name)
            if number == max(numbers):
                break


def _to_tensor(frame: Any, name: str) -> Tensor:
    check_frame_size(name, frame.width, frame.height)
    image = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
    return torch.rot90(image, round(frame.rotation / 90), (1, 2)).contiguous()
