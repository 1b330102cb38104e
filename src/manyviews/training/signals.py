"""Handling of SIGINT (Ctrl-C), SIGTERM (schedulers, torchrun) and SIGHUP (a closed terminal)."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
ECHO_SECONDS = 1.0
"""A second signal within this time is ignored: torchrun forwards signals that the terminal has sent already."""


class TrainingInterrupted(KeyboardInterrupt):
    """A signal stopped the training; it can be resumed from its last checkpoint."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


class SignalCatcher:
    """Context in which the first signal is recorded and the second one raises TrainingInterrupted.

    Outside the main thread, signals cannot be caught, and the context does nothing.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._time = 0.0
        self._old_handlers: dict[int, Any] = {}

    def __enter__(self) -> SignalCatcher:
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                old_handler = signal.signal(signum, self._handle)
                if old_handler is signal.SIG_IGN and signum not in (signal.SIGINT, signal.SIGTERM):  # under nohup
                    signal.signal(signum, old_handler)
                else:
                    self._old_handlers[signum] = old_handler
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self.signum:
            self.signum, self._time = signum, now
        elif now - self._time > ECHO_SECONDS:
            raise TrainingInterrupted("stopped immediately, without a checkpoint", signum)
