"""Learning rate schedules."""

import math


def warmup_cosine_lr(step: int, total_steps: int, warmup_steps: int, peak_lr: float) -> float:
    """Return the learning rate of step 0 ... total_steps - 1: linear warm-up to `peak_lr`, then cosine decay to zero.

    Examples:
        >>> [round(warmup_cosine_lr(step, 6, 2, 1.0), 3) for step in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < warmup_steps:
        return peak_lr * (step + 1) / warmup_steps
    return peak_lr * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, total_steps - warmup_steps)))
