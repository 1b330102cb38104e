"""Validation of tensors."""

import torch
from torch import Tensor


def check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}: use torch.as_tensor(...)")


def check_finite(name: str, h: Tensor) -> None:
    """Raise if h contains NaN or infinity, without allocating a mask of the size of h."""
    check_tensor(name, h)
    if not h.sum(dtype=None if h.dtype == torch.float64 else torch.float32).isfinite():
        raise ValueError(f"{name} must be finite, got NaN or infinity in {tuple(h.shape)} values")


def check_labels(name: str, h: Tensor, labels: Tensor, num_classes: int | None = None) -> Tensor:
    """Return labels as int64; raise unless h is finite (n, d) with n labels from 0."""
    check_tensor(name, h)
    check_tensor("labels", labels)
    if h.dim() != 2 or labels.shape != h.shape[:1] or len(h) == 0:
        raise ValueError(f"{name} must be (n, d) with n labels, got {tuple(h.shape)} and {tuple(labels.shape)}")
    if (
        labels.is_floating_point()
        or int(labels.min()) < 0
        or (num_classes is not None and int(labels.max()) >= num_classes)
    ):
        expected = "0, 1, ..." if num_classes is None else f"0 to {num_classes - 1}"
        raise ValueError(f"labels must be integers {expected}, got {labels.min()} to {labels.max()} ({labels.dtype})")
    check_finite(name, h)
    return labels.long()
