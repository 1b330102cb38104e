"""Progress of the steps of a training: a bar on a terminal, and lines in the log."""

from time import monotonic

from manyviews.utils import FILE_ONLY, LOG_EVERY_SECONDS, format_duration, logger, start_progress_bar


class StepProgress:
    """Shows the speed and the remaining time of `steps` steps, of which `done` are done."""

    def __init__(self, steps: int, done: int) -> None:
        self.steps, self.first = steps, done
        self.started = self.last_logged = monotonic()
        self.bar = start_progress_bar("", steps, done)

    def log_step(self, step: int, epoch: int, loss: float, rate: float, instances: int) -> None:
        """Report the progress after `step` steps; `instances` is the number per step."""
        now = monotonic()
        speed = (step - self.first) * instances / max(now - self.started, 1e-9)
        state = f"loss {loss:.4f}  rate {rate:.4g}  {speed:,.0f} instances/s"
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=step, description=f"epoch {epoch}", text=state)
        if now - self.last_logged >= LOG_EVERY_SECONDS or step == self.steps:
            self.last_logged = now
            left = format_duration((self.steps - step) * instances / speed)
            line = f"step {step}/{self.steps}  epoch {epoch}  {state}  {left} left"
            logger.info(line, extra=FILE_ONLY if self.bar else None)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar:
            self.bar.stop()
            self.bar = None
