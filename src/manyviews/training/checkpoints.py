"""Checkpoints: plain tensors and numbers in files that tell whether they are whole.

A file is named by its step and its content's digest (`step-00000120-5f3a90c2.pt`): torch reads a file with flipped bits
without a word, so the digest is compared before it is read. Nothing in it is executed (`weights_only`).
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from manyviews.training.files import write_atomically

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


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest whole checkpoint; None if there is none at all.

    Raises:
        CheckpointError: there are some, and none is whole.
    """
    found = checkpoints(folder)
    for path in found:
        state = _load(path)
        if isinstance(state, dict):
            return state
        warnings.warn(f"the checkpoint {path} cannot be used: {state}; trying the one before it", stacklevel=2)
    if found:
        raise CheckpointError(f"none of {len(found)} checkpoints in {folder} can be read: start again with --overwrite")
    return None


def checkpoints(folder: Path) -> list[Path]:
    """The files in a folder, newest first."""
    return sorted((path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)), key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _load(path: Path) -> dict[str, Any] | str:
    """What a file holds, or why it cannot be read."""
    try:
        content = path.read_bytes()
        match = _NAME.fullmatch(path.name)
        if match is None or match[2] != _digest(content):
            return "its content is not what was written, so it is truncated or damaged"
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        return str(error)
    return state


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]
