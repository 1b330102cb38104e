"""Base class of the losses: from embeddings to P and A, and from losses of instances to a scalar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._compile import _disable_dynamo

from manyviews.losses._accumulate import MAX_SAFE_LOGIT, KernelFunction
from manyviews.losses._batch import GatheredBatch, check_choice, check_temperature, normalize_and_gather
from manyviews.losses._dense import compute_dense_energies, compute_similarities
from manyviews.losses._distributed import get_process_group
from manyviews.losses._masked import masked_mean
from manyviews.losses._tiled import compute_tiled_energies
from manyviews.losses.kernels import Gaussian, Kernel, PositiveKernel

Reduction = Literal["mean", "none"]
Implementation = Literal["auto", "dense", "tiled"]
DENSE_MAX_ROWS = 512
"""Number of rows up to which dense energies are as fast as tiles that cannot share exponentials."""


class MultiViewLoss(nn.Module):
    """A function of positives P and energies A, both (M, N, N).

    A subclass defines `formula`, and `required_energies` if it does not read all of A. The base class provides fast
    energies in little memory, missing views, mixed precision, gathering across ranks and a learned temperature.

    Args:
        temperature: a number > 0, or a scalar tensor (such as a parameter of yours), which is used as it is.
        learn_temperature: make the temperature a parameter, stored as its logarithm.
        kernel: `Gaussian()` or another positive kernel, raised to the power 1/temperature.
        reduction: "mean" over the instances with at least two views, or "none": losses (M,) of this rank's instances,
            0 for those with fewer.
        gather_distributed: on several ranks, use the instances of all ranks as negatives. Every rank must then call the
            loss; average the gradients over ranks, as DistributedDataParallel does.
        implementation: "tiled" never builds the MN x MN matrix, "dense" does (and can be differentiated twice), "auto"
            selects the faster: "tiled", except for small batches with extreme temperatures or other kernels.

    Examples:
        >>> from manyviews.losses import masked_logsumexp
        >>> class Mine(MultiViewLoss):
        ...     def formula(self, P, A):
        ...         return masked_logsumexp(A.flatten(1), 1) - masked_logsumexp(P.flatten(1), 1)
        >>> Mine(temperature=0.2)(torch.randn(8, 3, 16)).shape
        torch.Size([])
    """

    equation: str = ""
    """The loss of one instance in one line; LSE is log-sum-exp, (+) is logaddexp, `off` means all l != m."""
    log_space: bool = True
    """A is the log of the sum of K over negatives; if false, the plain sum of the kernel function."""
    max_views: float = math.inf
    """Largest number of views of an instance."""
    gaussian_only: str = ""
    """Why the loss requires the Gaussian kernel, if it does."""

    def __init__(
        self,
        temperature: float | Tensor = 0.5,
        *,
        learn_temperature: bool = False,
        kernel: Kernel | None = None,
        reduction: Reduction = "mean",
        gather_distributed: bool = True,
        implementation: Implementation = "auto",
    ) -> None:
        super().__init__()
        check_choice("reduction", reduction, Reduction)
        check_choice("implementation", implementation, Implementation)
        check_temperature(temperature)
        if learn_temperature and isinstance(temperature, Tensor):
            raise ValueError("learn_temperature requires a number as temperature; for a tensor, pass an nn.Parameter")
        self._temperature = temperature if isinstance(temperature, Tensor) else float(temperature)
        log = nn.Parameter(torch.tensor(math.log(temperature))) if learn_temperature else None
        self.log_temperature: nn.Parameter | None = log
        self.kernel = self.check_kernel(Gaussian() if kernel is None else kernel)
        self.reduction, self.implementation, self.gather_distributed = reduction, implementation, gather_distributed

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        """Compute the losses (M,) of the instances from positives and energies (M, N, N)."""
        raise TypeError(f"{type(self).__name__} must define formula(P, A), for P {tuple(P.shape)}, A {tuple(A.shape)}")

    def required_energies(self, views: int) -> Tensor:
        """Return which energies A[:, l, m] the formula reads, as bools (N, N)."""
        return torch.ones(views, views, dtype=torch.bool)

    def positive_pairs(self, views: int) -> Tensor:
        """Return which pairs of views are positives, as bools (N, N); P is -inf elsewhere."""
        return ~torch.eye(views, dtype=torch.bool)

    def expand_views(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the views for which P and A are computed, from the input views."""
        return z, mask

    def has_negatives(self, P: Tensor, A: Tensor) -> Tensor:
        """Return where an energy of the formula has negatives, as bools (M, N, N)."""
        return (P != -torch.inf).flatten(1).any(1)[:, None, None] & (A != -torch.inf)

    def check_kernel(self, kernel: Kernel) -> Kernel:
        if self.gaussian_only and not isinstance(kernel, Gaussian):
            raise ValueError(f"{type(self).__name__} requires Gaussian(), got {kernel}: {self.gaussian_only}")
        if not isinstance(kernel, PositiveKernel):
            if not hasattr(kernel, "value"):
                raise TypeError(f"kernel must be a kernel such as Gaussian(), got {kernel!r}")
            raise ValueError(f"{kernel} may be negative, so its sum has no logarithm: use KernelContrastiveLoss")
        return kernel

    def forward(self, z: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Compute the loss of embeddings z (M, N, d) of any norm, or of a list of N views (M, d).

        `mask` (M, N) is true where a view exists. An instance with one view is only a negative. The loss is
        computed in float32 (float64 for float64 embeddings), under autocast too.

        Raises:
            ValueError, TypeError: fewer than two views or instances, NaN, inf or zero embeddings, a
                temperature that is not positive, views of different shapes, a mask of another shape or device.

        Examples:
            >>> from manyviews.losses import MVDHELLoss
            >>> z1, z2, z3 = torch.randn(3, 8, 16)
            >>> loss = MVDHELLoss()([z1, z2, z3])  # the same as MVDHELLoss()(torch.stack([z1, z2, z3], 1))
        """
        with disable_autocast(z):
            batch = self.prepare(z, mask)
            P, A = self.compute_positives_and_energies(batch)
            return self.reduce(self.formula(P, A), (P != -torch.inf).flatten(1).any(1), batch)

    # torch.compile skips the checks, which read values, and the tiles, which take minutes to compile when unrolled.
    # (torch.compiler.disable would import the compiler with the package.)
    @_disable_dynamo
    def prepare(
        self, z: Tensor | Sequence[Tensor], mask: Tensor | None = None, labels: Tensor | None = None
    ) -> GatheredBatch:
        group = get_process_group(self.gather_distributed)
        options = "" if group is None else self._describe_options()
        return normalize_and_gather(z, mask, labels, self.temperature, options, group)

    def compute_positives_and_energies(self, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        """Compute P and A of a batch."""
        views, name = batch.z.shape[1], type(self).__name__
        if views > self.max_views:
            hint = (
                "for more views use PairwiseLoss (pwe), LeaveOneOutLoss (avg) or a multi-view loss such as MVDHELLoss"
            )
            raise ValueError(f"{name} is a loss of {self.max_views} views, got {views}: {hint}")
        z, mask = self.expand_views(self.scale_by_temperature(batch.z), batch.mask)
        is_positive = self.positive_pairs(views).to(z.device)
        if mask is not None:
            is_positive = is_positive & mask[:, :, None] & mask[:, None, :]
        P = self.compute_log_kernel(compute_similarities(z)).masked_fill(~is_positive, -torch.inf)
        A = self.compute_energies(z, mask, self.required_energies(views), batch.group)
        has_positives = mask is not None and batch.labels is None and (P != -torch.inf).any()
        if has_positives and self.log_space and not self.has_negatives(P, A).any():
            raise ValueError(f"no two instances share the views that {name} contrasts: there are no negatives")
        return P, A

    def scale_by_temperature(self, z: Tensor) -> Tensor:
        """Multiply unit embeddings by temperature^(-1/2), so that inner products are log K."""
        if not isinstance(self.kernel, Gaussian):
            return z
        temperature = self.temperature
        return z * (temperature.to(z).rsqrt() if isinstance(temperature, Tensor) else temperature**-0.5)

    def compute_log_kernel(self, similarity: Tensor) -> Tensor:
        """Compute log K from the inner products of scaled embeddings."""
        kernel_fn, parameters = self.get_kernel_function()
        return similarity if kernel_fn is None else kernel_fn(similarity, *(p.to(similarity) for p in parameters))

    def get_kernel_function(self) -> tuple[KernelFunction | None, tuple[Tensor, ...]]:
        """Return log K as a function of the inner product and of tensors that may be learned."""
        kernel = self.kernel
        if isinstance(kernel, Gaussian) or not isinstance(kernel, PositiveKernel):
            return None, ()
        return lambda s, t: kernel.log(s) / t, (self._temperature_tensor(),)

    @_disable_dynamo
    def compute_energies(
        self, z: Tensor, mask: Tensor | None, required: Tensor, group: dist.ProcessGroup | None
    ) -> Tensor:
        """Compute A (M, N, N), or plain sums, over all other instances."""
        kernel_fn, parameters = self.get_kernel_function()
        parameters = tuple(p.to(z) for p in parameters)
        options: dict[str, Any] = {"kernel_fn": kernel_fn, "parameters": parameters, "log_space": self.log_space}
        max_logit = 1 / float(self._temperature_tensor().detach())
        use_shared_exp = kernel_fn is None and max_logit < MAX_SAFE_LOGIT[z.dtype]
        use_dense = not use_shared_exp and group is None and z.shape[0] * z.shape[1] <= DENSE_MAX_ROWS
        if self.implementation == "dense" or (self.implementation == "auto" and use_dense):
            return compute_dense_energies(z, required, mask, **options)
        return compute_tiled_energies(z, required, mask, max_logit=max_logit * 1.001, group=group, **options)

    def reduce(self, losses: Tensor, counted: Tensor, batch: GatheredBatch) -> Tensor:
        name, shape, got = type(self).__name__, tuple(counted.shape), tuple(losses.shape)
        if got != shape:
            raise ValueError(f"the formula of {name} must return a loss for each instance, {shape}, got {got}")
        if self.reduction == "none":
            return batch.local_shard(torch.where(counted, losses, 0.0))
        if batch.mask is None:
            return losses.mean()
        if not counted.any():
            raise ValueError(f"no instance has the views that {name} aligns: there are no positives")
        return masked_mean(losses, counted, 0)

    @property
    def temperature(self) -> float | Tensor:
        """The current temperature: a number, or a tensor if it is learned."""
        log = self.log_temperature
        if log is None:
            return self._temperature
        return (log.float() if log.dtype in (torch.float16, torch.bfloat16) else log).exp()

    def _temperature_tensor(self) -> Tensor:
        temperature = self.temperature
        return temperature if isinstance(temperature, Tensor) else torch.tensor(temperature, dtype=torch.float64)

    def _describe_options(self) -> str:
        """Describe the class and all options except the temperature; equal losses have equal texts."""

        def describe(value: object) -> str:  # the repr of other objects may contain their address
            has_stable_repr = isinstance(value, (NoneType, bool, int, float, str, tuple)) or is_dataclass(value)
            return repr(value) if has_stable_repr else type(value).__qualname__

        return f"{type(self).__qualname__} { {k: describe(v) for k, v in self._list_options().items()} }"

    def _list_options(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "training"}

    def extra_repr(self) -> str:
        """Return the options that define the loss."""
        hidden = ("gather_distributed", "implementation", "equation", "reduction", "kernel", "log_temperature")
        shown = [f"{name}={value!r}" for name, value in self._list_options().items() if name not in hidden]
        temperature = f"temperature={float(self._temperature_tensor().detach()):g}"
        return ", ".join([temperature, f"kernel={self.kernel}", *shown])


def disable_autocast(z: Tensor | Sequence[Tensor]) -> AbstractContextManager[object]:
    """Disable autocast on the device of z; invalid values are rejected later, by the checks."""
    z = z[0] if isinstance(z, (list, tuple)) and z else z
    return torch.autocast(z.device.type, enabled=False) if isinstance(z, Tensor) else nullcontext()
