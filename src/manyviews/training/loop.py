"""The training loop: `Training.loop` goes round, `Training.step` learns, the rest is written down."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import closing, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from manyviews.data import Dataset
from manyviews.losses import Objective
from manyviews.losses.inputs import DegenerateError
from manyviews.training.assess import evaluated
from manyviews.training.cache import Views, cached_backward
from manyviews.training.checkpoints import load_checkpoint, save_checkpoint
from manyviews.training.config import ConfigError
from manyviews.training.journal import Journal
from manyviews.training.metrics import Metrics, sinks
from manyviews.training.optimisers import learning_rate
from manyviews.training.run import Run
from manyviews.training.scores import EvaluationConfig
from manyviews.training.setup import optimiser_of, source_of
from manyviews.training.signals import InterruptedTraining, StopRequest
from manyviews.training.source import Loss, Model, collapsed
from manyviews.training.sync import synchronised
from manyviews.views import batches
from manyviews.views.keyed import hashed

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class DivergedError(ValueError):
    """The loss became NaN or infinite."""


class Training:
    """One training under way: what a step changes, and what is written about it."""

    def __init__(
        self, run: Run, data: Dataset, embedder: Model, objective: Loss, fabric: Fabric, journal: Journal
    ) -> None:
        config = run.config
        self.run, self.data, self.fabric, self.config, self.journal = run, data, fabric, config, journal
        self.first = fabric.is_global_zero

        self.source = source_of(config)(data, config, fabric.device)
        self.steps_per_epoch = len(self.source.trained) // config.instances
        self.steps = self.steps_per_epoch * config.epochs
        self.warmup = round(config.warmup * self.steps)
        self.peak = config.learning_rate * config.instances / 256
        self.eval_every = config.eval_every or max(1, self.steps // 10)

        self.embedder, self.objective = embedder, objective
        if config.sync_batch_norm and fabric.world_size > 1:
            synchronised(self.embedder, fabric.device)
        fabric.strategy.precision.convert_module(self.objective).to(fabric.device)
        optimiser = optimiser_of(config, nn.ModuleList([self.embedder, self.objective]))
        self.module, self.optimiser = fabric.setup(self.embedder, optimiser)
        self.step_number = 0
        self._restore()
        self.saved_step = self.step_number

        self.pending: list[dict[str, Any]] = []
        self.saved = monotonic()
        self.metrics: Metrics | None = None
        if self.first:
            others = sinks(config, run.path, run.identity, self.step_number)
            self.metrics = Metrics(run.path / "metrics.csv", self.step_number, others)

    def loop(self) -> None:
        with closing(self.metrics) if self.metrics else nullcontext():
            self.journal.say(self._opening())
            self.journal.begin(self.steps, self.step_number)
            with StopRequest() as stop:
                for epoch in range(self.step_number // self.steps_per_epoch, self.config.epochs):
                    for views, index in self.batches(epoch):
                        row = self.step(views, index)
                        self.step_number += 1
                        self.write({"step": self.step_number, "epoch": epoch, **row})
                        self.stop_if_told(stop)
            if self.first:
                self.finish()
            self.fabric.barrier()

    def batches(self, epoch: int) -> Iterator[tuple[Views, Tensor]]:
        """Views and indices of this rank's part of each batch that is left of an epoch."""
        ranks = self.fabric.global_rank, self.fabric.world_size
        own = batches(len(self.source.trained), self.config.instances, self.config.seed, epoch, *ranks)
        left = own[self.step_number - epoch * self.steps_per_epoch :]
        yield from self.source.batches(epoch, [self.source.trained[batch] for batch in left])

    def step(self, views: Views, index: Tensor) -> dict[str, Any]:
        """Learn from the views (B, N, ...) of this rank's instances; what there is to write about it."""
        rate = learning_rate(self.step_number, self.steps, self.warmup, self.peak)
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

    def write(self, row: dict[str, Any]) -> None:
        """Look at the watched instances, write rows and save, each when it is time."""
        config, last = self.config, self.step_number == self.steps
        if last or self.step_number % self.eval_every == 0:
            self.settle()
        if self.first and (last or self.step_number % self.eval_every == 0):
            try:
                found = self.source.look(self.embedder)
            except FloatingPointError as error:
                raise self.diverged(str(error), row["step"], row["learning_rate"]) from error
            row |= found
            if found:
                self.journal.say(f"step {self.step_number}: " + "  ".join(f"{k} {v:.4g}" for k, v in found.items()))
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
            if self.metrics and self.metrics.rows:
                raise OSError("the metrics up to here are not on the disk")
            save_checkpoint(self.run.checkpoints, self.step_number, state, self.config.keep)
            self.saved_step = self.step_number
        except OSError as error:
            what = f"cannot save a checkpoint at step {self.step_number}: {error}"
            self.journal.warn(f"{what}; going on, the older ones stay")

    def _restore(self) -> None:
        state = load_checkpoint(self.run.checkpoints)
        if state is None:
            if (self.run.path / "metrics.csv").exists():
                self.journal.warn(f"{self.run.path} has no checkpoint: it begins again")
            return
        self._check_same(state)
        try:
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ConfigError(f"a checkpoint in {self.run.checkpoints} is of another model: {error}") from error
        self.step_number = state["step"]

    def _check_same(self, state: dict[str, Any]) -> None:
        """Raise if the checkpoint was made with a config or data that give another result."""
        made, now = state["made_with"], self._made_with()
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

    def finish(self) -> None:
        """Write what was learned, and what it is worth."""
        self.source.finish(self.embedder)
        self.run.write_model(self.embedder)
        if not self.config.probe:
            return
        self.journal.say("trained; now evaluated")
        how = EvaluationConfig(few=(), workers=self.config.workers)
        try:
            with self.journal.aside():
                found = evaluated(self.embedder, self.data, self.config, how)
        except (ValueError, RuntimeError) as error:
            self.journal.warn(f"not evaluated: {error}")
            return
        except KeyboardInterrupt as stop:
            done = "trained, and its encoder is written; stopped while it was evaluated"
            raise InterruptedTraining(f"{done}. {self.how_to_resume}", signal.SIGINT) from stop
        if "why" in found:
            self.journal.say(found["why"])
        self.run.write_evaluation(found)

    @property
    def how_to_resume(self) -> str:
        return f"Go on with: manyviews train --resume {self.run.path}"

    def diverged(self, what: str, step: int, rate: float) -> DivergedError:
        return DivergedError(
            f"{what}, at step {step} of {self.steps} with learning rate {rate:.4g}. Checkpoints from before are in "
            f"{self.run.checkpoints}. Try a smaller --learning-rate, a longer --warmup or a larger --temperature"
            + ("" if self.config.detect_anomaly else "; --detect-anomaly shows where a gradient becomes NaN")
        )

    def _opening(self) -> str:
        config, ranks = self.config, self.fabric.world_size
        some = ""
        labels = self.source.labels
        if config.limit is not None and labels is not None:
            here, all_of_them = (len(some_of_them.unique()) for some_of_them in (labels[: config.limit], labels))
            some = f" of {here} of {all_of_them} classes" if here < all_of_them else ""
        begins = f"resuming at step {self.step_number}" if self.step_number else "training"
        return (
            f"{begins}: {self.run.path}\n"
            f"  {self.data.name}, {len(self.source.trained):,} instances{some}, {self.source.learned}\n"
            f"  {config.epochs} epochs, {self.steps} steps of {config.instances} instances; "
            f"{ranks} {'rank' if ranks == 1 else 'ranks'} on {self.fabric.device.type}"
        )
