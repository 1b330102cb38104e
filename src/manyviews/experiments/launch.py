"""Running cells: in processes of this machine, or as jobs of a SLURM cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from manyviews.evaluation.progress import duration
from manyviews.experiments.cells import Cell, run_spec
from manyviews.training import ConfigError, InterruptedTraining
from manyviews.training.signals import StopRequest
from manyviews.utils.processes import PARENT_PID

Launcher = Literal["local", "slurm"]
Say = Callable[[str], None]
_PRINT: Say = partial(print, flush=True)
POLL_SECONDS = 0.2


@dataclass
class Launch:
    """How cells are run.

    Each has a process of its own, so that one that fails, or is killed for want of memory, takes no other with it.

    Examples:
        >>> launch = Launch(Path("results/runs"), jobs=2)
    """

    folder: Path
    """Of the run directories."""
    launcher: Launcher = "local"
    jobs: int = 1
    """Processes at once on this machine."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """Parameters of jobs, as submitit names them: slurm_partition, timeout_min, gpus_per_node, ..."""
    say: Say = _PRINT

    def __post_init__(self) -> None:
        if self.launcher == "slurm" and self.jobs > 1:
            raise ConfigError("jobs is for the launcher local: how many run at once on a cluster is SLURM's to decide")
        if self.launcher == "local" and self.slurm:
            raise ConfigError("slurm holds parameters of the launcher slurm, and the launcher is local")

    def __call__(self, cells: Sequence[Cell]) -> dict[str, str]:
        """Run those that are not done, once each; why some failed, by their names."""
        self.folder.mkdir(parents=True, exist_ok=True)
        once = {(cell.name, cell.file): cell for cell in cells}
        waiting = [cell for cell in once.values() if cell.found(self.folder) is None]
        done = len(once) - len(waiting)
        self.say(f"{done} of {done + len(waiting)} cells are done" + (f", {len(waiting)} to go" if waiting else ""))
        if not waiting:
            return {}
        return self._slurm(waiting) if self.launcher == "slurm" else self._local(waiting)

    def _local(self, cells: list[Cell]) -> dict[str, str]:
        failed: dict[str, str] = {}
        waiting, taken = list(cells), set[str]()
        running: list[_Process] = []
        started, number = time.monotonic(), 0

        def tell(cell: Cell, outcome: str) -> None:
            nonlocal number
            number += 1
            left = (time.monotonic() - started) / number * (len(cells) - number)
            self.say(f"[{number}/{len(cells)}] {cell.told}: {outcome} ({duration(left)} left)")

        with StopRequest() as stop:
            try:
                while waiting or running:
                    for cell in list(waiting):
                        if len(running) == self.jobs:
                            break
                        if cell.found(self.folder) is not None:
                            waiting.remove(cell)
                            tell(cell, "done by another process")
                        elif process := self._start(cell):
                            waiting.remove(cell)
                            running.append(process)
                        elif cell.name not in taken:
                            taken.add(cell.name)
                            self.say(f"{cell.told}: another process is computing it")
                    for process in [one for one in running if one.poll() is not None]:
                        running.remove(process)
                        if (reason := process.finish()) is not None:
                            failed[process.cell.name] = reason
                        tell(process.cell, "done" if reason is None else f"FAILED: {reason}")
                    if stop.number:
                        raise InterruptedTraining("the cells at work have saved; the same command goes on", stop.number)
                    time.sleep(POLL_SECONDS)
            finally:
                for process in running:
                    process.send_signal(stop.number or signal.SIGTERM)
                for process in running:
                    process.finish()
        return failed

    def _start(self, cell: Cell) -> _Process | None:
        """The process that computes it; None if another one does."""
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(cell.lock(self.folder))
            except BlockingIOError:
                return None
            return _Process(cell, self.folder, lock)

    def _slurm(self, cells: list[Cell]) -> dict[str, str]:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError(f"the launcher slurm needs: pip install 'manyviews[slurm]' ({error})") from error
        given = dict(self.slurm)
        executor = submitit.AutoExecutor(folder=str(self.folder / "jobs"), cluster=given.pop("cluster", None))
        executor.update_parameters(name="manyviews", **given)
        with executor.batch():
            jobs = [executor.submit(run_spec, cell.spec(self.folder)) for cell in cells]
        failed: dict[str, str] = {}
        for number, (cell, job) in enumerate(zip(cells, jobs, strict=True), 1):
            problem = job.exception()
            if problem is not None:
                failed[cell.name] = str(problem).strip().splitlines()[-1]
            what = "done" if problem is None else f"FAILED: {failed[cell.name]}"
            self.say(f"[{number}/{len(cells)}] {cell.told}: {what}")
        return failed


class _Process(subprocess.Popen[bytes]):
    """A cell's process, which inherits its lock and ends with this one."""

    def __init__(self, cell: Cell, folder: Path, lock: int | None) -> None:
        self.cell = cell
        self._errors = TemporaryFile()  # noqa: SIM115 (`finish` closes it)
        super().__init__(
            [sys.executable, "-m", "manyviews.experiments.cells", json.dumps(cell.spec(folder))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=() if lock is None else (lock,),
            env={**os.environ, PARENT_PID: str(os.getpid())},
        )

    def finish(self) -> str | None:
        """Wait for its end; why it failed, if it did."""
        code = self.wait()
        with self._errors as file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return None if code == 0 else lines[-1] if lines else f"ended with {code}"
