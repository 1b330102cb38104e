"""Processes that do not outlive the process that started them."""

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_PID = "MANYVIEWS_PARENT_PID"
"""Environment variable with the id of the parent process, set by the parent."""


def exit_with_parent(signum: int = signal.SIGTERM) -> None:
    """Send a signal to this process as soon as the process that started it has ended, even by SIGKILL.

    The kernel sends it on Linux, a thread elsewhere. `PARENT_PID` covers a parent that ended before this call.
    """
    parent = int(os.environ.get(PARENT_PID, "0")) or os.getppid()
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(set_parent_death_signal, signum):
        threading.Thread(target=_watch_parent, args=(parent, signum), daemon=True).start()
    elif os.getppid() != parent:
        os.kill(os.getpid(), signum)


def _watch_parent(parent: int, signum: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signum)
