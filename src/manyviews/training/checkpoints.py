"""Checkpoints: files of plain tensors and numbers whose names contain a digest of their content.

torch loads a file with flipped bits without an error, so the digest (`step-00000120-5f3a90c2.pt`) is compared first.
Loading executes no code (`weights_only`).
"""

import hashlib
import io
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from manyviews.data import check_tensor_pickle
from manyviews.utils import Budget, check_regular, logger, write_atomic

_NAME = re.compile(r"step-(\d{8,})-([0-9a-f]{8})\.pt")


class CheckpointError(ValueError):
    """A checkpoint cannot be loaded."""


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint, then remove all but the last `keep`. After an OSError the older ones are untouched."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:08d}-{_digest(content)}.pt"
    folder.mkdir(exist_ok=True)
    write_atomic(path, content)
    older = [old for old in list_checkpoints(folder) if _parse_step(old) < step]
    kept = {path, *older[: keep - 1]}
    # Checkpoints of this step or later ones are corrupt: otherwise the run would have resumed from them.
    for old in {*list_checkpoints(folder), *folder.glob(".step-*")} - kept:
        old.unlink(missing_ok=True)
    return path


def keep_newest(folder: Path) -> None:
    """Remove all checkpoints except the newest intact one."""
    paths = list_checkpoints(folder)
    for newest in paths:
        with suppress(CheckpointError):
            _load(newest)
            for path in {*paths, *folder.glob(".step-*")} - {newest}:
                path.unlink(missing_ok=True)
            return


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Load the newest intact checkpoint; return None if there are no checkpoints.

    Raises:
        CheckpointError: there are checkpoints, but none is intact.
    """
    paths = list_checkpoints(folder)
    for path in paths:
        try:
            return _load(path)
        except CheckpointError as error:  # noqa: PERF203 (there are few checkpoints)
            logger.warning(f"cannot load the checkpoint {path}: {error}; trying the previous one")
    if paths:
        raise CheckpointError(
            f"none of the {len(paths)} checkpoints in {folder} can be loaded: start again with --overwrite"
        )
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, newest first."""
    return sorted(
        (path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)), key=_parse_step, reverse=True
    )


def _parse_step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _load(path: Path) -> dict[str, Any]:
    """Load an untrusted file: its structure is checked before torch allocates tensors."""
    try:
        size = check_regular(path)
        Budget(path, size).take(size)
        content = path.read_bytes()
        match = _NAME.fullmatch(path.name)
        if match is None or match[2] != _digest(content):
            raise CheckpointError("its content does not match its digest, so it is truncated or corrupt")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {member.filename: member for member in archive.infolist()}
            if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
                raise CheckpointError("it is compressed")
            (data,) = (member for name, member in members.items() if name.endswith("/data.pkl"))
            folder = data.filename.removesuffix(".pkl")
            records = {name.removeprefix(f"{folder}/"): member.file_size for name, member in members.items()}
            with archive.open(data) as file:
                check_tensor_pickle(file, str(path), data.file_size, records)
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    # torch and zipfile raise exceptions of any type for a malicious file.
    except Exception as error:
        raise CheckpointError(f"{error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"expected a dict, got a {type(state).__name__}")
    return state


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]
