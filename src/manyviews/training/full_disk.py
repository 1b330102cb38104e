"""Writing the files of a run, also if the disk is full: old checkpoints are removed, and results wait for space."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep

from manyviews.training.checkpoints import keep_newest
from manyviews.training.signals import SignalCatcher, TrainingInterrupted
from manyviews.utils import DISK_FULL_ERRNOS, FILE_ONLY, logger, print_stderr

RETRY_SECONDS = 2.0
"""Seconds between two attempts to write to a full disk."""


class DiskFullError(OSError):
    """The disk is still full after old checkpoints were removed."""


def write_or_make_space(write: Callable[[], object], checkpoint_dir: Path) -> None:
    """Write; if the disk is full, keep only the newest checkpoint and try again."""
    for is_last_attempt in (False, True):
        try:
            write()
            return
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise
            if is_last_attempt:
                raise DiskFullError(error.errno, error.strerror, error.filename) from error
        keep_newest(checkpoint_dir)


def retry_until_written(
    write: Callable[[], object], checkpoint_dir: Path, failure: DiskFullError, saved_step: int, resume_hint: str
) -> None:
    """Repeat a failed write until the disk has space; raise TrainingInterrupted after a signal."""
    message = (
        f"cannot write: {failure}. The result stays in memory and is written as soon as the disk has space. "
        f"To stop instead, press Ctrl-C (or: kill {os.getpid()}). {resume_hint}"
    )
    logger.warning(message, extra=FILE_ONLY)
    print_stderr(message)  # even with quiet=True: the process waits
    with SignalCatcher() as stop:
        while not stop.signum:
            sleep(RETRY_SECONDS)
            with suppress(DiskFullError):
                return write_or_make_space(write, checkpoint_dir)
        raise TrainingInterrupted(
            f"stopped while the disk was full: {failure}; the last checkpoint is from step {saved_step}. {resume_hint}",
            stop.signum,
        ) from failure
