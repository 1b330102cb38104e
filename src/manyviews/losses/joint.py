"""Losses of all views of an instance at once: a product, a volume, an area, singular values.

They are not functions of the positives P and energies A, which contain only inner products of two views.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from manyviews.losses._batch import GatheredBatch, check_choice
from manyviews.losses._contrast import compute_contrast
from manyviews.losses._keyed import KeyedLoss
from manyviews.losses._linalg import decompose_views
from manyviews.losses._masked import masked_logsumexp
from manyviews.losses._multilinear import (
    compute_exhaustive_symile,
    compute_permuted_symile,
    draw_permutations,
    multiply,
)
from manyviews.losses._volumes import compute_gram, compute_triangle
from manyviews.losses.base import MultiViewLoss, disable_autocast

SymileNegatives = Literal["permuted", "all"]
MAX_LOGITS = 2**26
"""Largest number of logits of one view with `negatives="all"`."""


class JointLoss(MultiViewLoss):
    """Base class of the losses of all views at once."""

    audit_error = "it is not a function of inner products of two views"

    def get_inverse_temperature(self, z: Tensor) -> Tensor:
        """Return 1 / temperature as a scalar tensor; NaN if the temperature is not positive."""
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            temperature = temperature.to(z).reshape(())
            return torch.where(temperature >= 1e-6, temperature, torch.nan).reciprocal()
        assert temperature is not None
        return z.new_full((), 1 / temperature)

    def compute_counted(self, losses: Tensor, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        """Return the losses, and which instances count in the mean."""
        if batch.mask is None:
            return losses, torch.ones_like(losses, dtype=torch.bool)
        return losses, self.select_counted(batch.mask)

    def require_two(self, losses: Tensor, instances: Tensor, batch: GatheredBatch) -> Tensor:
        """Return the losses if two of the instances (M,) take part; if not, raise, or return NaN without validation."""
        if batch.validate and int(instances.sum()) < 2:
            reason = f"fewer than two instances have the views that {type(self).__name__} contrasts"
            raise ValueError(f"{reason}: there are no negatives")
        return losses.masked_fill(instances.sum() < 2, torch.nan)


class SymileLoss(JointLoss, KeyedLoss):
    """Symile: the sum over dimensions of the product of all views, against products of views of different instances.

    It sees what no pair of views contains, such as the third view if it is the XOR of the others. An instance takes
    part only if it has all views. The permutations are a function of `seed` and of the number of calls in training
    mode, which is in the state dict: a resumed training draws the same ones, and so does every rank. In evaluation mode
    they are always the same.

    Args:
        negatives: "permuted": M - 1 products of the other views, which are permuted independently. "all": all M^(N-1)
            combinations of the other views, for small batches.
        seed: the key of the permutations.

    References:
        Saporta et al., *Contrasting with Symile* (2024), https://arxiv.org/abs/2411.01053. The released code permutes
        every view, so that a negative may by chance consist of the instance's own views; here one view is not permuted.
        `SymileLoss()(z, permutations=permutations)` with permutations (N, N, M), for each anchor and other view, equals
        the released code.

    Examples:
        >>> loss = SymileLoss(temperature=0.1)(torch.randn(8, 3, 16))  # (instances, views, dim)
    """

    equation = "mean_l [-p + LSE_j u_l . w_lj / t], p = sum_d prod_m u_m / t"

    def __init__(
        self,
        temperature: float | Tensor = 0.07,
        *,
        negatives: SymileNegatives = "permuted",
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(temperature, seed=seed, **options)
        check_choice("negatives", negatives, SymileNegatives)
        self.negatives = negatives
        self.cost = "M² N" if negatives == "permuted" else "M^N N"

    def forward(
        self,
        z: Tensor | Sequence[Tensor],
        mask: Tensor | None = None,
        *,
        ids: Tensor | None = None,
        permutations: Tensor | None = None,
    ) -> Tensor:
        with disable_autocast(z):
            batch = self.prepare(z, mask, ids=ids)
            return self.reduce(*self.compute_losses(batch, permutations), batch)

    def compute_losses(self, batch: GatheredBatch, permutations: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, scale = batch.z, self.get_inverse_temperature(batch.z)
        complete = None if batch.mask is None else self.select_counted(batch.mask)
        if self.negatives == "all":
            if permutations is not None:
                raise ValueError('permutations are not used with negatives="all"')
            self._check_size(*z.shape[:2])
            losses = compute_exhaustive_symile(z, scale, complete)
        else:
            if permutations is None:
                step = self.get_next_step(z.device)
                permutations = draw_permutations(step, self.seed, z.shape[1], len(z), complete)
            else:
                self._check_permutations(permutations, batch)
            losses = compute_permuted_symile(z, scale, permutations, complete)
        if complete is not None:
            losses = self.require_two(losses, complete, batch)
        return self.compute_counted(losses, batch)

    def select_counted(self, mask: Tensor) -> Tensor:
        return mask.all(1)

    def _check_size(self, instances: int, views: int) -> None:
        if instances**views > MAX_LOGITS:
            raise ValueError(
                f'negatives="all" contrasts {instances} instances with {instances}^{views - 1} combinations of views: '
                f'at most {MAX_LOGITS:,} logits are allowed, use negatives="permuted" or at most '
                f"{int(MAX_LOGITS ** (1 / views) + 1e-9)} instances"
            )

    def _check_permutations(self, permutations: Tensor, batch: GatheredBatch) -> None:
        instances, views, _ = batch.z.shape
        if not isinstance(permutations, Tensor) or permutations.dtype != torch.int64:
            raise TypeError("permutations must be an int64 tensor (views, views, instances)")
        if permutations.shape != (views, views, instances):
            expected, got = (views, views, instances), tuple(permutations.shape)
            raise ValueError(f"permutations must be (views, views, instances) = {expected}, got {got}")
        if permutations.device != batch.z.device:
            raise ValueError(f"permutations are on {permutations.device}, but the embeddings on {batch.z.device}")
        if batch.validate and not bool(
            (permutations.sort(2).values == torch.arange(instances, device=batch.z.device)).all()
        ):
            raise ValueError(f"permutations must contain each of 0..{instances - 1} once for each pair of views")


class GRAMLoss(JointLoss):
    """GRAM: the volume that all views of an instance span, against volumes with the anchor view of other instances.

    Instances are contrasted in both directions. If views are missing, the volume is that of the existing ones; an
    instance counts if it has the anchor and another view.

    Args:
        anchor: the index of the view that is exchanged for that of another instance.
        label_smoothing: the part of the target that is spread over all instances.

    References:
        Cicchetti et al., *Gramian Multimodal Representation Learning and Alignment* (2024),
        https://arxiv.org/abs/2412.11959. The released code builds M x M Gram matrices and has an infinite gradient if
        the views of an instance are equal; the gradient here is 0 then.

    Examples:
        >>> loss = GRAMLoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "CE(-V / t) over rows and columns, V_ij = sqrt(det Gram(u_i,anchor, u_j,others))"
    cost = "M² N"

    def __init__(
        self,
        temperature: float | Tensor = 0.07,
        *,
        anchor: int = 0,
        label_smoothing: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(temperature, **options)
        self.anchor, self.label_smoothing = _check_anchor(anchor), _check_smoothing(label_smoothing)

    def compute_losses(self, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        z, mask = batch.z, batch.mask
        _check_anchor(self.anchor, z.shape[1])
        scale = self.get_inverse_temperature(z)
        losses = compute_gram(z, scale, mask, anchor=self.anchor, label_smoothing=self.label_smoothing)
        return self.compute_counted(losses, batch)

    def select_counted(self, mask: Tensor) -> Tensor:
        return mask[:, self.anchor] & (mask.sum(1) > 1)


class TRIANGLELoss(JointLoss):
    """TRIANGLE: the area of the triangle of three views, against areas with the anchor view of other instances.

    Instances are contrasted in both directions. An instance counts if it has all three views; with the anchor or with
    both other views it is a negative.

    Args:
        anchor: the index of the view that is exchanged for that of another instance.
        label_smoothing: the part of the target that is spread over all instances.
        square_root: use the area, as in the paper. The released code, like the default, uses twice its square.

    References:
        *A TRIANGLE Enables Multimodal Alignment Beyond Cosine Similarity* (2025), https://arxiv.org/abs/2509.24734

    Examples:
        >>> loss = TRIANGLELoss()(torch.randn(8, 3, 16))  # (instances, views, dim)
    """

    equation = "CE(-area / t) over rows and columns, area_ij of u_i,anchor and u_j,others"
    cost = "M²"
    min_views = 3
    max_views = 3

    def __init__(
        self,
        temperature: float | Tensor = 0.07,
        *,
        anchor: int = 0,
        label_smoothing: float = 0.1,
        square_root: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(temperature, **options)
        self.anchor, self.label_smoothing = _check_anchor(anchor, 3), _check_smoothing(label_smoothing)
        self.square_root = square_root

    def compute_losses(self, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        z, mask = batch.z, batch.mask
        losses = compute_triangle(
            z,
            self.get_inverse_temperature(z),
            mask,
            anchor=self.anchor,
            label_smoothing=self.label_smoothing,
            square_root=self.square_root,
        )
        if mask is not None:
            has_anchor = mask[:, self.anchor]
            has_others = mask.sum(1) - has_anchor.long() == 2
            losses = self.require_two(losses, has_anchor | has_others, batch)
        return self.compute_counted(losses, batch)


class PMRLLoss(JointLoss):
    """PMRL: the largest singular value of the views of an instance, and principal directions that differ by instance.

    The views are aligned if only one singular value is not zero. The sign of a principal direction is arbitrary in the
    released code. Here its inner product with the mean of the views is positive; if that is zero, as for two views with
    a negative cosine, its coordinate of largest absolute value is positive. If views are missing, the singular values
    are those of the existing ones.

    Args:
        temperature: of the softmax of singular values.
        inter_temperature: of the cosines of principal directions.
        inter_weight: factor of the contrast between instances.

    References:
        Liu et al., *Principled Multimodal Representation Learning* (2025), https://arxiv.org/abs/2507.17343

    Examples:
        >>> loss = PMRLLoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "LSE_k s_k / t - s_1 / t + w CE(p_i . p_j / t'), s singular values, p principal directions"
    cost = "M²"

    def __init__(
        self,
        temperature: float | Tensor = 0.05,
        *,
        inter_temperature: float = 0.1,
        inter_weight: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(temperature, **options)
        if not 1e-6 <= inter_temperature < math.inf:
            raise ValueError(f"inter_temperature must be a finite number > 0 (at least 1e-6), got {inter_temperature}")
        if not 0 <= inter_weight < math.inf:
            raise ValueError(f"inter_weight must be a finite number >= 0, got {inter_weight}")
        self.inter_temperature, self.inter_weight = inter_temperature, inter_weight

    def compute_losses(self, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        intra, inter = compute_pmrl(
            batch.z, self.get_inverse_temperature(batch.z), batch.mask, inter_temperature=self.inter_temperature
        )
        return self.compute_counted(intra + self.inter_weight * inter, batch)


def _check_anchor(anchor: int, views: int | None = None) -> int:
    if isinstance(anchor, bool) or not isinstance(anchor, int) or anchor < 0:
        raise ValueError(f"anchor must be the index of a view (an integer >= 0), got {anchor}")
    if views is not None and anchor >= views:
        raise ValueError(f"anchor must be < {views}, the number of views, got {anchor}")
    return anchor


def _check_smoothing(label_smoothing: float) -> float:
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be >= 0 and < 1, got {label_smoothing}")
    return label_smoothing


def compute_pmrl(
    z: Tensor,
    inverse_temperature: Tensor,
    mask: Tensor | None,
    *,
    inter_temperature: float = 0.1,
    tile_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the losses within instances, of singular values, and between them, of principal directions."""
    values, directions = decompose_views(z)
    logits = values * inverse_temperature
    has_view = None
    if mask is not None:
        num_views = mask.sum(1, keepdim=True)
        logits = logits.masked_fill(torch.arange(z.shape[1], device=z.device) >= num_views, -torch.inf)
        has_view = num_views.squeeze(1) > 0
    intra = masked_logsumexp(logits, 1) - logits[:, 0]
    rows = directions / inter_temperature
    positive = (rows * directions).sum(1)
    inter = compute_contrast(
        multiply, (rows,), (directions,), positive, has_view, has_view, both_ways=False, tile_rows=tile_rows
    )
    return intra, inter
