"""Losses without pairs of instances: nuclear norm of centroids, coding rate, distance from a normal distribution.

They compare the distribution of a whole batch with a target, so that instances do not have a loss of their own. The
functions take embeddings (M, N, d), zero where a view is missing in the mask (M, N), and return a scalar.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from manyviews.losses._batch import GatheredBatch
from manyviews.losses._keyed import KeyedLoss
from manyviews.losses._linalg import compute_logdet, compute_nuclear_norm, normalize_or_zero
from manyviews.losses._masked import masked_mean
from manyviews.losses._sigreg import compute_sigreg, draw_slices
from manyviews.losses.base import MultiViewLoss


class SpectralLoss(MultiViewLoss):
    """Base class of the losses of a whole batch; they have no temperature."""

    per_instance = False
    audit_error = "it has no energies of pairs of instances"

    def __init__(
        self, temperature: float | Tensor | None = None, *, learn_temperature: bool = False, **options: Any
    ) -> None:
        if temperature is not None or learn_temperature:
            raise ValueError(f"{type(self).__name__} does not have a temperature")
        super().__init__(**options)


class MMCRLoss(SpectralLoss):
    """MMCR: centroids of the views of an instance that point in as many directions as possible.

    The nuclear norm of the centroids (M, d) is large if they are long, which is alignment, and spread over dimensions,
    which is uniformity. It grows with the number of instances.

    Args:
        local_weight: factor of the mean nuclear norm of the views of an instance, the paper's lambda.

    References:
        Yerxa et al., *Learning Efficient Coding of Natural Images with Maximum Manifold Capacity Representations*
        (2023), https://arxiv.org/abs/2303.03307. On W ranks the gradients of the released code are 1/W of these.

    Examples:
        >>> loss = MMCRLoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "-|C|_* + lambda mean_i |U_i|_*, C the means over views, |.|_* the nuclear norm"
    cost = "M d²"

    def __init__(self, temperature: None = None, *, local_weight: float = 0.0, **options: Any) -> None:
        super().__init__(temperature, **options)
        self.local_weight = _check_weight("local_weight", local_weight)

    def compute_loss(self, batch: GatheredBatch) -> Tensor:
        return compute_mmcr(batch.z, batch.mask, local_weight=self.local_weight)


class EMPSSLLoss(SpectralLoss):
    """EMP-SSL: views close to their mean, and a large coding rate of each view.

    It was proposed for many crops (about 20 and more) and few epochs.

    Args:
        invariance_weight: factor of the mean cosine of a view and the mean of the views of its instance.
        eps: the squared distortion of the coding rate.

    References:
        Tong et al., *EMP-SSL: Towards Self-Supervised Learning in One Training Epoch* (2023),
        https://arxiv.org/abs/2304.03977. As in the released code `eps` is not squared.

    Examples:
        >>> loss = EMPSSLLoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "-w mean_il cos(u_il, mean_m u_im) - mean_l logdet(I + d U_l' U_l / (M eps)) / 2"
    cost = "M N d²"

    def __init__(
        self, temperature: None = None, *, invariance_weight: float = 200.0, eps: float = 0.2, **options: Any
    ) -> None:
        super().__init__(temperature, **options)
        if not 0 < eps < math.inf:
            raise ValueError(f"eps must be a finite number > 0, got {eps}")
        self.invariance_weight, self.eps = _check_weight("invariance_weight", invariance_weight), eps

    def compute_loss(self, batch: GatheredBatch) -> Tensor:
        return compute_emp_ssl(batch.z, batch.mask, invariance_weight=self.invariance_weight, eps=self.eps)


class LeJEPALoss(SpectralLoss, KeyedLoss):
    """LeJEPA: views close to their mean, and embeddings with a standard normal distribution (SIGReg).

    The embeddings are used as they are: do not normalize them. The random directions are a function of `seed` and of
    the number of calls in training mode, which is in the state dict: a resumed training draws the same ones, and so
    does every rank. In evaluation mode they are always the same.

    Args:
        weight: of the distance from the normal distribution; the squared distances to the mean have 1 - weight.
        slices: number of random directions in which distributions are compared.
        seed: the key of the directions.

    References:
        Balestriero and LeCun, *LeJEPA: Provable and Scalable Self-Supervised Learning Without the Heuristics* (2025),
        https://arxiv.org/abs/2511.08544. Views are pulled to the mean of all views, in published variants to that of
        the global crops; and each view has its own distance from the normal distribution, in a variant
        all views have one.

    Examples:
        >>> loss = LeJEPALoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "w mean_l SIGReg(z_l) + (1 - w) mean (z - mean_l z)²"
    cost = "M N d S"
    normalize = False

    def __init__(
        self, temperature: None = None, *, weight: float = 0.02, slices: int = 256, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(temperature, seed=seed, **options)
        if not 0 <= weight <= 1:
            raise ValueError(f"weight must be between 0 and 1, got {weight}")
        if isinstance(slices, bool) or not isinstance(slices, int) or slices < 1:
            raise ValueError(f"slices must be an integer >= 1, got {slices}")
        self.weight, self.slices = weight, slices

    def compute_loss(self, batch: GatheredBatch) -> Tensor:
        z = batch.z
        slices = draw_slices(self.get_next_step(z.device), self.seed, z.shape[2], self.slices, z)
        return compute_lejepa(z, batch.mask, slices, weight=self.weight)


def _check_weight(name: str, weight: float) -> float:
    if not 0 <= weight < math.inf:
        raise ValueError(f"{name} must be a finite number >= 0, got {weight}")
    return weight


def compute_centroids(z: Tensor, mask: Tensor | None) -> Tensor:
    """Return the means (M, d) of the existing views; 0 if there are none."""
    if mask is None:
        return z.mean(1)
    return z.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def compute_mmcr(z: Tensor, mask: Tensor | None, *, local_weight: float = 0.0) -> Tensor:
    """Maximize the nuclear norm of the centroids, and minimize that of the views of each instance."""
    loss = -compute_nuclear_norm(compute_centroids(z, mask))
    if local_weight == 0:
        return loss
    local = compute_nuclear_norm(z)
    return loss + local_weight * (local.mean() if mask is None else masked_mean(local, mask.any(1), 0))


def compute_emp_ssl(z: Tensor, mask: Tensor | None, *, invariance_weight: float = 200.0, eps: float = 0.2) -> Tensor:
    """Maximize the cosines of views and centroids, and the coding rate of each view."""
    centroids, _ = normalize_or_zero(compute_centroids(z, mask), torch.finfo(z.dtype).eps)
    cosines = (z * centroids[:, None]).sum(2)
    instances, views, dim = z.shape
    if mask is None:
        scale = z.new_full((views,), dim / (instances * eps))
        invariance, rates = cosines.mean(), compute_logdet(z.transpose(0, 1), scale).mean()
    else:
        counts = mask.sum(0)
        scale = dim / (counts.clamp_min(1).to(z) * eps)
        # A view without another one of its instance is its own centroid.
        invariance = masked_mean(cosines, mask & (mask.sum(1, keepdim=True) > 1), (0, 1))
        rates = masked_mean(compute_logdet(z.transpose(0, 1), scale), counts > 0, 0)
    return -invariance_weight * invariance - rates / 2


def compute_lejepa(z: Tensor, mask: Tensor | None, slices: Tensor, *, weight: float = 0.02) -> Tensor:
    """Pull the views of an instance to their mean, and the embeddings of each view to a normal distribution."""
    squares = (z - compute_centroids(z, mask)[:, None]).square()
    distances = compute_sigreg(z, mask, slices)
    if mask is None:
        return weight * distances.mean() + (1 - weight) * squares.mean()
    counted = mask & (mask.sum(1, keepdim=True) > 1)
    invariance = masked_mean(squares.mean(2), counted, (0, 1))
    return weight * masked_mean(distances, mask.any(0), 0) + (1 - weight) * invariance
