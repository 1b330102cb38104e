"""`Callback`: functions of the user that a training calls, with the names and arguments of Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyviews.utils import describe_type

if TYPE_CHECKING:
    from manyviews.models import MultiViewModel, ViewBatch
    from manyviews.training.trainer import Trainer


class Callback:
    """Base class of callbacks; all methods do nothing. Every rank calls them, except `on_validation_end`.

    Set `trainer.should_stop = True` to end the training after the current step: the model is then saved and evaluated.
    `trainer.global_step`, `trainer.current_epoch` and `trainer.callback_metrics` are as in Lightning. State that
    `state_dict` returns (numbers, texts, tensors, and lists and dicts of them) is saved in checkpoints.

    Examples:
        >>> class StopAtLoss(Callback):
        ...     def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        ...         trainer.should_stop = outputs["loss"].item() < 1
    """

    def on_train_start(self, trainer: Trainer, model: MultiViewModel) -> None:
        """Called before the first step, also of a resumed run."""

    def on_train_batch_end(
        self, trainer: Trainer, model: MultiViewModel, outputs: dict[str, Any], batch: ViewBatch, batch_idx: int
    ) -> None:
        """Called after each step; `outputs` has the loss and the learning rate."""

    def on_validation_end(self, trainer: Trainer, model: MultiViewModel) -> None:
        """Called on rank 0 after the monitored instances were evaluated; see `trainer.callback_metrics`."""

    def on_train_end(self, trainer: Trainer, model: MultiViewModel) -> None:
        """Called after the last step, before the model is saved."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that checkpoints save."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""


def check_callbacks(callbacks: object) -> None:
    """Raise a TypeError unless the value is a list or tuple of objects with all methods of `Callback`."""
    if not isinstance(callbacks, list | tuple):
        raise TypeError(f"callbacks must be a list, such as [CALLBACK], got {describe_type(callbacks)}")
    methods = [name for name in vars(Callback) if not name.startswith("_")]
    for callback in callbacks:
        if isinstance(callback, type):
            name = callback.__name__
            raise TypeError(f"callbacks must be objects, got the class {name}: use {name}()")
        if missing := [name for name in methods if not callable(getattr(callback, name, None))]:
            got = f"{describe_type(callback)} without {missing[0]}"
            raise TypeError(f"callbacks must have all methods of mv.Callback, got {got}: extend mv.Callback")
