"""Base class of all losses: checks, normalization, gathering, masks, precision, reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from manyviews.losses._batch import GatheredBatch, check_choice, check_temperature, normalize_and_gather

Reduction = Literal["mean", "none"]


class MultiViewLoss(nn.Module):
    """A loss of embeddings (M, N, d): M instances, N views of each.

    A subclass defines `compute_losses`, a loss for each instance, or `compute_loss`, one for the batch
    (`per_instance = False`). A loss that is a function of positives and energies extends `EnergyLoss` instead.

    Args:
        temperature: a number > 0, or a scalar tensor (such as a parameter of yours), which is used as it is. None for a
            loss without a temperature.
        learn_temperature: make the temperature a parameter, stored as its logarithm.
        reduction: "mean" over the instances with at least two views, or "none": losses (M,) of this rank's instances,
            0 for those with fewer.
        gather_distributed: on several ranks, use the instances of all ranks as negatives. Every rank must then call the
            loss; average the gradients over ranks, as DistributedDataParallel does.
        validate: check the values of the embeddings, which reads them on the host. None: on a CPU, unless the loss is
            compiled. Without the check invalid embeddings give a NaN loss, no exception, and every rank must pass a
            mask, or none.

    Examples:
        >>> class Spread(MultiViewLoss):
        ...     per_instance = False
        ...
        ...     def compute_loss(self, batch):
        ...         return -batch.z.mean(1).std(0).mean()
        >>> Spread()(torch.randn(8, 3, 16)).shape
        torch.Size([])
    """

    equation: str = ""
    """The loss of one instance in one line; LSE is log-sum-exp, (+) is logaddexp, `off` means all l != m."""
    cost: str = ""
    """How the number of operations grows, if it does not follow from the energies."""
    max_views: float = math.inf
    """Largest number of views of an instance."""
    min_views: int = 2
    """Smallest number of views of an instance that has a loss."""
    normalize: bool = True
    """Scale embeddings to unit length; if false, the loss gets them as they are."""
    per_instance: ClassVar[bool] = True
    """Each instance has a loss of its own; if false, only the batch has one."""
    mask_error: ClassVar[str] = ""
    """Why the loss has no meaning for missing views, if it has none."""
    requires_labels: ClassVar[bool] = False
    """The loss is called with labels."""
    uses_ids: bool = False
    """`ids` select negatives."""
    audit_error: ClassVar[str] = ""
    """Why the paper's principles cannot be measured, if they cannot."""

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        *,
        learn_temperature: bool = False,
        reduction: Reduction = "mean",
        gather_distributed: bool = True,
        validate: bool | None = None,
    ) -> None:
        super().__init__()
        check_choice("reduction", reduction, Reduction)
        if reduction == "none" and not self.per_instance:
            raise ValueError(f'{type(self).__name__} is a loss of the whole batch: reduction must be "mean"')
        if temperature is not None:
            check_temperature(temperature)
        if learn_temperature and not isinstance(temperature, (int, float)):
            raise ValueError("learn_temperature requires a number as temperature; for a tensor, pass an nn.Parameter")
        self._temperature = temperature if isinstance(temperature, (Tensor, NoneType)) else float(temperature)
        log = nn.Parameter(torch.tensor(math.log(temperature))) if learn_temperature and temperature else None
        self.log_temperature: nn.Parameter | None = log
        self.reduction, self.gather_distributed, self.validate = reduction, gather_distributed, validate

    def compute_losses(self, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        """Compute the losses (M,) of all ranks' instances, and which of them (M,) count in the mean."""
        shape = tuple(batch.z.shape)
        raise TypeError(f"{type(self).__name__} must define compute_losses(batch) or compute_loss(batch), got {shape}")

    def select_counted(self, mask: Tensor) -> Tensor:
        """Return which instances (M,) have the views that the loss aligns, from the mask (M, N)."""
        return mask.sum(1) >= self.min_views

    def compute_loss(self, batch: GatheredBatch) -> Tensor:
        """Compute the loss of a batch of all ranks' instances."""
        return self.reduce(*self.compute_losses(batch), batch)

    def forward(self, z: Tensor | Sequence[Tensor], mask: Tensor | None = None, *, ids: Tensor | None = None) -> Tensor:
        """Compute the loss of embeddings z (M, N, d) of any norm, or of a list of N views (M, d).

        `mask` (M, N) is true where a view exists. An instance with one view is only a negative. Instances with the
        same integer in `ids` (M,) are not each other's negatives. The loss is computed in float32 (float64 for float64
        embeddings), under autocast too.

        Raises:
            ValueError, TypeError: fewer than two views or instances, NaN, inf or zero embeddings, a
                temperature that is not positive, views of different shapes, a mask of another shape or device.

        Examples:
            >>> from manyviews.losses import MVDHELLoss
            >>> z1, z2, z3 = torch.randn(3, 8, 16)
            >>> loss = MVDHELLoss()([z1, z2, z3])  # the same as MVDHELLoss()(torch.stack([z1, z2, z3], 1))
        """
        with disable_autocast(z):
            return self.compute_loss(self.prepare(z, mask, ids=ids))

    def prepare(
        self,
        z: Tensor | Sequence[Tensor],
        mask: Tensor | None = None,
        labels: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> GatheredBatch:
        """Check a batch, normalize its embeddings, and gather it from all ranks."""
        batch = normalize_and_gather(self, z, mask, labels, ids)
        name, views = type(self).__name__, batch.z.shape[1]
        if not self.min_views <= views <= self.max_views:
            limit = f"at least {self.min_views}" if views < self.min_views < self.max_views else self.max_views
            hint = f": {_VIEWS_HINT}" if self.max_views == 2 else ""
            raise ValueError(f"{name} is a loss of {limit} views, got {views}{hint}")
        if mask is not None and self.mask_error:
            raise ValueError(f"{name} does not support missing views: {self.mask_error}")
        if ids is not None and not self.uses_ids:
            raise ValueError(f"{name} does not support ids, which select the negatives of losses of pairs of views")
        return batch

    def reduce(self, losses: Tensor, counted: Tensor, batch: GatheredBatch) -> Tensor:
        name, shape, got = type(self).__name__, tuple(counted.shape), tuple(losses.shape)
        if got != shape:
            raise ValueError(f"the formula of {name} must return a loss for each instance, {shape}, got {got}")
        if self.reduction == "none":
            return batch.local_shard(torch.where(counted, losses, 0.0))
        if batch.mask is None:
            return losses.mean()
        if batch.validate and not counted.any():
            raise ValueError(f"no instance has the views that {name} aligns: there are no positives")
        return torch.where(counted, losses, 0.0).sum() / counted.sum()

    @property
    def has_memory_bank(self) -> bool:
        """Instances of earlier batches are negatives."""
        return False

    @property
    def temperature(self) -> float | Tensor | None:
        """The current temperature: a number, a tensor if it is learned, or None if the loss has none."""
        return self._compute_temperature()

    def _compute_temperature(self) -> float | Tensor | None:
        log = self.log_temperature
        if log is None:
            return self._temperature
        return (log.float() if log.dtype in (torch.float16, torch.bfloat16) else log).exp()

    @property
    def options_text(self) -> str:
        """The class and all options except the temperature, as a text; equal losses have equal texts."""

        def describe(value: object) -> str:  # the repr of other objects may contain their address
            has_stable_repr = isinstance(value, (NoneType, bool, int, float, str, tuple)) or is_dataclass(value)
            return repr(value) if has_stable_repr else type(value).__qualname__

        return f"{type(self).__qualname__} { {k: describe(v) for k, v in self._list_options().items()} }"

    def _list_options(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "training"}

    def extra_repr(self) -> str:
        """Return the options that define the loss."""
        options = {k: repr(v) for k, v in self._list_options().items() if k not in _HIDDEN_OPTIONS}
        temperature = self.temperature
        if temperature is not None:
            value = temperature.detach() if isinstance(temperature, Tensor) else temperature
            options = {"temperature": f"{float(value):g}", **options}
        return ", ".join(f"{name}={value}" for name, value in options.items())


_VIEWS_HINT = "for more views use PairwiseLoss (pwe), LeaveOneOutLoss (avg) or a multi-view loss such as MVDHELLoss"
_HIDDEN_OPTIONS = {"cost", "equation", "gather_distributed", "implementation", "log_temperature", "max_views"}
_HIDDEN_OPTIONS |= {"memory_bank", "min_views", "normalize", "reduction", "uses_ids", "validate"}


def disable_autocast(z: Tensor | Sequence[Tensor]) -> AbstractContextManager[object]:
    """Disable autocast on the device of z; invalid values are rejected later, by the checks."""
    z = z[0] if isinstance(z, (list, tuple)) and z else z
    return torch.autocast(z.device.type, enabled=False) if isinstance(z, Tensor) else nullcontext()
