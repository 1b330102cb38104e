"""Objectives beyond the paper that users expect, on the same positives P and energies A."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import softplus

from manyviews.losses import inputs
from manyviews.losses.affinity import logaddexp, logsumexp, mean
from manyviews.losses.kernels import Gaussian, Kernel, PositiveKernel
from manyviews.losses.objective import Objective, full_precision
from manyviews.losses.objectives import NTXent, PairLoss, Pairs, eye
from manyviews.losses.sums import Pointwise


class Anchored(Pairs):
    """One view against each other, as when one modality binds the rest (ImageBind).

    An instance without its anchor view counts as a negative only.

    Args:
        anchor: the number of the view, from 0.
        pair: which loss of two views.

    Examples:
        >>> loss = Anchored(anchor=0)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    which = "one of l, m the anchor"

    def __init__(
        self,
        temperature: float | Tensor = 0.5,
        *,
        anchor: int = 0,
        pair: PairLoss = "infonce",
        **options: Any,
    ) -> None:
        super().__init__(pair, temperature, **options)
        if not isinstance(anchor, int) or anchor < 0:
            raise ValueError(f"anchor must be the number of a view from 0, got {anchor}")
        self.anchor = anchor

    def pairs(self, views: int) -> Tensor:
        if self.anchor >= views:
            raise ValueError(f"anchor is view {self.anchor}, but there are {views} views from 0")
        is_anchor = torch.arange(views) == self.anchor
        return is_anchor[:, None] ^ is_anchor


class SupCon(NTXent):
    """Supervised contrastive loss: all views of all instances of a label are positives.

    Called with labels (M,): `SupCon()(z, labels=labels)`. An instance with one present view has positives too: other
    instances of its label. Where each instance has a label of its own, the loss is `NTXent`.

    Examples:
        >>> loss = SupCon()(torch.randn(8, 4, 16), labels=torch.arange(8) % 3)
    """

    equation = "NT-Xent, the mean over all views of all instances of the label"

    def accept_kernel(self, kernel: Kernel) -> Kernel:
        if not isinstance(kernel, Gaussian):
            raise ValueError(f"SupCon takes the Gaussian kernel, not {kernel}")
        return kernel

    def forward(self, z: Tensor, present: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        with full_precision(z):
            batch = self.prepare(z, present, labels)
            if batch.labels is None:
                raise ValueError("SupCon needs labels, SupCon()(z, labels=labels): without labels take NTXent (ntxent)")
            P, A = self.affinities(batch)
            energy = logsumexp(logaddexp(P, A), 2)
            positive, count = self._mean_positive(batch)
            losses = mean(energy - positive, count > 0, 1)
            return self.reduce(losses, (count > 0).any(1), batch)

    def _mean_positive(self, batch: inputs.Batch) -> tuple[Tensor, Tensor]:
        """Mean of log K with all other present views of the label (M, N), and how many they are."""
        assert batch.labels is not None
        z = self.scaled(batch.z)
        present = torch.ones_like(z[:, :, 0]) if batch.present is None else batch.present.to(z)
        classes, index = batch.labels.unique(return_inverse=True)
        # The inner product is linear: the sum over a class is the product with the class's sum.
        sums = z.new_zeros(len(classes), z.shape[2]).index_add(0, index, z.sum(1))
        sizes = z.new_zeros(len(classes)).index_add(0, index, present.sum(1))
        others = (z * (sums[index][:, None] - z)).sum(2)
        count = (sizes[index][:, None] - 1) * present
        return others / count.clamp_min(1), count


class DCL(Objective):
    """Decoupled contrastive loss: NT-Xent without the positives in the denominator.

    Examples:
        >>> loss = DCL()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "mean_off [-P[l,m]] + mean_l LSE_m A[l,m]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        energy = logsumexp(A, 2)
        return mean(energy[:, :, None] - P, P != -torch.inf, (1, 2))


class SigLIP(Objective):
    """Sigmoid loss of all pairs of views: each positive and each negative decided by itself.

    P is the logit of a positive, A the sum of softplus(logit) over negatives. Temperature and bias
    are learned by default, from the values of the SigLIP paper.

    Examples:
        >>> loss = SigLIP()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "mean_off [softplus(-P) + sum_j softplus(s/t + bias)], P = s/t + bias"
    logarithmic = False

    def __init__(
        self,
        temperature: float | Tensor = 0.1,
        *,
        bias: float = -10.0,
        learnable: bool | None = None,
        **options: Any,
    ) -> None:
        if not math.isfinite(bias):
            raise ValueError(f"bias must be a finite number, got {bias}")
        own = not isinstance(temperature, Tensor) if learnable is None else learnable
        super().__init__(temperature, learnable=own, **options)
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learnable is not False)

    def accept_kernel(self, kernel: Kernel) -> Kernel:
        if not isinstance(kernel, Gaussian):
            raise ValueError(f"siglip is a loss of logits: it takes no kernel, got {kernel}")
        return kernel

    def blocks(self, views: int) -> Tensor:
        return ~eye(views)

    def affinity(self, similarity: Tensor) -> Tensor:
        return similarity + self.bias.to(similarity)

    def pointwise(self) -> tuple[Pointwise | None, tuple[Tensor, ...]]:
        return lambda s, bias: softplus(s + bias), (self.bias,)

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        return mean(softplus(-P) + A, P != -torch.inf, (1, 2))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bias={float(self.bias.detach()):g}"


class KernelContrastive(Objective):
    """Kernel contrastive loss over many views: mean kernels instead of logarithms of sums.

    P is the kernel of a positive, A the mean kernel over negatives of the same view. Takes any kernel;
    a temperature only with a positive one.

    Examples:
        >>> loss = KernelContrastive(gamma=16.0)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "-mean_off K[l,m] + gamma mean_l mean_j K[l,l]"
    logarithmic = False

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        *,
        kernel: Kernel | None = None,
        gamma: float = 16.0,
        **options: Any,
    ) -> None:
        positive = kernel is None or isinstance(kernel, PositiveKernel)
        if not positive and (temperature is not None or options.get("learnable")):
            raise ValueError(f"{kernel} takes no temperature: its own parameters shape it")
        if not 0 < gamma < math.inf:
            raise ValueError(f"gamma must be > 0, got {gamma}")
        default = 0.25 if kernel is None or isinstance(kernel, Gaussian) else 1.0
        super().__init__(default if temperature is None else temperature, kernel=kernel, **options)
        self.gamma = gamma

    def accept_kernel(self, kernel: Kernel) -> Kernel:
        return kernel if hasattr(kernel, "value") else super().accept_kernel(kernel)

    def blocks(self, views: int) -> Tensor:
        return eye(views)

    def scaled(self, z: Tensor) -> Tensor:
        return z

    def pointwise(self) -> tuple[Pointwise | None, tuple[Tensor, ...]]:
        if isinstance(self.kernel, PositiveKernel):
            return self.kernel.value, (self._temperature_tensor(),)
        return self.kernel.value, ()

    def energies(self, z: Tensor, present: Tensor | None, blocks: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        sums = super().energies(z, present, blocks, group)
        if present is None:
            return sums / (len(z) - 1)
        count = present.sum(0) - present.long()
        return sums / count.clamp_min(1)[:, None, :]

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        there = P != -torch.inf
        energy = mean(A.diagonal(dim1=1, dim2=2), there.any(2), 1)
        return self.gamma * energy - mean(P, there, (1, 2))
