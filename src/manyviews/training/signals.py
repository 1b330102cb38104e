"""Being told to stop: SIGINT (Ctrl-C), SIGTERM (schedulers, torchrun) and SIGHUP (a terminal that closes)."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_SAME = 1.0
"""Seconds in which a second signal is an echo of the first: torchrun passes on what a terminal has already sent."""


class InterruptedTraining(KeyboardInterrupt):
    """Training was told to stop, saved where it was and can be resumed."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class StopRequest:
    """Within this context the first signal is noted and the second one leaves at once.

    Outside the main thread signals cannot be caught, and nothing is.
    """

    def __init__(self) -> None:
        self.number = 0
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.signal(number, self._handle)
                if before is signal.SIG_IGN and number not in (signal.SIGINT, signal.SIGTERM):  # under nohup
                    signal.signal(number, before)
                else:
                    self._before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self.number:
            self.number, self._when = number, now
        elif now - self._when > _SAME:
            raise InterruptedTraining("stopped at once, without saving", number)
