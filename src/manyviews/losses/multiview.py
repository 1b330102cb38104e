"""The losses of the paper and its baselines, as functions of the positives P and the energies A (M, N, N).

`MultiViewContrastiveLoss` is the paper's framework: how the alignment and the uniformity are reduced over views, and
which negatives are used. MV-InfoNCE, MV-DHEL, MV-CL1 and MV-CL2 are four settings of it. `extra.py` has more losses.
"""

import math
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from manyviews.losses._batch import check_choice
from manyviews.losses._masked import masked_logsumexp, masked_mean, masked_sum, safe_logaddexp
from manyviews.losses._tiled import Pairs
from manyviews.losses.energy import (
    EnergyLoss,
    list_all_pairs,
    list_cross_view_pairs,
    list_same_view_pairs,
)
from manyviews.losses.kernels import Gaussian

ViewReduction = Literal["logsumexp", "mean", "sum"]
Negatives = Literal["cross_view", "same_view", "all"]
PairLoss = Literal["infonce", "ntxent", "dhel"]
Aggregation = Literal["geometric", "arithmetic"]
Combination = Literal["mean", "product"]
MIN_LENGTH: dict[Combination, float] = {"mean": 1e-6, "product": 1e-3}
"""Length of a mean of unit vectors, or of a product of them scaled by sqrt(d), below which it has no direction."""


def _reduce_views(logs: Tensor, reduction: ViewReduction) -> Tensor:
    """Reduce a term for each view (M, N) to one for each instance (M,)."""
    if reduction == "logsumexp":
        return masked_logsumexp(logs, 1)
    valid = logs != -torch.inf
    return masked_mean(logs, valid, 1) if reduction == "mean" else masked_sum(logs, valid, 1)


class MultiViewContrastiveLoss(EnergyLoss):
    """The paper's framework: alignment and uniformity, each summed over views inside or outside the log.

    Args:
        alignment: "logsumexp": one term for all views; "mean" or "sum": a term for each view.
        uniformity: the same for the energies.
        negatives: the energy of view l is over the other views of all instances, including the positives
            ("cross_view"), over view l of the other instances ("same_view"), or over both ("all").

    Examples:
        >>> variant = MultiViewContrastiveLoss("logsumexp", "mean", "same_view")  # MV-DHEL with averaged energies
        >>> loss = variant(torch.randn(8, 4, 16))
    """

    def __init__(
        self,
        alignment: ViewReduction = "logsumexp",
        uniformity: ViewReduction = "logsumexp",
        negatives: Negatives = "cross_view",
        temperature: float | Tensor = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(temperature, **options)
        check_choice("alignment", alignment, ViewReduction)
        check_choice("uniformity", uniformity, ViewReduction)
        check_choice("negatives", negatives, Negatives)
        self.alignment, self.uniformity, self.negatives = alignment, uniformity, negatives
        energy = {"cross_view": "LSE_{m!=l} (P (+) A)", "same_view": "A[l,l]", "all": "LSE_m (P (+) A)"}[negatives]
        reductions = {"logsumexp": "LSE_l", "mean": "mean_l", "sum": "sum_l"}
        self.equation = f"-{reductions[alignment]} LSE_{{m!=l}} P[l,m] + {reductions[uniformity]} {energy}"

    def required_energies(self, views: int) -> Pairs:
        list_pairs = {"cross_view": list_cross_view_pairs, "same_view": list_same_view_pairs, "all": list_all_pairs}
        return list_pairs[self.negatives](views)

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        if self.negatives == "same_view":
            energy = A.diagonal(dim1=1, dim2=2)
        else:
            energy = safe_logaddexp(P, A)
            if self.negatives == "cross_view":
                energy = energy.masked_fill(torch.eye(P.shape[1], dtype=torch.bool, device=P.device), -torch.inf)
            energy = masked_logsumexp(energy, 2)
        uniformity = _reduce_views(energy, self.uniformity)
        # An instance without negatives contributes only its alignment.
        uniformity = torch.where(uniformity != -torch.inf, uniformity, 0.0)
        return uniformity - _reduce_views(masked_logsumexp(P, 2), self.alignment)


class MVInfoNCELoss(MultiViewContrastiveLoss):
    """MV-InfoNCE: one term aligns and contrasts all views of an instance.

    `same_view_negatives=True` adds negatives from the same view, as in the released code but not in the equation.

    Examples:
        >>> loss = MVInfoNCELoss(temperature=0.5)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(self, temperature: float | Tensor = 0.5, *, same_view_negatives: bool = False, **options: Any) -> None:
        negatives: Negatives = "all" if same_view_negatives else "cross_view"
        super().__init__("logsumexp", "logsumexp", negatives, temperature, **options)


class MVDHELLoss(MultiViewContrastiveLoss):
    """MV-DHEL: one term aligns all views, and uniformity is within each view: decoupled, and cheaper.

    Examples:
        >>> loss = MVDHELLoss(temperature=0.5)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("logsumexp", "sum", "same_view", temperature, **options)


class MVCL1Loss(MultiViewContrastiveLoss):
    """MV-CL1: MV-InfoNCE's negatives with a term for each view.

    Examples:
        >>> loss = MVCL1Loss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("mean", "mean", "cross_view", temperature, **options)


class MVCL2Loss(MultiViewContrastiveLoss):
    """MV-CL2: MV-DHEL's negatives with a term for each view.

    `uniformity="sum"` sums the energies over views, as in the authors' released code.

    Examples:
        >>> loss = MVCL2Loss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(
        self, temperature: float | Tensor = 0.5, *, uniformity: ViewReduction = "mean", **options: Any
    ) -> None:
        super().__init__("mean", uniformity, "same_view", temperature, **options)


class PairwiseLoss(EnergyLoss):
    """pwe: a loss of two views, averaged over all pairs of views.

    Args:
        pair_loss: the loss of two views: "infonce", "ntxent" or "dhel".
        pair_weights: weights (N, N) >= 0 of the pairs of views (l, m), as a tensor or nested lists: the loss is the
            weighted mean of its terms, without those of weight 0. Default: all equal.

    Examples:
        >>> loss = PairwiseLoss("ntxent")(torch.randn(8, 4, 16))  # (instances, views, dim)
        >>> weights = [[0, 2, 1], [2, 0, 0], [1, 0, 0]]  # text-audio counts twice as much as text-video
        >>> loss = PairwiseLoss("infonce", pair_weights=weights)(torch.randn(8, 3, 16))
    """

    equations: ClassVar[dict[str, str]] = {
        "infonce": "mean_{l,m} [-P[l,m] + (P[l,m] (+) A[l,m])]",
        "ntxent": "mean_{l,m} [-P[l,m] + (P[l,m] (+) A[l,l] (+) A[l,m])]",
        "dhel": "mean_{l,m} [-P[l,m] + A[l,l] + A[m,m]]",
    }
    _pair_description: ClassVar[str] = "l != m"

    def __init__(
        self,
        pair_loss: PairLoss = "ntxent",
        temperature: float | Tensor = 0.5,
        *,
        pair_weights: Tensor | Sequence[Sequence[float]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(temperature, **options)
        check_choice("pair_loss", pair_loss, PairLoss)
        self.pair_loss = pair_loss
        # Plain numbers: part of the loss's options, and known while it is compiled.
        self.pair_weights = None if pair_weights is None else _check_pair_weights(pair_weights)
        self.equation = self.equations[pair_loss] + f", {self._pair_description}"

    def list_pairs(self, views: int) -> Pairs:
        """Return the pairs of views with a term in the loss."""
        return list_cross_view_pairs(views)

    def get_weights(self, views: int) -> tuple[tuple[float, ...], ...]:
        """Return the weight of each pair of views (l, m)."""
        pairs, weights = self.list_pairs(views), self.pair_weights
        if weights is not None and len(weights) != views:
            raise ValueError(f"pair_weights must be ({views}, {views}) for {views} views, got {len(weights)} rows")
        return tuple(
            tuple(0.0 if (l, m) not in pairs else 1.0 if weights is None else weights[l][m] for m in range(views))
            for l in range(views)
        )

    def positive_pairs(self, views: int, device: torch.device | None = None) -> Tensor:
        positive = super().positive_pairs(views, device)
        return positive if self.pair_weights is None else positive & (self._make_weights(views, positive) > 0)

    def _make_weights(self, views: int, like: Tensor) -> Tensor:
        dtype = like.dtype if like.is_floating_point() else torch.float32
        # A copy that does not wait for the device.
        return torch.tensor(self.get_weights(views), dtype=dtype).to(like.device, non_blocking=True)

    def required_energies(self, views: int) -> Pairs:
        pairs = {(l, m) for l, m in self.list_pairs(views) if self._has_weight(l, m)}
        same = {(view, view) for pair in pairs for view in pair}
        return {"infonce": pairs, "ntxent": pairs | {(l, l) for l, _ in pairs}, "dhel": same}[self.pair_loss]

    def _has_weight(self, l: int, m: int) -> bool:
        return self.pair_weights is None or max(l, m) >= len(self.pair_weights) or self.pair_weights[l][m] > 0

    def has_negatives(self, P: Tensor, A: Tensor) -> Tensor:
        positive = P != -torch.inf
        return (positive | torch.diag_embed(positive.any(2))) & (A != -torch.inf)

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        same = A.diagonal(dim1=1, dim2=2)
        if self.pair_loss == "infonce":
            energy = safe_logaddexp(P, A)
        elif self.pair_loss == "ntxent":
            energy = safe_logaddexp(P, A, same[:, :, None])
        else:
            same = torch.where(same != -torch.inf, same, 0.0)
            energy = same[:, :, None] + same[:, None, :]
        is_positive = P != -torch.inf
        if self.pair_weights is None:
            return masked_mean(energy - P, is_positive, (1, 2))
        weights = torch.where(is_positive, self._make_weights(P.shape[1], P), 0.0)
        terms = torch.where(is_positive, energy - P, 0.0)
        return (weights * terms).sum((1, 2)) / weights.sum((1, 2)).clamp_min(torch.finfo(P.dtype).tiny)


def _check_pair_weights(weights: Tensor | Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    expected = "pair_weights must be (N, N) finite numbers >= 0, some off the diagonal > 0"
    try:
        rows = weights.tolist() if isinstance(weights, Tensor) else weights
        table = tuple(tuple(float(weight) for weight in row) for row in rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{expected}, got {weights!r}") from error
    if any(len(row) != len(table) for row in table):
        raise ValueError(f"{expected}, got {len(table)} rows of {', '.join(str(len(row)) for row in table)}")
    values = [weight for row in table for weight in row]
    if not all(0 <= weight < math.inf for weight in values) or not any(
        table[l][m] for l, m in list_cross_view_pairs(len(table))
    ):
        raise ValueError(f"{expected}, got {table}")
    return table


class InfoNCELoss(PairwiseLoss):
    """Symmetric InfoNCE of two views: each view against the other view of all instances.

    Examples:
        >>> loss = InfoNCELoss()(torch.randn(8, 2, 16))  # (instances, views, dim)
    """

    max_views = 2

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("infonce", temperature, **options)


class DHELLoss(PairwiseLoss):
    """DHEL: InfoNCE of two views with separate energies within each view, without the positive.

    Examples:
        >>> loss = DHELLoss()(torch.randn(8, 2, 16))  # (instances, views, dim)
    """

    max_views = 2

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("dhel", temperature, **options)


class LeaveOneOutLoss(PairwiseLoss):
    """avg and prod: a loss of two views between each view and a combination of the others.

    The mean is a sum of pairs of views. The elementwise product is not: it sees what only all views together show, such
    as c = a XOR b, and nothing that only a pair shows (see `WeightedSumLoss` for both).

    Args:
        pair_loss: the loss of two views: "infonce", "ntxent" or "dhel".
        combine: "mean" of the other views (the paper's avg), or "product": their elementwise product, normalized.
        normalize_mean: normalize the mean. The paper's equation does not; the released code, like the default, does so
            only for DHEL, whose energy is defined for points on the sphere.

    Examples:
        >>> loss = LeaveOneOutLoss("dhel")(torch.randn(8, 4, 16))  # (instances, views, dim)
        >>> loss = LeaveOneOutLoss("dhel", combine="product")(torch.randn(8, 3, 16))
    """

    def __init__(
        self,
        pair_loss: PairLoss = "ntxent",
        temperature: float | Tensor = 0.5,
        *,
        combine: Combination = "mean",
        normalize_mean: bool | None = None,
        **options: Any,
    ) -> None:
        check_choice("combine", combine, Combination)
        if options.get("pair_weights") is not None:
            raise ValueError("LeaveOneOutLoss does not have pairs of views: pair_weights must be None")
        super().__init__(pair_loss, temperature, **options)
        if combine == "product" and normalize_mean is not None:
            raise ValueError(f"normalize_mean is an option of combine='mean', got {normalize_mean}")
        self.combine = combine
        self.normalize_mean = pair_loss == "dhel" if normalize_mean is None else normalize_mean
        if combine == "mean" and not self.normalize_mean and not isinstance(self.kernel, Gaussian):
            reason = "means of views are off the sphere, where other kernels are not defined (see normalize_mean)"
            raise ValueError(f"LeaveOneOutLoss requires Gaussian(), got {self.kernel}: {reason}")
        self.equation = f"{self.equations[pair_loss]}, m the {combine} of the others"

    @property
    def expansion(self) -> Hashable:  # type: ignore[override]
        return self.combine if self.combine == "product" else (self.combine, self.normalize_mean)

    def list_pairs(self, views: int) -> Pairs:
        """Return the pairs of view l and the combination of the others, which is view N + l."""
        return {pair for l in range(views) for pair in ((l, views + l), (views + l, l))}

    def positive_pairs(self, views: int, device: torch.device | None = None) -> Tensor:
        return torch.eye(2 * views, dtype=torch.bool, device=device).roll(views, 1)

    def expand_views(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        has_others = None
        if mask is not None:
            has_others = (mask.sum(1, keepdim=True) > 1) & mask
            mask = torch.cat([mask, has_others], 1)
        combined = self._multiply_others(z, mask) if self.combine == "product" else self._average_others(z, mask)
        if self.combine == "product" or self.normalize_mean:
            # A vector of zero has no direction: it is replaced by a constant unit vector, without a gradient.
            length = torch.linalg.vector_norm(combined, dim=2, keepdim=True)
            has_direction = length.detach() > MIN_LENGTH[self.combine]
            scale = torch.where(has_direction, 1 / torch.where(has_direction, length, 1.0), 0.0)
            fallback_direction = (torch.arange(z.shape[2], device=z.device) == 0).to(z)
            combined = torch.addcmul(fallback_direction * ~has_direction, combined, scale)
        if has_others is not None:
            combined = combined * has_others[:, :, None]
        return torch.cat([z, combined], 1), mask

    def _average_others(self, z: Tensor, mask: Tensor | None) -> Tensor:
        count = z.shape[1] - 1 if mask is None else (mask[:, : z.shape[1]].sum(1) - 1).clamp_min(1)[:, None, None]
        return (z.sum(1, keepdim=True) - z) / count

    def _multiply_others(self, z: Tensor, mask: Tensor | None) -> Tensor:
        """Return the products of all other views: of those before and those after, as a division could be by 0."""
        factors = z * math.sqrt(z.shape[2])  # entries of about 1, so that products do not underflow
        if mask is not None:
            factors = torch.where(mask[:, : z.shape[1], None], factors, 1.0)
        views = factors.unbind(1)
        before, after = list(accumulate(views[:-1], torch.mul)), list(accumulate(views[:0:-1], torch.mul))[::-1]
        inner = (first * last for first, last in zip(before[:-1], after[1:], strict=True))
        return torch.stack([after[0], *inner, before[-1]], 1)


class NTXentLoss(EnergyLoss):
    """NT-Xent with several positives: each against all other views of all instances.

    Examples:
        >>> loss = NTXentLoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "mean_off [-P[l,m] + LSE_m' (P[l,m'] (+) A[l,m'])]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        energy = masked_logsumexp(safe_logaddexp(P, A), 2)
        return masked_mean(energy[:, :, None] - P, P != -torch.inf, (1, 2))


class PVCLoss(EnergyLoss):
    """Poly-view contrastive loss with the geometric or, with `aggregation="arithmetic"`, arithmetic mean of positives.

    The loss is a mean over instances, views and positives, so that it equals NT-Xent for two views; the paper's
    equation has no 1/N.

    Examples:
        >>> loss = PVCLoss(aggregation="arithmetic")(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(
        self, temperature: float | Tensor = 0.5, *, aggregation: Aggregation = "geometric", **options: Any
    ) -> None:
        super().__init__(temperature, **options)
        check_choice("aggregation", aggregation, Aggregation)
        self.aggregation = aggregation
        ratio = "P[l,m] - (P[l,m] (+) LSE_m' A[l,m'])"
        self.equation = f"-mean_l log mean_m exp[{ratio}]" if aggregation == "arithmetic" else f"-mean_off [{ratio}]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        is_positive = P != -torch.inf
        log_ratio = P - safe_logaddexp(P, masked_logsumexp(A, 2)[:, :, None])
        if self.aggregation == "geometric":
            return -masked_mean(log_ratio, is_positive, (1, 2))
        log_sum = masked_logsumexp(log_ratio.masked_fill(~is_positive, -torch.inf), 2)
        log_count = is_positive.sum(2).clamp_min(1).to(P).log()
        return masked_mean(log_count - log_sum, is_positive.any(2), 1)
