"""The paper's objectives and those it compares with, each a few lines on the positives P and the energies A (M, N, N).

`MultiView` is the paper's framework: where the sum over views stands for the alignment, where for the
uniformity, and which negatives there are. MV-InfoNCE, MV-DHEL, MV-CL1 and MV-CL2 are four settings of it.
The others are what it is compared with; `beyond.py` has more that live on the same two tensors.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.losses import inputs
from manyviews.losses.affinity import logaddexp, logsumexp, mean, total
from manyviews.losses.kernels import Gaussian, Kernel
from manyviews.losses.objective import Objective

Place = Literal["inside", "mean", "sum"]
Negatives = Literal["other", "same", "all"]
PairLoss = Literal["infonce", "ntxent", "dhel"]


def eye(views: int) -> Tensor:
    return torch.eye(views, dtype=torch.bool)


def _place(logs: Tensor, place: Place) -> Tensor:
    """Take a term for each view (M, N) together: inside the logarithm, or outside by mean or sum."""
    if place == "inside":
        return logsumexp(logs, 1)
    there = logs != -torch.inf
    return mean(logs, there, 1) if place == "mean" else total(logs, there, 1)


class MultiView(Objective):
    """The framework: alignment and uniformity, each with its sum over views inside or outside the log.

    Args:
        alignment: "inside": one term for all views; "mean" or "sum": a term for each view.
        uniformity: the same for the energies.
        negatives: "other" contrasts view l with all instances in other views, its own included (so
            positives are in the energy too), "same" with other instances in view l, "all" with both.

    Examples:
        >>> fifth = MultiView("inside", "mean", "same", temperature=0.5)   # MV-DHEL, energies averaged
        >>> loss = fifth(torch.randn(8, 4, 16))
    """

    def __init__(
        self,
        alignment: Place = "inside",
        uniformity: Place = "inside",
        negatives: Negatives = "other",
        temperature: float | Tensor = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(temperature, **options)
        inputs.check_choice("alignment", alignment, Place)
        inputs.check_choice("uniformity", uniformity, Place)
        inputs.check_choice("negatives", negatives, Negatives)
        self.alignment, self.uniformity, self.negatives = alignment, uniformity, negatives
        energy = {"other": "LSE_{m!=l} (P (+) A)", "same": "A[l,l]", "all": "LSE_m (P (+) A)"}[negatives]
        places = {"inside": "LSE_l", "mean": "mean_l", "sum": "sum_l"}
        self.equation = f"-{places[alignment]} LSE_{{m!=l}} P[l,m] + {places[uniformity]} {energy}"

    def blocks(self, views: int) -> Tensor:
        same = eye(views)
        return {"other": ~same, "same": same, "all": same | ~same}[self.negatives]

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        if self.negatives == "same":
            energy = A.diagonal(dim1=1, dim2=2)
        else:
            energy = logaddexp(P, A)
            if self.negatives == "other":
                energy = energy.masked_fill(eye(P.shape[1]).to(P.device), -torch.inf)
            energy = logsumexp(energy, 2)
        uniformity = _place(energy, self.uniformity)
        # An instance whose views nobody else has is aligned only.
        uniformity = torch.where(uniformity != -torch.inf, uniformity, 0.0)
        return uniformity - _place(logsumexp(P, 2), self.alignment)


class MVInfoNCE(MultiView):
    """MV-InfoNCE: all views of an instance aligned and contrasted in one term.

    `same_view=True` adds negatives from the same view, as the authors' released code does and the
    paper's equation does not.

    Examples:
        >>> loss = MVInfoNCE(temperature=0.5)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(self, temperature: float | Tensor = 0.5, *, same_view: bool = False, **options: Any) -> None:
        negatives: Negatives = "all" if same_view else "other"
        super().__init__("inside", "inside", negatives, temperature, **options)


class MVDHEL(MultiView):
    """MV-DHEL: all views aligned in one term, uniformity within each view: decoupled, and cheaper.

    Examples:
        >>> loss = MVDHEL(temperature=0.5)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("inside", "sum", "same", temperature, **options)


class MVCL1(MultiView):
    """MV-CL1: MV-InfoNCE's negatives with a term for each view.

    Examples:
        >>> loss = MVCL1()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("mean", "mean", "other", temperature, **options)


class MVCL2(MultiView):
    """MV-CL2: MV-DHEL's negatives with a term for each view.

    `uniformity="sum"` sums the energies over views, as the authors' released code does.

    Examples:
        >>> loss = MVCL2()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(self, temperature: float | Tensor = 0.5, *, uniformity: Place = "mean", **options: Any) -> None:
        super().__init__("mean", uniformity, "same", temperature, **options)


class Pairs(Objective):
    """pwe: a loss of two views, averaged over all pairs of views.

    Args:
        pair: which loss of two views.

    Examples:
        >>> loss = Pairs("ntxent")(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equations: ClassVar[dict[str, str]] = {
        "infonce": "mean_{l,m} [-P[l,m] + (P[l,m] (+) A[l,m])]",
        "ntxent": "mean_{l,m} [-P[l,m] + (P[l,m] (+) A[l,l] (+) A[l,m])]",
        "dhel": "mean_{l,m} [-P[l,m] + A[l,l] + A[m,m]]",
    }
    which: ClassVar[str] = "l != m"

    def __init__(self, pair: PairLoss = "ntxent", temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__(temperature, **options)
        inputs.check_choice("pair", pair, PairLoss)
        self.pair = pair
        self.equation = self.equations[pair] + f", {self.which}"

    def blocks(self, views: int) -> Tensor:
        pairs = self.pairs(views)
        same = eye(len(pairs)) & pairs.any(1)
        return {"infonce": pairs, "ntxent": pairs | same, "dhel": same}[self.pair]

    def contrasted(self, P: Tensor, A: Tensor) -> Tensor:
        positive = P != -torch.inf
        return (positive | torch.diag_embed(positive.any(2))) & (A != -torch.inf)

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        same = A.diagonal(dim1=1, dim2=2)
        if self.pair == "infonce":
            energy = logaddexp(P, A)
        elif self.pair == "ntxent":
            energy = logaddexp(P, A, same[:, :, None])
        else:
            same = torch.where(same != -torch.inf, same, 0.0)
            energy = same[:, :, None] + same[:, None, :]
        return mean(energy - P, P != -torch.inf, (1, 2))


class InfoNCE(Pairs):
    """InfoNCE of two views, both ways: each view against the other views of all instances.

    Examples:
        >>> loss = InfoNCE()(torch.randn(8, 2, 16))  # (instances, views, dim)
    """

    most_views = 2

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("infonce", temperature, **options)


class DHEL(Pairs):
    """DHEL: InfoNCE of two views with the energy of each view by itself, without the positive.

    Examples:
        >>> loss = DHEL()(torch.randn(8, 2, 16))  # (instances, views, dim)
    """

    most_views = 2

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("dhel", temperature, **options)


class Average(Pairs):
    """avg: a loss of two views between each view and the mean of the others.

    Args:
        pair: which loss of two views.
        normalise: put the mean back on the sphere. The paper's equation does not; its released code
            does so for DHEL alone, whose energy is one of points on the sphere. So does the default.

    Examples:
        >>> loss = Average("dhel")(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    which = "m the mean of the others"

    def __init__(
        self,
        pair: PairLoss = "ntxent",
        temperature: float | Tensor = 0.5,
        *,
        normalise: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pair, temperature, **options)
        self.normalise = pair == "dhel" if normalise is None else normalise

    def accept_kernel(self, kernel: Kernel) -> Kernel:
        if not isinstance(kernel, Gaussian):
            raise ValueError(
                f"avg contrasts with means of views, which are off the sphere: {kernel} is not "
                "defined there, only Gaussian() is"
            )
        return kernel

    def pairs(self, views: int) -> Tensor:
        """View l and the mean of the others, which is contrasted as view N + l."""
        return eye(2 * views).roll(views, 1)

    def contrasts(self, z: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor | None]:
        others = z.sum(1, keepdim=True) - z
        if present is None:
            count = others.new_full((1, z.shape[1]), z.shape[1] - 1)
        else:
            count = (present.sum(1, keepdim=True) - present.to(z)) * present
            others = others * (count > 0)[:, :, None]
            present = torch.cat([present, count > 0], 1)
        means = others / count.clamp_min(1)[:, :, None]
        if self.normalise:
            # Views that cancel leave no direction: any fixed one will do, and no gradient.
            length = means.norm(dim=2, keepdim=True)
            anywhere = torch.zeros_like(means[0, 0]).index_fill_(0, torch.tensor(0, device=z.device), 1.0)
            means = torch.where(length > 1e-6, means, anywhere)
            means = self.scaled(normalize(means, dim=2))
        return torch.cat([z, means], 1), present


class NTXent(Objective):
    """NT-Xent with many positives: each against everything but the view itself.

    Examples:
        >>> loss = NTXent()(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    equation = "mean_off [-P[l,m] + LSE_m' (P[l,m'] (+) A[l,m'])]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        energy = logsumexp(logaddexp(P, A), 2)
        return mean(energy[:, :, None] - P, P != -torch.inf, (1, 2))


class PVC(Objective):
    """Poly-view contrastive loss: geometric, or with `arithmetic=True` arithmetic mean of positives.

    The mean over instances, views and positives, so that it is NT-Xent for two views; the paper's
    equation has no 1/N.

    Examples:
        >>> loss = PVC(arithmetic=True)(torch.randn(8, 4, 16))  # (instances, views, dim)
    """

    def __init__(self, temperature: float | Tensor = 0.5, *, arithmetic: bool = False, **options: Any) -> None:
        super().__init__(temperature, **options)
        self.arithmetic = arithmetic
        ratio = "P[l,m] - (P[l,m] (+) LSE_m' A[l,m'])"
        self.equation = f"-mean_l log mean_m exp[{ratio}]" if arithmetic else f"-mean_off [{ratio}]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        there = P != -torch.inf
        log_ratio = P - logaddexp(P, logsumexp(A, 2)[:, :, None])
        if not self.arithmetic:
            return -mean(log_ratio, there, (1, 2))
        log_sum = logsumexp(log_ratio.masked_fill(~there, -torch.inf), 2)
        log_count = there.sum(2).clamp_min(1).to(P).log()
        return mean(log_count - log_sum, there.any(2), 1)
