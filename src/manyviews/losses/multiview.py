"""The losses of the paper and its baselines, as functions of the positives P and the energies A (M, N, N).

`MultiViewContrastiveLoss` is the paper's framework: how the alignment and the uniformity are reduced over views, and
which negatives are used. MV-InfoNCE, MV-DHEL, MV-CL1 and MV-CL2 are four settings of it. `extra.py` has more losses.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.losses._batch import check_choice
from manyviews.losses._masked import masked_logsumexp, masked_mean, masked_sum, safe_logaddexp
from manyviews.losses.base import MultiViewLoss

ViewReduction = Literal["logsumexp", "mean", "sum"]
Negatives = Literal["cross_view", "same_view", "all"]
PairLoss = Literal["infonce", "ntxent", "dhel"]
Aggregation = Literal["geometric", "arithmetic"]


def make_view_diagonal(views: int) -> Tensor:
    return torch.eye(views, dtype=torch.bool)


def _reduce_views(logs: Tensor, reduction: ViewReduction) -> Tensor:
    """Reduce a term for each view (M, N) to one for each instance (M,)."""
    if reduction == "logsumexp":
        return masked_logsumexp(logs, 1)
    valid = logs != -torch.inf
    return masked_mean(logs, valid, 1) if reduction == "mean" else masked_sum(logs, valid, 1)


class MultiViewContrastiveLoss(MultiViewLoss):
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

    def required_energies(self, views: int) -> Tensor:
        same = make_view_diagonal(views)
        return {"cross_view": ~same, "same_view": same, "all": same | ~same}[self.negatives]

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        if self.negatives == "same_view":
            energy = A.diagonal(dim1=1, dim2=2)
        else:
            energy = safe_logaddexp(P, A)
            if self.negatives == "cross_view":
                energy = energy.masked_fill(make_view_diagonal(P.shape[1]).to(P.device), -torch.inf)
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


class PairwiseLoss(MultiViewLoss):
    """pwe: a loss of two views, averaged over all pairs of views.

    Args:
        pair_loss: the loss of two views: "infonce", "ntxent" or "dhel".

    Examples:
        >>> loss = PairwiseLoss("ntxent")(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equations: ClassVar[dict[str, str]] = {
        "infonce": "mean_{l,m} [-P[l,m] + (P[l,m] (+) A[l,m])]",
        "ntxent": "mean_{l,m} [-P[l,m] + (P[l,m] (+) A[l,l] (+) A[l,m])]",
        "dhel": "mean_{l,m} [-P[l,m] + A[l,l] + A[m,m]]",
    }
    _pair_description: ClassVar[str] = "l != m"

    def __init__(self, pair_loss: PairLoss = "ntxent", temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__(temperature, **options)
        check_choice("pair_loss", pair_loss, PairLoss)
        self.pair_loss = pair_loss
        self.equation = self.equations[pair_loss] + f", {self._pair_description}"

    def required_energies(self, views: int) -> Tensor:
        pairs = self.positive_pairs(views)
        same = make_view_diagonal(len(pairs)) & pairs.any(1)
        return {"infonce": pairs, "ntxent": pairs | same, "dhel": same}[self.pair_loss]

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
        return masked_mean(energy - P, P != -torch.inf, (1, 2))


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
    """avg: a loss of two views between each view and the mean of the others.

    Args:
        pair_loss: the loss of two views: "infonce", "ntxent" or "dhel".
        normalize_mean: normalize the mean. The paper's equation does not; the released code, like the default, does so
            only for DHEL, whose energy is defined for points on the sphere.

    Examples:
        >>> loss = LeaveOneOutLoss("dhel")(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    _pair_description = "m the mean of the others"
    gaussian_only = "the means of views are off the sphere, where other kernels are not defined"

    def __init__(
        self,
        pair_loss: PairLoss = "ntxent",
        temperature: float | Tensor = 0.5,
        *,
        normalize_mean: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pair_loss, temperature, **options)
        self.normalize_mean = pair_loss == "dhel" if normalize_mean is None else normalize_mean

    def positive_pairs(self, views: int) -> Tensor:
        """Return the pairs of view l and the mean of the others, which is view N + l."""
        return make_view_diagonal(2 * views).roll(views, 1)

    def expand_views(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        others = z.sum(1, keepdim=True) - z
        if mask is None:
            count = others.new_full((1, z.shape[1]), z.shape[1] - 1)
        else:
            count = (mask.sum(1, keepdim=True) - mask.to(z)) * mask
            others = others * (count > 0)[:, :, None]
            mask = torch.cat([mask, count > 0], 1)
        means = others / count.clamp_min(1)[:, :, None]
        if self.normalize_mean:
            # A mean of zero has no direction: it is replaced by a constant unit vector, without a gradient.
            length = means.norm(dim=2, keepdim=True)
            fallback_direction = torch.zeros_like(means[0, 0]).index_fill_(0, torch.tensor(0, device=z.device), 1.0)
            means = torch.where(length > 1e-6, means, fallback_direction)
            means = self.scale_by_temperature(normalize(means, dim=2))
        return torch.cat([z, means], 1), mask


class NTXentLoss(MultiViewLoss):
    """NT-Xent with several positives: each against all other views of all instances.

    Examples:
        >>> loss = NTXentLoss()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "mean_off [-P[l,m] + LSE_m' (P[l,m'] (+) A[l,m'])]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        energy = masked_logsumexp(safe_logaddexp(P, A), 2)
        return masked_mean(energy[:, :, None] - P, P != -torch.inf, (1, 2))


class PVCLoss(MultiViewLoss):
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
