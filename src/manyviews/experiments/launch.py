"""Running cells: in processes of this machine, or as jobs of a SLURM cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from manyviews.evaluation.progress import duration
from manyviews.experiments.cells import Cell, run_spec
from manyviews.training import ConfigError

Launcher = Literal["local", "slurm"]
Say = Callable[[str], None]


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
    say: Say = print

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
        running: set[subprocess.Popen[str]] = set()
        started = time.monotonic()

        def work(cell: Cell) -> tuple[Cell, str | None]:
            process = subprocess.Popen(
                [sys.executable, "-m", "manyviews.experiments.cells"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.add(process)
            _, said = process.communicate(json.dumps(cell.spec(self.folder)))
            running.discard(process)
            return cell, _reason(process.returncode, said)

        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(work, cell) for cell in cells]
            try:
                for number, future in enumerate(as_completed(futures), 1):
                    cell, reason = future.result()
                    left = (time.monotonic() - started) / number * (len(cells) - number)
                    if reason is not None:
                        failed[cell.name] = reason
                    what = "done" if reason is None else f"FAILED: {reason}"
                    self.say(f"[{number}/{len(cells)}] {cell.told}: {what} ({duration(left)} left)")
            except BaseException:
                # They save, and go on when they are asked for again.
                for future in futures:
                    future.cancel()
                for process in list(running):
                    process.send_signal(signal.SIGTERM)
                raise
        return failed

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


def _reason(code: int, said: str) -> str | None:
    if code == 0:
        return None
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = said.strip().splitlines()
    return lines[-1] if lines else f"ended with {code}"
