"""The training loop: `Training.loop` goes round, `Training.step` learns, the rest is written down."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed import DistError

from manyviews.data import Dataset
from manyviews.losses import Objective
from manyviews.losses.inputs import DegenerateError
from manyviews.training.assess import evaluated
from manyviews.training.cache import Views, cached_backward
from manyviews.training.checkpoints import keep_newest, load_checkpoint, save_checkpoint
from manyviews.training.config import ConfigError
from manyviews.training.files import DISK_FULL
from manyviews.training.journal import Journal
from manyviews.training.metrics import Metrics, sinks
from manyviews.training.optimisers import learning_rate
from manyviews.training.run import Extension, Run
from manyviews.training.scores import EvaluationConfig
from manyviews.training.setup import on_first_rank, optimiser_of, source_of
from manyviews.training.signals import InterruptedTraining, StopRequest
from manyviews.training.source import Loss, Model, collapsed
from manyviews.training.sync import synchronised
from manyviews.utils.stderr import print_stderr
from manyviews.utils.untrusted import MALFORMED
from manyviews.views import batches
from manyviews.views.keyed import hashed

if TYPE_CHECKING:
    from lightning_fabric import Fabric


RETRY_SECONDS = 2.0
"""Between two attempts to write what a full disk does not take."""


class DivergedError(ValueError):
    """The loss became NaN or infinite."""


class Training:
    """One training under way: what a step changes, and what is written about it."""

    def __init__(
        self,
        run: Run,
        data: Dataset,
        embedder: Model,
        objective: Loss,
        fabric: Fabric,
        journal: Journal,
        epochs_before: int | None = None,
    ) -> None:
        """`epochs_before` is of a run that was begun with another number of epochs than its config now has."""
        config = run.config
        self.run, self.data, self.fabric, self.config, self.journal = run, data, fabric, config, journal
        self.first = fabric.is_global_zero

        self.source = source_of(config)(data, config, fabric.device)
        self.steps_per_epoch = len(self.source.trained) // config.instances
        self.steps = self.steps_per_epoch * config.epochs
        self.peak = config.learning_rate * config.instances / 256
        self.epochs_before = epochs_before or config.epochs

        self.embedder, self.objective = embedder, objective
        if config.sync_batch_norm and fabric.world_size > 1:
            synchronised(self.embedder, fabric.device)
        fabric.strategy.precision.convert_module(self.objective).to(fabric.device)
        optimiser = optimiser_of(config, nn.ModuleList([self.embedder, self.objective]))
        self.module, self.optimiser = fabric.setup(self.embedder, optimiser)
        self.step_number = 0
        self._restore()
        if self.epochs_before != config.epochs:
            self._extend()
        self.saved_step = self.step_number

        self.pending: list[dict[str, Any]] = []
        self.saved = monotonic()
        self.metrics: Metrics | None = None
        if self.first:
            others = sinks(config, run.path, run.identity, self.step_number)
            self.metrics = Metrics(run.path / "metrics.csv", self.step_number, others)

    def loop(self) -> None:
        with closing(self.metrics) if self.metrics else nullcontext():
            for line in self._opening():
                self.journal.say(line)
            if self.config.init is not None and self.step_number == 0:
                self.save()  # so that it can go on without the weights that it began with
            self.journal.begin(self.steps, self.step_number)
            try:
                with StopRequest() as stop:
                    for epoch in range(self.step_number // self.steps_per_epoch, self.config.epochs):
                        for views, index in self.batches(epoch):
                            row = self.step(views, index)
                            self.step_number += 1
                            self.write({"step": self.step_number, "epoch": epoch, **row})
                            self.stop_if_told(stop)
                    self.finish()
                if self.first and self.config.probe:
                    self.evaluate(stop.number)
                if self.first and self.saved_step < self.step_number:
                    self.save()  # there was no room for the last checkpoint, and now there may be
            except RuntimeError as error:
                if not is_process_lost(error):
                    raise
                what = str(error).partition("\n")[0].partition(". ")[0]
                raise ChildProcessError(
                    f"a process of this training has died ({what}); saved at step {self.saved_step}. "
                    f"{self.how_to_resume}"
                ) from error

    def batches(self, epoch: int) -> Iterator[tuple[Views, Tensor]]:
        """Views and indices of this rank's part of each batch that is left of an epoch."""
        ranks = self.fabric.global_rank, self.fabric.world_size
        own = batches(len(self.source.trained), self.config.instances, self.config.seed, epoch, *ranks)
        left = own[self.step_number - epoch * self.steps_per_epoch :]
        yield from self.source.batches(epoch, [self.source.trained[batch] for batch in left])

    def step(self, views: Views, index: Tensor) -> dict[str, Any]:
        """Learn from the views (B, N, ...) of this rank's instances; what there is to write about it."""
        steps = self.planned_steps(self.step_number)
        rate = learning_rate(self.step_number, steps, round(self.config.warmup * steps), self.peak)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        # What an encoder draws (dropout) is a function of (seed, step, rank), as all else.
        torch.manual_seed(int(hashed(self.config.seed, self.step_number, self.fabric.global_rank)))
        told = self.source.told(self.objective, views, index)

        def loss_of(z: Tensor) -> Tensor:
            try:
                return self.objective(z, **told)
            except DegenerateError as error:
                raise self.diverged(str(error), self.step_number + 1, rate) from error
            except ValueError as error:
                raise ValueError(f"{error} (at step {self.step_number + 1} of {self.steps})") from error

        if self.config.micro_batch is None:
            loss = loss_of(self.module(views).z)
            self.fabric.backward(loss)
        else:
            loss = cached_backward(
                lambda piece: self.module(piece).z,
                views,
                loss_of,
                self.config.micro_batch,
                model=self.embedder,
                parameters=list(self.objective.parameters()),
                no_sync=lambda: self.fabric.no_backward_sync(self.module),
                backward=self.fabric.backward,
            )
        for parameter in self.objective.parameters():
            if parameter.grad is not None:
                parameter.grad = self.over_ranks(parameter.grad, "mean")
        self.optimiser.step()
        self.optimiser.zero_grad()
        row = {"loss": loss.detach(), "learning_rate": rate}
        if isinstance(self.objective, Objective):
            temperature = self.objective.temperature
            row["temperature"] = temperature.detach().clone() if isinstance(temperature, Tensor) else temperature
        return row

    def planned_steps(self, step: int) -> int:
        """Of the schedule that the step after `step` follows: that of the epochs which the run had then."""
        epochs = next((one.epochs_before for one in self.run.extended if step < one.step), self.config.epochs)
        return epochs * self.steps_per_epoch

    def write(self, row: dict[str, Any]) -> None:
        """Look at the watched instances, write rows and save, each when it is time."""
        config, last = self.config, self.step_number == self.steps
        planned = self.planned_steps(self.step_number - 1)
        due = self.step_number == planned or self.step_number % (config.eval_every or max(1, planned // 10)) == 0
        if due:
            self.settle()
        if self.first and due:
            try:
                found = self.source.look(self.embedder)
            except FloatingPointError as error:
                raise self.diverged(str(error), row["step"], row["learning_rate"]) from error
            row |= found
            if found:
                self.journal.say(
                    f"step {self.step_number}, {self.source.monitored}: "
                    + "  ".join(f"{k} {v:.4g}" for k, v in found.items())
                )
            if warning := collapsed(found):
                self.journal.warn(warning)
        self.pending.append(row)
        if last or self.step_number % config.log_every == 0:
            self.settle()
        by_steps = config.save_every and self.step_number % config.save_every == 0
        by_time = config.save_minutes and monotonic() - self.saved > 60 * config.save_minutes
        if last or by_steps or by_time:
            self.save()

    def settle(self) -> None:
        """Put the rows of the last steps on the disk, after making sure that their losses are numbers."""
        rows: list[dict[str, Any]] = [
            {k: v.item() if isinstance(v, Tensor) else v for k, v in row.items()} for row in self.pending
        ]
        for row in rows:
            if not math.isfinite(row["loss"]):
                raise self.diverged(f"the loss became {row['loss']}", row["step"], row["learning_rate"])
        self.pending.clear()
        if not rows or self.metrics is None:
            return
        final = rows[-1]
        self.journal.step(final["step"], final["epoch"], final["loss"], final["learning_rate"], self.config.instances)
        self.metrics.rows += rows
        try:
            self.metrics.flush()
        except OSError as error:
            self.journal.warn(f"cannot write {self.metrics.path}: {error}; going on, its rows wait until there is room")

    def save(self) -> None:
        """A checkpoint of everything that a step changes. All ranks have the same, so the first writes it."""
        self.settle()
        self.saved = monotonic()
        if not self.first:
            return
        state = {"step": self.step_number, "made_with": self._made_with()}
        state |= {name: part.state_dict() for name, part in self._parts().items()}
        try:
            # A checkpoint comes after the metrics up to its step, so both make room for themselves.
            if self.metrics and (failure := self.attempt(self.metrics.flush)):
                raise failure
            step, keep = self.step_number, self.config.keep
            if failure := self.attempt(lambda: save_checkpoint(self.run.checkpoints, step, state, keep)):
                raise failure
            self.saved_step = step
        except OSError as error:
            what = f"cannot save a checkpoint at step {self.step_number}: {error}"
            self.journal.warn(f"{what}; going on, saved at step {self.saved_step}")

    def _restore(self) -> None:
        state = load_checkpoint(self.run.checkpoints)
        if state is None:
            if (self.run.path / "metrics.csv").exists():
                self.journal.warn(f"{self.run.path} has no checkpoint: it begins again")
            return
        try:
            self._check_same(state)
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            last = self.steps_per_epoch * max(self.epochs_before, self.config.epochs)
            if type(state["step"]) is not int or not 0 <= state["step"] <= last:
                raise ValueError(f"it is of step {state['step']!r} of {last}")
            self.step_number = state["step"]
        except ConfigError:
            raise
        except (RuntimeError, *MALFORMED) as error:
            raise ConfigError(f"a checkpoint in {self.run.checkpoints} is of another model: {error!r}") from error

    def _extend(self) -> None:
        """Follow the schedule of the config's epochs from here on, and record it in the run."""
        step, epochs = self.step_number, self.config.epochs
        if self.steps < step:
            least = math.ceil(step / self.steps_per_epoch)
            raise ConfigError(f"{self.run.path} has been trained for {least} epochs: --epochs {epochs} would be fewer")
        before = next((one.epochs_before for one in self.run.extended if step < one.step), self.epochs_before)
        kept = [one for one in self.run.extended if one.step <= step]
        self.run = replace(self.run, extended=(*kept, Extension(step, before, epochs)))
        on_first_rank(self.fabric, self.run.write_extension)
        self.journal.say(
            f"{self.epochs_before} epochs become {epochs}: from step {step} on, the learning rate is as if the run had "
            f"been planned for {self.steps} steps"
        )

    def _check_same(self, state: dict[str, Any]) -> None:
        """Raise if the checkpoint was made with a config or data that give another result."""
        made, now = state["made_with"], self._made_with()
        if made["config"].get("epochs") in {self.epochs_before, *(one.epochs_before for one in self.run.extended)}:
            made = {**made, "config": {**made["config"], "epochs": self.config.epochs}}
        names = [name for name, value in now["config"].items() if made["config"].get(name) != value]
        names += ["set of instances"] if made["instances"] != now["instances"] else []
        if made["ranks"] != now["ranks"]:
            if self.config.micro_batch or not self.config.sync_batch_norm:
                names.append(f"number of ranks (it was {made['ranks']}), which its batch norm depends on")
            else:
                what = f"{self.run.path} goes on with {now['ranks']} ranks instead of {made['ranks']}"
                self.journal.warn(f"{what}: the same but for rounding")
        if names:
            raise ConfigError(f"{self.run.path} cannot go on: its checkpoint was made with another {', '.join(names)}")

    def _made_with(self) -> dict[str, Any]:
        return {"config": self.config.result(), "instances": self.source.identity, "ranks": self.fabric.world_size}

    def _parts(self) -> dict[str, Any]:
        return {
            "embedder": self.embedder,
            "objective": self.objective,
            "optimiser": self.optimiser,
            "precision": self.fabric.strategy.precision,
        }

    def over_ranks(self, value: Tensor, operation: str) -> Tensor:
        result = self.fabric.all_reduce(value, reduce_op=operation)
        assert isinstance(result, Tensor)
        return result

    def stop_if_told(self, stop: StopRequest) -> None:
        """Save and leave if any rank got a signal. Asking each other makes a GPU wait, so it is done now and then."""
        number = stop.number
        if self.fabric.world_size > 1:
            if self.fabric.device.type == "cuda" and self.step_number % self.config.log_every:
                return
            number = int(self.over_ranks(torch.tensor(number, device=self.fabric.device), "max"))
        if number and self.step_number < self.steps:
            self.save()
            self.fabric.barrier()
            done = f"stopped at step {self.step_number} of {self.steps}, "
            saved = "all saved" if self.saved_step == self.step_number else f"saved at step {self.saved_step}"
            raise InterruptedTraining(f"{done}{saved}. {self.how_to_resume}", number)

    def attempt(self, write: Callable[[], object]) -> OSError | None:
        """Write; if the disk is full, once more with the newest checkpoint alone. The error if it is still full."""
        failure = None
        for last in (False, True):
            try:
                write()
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                failure = error
            else:
                return None
            if not last:
                keep_newest(self.run.checkpoints)
        return failure

    def insist(self, write: Callable[[], object], failure: OSError) -> None:
        """Write what could not be written before, as soon as there is room."""
        message = (
            f"cannot write: {failure}. The result stays in memory, and is written as soon as there is room. "
            f"To stop instead, press Ctrl-C (or: kill {os.getpid()}). {self.how_to_resume}"
        )
        self.journal.warn(message)
        if not self.journal.shown:
            print_stderr(message)  # quiet, but not without end
        with StopRequest() as stop:
            while not stop.number:
                sleep(RETRY_SECONDS)
                if self.attempt(write) is None:
                    return
            what = f"stopped while there was no room to write: {failure}; saved at step {self.saved_step}"
            raise InterruptedTraining(f"{what}. {self.how_to_resume}", stop.number) from failure

    def finish(self) -> None:
        """Write what was learned. The other ranks then leave, also if it cannot be written yet."""
        failure = None
        if self.first:
            self.source.finish(self.embedder)
            failure = self.attempt(self.write_model)
        self.fabric.barrier()
        if failure is not None:
            self.insist(self.write_model, failure)

    def write_model(self) -> None:
        self.run.write_model(self.embedder)
        if self.metrics:
            self.metrics.flush()

    def evaluate(self, stopped: int) -> None:
        """Write what it is worth, on the first rank alone: it may take longer than others would wait."""
        done = f"trained, and its encoder is written; stopped before it was evaluated. {self.how_to_resume}"
        if stopped:
            raise InterruptedTraining(done, stopped)
        self.journal.say("trained; now evaluated")
        how = EvaluationConfig(few=(), workers=self.config.workers)
        try:
            with self.journal.aside():
                found = evaluated(self.embedder, self.data, self.config, how)
            if "why" in found:
                self.journal.say(found["why"])
            for line in found["better_baselines"]:
                self.journal.keep(line)

            def write() -> None:
                self.run.write_evaluation(found)

            if failure := self.attempt(write):
                self.insist(write, failure)
        except InterruptedTraining:
            raise
        except KeyboardInterrupt as stop:
            raise InterruptedTraining(done, getattr(stop, "exit_code", 128 + signal.SIGINT) - 128) from stop
        except (ValueError, RuntimeError) as error:
            if is_process_lost(error):
                raise
            self.journal.warn(f"not evaluated: {error}")

    @property
    def how_to_resume(self) -> str:
        return f"Go on with: manyviews train --resume {self.run.path}"

    def diverged(self, what: str, step: int, rate: float) -> DivergedError:
        return DivergedError(
            f"{what}, at step {step} of {self.steps} with learning rate {rate:.4g}. Checkpoints from before are in "
            f"{self.run.checkpoints}. Try a smaller --learning-rate, a longer --warmup or a larger --temperature"
            + ("" if self.config.detect_anomaly else "; --detect-anomaly shows where a gradient becomes NaN")
        )

    def _opening(self) -> list[str]:
        config, ranks, threads = self.config, self.fabric.world_size, torch.get_num_threads()
        some = ""
        labels = self.source.labels
        if config.limit is not None and labels is not None:
            here, all_of_them = len(labels.unique()), len(self.data.classes)
            some = f" of {here} of {all_of_them} classes" if here < all_of_them else ""
        begins = f"resuming at step {self.step_number}" if self.step_number else "training"
        machine = (
            f"{ranks} {'rank' if ranks == 1 else 'ranks'} on {self.fabric.device.type}, "
            f"{threads} CPU {'thread' if threads == 1 else 'threads'}"
        )
        return [
            f"{begins}: {self.run.path}",
            f"  {self.data.name}, {len(self.source.trained):,} instances{some}, {self.source.learned}",
            f"  {self.source.monitored} monitored",
            f"  {config.epochs} epochs, {self.steps} steps of {config.instances} instances; {machine}",
        ]


def is_process_lost(error: Exception) -> bool:
    """Whether a worker that reads images, or another rank, has died."""
    text = str(error)
    lost = "DataLoader worker" in text or "/gloo/" in text or "Gloo" in text or isinstance(error, DistError)
    return lost and isinstance(error, RuntimeError)
