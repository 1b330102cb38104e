"""Common losses that are not in the paper, as functions of the same positives P and energies A."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from manyviews.losses._accumulate import KernelFunction, register_kernel
from manyviews.losses._batch import GatheredBatch
from manyviews.losses._masked import masked_logsumexp, masked_mean, safe_logaddexp
from manyviews.losses._memory_bank import BankViews
from manyviews.losses._tiled import Pairs
from manyviews.losses.base import disable_autocast
from manyviews.losses.energy import (
    EnergyLoss,
    compute_positives_and_energies,
    list_cross_view_pairs,
    list_same_view_pairs,
    update_memory_banks,
)
from manyviews.losses.kernels import Gaussian, Kernel, PositiveKernel
from manyviews.losses.multiview import NTXentLoss, PairLoss, PairwiseLoss


class AnchoredLoss(PairwiseLoss):
    """One view, the anchor, against each other view, as in ImageBind.

    An instance without the anchor view is only a negative.

    Args:
        anchor_view: the index of the anchor view.
        pair_loss: the loss of two views: "infonce", "ntxent" or "dhel".

    Examples:
        >>> loss = AnchoredLoss(anchor_view=0)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    _pair_description = "one of l, m the anchor"

    def __init__(
        self,
        temperature: float | Tensor = 0.5,
        *,
        anchor_view: int = 0,
        pair_loss: PairLoss = "infonce",
        **options: Any,
    ) -> None:
        super().__init__(pair_loss, temperature, **options)
        if not isinstance(anchor_view, int) or anchor_view < 0:
            raise ValueError(f"anchor_view must be the index of a view (an integer >= 0), got {anchor_view}")
        self.anchor_view = anchor_view
        weights = self.pair_weights
        if weights is not None and not any(weights[l][m] for l, m in self.list_pairs(len(weights))):
            raise ValueError(f"pair_weights of a pair with the anchor view {anchor_view} must be > 0, got {weights}")

    def list_pairs(self, views: int) -> Pairs:
        if self.anchor_view >= views:
            raise ValueError(f"anchor_view must be < {views}, the number of views, got {self.anchor_view}")
        return {(l, m) for l, m in list_cross_view_pairs(views) if self.anchor_view in (l, m)}

    def positive_pairs(self, views: int, device: torch.device | None = None) -> Tensor:
        is_anchor = torch.arange(views, device=device) == self.anchor_view
        return super().positive_pairs(views, device) & (is_anchor[:, None] ^ is_anchor)


class SupConLoss(NTXentLoss):
    """Supervised contrastive loss: all views of all instances with the same label are positives.

    It requires labels (M,): `SupConLoss()(z, labels=labels)`. An instance with one view also has positives: the other
    instances with its label. If all labels are different, the loss equals `NTXentLoss`.

    Examples:
        >>> loss = SupConLoss()(torch.randn(8, 4, 16), labels=torch.arange(8) % 3)
    """

    equation = "NT-Xent, the mean over all views of all instances of the label"
    requires_labels = True
    gaussian_only = "the sum over a class is computed with inner products"

    def forward(
        self,
        z: Tensor | Sequence[Tensor],
        mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        ids: Tensor | None = None,
    ) -> Tensor:
        with disable_autocast(z):
            batch = self.prepare(z, mask, labels, ids)
            if batch.labels is None:
                raise ValueError("SupConLoss requires labels=labels: without labels use NTXentLoss (ntxent)")
            ((P, A),) = compute_positives_and_energies([self], batch)
            update_memory_banks([self], batch)
            energy = masked_logsumexp(safe_logaddexp(P, A), 2)
            similarity, count = self._mean_class_similarity(batch)
            losses = masked_mean(energy - similarity, count > 0, 1)
            return self.reduce(losses, (count > 0).any(1), batch)

    def _mean_class_similarity(self, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        """Return the mean of log K over all other views with the same label, and their number (both (M, N))."""
        assert batch.labels is not None
        z = self.scale_by_temperature(batch.z)
        mask = torch.ones_like(z[:, :, 0]) if batch.mask is None else batch.mask.to(z)
        # Consecutive numbers of the labels, by sorting: `unique` would stop the device to know how many there are.
        ordered, order = batch.labels.sort()
        rank = (ordered[1:] != ordered[:-1]).long().cumsum(0)
        index = torch.zeros_like(order).scatter(0, order[1:], rank)
        # The inner product is linear: the sum over a class is the product with the sum of the class.
        class_sums = z.new_zeros(len(z), z.shape[2]).index_add(0, index, z.sum(1))
        class_sizes = z.new_zeros(len(z)).index_add(0, index, mask.sum(1))
        class_similarity = (z * (class_sums[index][:, None] - z)).sum(2)
        count = (class_sizes[index][:, None] - 1) * mask
        return class_similarity / count.clamp_min(1), count


class DCLLoss(EnergyLoss):
    """Decoupled contrastive loss: NT-Xent without the positives in the denominator.

    Examples:
        >>> loss = DCLLoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "mean_off [-P[l,m]] + mean_l LSE_m A[l,m]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        energy = masked_logsumexp(A, 2)
        return masked_mean(energy[:, :, None] - P, P != -torch.inf, (1, 2))


class SigLIPLoss(EnergyLoss):
    """Sigmoid loss of all pairs of views: an independent binary classification of each pair.

    P is the logit of a positive, A the sum of softplus(logit) over negatives. Temperature and bias
    are learned by default, starting from the values of the SigLIP paper.

    Examples:
        >>> loss = SigLIPLoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "mean_off [softplus(-P) + sum_j softplus(s/t + bias)], P = s/t + bias"
    log_space = False
    gaussian_only = "the logits are inner products"

    def __init__(
        self,
        temperature: float | Tensor = 0.1,
        *,
        bias: float = -10.0,
        learn_temperature: bool | None = None,
        **options: Any,
    ) -> None:
        if not math.isfinite(bias):
            raise ValueError(f"bias must be a finite number, got {bias}")
        learn = not isinstance(temperature, Tensor) if learn_temperature is None else learn_temperature
        super().__init__(temperature, learn_temperature=learn, **options)
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learn_temperature is not False)

    def required_energies(self, views: int) -> Pairs:
        return list_cross_view_pairs(views)

    def compute_log_kernel(self, similarity: Tensor) -> Tensor:
        return similarity + self.bias.to(similarity)

    def make_kernel_function(self) -> KernelFunction:
        return _softplus_logit

    def kernel_parameters(self, like: Tensor) -> tuple[Tensor, ...]:
        return (self.bias.to(like),)

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        return masked_mean(softplus(-P) + A, P != -torch.inf, (1, 2))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bias={float(self.bias.detach()):g}"


_ONE = register_kernel(torch.ones_like)


def _softplus_logit(similarity: Tensor, bias: Tensor) -> Tensor:
    return softplus(similarity + bias)


class KernelContrastiveLoss(EnergyLoss):
    """Kernel contrastive loss of any number of views: means of kernels instead of logarithms of sums.

    P is the kernel of a positive, A the mean kernel over negatives of the same view. Any kernel is allowed; only a
    positive kernel has a temperature.

    Examples:
        >>> loss = KernelContrastiveLoss(gamma=16.0)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "-mean_off K[l,m] + gamma mean_l mean_j K[l,l]"
    log_space = False

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        *,
        kernel: Kernel | None = None,
        gamma: float = 16.0,
        **options: Any,
    ) -> None:
        is_positive = kernel is None or isinstance(kernel, PositiveKernel)
        if not is_positive and (temperature is not None or options.get("learn_temperature")):
            raise ValueError(f"{kernel} does not take a temperature: set the parameters of the kernel instead")
        if not 0 < gamma < math.inf:
            raise ValueError(f"gamma must be > 0, got {gamma}")
        default = 0.25 if kernel is None or isinstance(kernel, Gaussian) else 1.0
        super().__init__(default if temperature is None else temperature, kernel=kernel, **options)
        self.gamma = gamma

    def check_kernel(self, kernel: Kernel) -> Kernel:
        return kernel if hasattr(kernel, "value") else super().check_kernel(kernel)

    def required_energies(self, views: int) -> Pairs:
        return list_same_view_pairs(views)

    def scale_by_temperature(self, z: Tensor) -> Tensor:
        return z

    def make_kernel_function(self) -> KernelFunction:
        return self.kernel.value

    def kernel_parameters(self, like: Tensor) -> tuple[Tensor, ...]:
        return (self.temperature_tensor(like),) if isinstance(self.kernel, PositiveKernel) else ()

    def compute_energies(
        self, x: Tensor, mask: Tensor | None, required: Pairs, batch: GatheredBatch, bank: BankViews | None = None
    ) -> Tensor:
        sums = super().compute_energies(x, mask, required, batch, bank)
        if mask is None and batch.ids is None and bank is None:
            return sums / (len(x) - 1)
        count = self.sum_kernel(_ONE, (), x.detach(), mask, required, batch, bank)
        return sums / count.clamp_min(1)

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        is_positive = P != -torch.inf
        energy = masked_mean(A.diagonal(dim1=1, dim2=2), is_positive.any(2), 1)
        return self.gamma * energy - masked_mean(P, is_positive, (1, 2))
