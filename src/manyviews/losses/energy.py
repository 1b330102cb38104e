"""Losses of positives P and energies A: from a batch of embeddings to P and A, shared by several losses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from manyviews.losses._accumulate import IDENTITY, MAX_SAFE_LOGIT, KernelFunction, RegisteredKernel, register_kernel
from manyviews.losses._batch import GatheredBatch, check_choice
from manyviews.losses._dense import compute_dense_energies, compute_similarities
from manyviews.losses._masked import safe_logaddexp
from manyviews.losses._memory_bank import BankViews, MemoryBank, compute_bank_energies
from manyviews.losses._tiled import Pairs, compute_tiled_energies
from manyviews.losses.base import MultiViewLoss
from manyviews.losses.kernels import BUILT_IN_KERNELS, Gaussian, Kernel, PositiveKernel

Implementation = Literal["auto", "dense", "tiled"]
DENSE_MAX_ROWS = 512
"""Number of rows up to which dense energies are as fast as tiles that cannot share exponentials."""


def list_all_pairs(views: int) -> Pairs:
    return {(l, m) for l in range(views) for m in range(views)}


def list_cross_view_pairs(views: int) -> Pairs:
    return {(l, m) for l in range(views) for m in range(views) if l != m}


def list_same_view_pairs(views: int) -> Pairs:
    return {(l, l) for l in range(views)}


class EnergyLoss(MultiViewLoss):
    """A function of positives P and energies A, both (M, N, N).

    A subclass defines `formula`, and `required_energies` if it does not read all of A. The base class provides fast
    energies in little memory, missing views, mixed precision, gathering across ranks and a learned temperature.

    Args:
        temperature: a number > 0, or a scalar tensor (such as a parameter of yours), which is used as it is.
        kernel: `Gaussian()` or another positive kernel, raised to the power 1/temperature.
        implementation: "tiled" never builds the MN x MN matrix, "dense" does (and can be differentiated twice), "auto"
            selects the faster: "tiled", except for small batches with extreme temperatures or other kernels.
        memory_bank: use the embeddings of the last `memory_bank` instances of earlier training batches as further
            negatives, without a gradient. They are a part of the state dict.
        **options: those of `MultiViewLoss`.

    Examples:
        >>> from manyviews.losses import masked_logsumexp
        >>> class Mine(EnergyLoss):
        ...     def formula(self, P, A):
        ...         return masked_logsumexp(A.flatten(1), 1) - masked_logsumexp(P.flatten(1), 1)
        >>> Mine(temperature=0.2)(torch.randn(8, 3, 16)).shape
        torch.Size([])
    """

    uses_ids = True
    log_space: bool = True
    """A is the log of the sum of K over negatives; if false, the plain sum of the kernel function."""
    gaussian_only: str = ""
    """Why the loss requires the Gaussian kernel, if it does."""

    def __init__(
        self,
        temperature: float | Tensor = 0.5,
        *,
        kernel: Kernel | None = None,
        implementation: Implementation = "auto",
        memory_bank: int = 0,
        **options: Any,
    ) -> None:
        if temperature is None:
            raise TypeError("temperature must be a number or a scalar tensor, got NoneType")
        super().__init__(temperature, **options)
        check_choice("implementation", implementation, Implementation)
        self.kernel = self.check_kernel(Gaussian() if kernel is None else kernel)
        self.implementation = implementation
        self.memory_bank = MemoryBank(memory_bank) if memory_bank else None
        self._kernel_function = self._register_kernel()
        self._has_kernel_parameters = self._find_kernel_parameters()
        if self._has_kernel_parameters and implementation == "tiled":
            raise ValueError(f'{kernel} has parameters of its own, which need implementation="dense" or "auto"')

    def formula(self, P: Tensor, A: Tensor) -> Tensor:
        """Compute the losses (M,) of the instances from positives and energies (M, N, N)."""
        raise TypeError(f"{type(self).__name__} must define formula(P, A), for P {tuple(P.shape)}, A {tuple(A.shape)}")

    def required_energies(self, views: int) -> Pairs:
        """Return the pairs (l, m) for which the formula reads A[:, l, m]."""
        return list_all_pairs(views)

    def positive_pairs(self, views: int, device: torch.device | None = None) -> Tensor:
        """Return which pairs of views are positives, as bools (N, N); P is -inf elsewhere."""
        return ~torch.eye(views, dtype=torch.bool, device=device)

    expansion: Hashable = None
    """Identifies the views that `expand_views` adds; None if it adds none. Losses with the same ones share energies."""

    def expand_views(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Append further views to the unit embeddings of the input views; P and A are those of all of them."""
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

    def make_kernel_function(self) -> KernelFunction | None:
        """Return log K as a function of the inner product and of `kernel_parameters`; None for the inner product."""
        if isinstance(self.kernel, Gaussian) or not isinstance(self.kernel, PositiveKernel):
            return None
        return partial(_scale_log_kernel, self.kernel)

    def kernel_parameters(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors that the kernel function takes, which may be learned."""
        return () if isinstance(self.kernel, Gaussian) else (self.temperature_tensor(like),)

    def compute_losses(self, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        ((P, A),) = compute_positives_and_energies([self], batch)
        update_memory_banks([self], batch)
        return self.compute_from_energies(P, A, batch)

    def compute_from_energies(self, P: Tensor, A: Tensor, batch: GatheredBatch) -> tuple[Tensor, Tensor]:
        """Return `formula(P, A)` and which instances have a positive; NaN, or an error, if there are no negatives."""
        counted = (P != -torch.inf).flatten(1).any(1)
        losses = self.formula(P, A)
        may_lack_negatives = (batch.mask is not None or batch.ids is not None) and batch.labels is None
        if may_lack_negatives and self.log_space:
            has_negatives = self.has_negatives(P, A).any()
            if batch.validate and counted.any() and not has_negatives:
                shared = f"no two instances share the views that {type(self).__name__} contrasts"
                reason = shared if batch.ids is None else f"{shared}, with different ids"
                raise ValueError(f"{reason}: there are no negatives")
            losses = torch.where(has_negatives, losses, torch.nan)
        return losses, counted

    @property
    def has_memory_bank(self) -> bool:
        return self.memory_bank is not None

    @property
    def temperature(self) -> float | Tensor:
        """The current temperature: a number, or a tensor if it is learned."""
        temperature = self._compute_temperature()
        assert temperature is not None
        return temperature

    def scale_by_temperature(self, z: Tensor) -> Tensor:
        """Multiply unit embeddings by temperature^(-1/2), so that inner products are log K."""
        if not isinstance(self.kernel, Gaussian):
            return z
        temperature = self.temperature
        return z * (temperature**-0.5 if isinstance(temperature, float) else self.temperature_tensor(z).rsqrt())

    def compute_log_kernel(self, similarity: Tensor) -> Tensor:
        """Compute log K from the inner products of scaled embeddings."""
        if self._kernel_function == IDENTITY:
            return similarity
        return self._kernel_function.function(similarity, *self.kernel_parameters(similarity))

    def compute_energies(
        self, x: Tensor, mask: Tensor | None, required: Pairs, batch: GatheredBatch, bank: BankViews | None = None
    ) -> Tensor:
        """Compute A (M, N, N), or plain sums, over all other instances and those in the memory bank."""
        return self.sum_kernel(self._kernel_function, self.kernel_parameters(x), x, mask, required, batch, bank)

    def sum_kernel(
        self,
        kernel: RegisteredKernel,
        parameters: tuple[Tensor, ...],
        x: Tensor,
        mask: Tensor | None,
        required: Pairs,
        batch: GatheredBatch,
        bank: BankViews | None,
    ) -> Tensor:
        """Compute the sums, or their logarithms, of any kernel function."""
        options: dict[str, Any] = {"kernel": kernel, "parameters": parameters, "log_space": self.log_space}
        max_logit = self._get_max_logit(batch)
        use_shared_exp = kernel == IDENTITY and (max_logit is None or max_logit < MAX_SAFE_LOGIT[x.dtype])
        use_dense = not use_shared_exp and not batch.is_distributed and x.shape[0] * x.shape[1] <= DENSE_MAX_ROWS
        use_dense = use_dense and self.implementation == "auto"
        if self.implementation == "dense" or use_dense or self._has_kernel_parameters:
            A = compute_dense_energies(x, required, mask, ids=batch.ids, **options)
        else:
            A = compute_tiled_energies(
                x, required, mask, ids=batch.ids, max_logit=max_logit, distributed=batch.is_distributed, **options
            )
        if bank is None:
            return A
        B = compute_bank_energies(x, bank, required, mask, batch.ids, **options)
        return safe_logaddexp(A, B) if self.log_space else A + B

    def _get_max_logit(self, batch: GatheredBatch) -> float | None:
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            if not batch.validate:
                return None
            temperature = float(temperature.detach())
        return 1.001 / temperature

    def temperature_tensor(self, like: Tensor) -> Tensor:
        """Return the temperature as a scalar tensor of the dtype and device of `like`; NaN if it is not positive."""
        temperature = self.temperature
        if not isinstance(temperature, Tensor):
            return like.new_full((), temperature)
        temperature = temperature.to(like)
        return torch.where(temperature >= 1e-6, temperature, torch.nan)

    def share_key(self) -> Hashable:
        """Return what two losses must have in common to have the same energies."""
        kernel = None if self._kernel_function == IDENTITY else id(self)
        temperature = self._temperature if self.log_temperature is None else self.log_temperature
        key = id(temperature) if isinstance(temperature, Tensor) else temperature
        return kernel, key, self.log_space, self.implementation, id(self.memory_bank)

    def _register_kernel(self) -> RegisteredKernel:
        kernel_fn = self.make_kernel_function()
        return IDENTITY if kernel_fn is None else register_kernel(kernel_fn)

    def _find_kernel_parameters(self) -> bool:
        """Return whether the kernel has learned parameters of its own, whose gradient tiles do not compute."""
        if isinstance(self.kernel, BUILT_IN_KERNELS):
            return False
        parameters = (torch.ones(()),) * isinstance(self.kernel, PositiveKernel)
        return self._kernel_function.function(torch.zeros(2), *parameters).requires_grad

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._kernel_function = self._register_kernel()  # numbers are those of a process


def _scale_log_kernel(kernel: PositiveKernel, similarity: Tensor, temperature: Tensor) -> Tensor:
    return kernel.log(similarity) / temperature


def compute_positives_and_energies(losses: Sequence[EnergyLoss], batch: GatheredBatch) -> list[tuple[Tensor, Tensor]]:
    """Compute P and A of each loss; the losses have the same `share_key`, so each energy is computed only once."""
    first, views, memory = losses[0], batch.z.shape[1], losses[0].memory_bank
    z, all_mask, blocks = _expand_views(losses, batch.z, batch.mask)
    x = first.scale_by_temperature(z)
    bank = None
    if memory is not None and not memory.is_empty:
        bank = memory.get_views(batch.z)
        keys, key_mask, _ = _expand_views(losses, bank.keys, bank.mask)
        bank = bank._replace(keys=first.scale_by_temperature(keys), mask=cast(Tensor, key_mask))
    required = set()
    for loss in losses:
        index = [i for block in blocks[loss.expansion] for i in range(block.start, block.stop)]
        required |= {(index[l], index[m]) for l, m in loss.required_energies(views)}
    log_kernel = first.compute_log_kernel(compute_similarities(x))
    energies = first.compute_energies(x, all_mask, required, batch, bank)
    results = []
    for loss in losses:
        block = blocks[loss.expansion]
        is_positive = loss.positive_pairs(views, x.device)
        if all_mask is not None:
            own_mask = _take(all_mask, block, 1)
            is_positive = is_positive & own_mask[:, :, None] & own_mask[:, None, :]
        P = _take(_take(log_kernel, block, 1), block, 2).masked_fill(~is_positive, -torch.inf)
        results.append((P, _take(_take(energies, block, 1), block, 2)))
    return results


def update_memory_banks(losses: Sequence[EnergyLoss], batch: GatheredBatch) -> None:
    """Add a batch to the memory banks of losses in training mode, once to each, after all energies are computed."""
    banks = {id(loss.memory_bank): loss.memory_bank for loss in losses if loss.training}
    for bank in banks.values():
        if bank is not None:
            bank.add(batch)


def _expand_views(
    losses: Sequence[EnergyLoss], z: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor | None, dict[Hashable, list[slice]]]:
    """Append the further views of all losses; also return the ranges of views of each `expansion`."""
    views = total = z.shape[1]
    all_z, all_masks = [z], [mask]
    blocks: dict[Hashable, list[slice]] = {None: [slice(0, views)]}
    for loss in losses:
        if loss.expansion not in blocks:
            expanded, expanded_mask = loss.expand_views(z, mask)
            all_z.append(expanded[:, views:])
            all_masks.append(None if expanded_mask is None else expanded_mask[:, views:])
            blocks[loss.expansion] = [slice(0, views), slice(total, total + expanded.shape[1] - views)]
            total += expanded.shape[1] - views
    if len(all_z) == 1:
        return z, mask, blocks
    joined = None if mask is None else torch.cat([part for part in all_masks if part is not None], 1)
    return torch.cat(all_z, 1), joined, blocks


def _take(tensor: Tensor, blocks: list[slice], dim: int) -> Tensor:
    """Select ranges of views along a dimension."""
    parts = [tensor.narrow(dim, block.start, block.stop - block.start) for block in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
