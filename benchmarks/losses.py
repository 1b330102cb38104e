"""Objectives, forward and backward, at d = 128 in float32.

Beside dense autograd of the same equation; three bare products of as many rows (Z Z^T, S Z, S^T Z), which is what a
naive backward pass multiplies; the loop over pairs of views that most code has; and public libraries, if installed.
Whoever is compared gives the same value first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from benchmarks.measure import Row, high_water, in_new_process, interleaved, timed, weighed
from manyviews.losses import get_loss

D = 128
SIZES = ((256, 2), (256, 4), (1024, 4), (2048, 4))
OBJECTIVES = ("mv-infonce", "pvc", "mv-dhel")
LARGE = 4096
"""Rows from which the bars stand; below, dense autograd must not be faster."""
NOISE = 1.03
"""A ratio of medians that should be 1 comes out as high as this on a shared machine."""
Loss = Callable[[Tensor], Tensor]


def measure(quick: bool) -> Iterator[Row | str]:
    for size in ((64, 4),) if quick else SIZES:
        yield from beside_dense(*size, seconds=0.1 if quick else 8.0)
    yield from beside_others(quick)
    yield from memory((256, 512) if quick else (2048, 8192), OBJECTIVES[:1] if quick else OBJECTIVES)


def gradient(loss: Loss, z: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(loss(z), z)


def embeddings(instances: int, views: int) -> Tensor:
    return torch.randn(instances, views, D, generator=torch.Generator().manual_seed(0), requires_grad=True)


def bare_products(z: Tensor) -> Callable[[], object]:
    rows = z.detach().flatten(0, 1)

    def three() -> None:
        s = rows @ rows.T
        s @ rows
        s.T @ rows

    return three


def beside_dense(M: int, N: int, seconds: float) -> Iterator[Row]:
    z, size, large = embeddings(M, N), f"{M:,} x {N}", M * N >= LARGE
    work = {(name, how): gradient(get_loss(name, implementation=how), z) for name in OBJECTIVES for how in HOW}
    work["bare", ""] = bare_products(z)
    took = interleaved(work, seconds)
    for name in OBJECTIVES:
        ours, cheap = took[name, "auto"], name == "mv-dhel"
        bar = 1 / 2.5 if large and not cheap else NOISE
        yield timed("losses", f"`{name}`, {size}", "dense autograd", ours, took[name, "dense"], bar=bar)
        bar = (0.35 if cheap else 0.95) if large and torch.get_num_threads() == 2 else None
        yield timed("losses", f"`{name}`, {size}", "three bare products", ours, took["bare", ""], bar=bar)
    # Beside each other without the dense ones between them, which leave nothing of ours in the cache.
    same = gradient(get_loss("mv-infonce", same_view_negatives=True), z)  # it reads the energies that PVC reads
    took = interleaved({**{name: work[name, "auto"] for name in OBJECTIVES}, "same view": same}, seconds / 2)
    bar = 0.5 if large else None
    yield timed("losses", f"`mv-dhel`, {size}", "`mv-infonce`", took["mv-dhel"], took["mv-infonce"], bar=bar)
    bar = 1.1 if large else None
    yield timed("losses", f"`pvc`, {size}", "`mv-infonce`, same negatives", took["pvc"], took["same view"], bar=bar)


HOW = ("auto", "dense")


def loop_over_pairs() -> Loss:
    """NT-Xent of each pair of views, as it is written for two views everywhere, averaged."""

    def loss(z: Tensor) -> Tensor:
        losses = []
        for one, two in combinations(normalize(z, dim=2).unbind(1), 2):
            rows = torch.cat([one, two])
            logits = (rows @ rows.T / 0.5).fill_diagonal_(-torch.inf)
            losses.append(cross_entropy(logits, torch.arange(len(rows), device=z.device).roll(len(one))))
        return torch.stack(losses).mean()

    return loss


def pytorch_metric_learning() -> Loss:
    from pytorch_metric_learning.losses import NTXentLoss

    loss = NTXentLoss(temperature=0.5)
    return lambda z: loss(z.flatten(0, 1), torch.arange(len(z)).repeat_interleave(z.shape[1]))


def lightly() -> Loss:
    from lightly.loss import NTXentLoss

    loss = NTXentLoss(temperature=0.5)
    return lambda z: loss(*z.unbind(1))


OTHERS: tuple[tuple[str, Callable[[], Loss], str, tuple[tuple[int, int], ...]], ...] = (
    ("a loop over pairs of views", loop_over_pairs, "pwe-ntxent", ((512, 2), (256, 4), (1024, 4))),
    ("lightly's NTXentLoss", lightly, "ntxent", ((512, 2),)),
    # Its memory grows with the third power of the rows.
    ("pytorch-metric-learning's NTXentLoss", pytorch_metric_learning, "pvc", ((128, 2), (64, 4))),
)
"""What else there is, which objective it is, and sizes at which it runs."""


def beside_others(quick: bool) -> Iterator[Row | str]:
    for name, make, objective, sizes in OTHERS:
        try:
            theirs = make()
        except (ImportError, RuntimeError) as error:  # a torchvision made for another torch raises the latter
            yield f"{name}: not measured ({error})"
            continue
        for M, N in sizes[:1] if quick else sizes:
            z, ours = embeddings(M, N), get_loss(objective)
            torch.testing.assert_close(ours(z), theirs(z))
            took = interleaved({"ours": gradient(ours, z), "theirs": gradient(theirs, z)}, 0.1 if quick else 4.0)
            yield timed("losses", f"`{objective}`, {M:,} x {N}", name, took["ours"], took["theirs"])


def grown(name: str, instances: int, how: str, threads: int) -> float:
    """MB by which one forward and backward pass raises the peak of this process, N = 4."""
    torch.set_num_threads(threads)
    objective = get_loss(name, implementation=how)
    gradient(objective, embeddings(64, 4))()
    z = embeddings(instances, 4)
    before = high_water()
    gradient(objective, z)()
    return high_water() - before


def memory(instances: tuple[int, int], names: tuple[str, ...]) -> Iterator[Row]:
    small, large = instances
    for name in names:
        ours, dense = (in_new_process(grown, name, small, how, torch.get_num_threads()) for how in HOW)
        yield weighed("losses", f"memory of `{name}`, {small:,} x 4", "dense autograd", ours, dense, bar=0.5)
    for name in names:
        ours = in_new_process(grown, name, large, "auto", torch.get_num_threads())
        matrix = (4 * large) ** 2 * 4 / 2**20
        yield weighed(
            "losses", f"memory of `{name}`, {large:,} x 4", "one MN x MN matrix, reckoned", ours, matrix, bar=0.0625
        )
