"""The training loop: `fit` iterates, `step` does one update, the rest is logging and checkpointing."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import DistError

from manyviews.loading import EpochBatches
from manyviews.losses import MultiViewLoss, NonFiniteInputError
from manyviews.models import MultiViewModel, ViewBatch
from manyviews.training.banner import make_banner
from manyviews.training.callbacks import Callback
from manyviews.training.checkpoints import load_checkpoint, save_checkpoint
from manyviews.training.config import ConfigError
from manyviews.training.fabric import run_on_rank_zero
from manyviews.training.freezing import make_lr_scales, warn_random_frozen
from manyviews.training.frozen_outputs import encode_frozen
from manyviews.training.full_disk import DiskFullError, retry_until_written, write_or_make_space
from manyviews.training.grad_cache import grad_cache_backward
from manyviews.training.loggers import MetricsFile, make_loggers
from manyviews.training.optim import build_optimizer
from manyviews.training.run_directory import METRICS_FILE, Extension, RunDirectory
from manyviews.training.signals import SignalCatcher, TrainingInterrupted
from manyviews.training.step_progress import StepProgress
from manyviews.training.sync_batch_norm import convert_sync_batch_norm
from manyviews.training.task import TrainingTask, get_collapse_warning
from manyviews.training.weight_average import WeightAverage
from manyviews.utils import (
    FILE_ONLY,
    MALFORMED_ERRORS,
    describe_type,
    hash_key,
    logger,
    warmup_cosine_lr,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric


MAX_MONITOR_COUNT, MAX_MONITOR_FRACTION = 10, 0.03
"""Default of monitor_every: at most ten times per run, and at most this part of its time."""


class DivergedError(ValueError):
    """The loss became NaN or infinite."""


class Evaluation(Protocol):
    """The part of an evaluation's result that a training logs and saves."""

    @property
    def skipped_reason(self) -> str: ...
    @property
    def better_baselines(self) -> tuple[str, ...]: ...
    def to_json(self) -> str: ...


class Trainer:
    """The state of one training: model, loss, optimizer, step, and the files of its run."""

    def __init__(
        self,
        run: RunDirectory,
        task: TrainingTask,
        model: MultiViewModel,
        loss: nn.Module,
        fabric: Fabric,
        evaluate: Callable[[MultiViewModel], Evaluation] | None = None,
        epochs_before: int | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Set up the model, the optimizer and the files, and restore the newest checkpoint.

        `evaluate` is called with the trained model on rank 0; its result is saved as `evaluation.json`.
        `epochs_before` is the former number of epochs of a run whose config now has another one.
        """
        self.callbacks, self.should_stop = list(callbacks), False
        self.callback_metrics: dict[str, float] = {}
        self.run, self.task, self.fabric = run, task, fabric
        self.config = config = run.config
        self.is_rank_zero, self.evaluate_model = fabric.is_global_zero, evaluate
        self.steps_per_epoch = len(task.train_indices) // config.instances_per_batch
        self.total_steps = self.steps_per_epoch * config.epochs
        assert config.learning_rate is not None
        self.peak_lr = config.learning_rate * config.instances_per_batch / 256
        self.epochs_before = epochs_before or config.epochs
        self.provenance: dict[str, Any] = {
            "config": config.get_result_fields(),
            "instances": task.compute_fingerprint(),
            "ranks": fabric.world_size,
            "objects": task.objects.describe(),
        }
        self._set_up_model(model, loss)
        self.step_number = self._restore()
        if self.epochs_before != config.epochs:
            self._extend()
        self.saved_step, self.last_save_time = self.step_number, monotonic()
        self.unflushed_rows: list[dict[str, Any]] = []
        self.metrics: MetricsFile | None = None
        if self.is_rank_zero:
            loggers = make_loggers(config, run.path, run.run_id, self.step_number)
            self.metrics = MetricsFile(run.path / METRICS_FILE, self.step_number, loggers)

    def _set_up_model(self, model: MultiViewModel, loss: nn.Module) -> None:
        """Move model and loss to the device, and build the optimizer of their parameters."""
        self.model, self.loss = model, loss
        if self.config.sync_batch_norm and self.fabric.world_size > 1:
            convert_sync_batch_norm(model, self.fabric.device)
        precision = self.fabric.strategy.precision
        precision.convert_module(loss).to(self.fabric.device)
        lr_scales = make_lr_scales(self.config, model.encoder, self.task.trained_encoders)
        optimizer = build_optimizer(self.config, nn.ModuleList([model, loss]), lr_scales)
        self.module, self.optimizer = self.fabric.setup(model, optimizer)
        self.frozen_parts = self.task.list_frozen_parts(model)
        ema = self.config.ema
        self.average = None if ema is None else WeightAverage(model, ema)
        self.state_objects: dict[str, Any] = {
            "model": model,
            "loss": loss,
            "optimizer": self.optimizer,
            "precision": precision,
        }
        if self.average is not None:
            self.state_objects["average"] = self.average.model

    @property
    def final_model(self) -> MultiViewModel:
        """The model that is monitored, saved and evaluated: the average of the weights, if there is one."""
        return self.model if self.average is None else self.average.model

    def fit(self) -> None:
        """Train from the current step to the end, then save the model and evaluate it."""
        with closing(self.metrics) if self.metrics else nullcontext():
            for line in make_banner(self):
                logger.info(line)
            warn_random_frozen(self.task.frozen, self.task.trained_encoders)
            self.task.use_encoded(encode_frozen(self.task, self.model, self.fabric))
            if self.config.init is not None and self.step_number == 0:
                self.save()  # then the run can be resumed without the files of its initial weights
            self.progress = StepProgress(self.total_steps, self.step_number)
            self.call("on_train_start")
            try:
                with SignalCatcher() as stop, closing(self.progress):
                    for epoch, batch in self.iterate_remaining():
                        row = {"step": self.step_number + 1, "epoch": epoch, **self.step(batch)}
                        self.step_number += 1
                        self.call("on_train_batch_end", row, batch, (self.step_number - 1) % self.steps_per_epoch)
                        self.after_step(row)
                        if self.check_stop(stop):
                            logger.info(f"a callback stopped the training at step {self.step_number}")
                            self.save()
                            break
                    self.call("on_train_end")
                    self.finish()
                if self.is_rank_zero and self.evaluate_model:
                    self.evaluate(self.evaluate_model, stop.signum)
                if self.is_rank_zero and self.saved_step < self.step_number:
                    self.save()  # the disk was full at the last checkpoint; it may have space now
            except RuntimeError as error:
                if not is_process_lost(error):
                    raise
                reason = str(error).partition("\n")[0].partition(". ")[0]
                raise ChildProcessError(
                    f"a process of this training has died ({reason}); the last checkpoint is from step "
                    f"{self.saved_step}. {self.resume_hint}"
                ) from error

    def call(self, name: str, *arguments: Any) -> None:
        """Call a method of all callbacks."""
        for callback in self.callbacks:
            getattr(callback, name)(self, self.model, *arguments)

    def _name_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """Yield callbacks with the names of their classes, numbered if a class has several."""
        counts: dict[str, int] = {}
        for callback in self.callbacks:
            name = type(callback).__qualname__
            counts[name] = counts.get(name, 0) + 1
            yield (f"{name} {counts[name]}" if counts[name] > 1 else name), callback

    @property
    def global_step(self) -> int:
        """Number of steps that were done."""
        return self.step_number

    @property
    def current_epoch(self) -> int:
        """Number of epochs that were done."""
        return self.step_number // self.steps_per_epoch

    def iterate_remaining(self) -> Iterator[tuple[int, ViewBatch]]:
        """Yield the epoch and the views of each remaining batch of the training."""
        for epoch in range(self.step_number // self.steps_per_epoch, self.config.epochs):
            for batch in self.iterate_batches(epoch):
                yield epoch, batch

    def iterate_batches(self, epoch: int) -> Iterator[ViewBatch]:
        """Yield the views of this rank's part of each remaining batch of an epoch."""
        ranks = self.fabric.global_rank, self.fabric.world_size
        count, size = len(self.task.train_indices), self.config.instances_per_batch
        batches = EpochBatches(count, size, self.config.seed, epoch, *ranks)
        remaining = range(self.step_number - epoch * self.steps_per_epoch, len(batches))
        yield from self.task.view_loader(epoch, (self.task.train_indices[batches[i]] for i in remaining))

    def step(self, batch: ViewBatch) -> dict[str, Any]:
        """Update the model on the views of this rank's instances; return a row of metrics."""
        steps = self.count_planned_steps(self.step_number)
        rate = warmup_cosine_lr(self.step_number, steps, round(self.config.warmup_fraction * steps), self.peak_lr)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("lr_mult", 1.0)
        for module in self.frozen_parts:  # a callback may have switched the model to training mode
            module.eval()
        # Randomness of the encoder (dropout) depends on (seed, step, rank) only, so resuming reproduces it.
        torch.manual_seed(int(hash_key(self.config.seed, self.step_number, self.fabric.global_rank)))
        loss_kwargs = self.task.get_loss_kwargs(batch)
        if isinstance(self.loss, MultiViewLoss) and self.loss.has_memory_bank and self.loss.uses_ids:
            # An instance that is in the bank from the last epoch is not its own negative.
            loss_kwargs["ids"] = batch.indices.to(self.fabric.device)

        def compute_loss(z: Tensor) -> Tensor:
            try:
                loss = self.loss(z, **loss_kwargs)
            except NonFiniteInputError as error:
                raise self.make_divergence_error(str(error), self.step_number + 1, rate) from error
            except ValueError as error:
                raise ValueError(f"{error} (at step {self.step_number + 1} of {self.total_steps})") from error
            if not isinstance(loss, Tensor) or loss.dim():
                got = f"a tensor {tuple(loss.shape)}: try its mean" if isinstance(loss, Tensor) else describe_type(loss)
                raise ConfigError(f"the loss must return a scalar tensor, {type(self.loss).__name__} returned {got}")
            return loss

        if self.config.grad_cache_chunk is None:
            loss = compute_loss(self.module(batch).z)
            self.fabric.backward(loss)
        else:
            loss = grad_cache_backward(
                lambda chunk: self.module(chunk).z,
                batch,
                compute_loss,
                self.config.grad_cache_chunk,
                model=self.model,
                parameters=list(self.loss.parameters()),
                no_sync=lambda: self.fabric.no_backward_sync(self.module),
                backward=self.fabric.backward,
            )
        for parameter in self.loss.parameters():
            if parameter.grad is not None:
                parameter.grad = self.all_reduce(parameter.grad, "mean")
        row = {"loss": loss.detach(), "learning_rate": rate}
        if self.config.clip_grad is not None:
            row["grad_norm"] = self.fabric.clip_gradients(
                self.module, self.optimizer, max_norm=self.config.clip_grad, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.model, self.step_number)
        if isinstance(self.loss, MultiViewLoss):
            temperature = self.loss.temperature
            if temperature is not None:
                row["temperature"] = temperature.detach().clone() if isinstance(temperature, Tensor) else temperature
        return row

    def count_planned_steps(self, step: int) -> int:
        """Return the total steps of the schedule at `step`: the run may have had another number of epochs then."""
        epochs = next((e.epochs_before for e in self.run.extensions if step < e.step), self.config.epochs)
        return epochs * self.steps_per_epoch

    def choose_monitor_interval(self, planned: int) -> int:
        """Return the steps between evaluations of the monitored instances, of `planned` steps of the run."""
        if self.config.monitor_every:
            return self.config.monitor_every
        # Rank 0 monitors alone, and the views of a step are divided among the ranks.
        cost = self.task.estimate_monitor_steps() * self.fabric.world_size
        count = min(MAX_MONITOR_COUNT, int(MAX_MONITOR_FRACTION * planned / cost)) if cost else MAX_MONITOR_COUNT
        return max(1, math.ceil(planned / max(1, count)))

    def after_step(self, row: dict[str, Any]) -> None:
        """Monitor, write metrics and save a checkpoint, each at its interval."""
        config, step, is_last = self.config, self.step_number, self.step_number == self.total_steps
        planned = self.count_planned_steps(step - 1)
        if step == planned or step % self.choose_monitor_interval(planned) == 0:
            self.flush_metrics()
            if self.is_rank_zero:
                self.monitor(row)
        self.unflushed_rows.append(row)
        if is_last or step % config.log_every == 0:
            self.flush_metrics()
        minutes = (monotonic() - self.last_save_time) / 60
        if (
            is_last
            or (config.checkpoint_every_steps and step % config.checkpoint_every_steps == 0)
            or (config.checkpoint_every_minutes and minutes > config.checkpoint_every_minutes)
        ):
            self.save()

    def monitor(self, row: dict[str, Any]) -> None:
        """Add the metrics of the monitored instances to a row, and log them."""
        try:
            metrics = self.task.monitor(self.final_model)
        except FloatingPointError as error:
            raise self.make_divergence_error(str(error), row["step"], row["learning_rate"]) from error
        row |= metrics
        self.callback_metrics = {"loss": float(row["loss"]), **metrics}
        self.call("on_validation_end")
        if metrics:
            values = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            logger.info(f"step {self.step_number}, {self.task.monitored}: {values}")
        if warning := get_collapse_warning(metrics):
            logger.warning(warning)

    def flush_metrics(self) -> None:
        """Write the rows of the last steps to disk; raise a DivergedError if a loss is not finite."""
        rows: list[dict[str, Any]] = [
            {k: v.item() if isinstance(v, Tensor) else v for k, v in row.items()} for row in self.unflushed_rows
        ]
        for row in rows:
            if not math.isfinite(row["loss"]):
                raise self.make_divergence_error(f"the loss became {row['loss']}", row["step"], row["learning_rate"])
        self.unflushed_rows.clear()
        if not rows or self.metrics is None:
            return
        final = rows[-1]
        self.progress.log_step(
            final["step"], final["epoch"], final["loss"], final["learning_rate"], self.config.instances_per_batch
        )
        self.metrics.rows += rows
        try:
            self.metrics.flush()
        except OSError as error:
            logger.warning(
                f"cannot write {self.metrics.path}: {error}; training continues, its rows wait until the disk has space"
            )

    def save(self) -> None:
        """Save a checkpoint of everything that a step changes. All ranks have the same state, so rank 0 saves it."""
        self.flush_metrics()
        self.last_save_time = monotonic()
        if not self.is_rank_zero:
            return
        step, keep = self.step_number, self.config.keep_checkpoints
        state = {"step": step, "provenance": self.provenance}
        state |= {name: part.state_dict() for name, part in self.state_objects.items()}
        state["callbacks"] = {name: callback.state_dict() for name, callback in self._name_callbacks()}
        try:
            # The metrics up to a checkpoint's step are written before it.
            if self.metrics:
                write_or_make_space(self.metrics.flush, self.run.checkpoint_dir)
            write_or_make_space(
                lambda: save_checkpoint(self.run.checkpoint_dir, step, state, keep), self.run.checkpoint_dir
            )
            self.saved_step = step
        except OSError as error:
            logger.warning(
                f"cannot save a checkpoint at step {step}: {error}; training continues, the last checkpoint is from "
                f"step {self.saved_step}"
            )

    def _restore(self) -> int:
        """Restore the newest checkpoint, if there is one, and return its step."""
        state = load_checkpoint(self.run.checkpoint_dir)
        if state is None:
            if (self.run.path / METRICS_FILE).exists():
                logger.warning(f"{self.run.path} has no checkpoint: training starts again")
            return 0
        try:
            self._check_provenance(state["provenance"])
            for name, part in self.state_objects.items():
                part.load_state_dict(state[name])
            for name, callback in self._name_callbacks():
                if name in state["callbacks"]:  # else it is a new one
                    callback.load_state_dict(state["callbacks"][name])
            step, last = state["step"], self.steps_per_epoch * max(self.epochs_before, self.config.epochs)
            if type(step) is not int or not 0 <= step <= last:
                raise ValueError(f"step must be between 0 and {last}, got {step!r}")
            return step
        except ConfigError:
            raise
        except (RuntimeError, *MALFORMED_ERRORS) as error:
            raise ConfigError(f"a checkpoint in {self.run.checkpoint_dir} does not fit the model: {error!r}") from error

    def _extend(self) -> None:
        """Switch to the schedule of the config's number of epochs, and record this in the run."""
        step, epochs = self.step_number, self.config.epochs
        if self.total_steps < step:
            trained = math.ceil(step / self.steps_per_epoch)
            raise ConfigError(
                f"{self.run.path} has been trained for {trained} epochs: --epochs must not be less, got {epochs}"
            )
        before = next((e.epochs_before for e in self.run.extensions if step < e.step), self.epochs_before)
        kept = [e for e in self.run.extensions if e.step <= step]
        self.run = replace(self.run, extensions=(*kept, Extension(step, before, epochs)))
        run_on_rank_zero(self.fabric, self.run.save_extension)
        logger.info(
            f"changing from {self.epochs_before} to {epochs} epochs: from step {step} on, the learning rate follows "
            f"the schedule of {self.total_steps} steps"
        )

    def _check_provenance(self, saved: dict[str, Any]) -> None:
        """Raise a ConfigError if the checkpoint's config or data would give another result."""
        fields, current = dict(saved["config"]), self.provenance
        if fields.get("epochs") in {self.epochs_before, *(e.epochs_before for e in self.run.extensions)}:
            fields["epochs"] = self.config.epochs
        names = [name for name, value in current["config"].items() if fields.get(name) != value]
        names += ["instances"] if saved["instances"] != current["instances"] else []
        objects = saved["objects"] | current["objects"]
        names += [name for name in objects if saved["objects"].get(name) != current["objects"].get(name)]
        if saved["ranks"] != current["ranks"]:
            if self.config.grad_cache_chunk or not self.config.sync_batch_norm:
                names.append(f"number of ranks (was {saved['ranks']}; it affects batch norm here)")
            else:
                logger.warning(
                    f"{self.run.path} resumes with {current['ranks']} ranks instead of {saved['ranks']}: "
                    "results are equal up to rounding"
                )
        if names:
            raise ConfigError(f"cannot resume {self.run.path}: its checkpoint has different {', '.join(names)}")

    def all_reduce(self, value: Tensor, operation: str) -> Tensor:
        result = self.fabric.all_reduce(value, reduce_op=operation)
        assert isinstance(result, Tensor)
        return result

    def check_stop(self, stop: SignalCatcher) -> bool:
        """Return whether a callback of any rank stops the training after this step.

        Save a checkpoint and raise TrainingInterrupted if any rank received a signal. On GPUs the ranks exchange both
        only every `log_every` steps, because the all-reduce synchronizes the GPU.
        """
        signum, should_stop = stop.signum, self.should_stop
        if self.fabric.world_size > 1:
            if self.fabric.device.type == "cuda" and self.step_number % self.config.log_every:
                return False
            requests = torch.tensor([signum, should_stop], device=self.fabric.device)
            signum, should_stop = self.all_reduce(requests, "max").tolist()
        if signum and self.step_number < self.total_steps and not should_stop:
            self.save()
            self.fabric.barrier()
            raise TrainingInterrupted(
                f"stopped at step {self.step_number} of {self.total_steps}; the last checkpoint is from step "
                f"{self.saved_step}. {self.resume_hint}",
                signum,
            )
        return bool(should_stop)

    def finish(self) -> None:
        """Save the model. The other ranks do not wait if the disk is full."""
        if self.is_rank_zero:
            self.task.finish_model(self.final_model)  # with the workers of monitoring
        self.task.stop_workers()
        if self.is_rank_zero:
            self.write(self.save_model, meanwhile=self.fabric.barrier)
        else:
            self.fabric.barrier()

    def write(self, write: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Write a result; call `meanwhile` before waiting for space if the disk is full, else afterwards."""
        failure = None
        try:
            write_or_make_space(write, self.run.checkpoint_dir)
        except DiskFullError as error:
            failure = error
        meanwhile()
        if failure is not None:
            retry_until_written(write, self.run.checkpoint_dir, failure, self.saved_step, self.resume_hint)

    def save_model(self) -> None:
        self.run.save_model(self.final_model)
        if self.metrics:
            self.metrics.flush()

    def evaluate(self, evaluate_model: Callable[[MultiViewModel], Evaluation], stopped: int) -> None:
        """Evaluate and save the result, on rank 0 only: it may take longer than the timeout of the other ranks."""
        message = f"training finished and the encoder is saved, but the evaluation was interrupted. {self.resume_hint}"
        if stopped:
            raise TrainingInterrupted(message, stopped)
        logger.info("training finished, evaluating")
        try:
            result = evaluate_model(self.final_model)
            if result.skipped_reason:
                logger.info(result.skipped_reason)
            for line in result.better_baselines:
                logger.info(line, extra=FILE_ONLY)
            self.write(partial(self.run.save_evaluation, result.to_json()))
        except TrainingInterrupted:
            raise
        except KeyboardInterrupt as stop:
            raise TrainingInterrupted(message, getattr(stop, "exit_code", 128 + signal.SIGINT) - 128) from stop
        except (ValueError, RuntimeError) as error:
            if is_process_lost(error):
                raise
            logger.warning(f"evaluation failed: {error}")

    @property
    def resume_hint(self) -> str:
        return f"Resume with: manyviews train --resume {self.run.path}"

    def make_divergence_error(self, reason: str, step: int, rate: float) -> DivergedError:
        hint = "; --detect-anomaly reports which operation produces the first NaN gradient"
        return DivergedError(
            f"{reason}, at step {step} of {self.total_steps} with learning rate {rate:.4g}. Earlier checkpoints are in "
            f"{self.run.checkpoint_dir}. Try a smaller --learning-rate, a longer --warmup-fraction or a larger "
            f"--temperature{'' if self.config.detect_anomaly else hint}"
        )


def is_process_lost(error: Exception) -> bool:
    """Return whether the error means that a data loading worker or another rank has died."""
    text = str(error)
    lost = "DataLoader worker" in text or "/gloo/" in text or "Gloo" in text or isinstance(error, DistError)
    return lost and isinstance(error, RuntimeError)
