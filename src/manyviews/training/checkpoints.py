"""Checkpoints: plain tensors and numbers in files that tell whether they are whole.

A file is named by its step and its content's digest (`step-00000120-5f3a90c2.pt`): torch reads a file with flipped bits
without a word, so the digest is compared before it is read. Nothing in it is executed (`weights_only`).
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from manyviews.data.pickles import check_tensor_pickle
from manyviews.training.files import write_atomically
from manyviews.utils.budget import Budget
from manyviews.utils.untrusted import check_regular

_NAME = re.compile(r"step-(\d{8,})-([0-9a-f]{8})\.pt")


class CheckpointError(ValueError):
    """No checkpoint of a run can be read."""


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint, then remove all but the last `keep`. An OSError leaves the older ones as they are."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:08d}-{_digest(content)}.pt"
    folder.mkdir(exist_ok=True)
    write_atomically(path, content)
    older = [old for old in checkpoints(folder) if _step(old) < step]
    kept = {path, *older[: keep - 1]}
    # What claims to be of this step or a later one is damaged, or we would have begun there.
    for old in {*checkpoints(folder), *folder.glob(".step-*")} - kept:
        old.unlink(missing_ok=True)
    return path


def keep_newest(folder: Path) -> None:
    """Remove all checkpoints but the newest that can be read."""
    found = checkpoints(folder)
    newest = next((path for path in found if _is_whole(path)), None)
    for path in (*found, *folder.glob(".step-*")):
        if newest is not None and path != newest:
            path.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest whole checkpoint; None if there is none at all.

    Raises:
        CheckpointError: there are some, and none is whole.
    """
    found = checkpoints(folder)
    for path in found:
        if (state := _load_if_whole(path)) is not None:
            return state
    if found:
        raise CheckpointError(f"none of {len(found)} checkpoints in {folder} can be read: start again with --overwrite")
    return None


def checkpoints(folder: Path) -> list[Path]:
    """The files in a folder, newest first."""
    return sorted((path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)), key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _load_if_whole(path: Path) -> dict[str, Any] | None:
    try:
        return _load(path)
    except CheckpointError as error:
        warnings.warn(f"the checkpoint {path} cannot be used: {error}; trying the one before it", stacklevel=3)
        return None


def _is_whole(path: Path) -> bool:
    try:
        _load(path)
    except CheckpointError:
        return False
    return True


def _load(path: Path) -> dict[str, Any]:
    """What a file holds, whoever wrote it: its structure is checked before torch makes tensors of it."""
    try:
        size = check_regular(path)
        Budget(path, size).take(size)
        content = path.read_bytes()
        match = _NAME.fullmatch(path.name)
        if match is None or match[2] != _digest(content):
            raise CheckpointError("its content is not what was written, so it is truncated or damaged")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            inside = {one.filename: one for one in archive.infolist()}
            if any(one.compress_type != zipfile.ZIP_STORED for one in inside.values()):
                raise CheckpointError("it is compressed")
            (data,) = (one for name, one in inside.items() if name.endswith("/data.pkl"))
            folder = data.filename.removesuffix(".pkl")
            records = {name.removeprefix(f"{folder}/"): one.file_size for name, one in inside.items()}
            with archive.open(data) as file:
                check_tensor_pickle(file, str(path), data.file_size, records)
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    # What torch and zipfile say of a file that was made to break them is of any kind.
    except Exception as error:
        raise CheckpointError(f"{error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"it holds a {type(state).__name__}")
    return state


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]
