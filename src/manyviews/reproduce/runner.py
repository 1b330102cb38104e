"""Run trials in local processes or as SLURM jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from manyviews.reproduce.store import TrialStore
from manyviews.reproduce.trials import Trial, run_trial
from manyviews.training import ConfigError, SignalCatcher, TrainingInterrupted
from manyviews.utils import PARENT_PID, format_duration

Launcher = Literal["local", "slurm", "none"]
LogFunction = Callable[[str], None]
_PRINT: LogFunction = partial(print, flush=True)
POLL_SECONDS = 0.2


@dataclass
class TrialRunner:
    """Runs trials, each in its own process, so that a trial that fails or runs out of memory does not affect others.

    Examples:
        >>> runner = TrialRunner(Path("results/runs"), jobs=2)
    """

    folder: Path
    """Parent of the run directories."""
    launcher: Launcher = "local"
    jobs: int = 1
    """Number of parallel local processes."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """Job parameters by their submitit names: slurm_partition, timeout_min, gpus_per_node, ..."""
    store_path: Path | None = None
    """File of the finished trials. Default: trials.jsonl in the folder of the runs."""
    keep_runs: bool = True
    """Keep run directories whose trial is in the store."""
    log: LogFunction = _PRINT
    store: TrialStore = field(init=False)
    """Where finished trials are found."""

    def __post_init__(self) -> None:
        self.store = TrialStore(self.folder, self.store_path)
        if self.launcher == "slurm" and self.jobs > 1:
            raise ConfigError("jobs applies only to the launcher local: SLURM schedules its jobs itself")
        if self.launcher == "local" and self.slurm:
            raise ConfigError("slurm parameters apply only to the launcher slurm, and the launcher is local")

    def run(self, trials: Sequence[Trial], keep_runs: bool | None = None) -> dict[str, str]:
        """Run the unfinished trials once each, and return the reasons of failures by trial name.

        With the launcher none, nothing is run.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        unique = {(trial.name, trial.result_filename): trial for trial in trials}
        for (name, file), trial in unique.items():
            self.store.add(name, file, trial.label)  # finished in a run directory
        waiting = [trial for trial in unique.values() if trial.load(self.store) is None]
        done = len(unique) - len(waiting)
        self.log(f"{done} of {done + len(waiting)} trials are done" + (f", {len(waiting)} to run" if waiting else ""))
        if not waiting or self.launcher == "none":
            return {}
        keep = self.keep_runs if keep_runs is None else keep_runs
        return self._run_slurm(waiting, keep) if self.launcher == "slurm" else self._run_local(waiting, keep)

    def remove_runs(self, trials: Sequence[Trial]) -> None:
        """Remove the run directories of trials, unless they are kept or another process uses them."""
        for trial in () if self.keep_runs or self.launcher == "none" else trials:
            with suppress(BlockingIOError), trial.lock(self.store):
                self.store.remove_run(trial.name)

    def _run_local(self, trials: list[Trial], keep_runs: bool) -> dict[str, str]:
        failed: dict[str, str] = {}
        waiting, locked = list(trials), set[str]()
        running: list[_Process] = []
        start, num_finished = time.monotonic(), 0

        def log_outcome(trial: Trial, outcome: str) -> None:
            nonlocal num_finished
            num_finished += 1
            left = (time.monotonic() - start) / num_finished * (len(trials) - num_finished)
            self.log(f"[{num_finished}/{len(trials)}] {trial.label}: {outcome} ({format_duration(left)} left)")

        with SignalCatcher() as stop:
            try:
                while waiting or running:
                    for trial in list(waiting):
                        if len(running) == self.jobs:
                            break
                        if trial.load(self.store) is not None:
                            waiting.remove(trial)
                            log_outcome(trial, "done by another process")
                        elif process := self._start(trial, keep_runs):
                            waiting.remove(trial)
                            running.append(process)
                        elif trial.name not in locked:
                            locked.add(trial.name)
                            self.log(f"{trial.label}: another process is running it")
                    for process in [process for process in running if process.poll() is not None]:
                        running.remove(process)
                        if (reason := process.finish()) is not None:
                            failed[process.trial.name] = reason
                        log_outcome(process.trial, "done" if reason is None else f"FAILED: {reason}")
                    if stop.signum:
                        raise TrainingInterrupted(
                            "the running trials were checkpointed; the same command resumes them", stop.signum
                        )
                    time.sleep(POLL_SECONDS)
            finally:
                for process in running:
                    process.send_signal(stop.signum or signal.SIGTERM)
                for process in running:
                    process.finish()
        return failed

    def _start(self, trial: Trial, keep_runs: bool) -> _Process | None:
        """Start a process for the trial; None if another process is running it."""
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(trial.lock(self.store))
            except BlockingIOError:
                return None
            return _Process(trial, trial.to_spec(self.store, keep_runs), lock)

    def _run_slurm(self, trials: list[Trial], keep_runs: bool) -> dict[str, str]:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError(f"the launcher slurm needs: pip install 'manyviews[slurm]' ({error})") from error
        parameters = dict(self.slurm)
        executor = submitit.AutoExecutor(folder=str(self.folder / "jobs"), cluster=parameters.pop("cluster", None))
        executor.update_parameters(name="manyviews", **parameters)
        with executor.batch():
            jobs = [executor.submit(run_trial, trial.to_spec(self.store, keep_runs)) for trial in trials]
        failed: dict[str, str] = {}
        for i, (trial, job) in enumerate(zip(trials, jobs, strict=True), 1):
            failure = job.exception()
            if failure is not None:
                failed[trial.name] = str(failure).strip().splitlines()[-1]
            outcome = "done" if failure is None else f"FAILED: {failed[trial.name]}"
            self.log(f"[{i}/{len(trials)}] {trial.label}: {outcome}")
        return failed


class _Process(subprocess.Popen[bytes]):
    """The process of a trial; it inherits the trial's lock and ends with its parent."""

    def __init__(self, trial: Trial, spec: dict[str, Any], lock: int | None) -> None:
        self.trial = trial
        self._errors = TemporaryFile()  # noqa: SIM115 (`finish` closes it)
        super().__init__(
            [sys.executable, "-m", "manyviews.reproduce.trials", json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=() if lock is None else (lock,),
            env={**os.environ, PARENT_PID: str(os.getpid())},
        )

    def finish(self) -> str | None:
        """Wait for the process to end; the reason if it failed."""
        code = self.wait()
        with self._errors as file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return None if code == 0 else lines[-1] if lines else f"exit code {code}"
