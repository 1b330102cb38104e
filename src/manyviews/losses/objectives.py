"""Every objective, each a few lines on the positives P and the energies A (M, N, N).

`MultiView` is the paper's framework: where the sum over views stands for the alignment, where for the
uniformity, and which negatives there are. MV-InfoNCE, MV-DHEL, MV-CL1 and MV-CL2 are four settings of it.
The others are the aggregations it is compared with, and neighbours that live on the same two tensors.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from manyviews.losses import inputs
from manyviews.losses.affinity import logaddexp, logsumexp, mean, total
from manyviews.losses.kernels import Gaussian, InverseMultiquadric, Kernel
from manyviews.losses.objective import Objective, full_precision
from manyviews.losses.tiled import Pointwise

Place = Literal["inside", "mean", "sum"]
Negatives = Literal["other", "same", "all"]
PairLoss = Literal["infonce", "ntxent", "dhel"]


def _eye(views: int) -> Tensor:
    return torch.eye(views, dtype=torch.bool)


def _place(logs: Tensor, place: Place) -> Tensor:
    """Take a term for each view (M, N) together: inside the logarithm, or outside by mean or sum."""
    if place == "inside":
        return logsumexp(logs, 1)
    there = logs > -torch.inf
    return mean(logs, there, 1) if place == "mean" else total(logs, there, 1)


class MultiView(Objective):
    """The framework: alignment and uniformity, each with its sum over views inside or outside the log.

    Args:
        alignment: "inside": one term for all views; "mean" or "sum": a term for each view.
        uniformity: the same for the energies.
        negatives: "other" contrasts view l with all instances in other views, its own included (so
            positives are in the energy too), "same" with other instances in view l, "all" with both.

    Example:
        >>> fifth = MultiView("inside", "mean", "same", temperature=0.5)   # MV-DHEL, energies averaged
        >>> loss = fifth(torch.randn(8, 4, 16))
    """

    equation = "-place_l LSE_m P[l,m] + place_l LSE_m over the negatives"

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

    def blocks(self, views: int) -> Tensor:
        same = _eye(views)
        return {"other": ~same, "same": same, "all": same | ~same}[self.negatives]

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        if self.negatives == "same":
            energy = A.diagonal(dim1=1, dim2=2)
        else:
            energy = logaddexp(P, A)
            if self.negatives == "other":
                energy = energy.masked_fill(_eye(P.shape[1]).to(P.device), -torch.inf)
            energy = logsumexp(energy, 2)
        return _place(energy, self.uniformity) - _place(logsumexp(P, 2), self.alignment)


class MVInfoNCE(MultiView):
    """MV-InfoNCE: all views of an instance aligned and contrasted in one term.

    `same_view=True` adds negatives from the same view, as the authors' released code does and the
    paper's equation does not.
    """

    equation = "-LSE_off P + LSE_off (P (+) A)"

    def __init__(self, temperature: float | Tensor = 0.5, *, same_view: bool = False, **options: Any) -> None:
        negatives: Negatives = "all" if same_view else "other"
        super().__init__("inside", "inside", negatives, temperature, **options)


class MVDHEL(MultiView):
    """MV-DHEL: all views aligned in one term, uniformity within each view: decoupled, and cheaper."""

    equation = "-LSE_off P + sum_l A[l,l]"

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("inside", "sum", "same", temperature, **options)


class MVCL1(MultiView):
    """MV-CL1: MV-InfoNCE's negatives with a term for each view."""

    equation = "mean_l [-LSE_m P[l,m] + LSE_m (P[l,m] (+) A[l,m])], m != l"

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("mean", "mean", "other", temperature, **options)


class MVCL2(MultiView):
    """MV-CL2: MV-DHEL's negatives with a term for each view.

    `uniformity="sum"` sums the energies over views, as the authors' released code does.
    """

    equation = "mean_l [-LSE_m P[l,m] + A[l,l]], m != l"

    def __init__(self, temperature: float | Tensor = 0.5, *, uniformity: Place = "mean", **options: Any) -> None:
        super().__init__("mean", uniformity, "same", temperature, **options)


class Pairs(Objective):
    """pwe: a loss of two views, averaged over all pairs of views."""

    equations: ClassVar[dict[str, str]] = {
        "infonce": "mean_{l,m} [-P[l,m] + (P[l,m] (+) A[l,m])]",
        "ntxent": "mean_{l,m} [-P[l,m] + (P[l,m] (+) A[l,l] (+) A[l,m])]",
        "dhel": "mean_{l,m} [-P[l,m] + A[l,l] + A[m,m]]",
    }

    def __init__(self, pair: PairLoss = "ntxent", temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__(temperature, **options)
        inputs.check_choice("pair", pair, PairLoss)
        self.pair = pair
        self.equation = self.equations[pair] + f", {self.which}"

    which: ClassVar[str] = "l != m"

    def blocks(self, views: int) -> Tensor:
        pairs = self.pairs(views)
        same = _eye(len(pairs)) & pairs.any(1)
        return {"infonce": pairs, "ntxent": pairs | same, "dhel": same}[self.pair]

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        same = A.diagonal(dim1=1, dim2=2)
        if self.pair == "infonce":
            energy = logaddexp(P, A)
        elif self.pair == "ntxent":
            energy = logaddexp(P, A, same[:, :, None])
        else:
            same = torch.where(same > -torch.inf, same, 0.0)
            energy = same[:, :, None] + same[:, None, :]
        return mean(energy - P, P > -torch.inf, (1, 2))


class InfoNCE(Pairs):
    """InfoNCE of two views, both ways: each view against the other views of all instances."""

    most_views = 2

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("infonce", temperature, **options)


class DHEL(Pairs):
    """DHEL: InfoNCE of two views with the energy of each view by itself, without the positive."""

    most_views = 2

    def __init__(self, temperature: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__("dhel", temperature, **options)


class Average(Pairs):
    """avg: a loss of two views between each view and the mean of the others.

    Args:
        normalise: put the mean back on the sphere. The paper's equation does not; its released code
            does so for DHEL alone, whose energy is one of points on the sphere. So does the default.
    """

    which = "m the mean of the views but l"

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
        return _eye(2 * views).roll(views, 1)

    def contrasts(self, z: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor | None]:
        others = z.sum(1, keepdim=True) - z
        if present is None:
            count = others.new_full((1, z.shape[1]), z.shape[1] - 1)
        else:
            count = (present.sum(1, keepdim=True) - present.to(z)) * present
            others = others * (count > 0)[:, :, None]
            present = torch.cat([present, count > 0], 1)
        mean = others / count.clamp_min(1)[:, :, None]
        means = self.scaled(normalize(mean, dim=2)) if self.normalise else mean
        return torch.cat([z, means], 1), present


class Anchored(Pairs):
    """One view against each other, as when one modality binds the rest (ImageBind).

    An instance without its anchor view counts as a negative only.
    """

    which = "one of l, m the anchor"

    def __init__(
        self,
        anchor: int = 0,
        pair: PairLoss = "infonce",
        temperature: float | Tensor = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(pair, temperature, **options)
        if anchor < 0:
            raise ValueError(f"anchor must be the number of a view from 0, got {anchor}")
        self.anchor = anchor

    def pairs(self, views: int) -> Tensor:
        if self.anchor >= views:
            raise ValueError(f"anchor is view {self.anchor}, but there are {views} views from 0")
        is_anchor = torch.arange(views) == self.anchor
        return is_anchor[:, None] ^ is_anchor


class NTXent(Objective):
    """NT-Xent with many positives: each against everything but the view itself."""

    equation = "mean_off [-P[l,m] + LSE_m' (P[l,m'] (+) A[l,m'])]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        energy = logsumexp(logaddexp(P, A), 2)
        return mean(energy[:, :, None] - P, P > -torch.inf, (1, 2))


class SupCon(NTXent):
    """Supervised contrastive loss: all views of all instances of a label are positives.

    Called with labels (M,): `SupCon()(z, labels=labels)`. Without labels an instance is its own class, and
    the loss is `NTXent`.
    """

    equation = "NT-Xent, the mean over all views of all instances of the label"

    def forward(self, z: Tensor, present: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            return super().forward(z, present)
        with full_precision(z):
            batch = self.prepare(z, present, labels)
            P, A = self.affinities(batch)
            energy = logsumexp(logaddexp(P, A), 2)
            positive, count = self._mean_positive(batch)
            losses = mean(energy - positive, count > 0, 1)
            return self.reduce(losses, (count > 0).any(1), batch)

    def _mean_positive(self, batch: inputs.Batch) -> tuple[Tensor, Tensor]:
        """Mean of log K with all other present views of the label (M, N), and how many they are."""
        if not isinstance(self.kernel, Gaussian):
            raise ValueError(f"supcon with labels takes the Gaussian kernel, not {self.kernel}")
        z = self.scaled(batch.z)
        present = torch.ones_like(z[:, :, 0]) if batch.present is None else batch.present.to(z)
        assert batch.labels is not None
        classes, index = batch.labels.unique(return_inverse=True)
        # The inner product is linear: the sum over a class is the product with the class's sum.
        sums = z.new_zeros(len(classes), z.shape[2]).index_add(0, index, z.sum(1))
        sizes = z.new_zeros(len(classes)).index_add(0, index, present.sum(1))
        others = (z * (sums[index][:, None] - z)).sum(2)
        count = (sizes[index][:, None] - 1) * present
        return others / count.clamp_min(1), count


class DCL(Objective):
    """Decoupled contrastive loss: NT-Xent without the positives in the denominator."""

    equation = "mean_off [-P[l,m]] + mean_l LSE_m A[l,m]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        energy = logsumexp(A, 2)
        return mean(energy[:, :, None] - P, P > -torch.inf, (1, 2))


class PVC(Objective):
    """Poly-view contrastive loss: geometric, or with `arithmetic=True` arithmetic mean of positives.

    The mean over instances, views and positives, so that it is NT-Xent for two views; the paper's
    equation has no 1/N.
    """

    def __init__(self, temperature: float | Tensor = 0.5, *, arithmetic: bool = False, **options: Any) -> None:
        super().__init__(temperature, **options)
        self.arithmetic = arithmetic
        ratio = "P[l,m] - (P[l,m] (+) LSE_m' A[l,m'])"
        self.equation = f"-mean_l log mean_m exp[{ratio}]" if arithmetic else f"-mean_off [{ratio}]"

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        there = P > -torch.inf
        log_ratio = P - logaddexp(P, logsumexp(A, 2)[:, :, None])
        if not self.arithmetic:
            return -mean(log_ratio, there, (1, 2))
        log_sum = logsumexp(log_ratio.masked_fill(~there, -torch.inf), 2)
        log_count = there.sum(2).clamp_min(1).to(P).log()
        return mean(log_count - log_sum, there.any(2), 1)


class SigLIP(Objective):
    """Sigmoid loss of all pairs of views: each positive and each negative decided by itself.

    P is the logit of a positive, A the sum of softplus(logit) over negatives. Temperature and bias
    are learned by default, from the values of the SigLIP paper.
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
        learnable = not isinstance(temperature, Tensor) if learnable is None else learnable
        super().__init__(temperature, learnable=learnable, **options)
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learnable)

    def accept_kernel(self, kernel: Kernel) -> Kernel:
        if not isinstance(kernel, Gaussian):
            raise ValueError(f"siglip is a loss of logits: it takes no kernel, got {kernel}")
        return kernel

    def blocks(self, views: int) -> Tensor:
        return ~_eye(views)

    def affinity(self, similarity: Tensor) -> Tensor:
        return similarity + self.bias.to(similarity)

    def pointwise(self) -> tuple[Pointwise | None, tuple[Tensor, ...]]:
        return lambda s, bias: softplus(s + bias), (self.bias,)

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        return mean(softplus(-P) + A, P > -torch.inf, (1, 2))


class KernelContrastive(Objective):
    """Kernel contrastive loss over many views: mean kernels instead of logarithms of sums.

    P is the kernel of a positive, A the mean kernel over negatives of the same view. Takes any kernel;
    a temperature only with a positive one.
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
        positive = kernel is None or isinstance(kernel, (Gaussian, InverseMultiquadric))
        if not positive and (temperature is not None or options.get("learnable")):
            raise ValueError(f"{kernel} takes no temperature: its own parameters shape it")
        if not gamma > 0:
            raise ValueError(f"gamma must be > 0, got {gamma}")
        default = 0.25 if kernel is None or isinstance(kernel, Gaussian) else 1.0
        super().__init__(default if temperature is None else temperature, kernel=kernel, **options)
        self.gamma = gamma

    def accept_kernel(self, kernel: Kernel) -> Kernel:
        return kernel

    def blocks(self, views: int) -> Tensor:
        return _eye(views)

    def scaled(self, z: Tensor) -> Tensor:
        return z

    def pointwise(self) -> tuple[Pointwise | None, tuple[Tensor, ...]]:
        if isinstance(self.kernel, (Gaussian, InverseMultiquadric)):
            return self.kernel.value, (self._temperature_tensor(),)
        return self.kernel.value, ()

    def energies(self, z: Tensor, present: Tensor | None, *args: Any) -> Tensor:
        sums = super().energies(z, present, *args)
        if present is None:
            return sums / (len(z) - 1)
        count = present.sum(0) - present.long()
        return sums / count.clamp_min(1)[:, None, :]

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        there = P > -torch.inf
        energy = mean(A.diagonal(dim1=1, dim2=2), there.any(2), 1)
        return self.gamma * energy - mean(P, there, (1, 2))
