"""What all objectives share: from embeddings to P and A, and from losses of instances to a scalar."""

from __future__ import annotations

import dataclasses
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._compile import _disable_dynamo

from manyviews.losses import affinity, gather, inputs
from manyviews.losses.kernels import Gaussian, Kernel, PositiveKernel
from manyviews.losses.sums import SAFE_EXPONENT, Pointwise
from manyviews.losses.tiled import tiled_energies

Reduction = Literal["mean", "none"]
Implementation = Literal["auto", "dense", "tiled"]
SMALL = 512
"""Rows up to which dense energies are as fast as tiles that cannot share their exponentials."""


class Objective(nn.Module):
    """A function of positives P and energies A, both (M, N, N).

    A subclass writes `formula`, and says in `blocks` which energies it reads if not all; speed, small
    memory, absent views, mixed precision, many ranks and a learnable temperature come from here.

    Args:
        temperature: a number > 0, or a scalar tensor (a parameter of yours) to use as it is.
        learnable: make the temperature a parameter, held as its logarithm.
        kernel: `Gaussian()` or another positive kernel, raised to the power 1/temperature.
        reduction: "mean" over the instances with two present views, or "none": (M,) losses of this rank's
            instances, 0 for those that have one view.
        gather: on several ranks, contrast with the instances of all of them. Every rank must then call the objective;
            average the gradients over ranks, as DistributedDataParallel does.
        implementation: "tiled" never builds the MN x MN matrix, "dense" does (and can be differentiated twice),
            "auto" takes the faster, which is "tiled" but for a few rows at extreme temperatures.

    Examples:
        >>> from manyviews.losses import logsumexp
        >>> class Mine(Objective):
        ...     def formula(self, P, A):
        ...         return logsumexp(A.flatten(1), 1) - logsumexp(P.flatten(1), 1)
        >>> Mine(temperature=0.2)(torch.randn(8, 3, 16)).shape
        torch.Size([])
    """

    equation: str = ""
    """The loss of one instance in one line; LSE is log-sum-exp, (+) logaddexp, off all l != m."""
    logarithmic: bool = True
    """A is the log of the sum over negatives of exp(affinity), else the sum of `pointwise`."""
    most_views: float = math.inf
    """How many views an instance may have."""

    def __init__(
        self,
        temperature: float | Tensor = 0.5,
        *,
        learnable: bool = False,
        kernel: Kernel | None = None,
        reduction: Reduction = "mean",
        gather: bool = True,
        implementation: Implementation = "auto",
    ) -> None:
        super().__init__()
        inputs.check_choice("reduction", reduction, Reduction)
        inputs.check_choice("implementation", implementation, Implementation)
        self._set_temperature(temperature, learnable)
        self.kernel = self.accept_kernel(Gaussian() if kernel is None else kernel)
        self.reduction = reduction
        self.gather = gather
        self.implementation = implementation

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        """Losses (M,) of the instances from positives and energies (M, N, N)."""
        shapes = f"P {tuple(P.shape)} and A {tuple(A.shape)}"
        raise TypeError(f"{type(self).__name__} must define formula(P, A): it was called with {shapes}")

    def blocks(self, views: int) -> Tensor:
        """Which energies A[:, l, m] the formula reads, as bools (N, N)."""
        return torch.ones(views, views, dtype=torch.bool)

    def pairs(self, views: int) -> Tensor:
        """Which pairs of views are positives, as bools (N, N); P is -inf elsewhere."""
        return ~torch.eye(views, dtype=torch.bool)

    def contrasts(self, z: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The views that P and A are about, from the views given."""
        return z, present

    def contrasted(self, P: Tensor, A: Tensor) -> Tensor:
        """Where an energy that the formula reads has negatives, as bools (M, N, N)."""
        return (P != -torch.inf).flatten(1).any(1)[:, None, None] & (A != -torch.inf)

    def accept_kernel(self, kernel: Kernel) -> Kernel:
        if not isinstance(kernel, PositiveKernel):
            if not hasattr(kernel, "value"):
                raise TypeError(f"kernel must be a kernel such as Gaussian(), got {kernel!r}")
            raise ValueError(
                f"{kernel} may be negative, so the log of its sum is undefined: use KernelContrastive(kernel=...)"
            )
        return kernel

    def forward(self, z: Tensor, present: Tensor | None = None) -> Tensor:
        """Loss of embeddings z (M, N, d), of any length; `present` (M, N) says which views are there.

        An instance with one present view counts as a negative only. The loss is computed in float32
        (float64 for float64 embeddings), under autocast too.

        Raises:
            ValueError, TypeError: fewer than two views or instances, NaN, inf or zero embeddings, a
                temperature that is not positive, a mask of another shape or device.
        """
        with full_precision(z):
            batch = self.prepare(z, present)
            P, A = self.affinities(batch)
            return self.reduce(self.formula(P, A), (P != -torch.inf).flatten(1).any(1), batch)

    # Under torch.compile the checks and the tiles run as they are: the checks read values, and the tiles unrolled into
    # a graph take minutes to compile. (torch.compiler.disable would import the compiler with the package.)
    @_disable_dynamo
    def prepare(self, z: Tensor, present: Tensor | None = None, labels: Tensor | None = None) -> inputs.Batch:
        group = gather.ranks(self.gather)
        options = "" if group is None else self._describe_options()
        return inputs.prepare(z, present, labels, self.temperature, options, group)

    def affinities(self, batch: inputs.Batch) -> tuple[Tensor, Tensor]:
        """P and A of a batch."""
        views = batch.z.shape[1]
        if views > self.most_views:
            raise ValueError(
                f"{type(self).__name__} is a loss of {self.most_views} views, got {views}: for more "
                "take it as pwe (Pairs) or avg (Average), or a multi-view objective"
            )
        z, present = self.contrasts(self.scaled(batch.z), batch.present)
        there = self.pairs(views).to(z.device)
        if present is not None:
            there = there & present[:, :, None] & present[:, None, :]
        P = self.affinity(affinity.similarities(z)).masked_fill(~there, -torch.inf)
        blocks = self.blocks(views)
        A = self.energies(z, present, blocks, batch.group)
        aligned = present is not None and batch.labels is None and (P != -torch.inf).any()
        if aligned and self.logarithmic and not self.contrasted(P, A).any():
            raise ValueError(f"no two instances have the views that {type(self).__name__} contrasts: no negatives")
        return P, A

    def scaled(self, z: Tensor) -> Tensor:
        """Unit embeddings times temperature^(-1/2), so that inner products are log K."""
        if not isinstance(self.kernel, Gaussian):
            return z
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            return z * temperature.to(z).rsqrt()
        return z * temperature**-0.5

    def affinity(self, similarity: Tensor) -> Tensor:
        """Log K from the inner products of scaled embeddings."""
        pointwise, parameters = self.pointwise()
        return similarity if pointwise is None else pointwise(similarity, *(p.to(similarity) for p in parameters))

    def pointwise(self) -> tuple[Pointwise | None, tuple[Tensor, ...]]:
        """Log K as a function of the inner product and of tensors that may be learned."""
        kernel = self.kernel
        if isinstance(kernel, Gaussian) or not isinstance(kernel, PositiveKernel):
            return None, ()
        return lambda s, t: kernel.log(s) / t, (self._temperature_tensor(),)

    @_disable_dynamo
    def energies(
        self,
        z: Tensor,
        present: Tensor | None,
        blocks: Tensor,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        """A (M, N, N), or plain sums, over all other instances."""
        pointwise, parameters = self.pointwise()
        options: dict[str, Any] = {
            "pointwise": pointwise,
            "parameters": tuple(p.to(z) for p in parameters),
            "logarithmic": self.logarithmic,
        }
        exponent = 1 / float(self._temperature_tensor().detach())
        simple = pointwise is None and exponent < SAFE_EXPONENT[z.dtype]
        small = not simple and group is None and z.shape[0] * z.shape[1] <= SMALL
        if self.implementation == "dense" or (self.implementation == "auto" and small):
            return affinity.dense_energies(z, blocks, present, **options)
        return tiled_energies(z, blocks, present, exponent=exponent * 1.001, group=group, **options)

    def reduce(self, losses: Tensor, counted: Tensor, batch: inputs.Batch) -> Tensor:
        if losses.shape != counted.shape:
            raise ValueError(
                f"the formula of {type(self).__name__} must give a loss for each instance, {tuple(counted.shape)}, "
                f"got {tuple(losses.shape)}"
            )
        if self.reduction == "none":
            return batch.local(torch.where(counted, losses, 0.0))
        if batch.present is None:
            return losses.mean()
        if not counted.any():
            raise ValueError(f"no instance has the views that {type(self).__name__} aligns")
        return affinity.mean(losses, counted, 0)

    @property
    def temperature(self) -> float | Tensor:
        """The temperature in force: a number, or a tensor if it is learned."""
        log = self.log_temperature
        if log is None:
            return self._temperature
        return (log.float() if log.dtype in (torch.float16, torch.bfloat16) else log).exp()

    def _set_temperature(self, temperature: float | Tensor, learnable: bool) -> None:
        inputs.check_temperature(temperature)
        self.log_temperature: nn.Parameter | None = None
        self._temperature: float | Tensor
        if isinstance(temperature, Tensor):
            if learnable:
                raise ValueError("a temperature given as a tensor is learned if it is a parameter")
            self._temperature = temperature
        elif learnable:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        else:
            self._temperature = float(temperature)

    def _temperature_tensor(self) -> Tensor:
        temperature = self.temperature
        return temperature if isinstance(temperature, Tensor) else torch.tensor(temperature, dtype=torch.float64)

    def _describe_options(self) -> str:
        """The class and every option but the temperature, the same for equal losses."""

        def describe(value: object) -> str:  # other objects may be printed with their address
            plain = (
                value is None or isinstance(value, (bool, int, float, str, tuple)) or dataclasses.is_dataclass(value)
            )
            return repr(value) if plain else type(value).__qualname__

        options = {k: describe(v) for k, v in vars(self).items() if not k.startswith("_") and k != "training"}
        return f"{type(self).__qualname__} {options}"

    def extra_repr(self) -> str:
        """The options in which this objective may differ from another of its class."""
        temperature = f"temperature={float(self._temperature_tensor().detach()):g}"
        hidden = ("training", "gather", "implementation", "equation", "reduction", "kernel", "log_temperature")
        own = {k: v for k, v in vars(self).items() if not k.startswith("_") and k not in hidden}
        return ", ".join([temperature, f"kernel={self.kernel}", *(f"{k}={v!r}" for k, v in own.items())])


def full_precision(z: Tensor) -> AbstractContextManager[object]:
    """No autocast on the device of z; whatever else z is, the checks will say."""
    return torch.autocast(z.device.type, enabled=False) if isinstance(z, Tensor) else nullcontext()
