"""Worker processes of a loader: their start and their stop."""

import os
import signal
import sys
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils import data as torch_data

Item = TypeVar("Item")


def make_item_loader(
    dataset: torch_data.Dataset[Item],
    sampler: Iterable[Any],
    num_workers: int,
    prefetch_factor: int,
    pin_memory: bool = False,
    persistent: bool = False,
) -> torch_data.DataLoader[Item]:
    """Return a loader of the dataset's items, in the order of the sampler, read by worker processes or by this one.

    With `persistent`, the workers live as long as the loader, otherwise as long as one iteration.
    """
    return torch_data.DataLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor if num_workers else None,
        pin_memory=pin_memory,
        persistent_workers=persistent and num_workers > 0,
        worker_init_fn=_init_worker,
    )


def _init_worker(_: int) -> None:
    """Limit a worker to one thread, and let only its parent stop it.

    A signal to the process group (Ctrl-C, SIGTERM of a scheduler) must not stop workers while the parent saves.
    """
    torch.set_num_threads(1)
    sys.excepthook = _report_unless_abandoned
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_parent_signal, daemon=True).start()


def _report_unless_abandoned(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Report an exception of a worker, unless the parent has closed the connection, as it does when it exits.

    Errors of the dataset are not handled here: they are sent to the parent.
    """
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, traceback)


def _exit_on_parent_signal() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
