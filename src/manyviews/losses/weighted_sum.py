"""A weighted sum of losses that computes what they have in common once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

from torch import Tensor, nn

from manyviews.losses._batch import GatheredBatch
from manyviews.losses.base import MultiViewLoss
from manyviews.losses.energy import EnergyLoss, compute_positives_and_energies, update_memory_banks


class WeightedSumLoss(MultiViewLoss):
    """The weighted sum of several losses, for example of one that aligns pairs and one that sees joint structure.

    Losses of positives and energies with the same temperature and kernel share them: the sum of "mv-dhel" and
    "prod-dhel" costs no more than "prod-dhel". A sum also has a name, `get_loss("mv-dhel+0.5*prod-dhel")`.

    Args:
        parts: pairs (loss, weight); a loss is a name or a `MultiViewLoss` with reduction "mean" or "none" like the sum.
        **options: options of the losses given by name, such as `temperature`; with `learn_temperature` those that
            start from the same temperature share it, with `memory_bank` all of them share one bank.

    Examples:
        >>> import torch
        >>> loss = WeightedSumLoss([("mv-dhel", 1.0), ("prod-dhel", 0.5)], temperature=0.5)
        >>> loss(torch.randn(8, 3, 16)).shape
        torch.Size([])
    """

    def __init__(self, parts: Sequence[tuple[str | MultiViewLoss, float]], **options: Any) -> None:
        from manyviews.losses.registry import get_default_temperature, get_loss

        if not parts:
            raise ValueError("a weighted sum needs at least one (loss, weight)")
        common = {k: v for k, v in options.items() if k in ("reduction", "gather_distributed", "validate")}
        super().__init__(**common)
        losses, self.weights = [], tuple(float(weight) for _, weight in parts)
        for part, weight in parts:
            if not math.isfinite(float(weight)) or float(weight) == 0:
                raise ValueError(f"weights must be finite and not 0, got {weight} for {part}")
            if isinstance(part, str):
                has_temperature = get_default_temperature(part) is not None
                own = {k: v for k, v in options.items() if has_temperature or "temperature" not in k}
                loss = get_loss(part, **own)
            else:
                loss = part
            if not loss.per_instance and self.reduction == "none":
                raise ValueError(f'{type(loss).__name__} is a loss of the whole batch: reduction must be "mean"')
            if (loss.reduction, loss.gather_distributed) != (self.reduction, self.gather_distributed):
                raise ValueError(f"reduction and gather_distributed of {loss} must be those of the sum")
            if loss.requires_labels:
                raise ValueError(f"a weighted sum has no labels, which {type(loss).__name__} requires")
            losses.append(loss)
        named = [loss for loss, (part, _) in zip(losses, parts, strict=True) if isinstance(part, str)]
        _share(named, "log_temperature", key=lambda parameter: parameter.item())
        _share(named, "memory_bank")
        self.parts = nn.ModuleList(losses)
        groups: dict[Hashable, list[int]] = {}
        for i, loss in enumerate(losses):
            if isinstance(loss, EnergyLoss):
                groups.setdefault(loss.share_key(), []).append(i)
        self._groups = list(groups.values())
        self.min_views, self.max_views = max(p.min_views for p in losses), min(p.max_views for p in losses)
        self.equation = " + ".join(f"{w:g} [{p.equation}]" for w, p in zip(self.weights, losses, strict=True))
        if len({p.normalize for p in losses}) > 1:
            raise ValueError("losses of unit embeddings and of embeddings of any length cannot be summed")
        self.normalize, self.uses_ids = losses[0].normalize, all(p.uses_ids for p in losses)

    @property
    def temperature(self) -> float | Tensor | None:
        """The temperature of the first loss that has one."""
        return next((part.temperature for part in self._get_parts() if part.temperature is not None), None)

    @property
    def has_memory_bank(self) -> bool:
        return any(part.has_memory_bank for part in self._get_parts())

    def _get_parts(self) -> list[MultiViewLoss]:
        return [cast(MultiViewLoss, part) for part in self.parts]

    def compute_loss(self, batch: GatheredBatch) -> Tensor:
        parts = self._get_parts()
        energies: dict[int, tuple[Tensor, Tensor]] = {}
        for group in self._groups:
            shared = [cast(EnergyLoss, parts[i]) for i in group]
            energies.update(zip(group, compute_positives_and_energies(shared, batch), strict=True))
        update_memory_banks([part for part in parts if isinstance(part, EnergyLoss)], batch)
        total = batch.z.new_zeros(())
        for i, (weight, part) in enumerate(zip(self.weights, parts, strict=True)):
            if isinstance(part, EnergyLoss):
                P, A = energies[i]
                loss = part.reduce(*part.compute_from_energies(P, A, batch), batch)
            else:
                loss = part.compute_loss(batch)
            total = total + weight * loss
        return total

    @property
    def options_text(self) -> str:
        parts = zip(self.weights, self._get_parts(), strict=True)
        return f"WeightedSumLoss {[(weight, part.options_text) for weight, part in parts]}"


def _share(losses: Sequence[MultiViewLoss], name: str, key: Callable[[Any], Hashable] = lambda _: None) -> None:
    """Give the losses the attribute of the first one that has it; those with another key keep their own."""
    first: dict[Hashable, Any] = {}
    for loss in losses:
        value = getattr(loss, name, None)
        if value is not None:
            setattr(loss, name, first.setdefault(key(value), value))
