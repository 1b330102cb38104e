"""The first lines of the log of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from manyviews.training.trainer import Trainer


def make_banner(trainer: Trainer) -> list[str]:
    """Make the lines that say what is trained, on which data, how long and on which machine."""
    config, task, ranks = trainer.config, trainer.task, trainer.fabric.world_size
    threads, classes = torch.get_num_threads(), ""
    if config.max_instances is not None and task.labels is not None:
        used, total = len(task.labels.unique()), len(task.data.class_names)
        classes = f" of {used} of {total} classes" if used < total else ""
    action = f"resuming at step {trainer.step_number}" if trainer.step_number else "training"
    machine = (
        f"{ranks} {'rank' if ranks == 1 else 'ranks'} on {trainer.fabric.device.type}, "
        f"{threads} CPU {'thread' if threads == 1 else 'threads'}, precision {config.precision}"
    )
    epochs = f"{config.epochs} {'epoch' if config.epochs == 1 else 'epochs'}"
    steps = f"{trainer.total_steps} {'step' if trainer.total_steps == 1 else 'steps'}"
    lines = [
        f"{action}: {trainer.run.path}",
        f"  {task.data.name}, {len(task.train_indices):,} instances{classes}, {task.description}",
        f"  {task.monitored}",
        f"  {epochs}, {steps} of {config.instances_per_batch} instances; {machine}",
    ]
    if task.frozen:
        parts = ", ".join(f"{key}{f' before {until}' if until else ''}" for key, until in task.frozen.items())
        weights = list(trainer.model.parameters())
        count, total = (sum(w.numel() for w in weights if w.requires_grad >= least) for least in (True, False))
        lines.append(f"  frozen encoders: {parts}; {count:,} of {total:,} weights are trained")
    return lines
