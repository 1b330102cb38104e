"""Losses, forward and backward, at d = 128 in float32.

The baselines are dense autograd of the same equation; three bare products of as many rows (Z Z^T, S Z, S^T Z), which a
naive backward pass multiplies; the common loop over pairs of views; and public libraries, if installed. The loop and
the libraries must return the same value as manyviews before they are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from benchmarks.measure import (
    Row,
    make_memory_row,
    make_time_row,
    read_peak_memory,
    run_in_new_process,
    time_interleaved,
)
from manyviews.losses import get_loss

D = 128
SIZES = ((256, 2), (256, 4), (1024, 4), (2048, 4))
LOSS_NAMES = ("mv-infonce", "pvc", "mv-dhel")
IMPLEMENTATIONS = ("auto", "dense")
LARGE_EMBEDDINGS = 4096
"""Batches of at least this many embeddings have strict bounds; smaller ones must only not be slower than dense."""
NOISE_RATIO = 1.03
"""Largest ratio of medians that noise of a shared machine produces where the true ratio is 1."""
LossFunction = Callable[[Tensor], Tensor]


def measure(quick: bool) -> Iterator[Row | str]:
    for size in ((64, 4),) if quick else SIZES:
        yield from compare_with_dense(*size, seconds=0.1 if quick else 8.0)
    yield from compare_with_alternatives(quick)
    yield from measure_memory((256, 512) if quick else (2048, 8192), LOSS_NAMES[:1] if quick else LOSS_NAMES)


def make_gradient_function(loss_fn: LossFunction, z: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(loss_fn(z), z)


def make_embeddings(instances: int, views: int) -> Tensor:
    return torch.randn(instances, views, D, generator=torch.Generator().manual_seed(0), requires_grad=True)


def make_product_function(z: Tensor) -> Callable[[], object]:
    rows = z.detach().flatten(0, 1)

    def multiply_three_times() -> None:
        s = rows @ rows.T
        s @ rows
        s.T @ rows

    return multiply_three_times


def compare_with_dense(M: int, N: int, seconds: float) -> Iterator[Row]:
    z, size, is_large = make_embeddings(M, N), f"{M:,} x {N}", M * N >= LARGE_EMBEDDINGS
    functions = {
        (name, implementation): make_gradient_function(get_loss(name, implementation=implementation), z)
        for name in LOSS_NAMES
        for implementation in IMPLEMENTATIONS
    }
    functions["products", ""] = make_product_function(z)
    times = time_interleaved(functions, seconds)
    for name in LOSS_NAMES:
        workload, tiled, is_cheap = f"`{name}`, {size}", times[name, "auto"], name == "mv-dhel"
        max_ratio = 1 / 2.5 if is_large and not is_cheap else NOISE_RATIO
        yield make_time_row("losses", workload, "dense autograd", tiled, times[name, "dense"], max_ratio=max_ratio)
        bound = (0.35 if is_cheap else 0.95) if is_large and torch.get_num_threads() == 2 else None
        yield make_time_row("losses", workload, "three bare products", tiled, times["products", ""], max_ratio=bound)
    yield from compare_losses(z, {name: functions[name, "auto"] for name in LOSS_NAMES}, size, is_large, seconds / 2)


def compare_losses(
    z: Tensor, functions: dict[str, Callable[[], object]], size: str, is_large: bool, seconds: float
) -> Iterator[Row]:
    """Compare the losses with each other, without dense ones in between, which would evict the cache."""
    same_energies = get_loss("mv-infonce", same_view_negatives=True)  # it reads the energies that PVC reads
    times = time_interleaved({**functions, "same energies": make_gradient_function(same_energies, z)}, seconds)
    infonce, max_ratio = times["mv-infonce"], 0.5 if is_large else None
    yield make_time_row("losses", f"`mv-dhel`, {size}", "`mv-infonce`", times["mv-dhel"], infonce, max_ratio=max_ratio)
    baseline, max_ratio = "`mv-infonce`, same negatives", 1.1 if is_large else None
    yield make_time_row("losses", f"`pvc`, {size}", baseline, times["pvc"], times["same energies"], max_ratio=max_ratio)


def make_pair_loop() -> LossFunction:
    """NT-Xent of each pair of views, in its usual form for two views, averaged."""

    def compute_loss(z: Tensor) -> Tensor:
        losses = []
        for first, second in combinations(normalize(z, dim=2).unbind(1), 2):
            rows = torch.cat([first, second])
            logits = (rows @ rows.T / 0.5).fill_diagonal_(-torch.inf)
            losses.append(cross_entropy(logits, torch.arange(len(rows), device=z.device).roll(len(first))))
        return torch.stack(losses).mean()

    return compute_loss


def make_pytorch_metric_learning() -> LossFunction:
    from pytorch_metric_learning.losses import NTXentLoss

    loss_fn = NTXentLoss(temperature=0.5)
    return lambda z: loss_fn(z.flatten(0, 1), torch.arange(len(z)).repeat_interleave(z.shape[1]))


def make_lightly() -> LossFunction:
    from lightly.loss import NTXentLoss

    loss_fn = NTXentLoss(temperature=0.5)
    return lambda z: loss_fn(*z.unbind(1))


ALTERNATIVES: tuple[tuple[str, Callable[[], LossFunction], str, tuple[tuple[int, int], ...]], ...] = (
    ("a loop over pairs of views", make_pair_loop, "pwe-ntxent", ((512, 2), (256, 4), (1024, 4))),
    ("lightly's NTXentLoss", make_lightly, "ntxent", ((512, 2),)),
    # Its memory grows with the third power of the number of embeddings.
    ("pytorch-metric-learning's NTXentLoss", make_pytorch_metric_learning, "pvc", ((128, 2), (64, 4))),
)
"""Alternatives, the loss that each one computes, and feasible sizes."""


def compare_with_alternatives(quick: bool) -> Iterator[Row | str]:
    for baseline, make, name, sizes in ALTERNATIVES:
        try:
            alternative = make()
        except (ImportError, RuntimeError) as error:  # a torchvision built for another torch raises the latter
            yield f"{baseline}: not measured ({error})"
            continue
        for M, N in sizes[:1] if quick else sizes:
            z, loss_fn = make_embeddings(M, N), get_loss(name)
            torch.testing.assert_close(loss_fn(z), alternative(z))
            functions = {
                "manyviews": make_gradient_function(loss_fn, z),
                "alternative": make_gradient_function(alternative, z),
            }
            times = time_interleaved(functions, 0.1 if quick else 4.0)
            workload = f"`{name}`, {M:,} x {N}"
            yield make_time_row("losses", workload, baseline, times["manyviews"], times["alternative"])


def measure_peak_increase(name: str, instances: int, implementation: str, threads: int) -> float:
    """MB by which one forward and backward pass raises the peak memory of this process, N = 4."""
    torch.set_num_threads(threads)
    loss_fn = get_loss(name, implementation=implementation)
    make_gradient_function(loss_fn, make_embeddings(64, 4))()
    z = make_embeddings(instances, 4)
    before = read_peak_memory()
    make_gradient_function(loss_fn, z)()
    return read_peak_memory() - before


def measure_memory(instances: tuple[int, int], names: tuple[str, ...]) -> Iterator[Row]:
    (small, large), threads = instances, torch.get_num_threads()
    for name in names:
        tiled, dense = (
            run_in_new_process(measure_peak_increase, name, small, implementation, threads)
            for implementation in IMPLEMENTATIONS
        )
        workload = f"memory of `{name}`, {small:,} x 4"
        yield make_memory_row("losses", workload, "dense autograd", tiled, dense, max_ratio=0.5)
    for name in names:
        tiled = run_in_new_process(measure_peak_increase, name, large, "auto", threads)
        matrix = (4 * large) ** 2 * 4 / 2**20
        workload = f"memory of `{name}`, {large:,} x 4"
        yield make_memory_row("losses", workload, "one MN x MN matrix, computed", tiled, matrix, max_ratio=0.0625)
