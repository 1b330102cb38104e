"""Losses, forward and backward, at d = 128 in float32.

The baselines are dense autograd of the same equation; three bare products of as many rows (Z Z^T, S Z, S^T Z), which a
naive backward pass multiplies; the common loop over pairs of views; public libraries, if installed; and, for GRAM and
TRIANGLE, the equation as its authors compute it, with (M, M, N, N) and (M, M, d) tensors. The loop, the libraries and
the equations must return the same value as manyviews before they are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from unittest.mock import patch

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
from manyviews.losses import _contrast, get_loss

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
    yield from compare_with_released_ways(quick)
    yield from compare_joint_losses(quick)
    yield from measure_memory((256, 512) if quick else (2048, 8192), LOSS_NAMES[:1] if quick else LOSS_NAMES)


def make_gradient_function(loss_fn: LossFunction, z: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(loss_fn(z), z)


def make_embeddings(instances: int, views: int, dim: int = D) -> Tensor:
    return torch.randn(instances, views, dim, generator=torch.Generator().manual_seed(0), requires_grad=True)


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


def compute_gram_of_all_pairs(z: Tensor) -> Tensor:
    """GRAM from the determinants of M x M Gram matrices."""
    u = normalize(z, dim=2)
    instances, views, _ = u.shape
    anchor, others = u[:, 0], u[:, 1:]
    similarity = torch.einsum("id,jmd->ijm", anchor, others)
    among_others = (others @ others.mT).expand(instances, instances, views - 1, views - 1)
    top = torch.cat([torch.ones_like(similarity[:, :, :1]), similarity], 2)
    bottom = torch.cat([similarity[..., None], among_others], 3)
    matrices = torch.cat([top[:, :, None], bottom], 2)
    return compute_cross_entropy(-torch.linalg.det(matrices).abs().sqrt() / 0.07)


def compute_triangle_of_all_pairs(z: Tensor) -> Tensor:
    """TRIANGLE from the sides of M x M triangles."""
    u = normalize(z, dim=2)
    a, b = u[:, None, 0] - u[:, 1], u[:, None, 0] - u[:, 2]
    area = (a.square().sum(2) * b.square().sum(2) - (a * b).sum(2).square()) / 2
    return compute_cross_entropy(-area / 0.07)


def compute_cross_entropy(logits: Tensor) -> Tensor:
    target = torch.arange(len(logits))
    return sum(cross_entropy(x, target, label_smoothing=0.1) for x in (logits, logits.T)) / 2


RELEASED_IMPLEMENTATIONS: dict[str, tuple[LossFunction, str, tuple[int, int, int], float, float]] = {
    "gram": (compute_gram_of_all_pairs, "(M, M, N, N) determinants", (1024, 4, 128), 1 / 3, 1 / 10),
    "triangle": (compute_triangle_of_all_pairs, "(M, M, d) sides", (512, 3, 512), 1.0, 1 / 20),
}
"""The equation as released, its large tensor, a size, and the bounds of time and memory."""


def compare_with_released_ways(quick: bool) -> Iterator[Row]:
    threads = torch.get_num_threads()
    for name, (released, tensor, shape, max_time, max_memory) in RELEASED_IMPLEMENTATIONS.items():
        size = (64, *shape[1:]) if quick else shape
        workload, z, loss_fn = (
            f"`{name}`, {size[0]:,} x {size[1]}, d = {size[2]}",
            make_embeddings(*size),
            get_loss(name),
        )
        torch.testing.assert_close(loss_fn(z), released(z), rtol=1e-4, atol=1e-4)
        functions = {
            "manyviews": make_gradient_function(loss_fn, z),
            "released": make_gradient_function(released, z),
        }
        times = time_interleaved(functions, 0.1 if quick else 4.0)
        yield make_time_row("losses", workload, tensor, times["manyviews"], times["released"], max_ratio=max_time)
        costs = (run_in_new_process(measure_released_peak, name, way, size, threads) for way in functions)
        yield make_memory_row("losses", f"memory of {workload}", tensor, *costs, max_ratio=max_memory)


def measure_released_peak(name: str, way: str, size: tuple[int, int, int], threads: int) -> float:
    """MB by which one forward and backward pass of manyviews or of the released way raises the peak memory."""
    torch.set_num_threads(threads)
    loss_fn = get_loss(name) if way == "manyviews" else RELEASED_IMPLEMENTATIONS[name][0]
    # Several small tiles, so that all code is loaded before.
    with patch.dict(_contrast.TILE_NUMEL, cpu=1):
        make_gradient_function(loss_fn, make_embeddings(64, *size[1:]))()
    z = make_embeddings(*size)
    before = read_peak_memory()
    make_gradient_function(loss_fn, z)()
    return read_peak_memory() - before


def compare_joint_losses(quick: bool) -> Iterator[Row]:
    """Compare losses of all views with those of each view and the mean of the others, which have as many logits."""
    M, N = (64, 4) if quick else (1024, 4)
    z, seconds = make_embeddings(M, N), 0.1 if quick else 4.0
    comparisons = {"symile": ("avg-infonce", 1.2), "mv-dhel+prod-dhel": ("prod-dhel", 1.1)}
    comparisons |= {f"prod-{pair}": (f"avg-{pair}", 1.1) for pair in ("infonce", "ntxent", "dhel")}
    for name, (baseline, max_ratio) in comparisons.items():
        functions = {loss: make_gradient_function(get_loss(loss), z) for loss in (name, baseline)}
        times = time_interleaved(functions, seconds)
        workload = f"`{name}`, {M:,} x {N}"
        yield make_time_row("losses", workload, f"`{baseline}`", times[name], times[baseline], max_ratio=max_ratio)


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
