"""Information that no pair of views has: three views a, b, c with c = a XOR b.

a and b are random strings of 5 bits. c is a XOR b with probability p, else c is a. So only a loss that sees three
views jointly can predict b from (a, c), and c is predicted from a only by what a pair shares. The best possible
accuracies are p + (1 - p) / 32 and 1 - p + p / 32; chance is 1 / 32.

Each view has an encoder of its own. All accuracies are exact: they are sums over all strings, weighted by their
probabilities. b is predicted as the string with the largest score of (a, b, c), c as the one with the largest cosine to
a. A score is a function of three unit embeddings:

    pairs     a.b + b.c                           losses of pairs of views, and all without a score of their own
    product   b.normalize(a * c)                  prod-*; the same prediction as Symile's sum of a * b * c
    volume    -det of the Gram matrix             GRAM
    area      -squared area of the triangle       TRIANGLE
    singular  largest eigenvalue of the Gram      PMRL
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from manyviews.losses import LOSSES, get_default_temperature, get_loss, parse_sum
from manyviews.reproduce.origin import Origin
from manyviews.reproduce.store import JsonLines, make_checked
from manyviews.utils import append_line, limit_threads, track, warmup_cosine_lr

BITS, DIM, HIDDEN_DIM, BATCH_SIZE = 5, 32, 64, 128
NUM_STRINGS = 2**BITS
CHANCE = 1 / NUM_STRINGS
SUMS = ("mv-infonce+0.5*prod-infonce", "mv-dhel+0.5*prod-dhel", "mv-dhel+4*prod-dhel")
"""Weighted sums that are measured in addition to `LOSSES`."""
OWN_SCORES = {"symile": "product", "gram": "volume", "triangle": "area", "pmrl": "singular"}
"""Scores of losses that contrast one; prod-* have the product, all others the pairs."""


@dataclass(frozen=True)
class SynergySetting:
    """Size of the measurement."""

    fractions: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Values of p."""
    seeds: int = 3
    steps: int = 400
    encoders: tuple[str, ...] = ("mlp",)
    """mlp: one hidden layer; linear: none."""
    learning_rate: float = 1e-2
    max_temperature: float = 0.2
    """Temperature of losses whose default is larger."""

    def count_measurements(self, losses: Sequence[str]) -> int:
        return len(losses) * len(self.encoders) * len(self.fractions) * self.seeds

    def describe(self) -> str:
        encoders, seeds = " and ".join(self.encoders), "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return (
            f"{encoders} encoders of {BITS} bits to {DIM} dimensions, {self.steps} steps of Adam with batches of "
            f"{BATCH_SIZE} and learning rate {self.learning_rate:g}, {seeds}, "
            f"temperature {self.max_temperature:g} or the loss's default if that is smaller"
        )


SCALE_SETTINGS = {
    "smoke": SynergySetting(fractions=(0.5, 1.0), seeds=1, steps=20),
    "laptop": SynergySetting(),
    "paper": SynergySetting(seeds=10, encoders=("mlp", "linear")),
}


@dataclass(frozen=True)
class Measurement(Origin):
    """Accuracies of one training: a loss, an encoder, p and a seed."""

    loss: str
    encoder: str
    fraction: float
    """p, the probability of XOR."""
    seed: int
    own: float
    """b from (a, c), by the score of the loss."""
    best: float
    """b from (a, c), by the best of all scores."""
    best_score: str
    pairwise: float
    """c from a, by the cosine."""


def list_losses() -> tuple[list[str], dict[str, str]]:
    """List the losses that apply to three views, and why the others do not."""
    skipped = {"supcon": "it requires labels"}
    for name in LOSSES:
        if name not in skipped and get_loss(name).max_views < 3:
            skipped[name] = "it is a loss of two views"
    return [*(name for name in LOSSES if name not in skipped), *SUMS], skipped


def compute_best_possible(fraction: float) -> tuple[float, float]:
    """Compute the best possible accuracies of b from (a, c), and of c from a.

    Examples:
        >>> compute_best_possible(0.5)
        (0.515625, 0.515625)
    """
    return fraction + (1 - fraction) * CHANCE, 1 - fraction + fraction * CHANCE


def compute_probabilities(fraction: float) -> Tensor:
    """Compute the probabilities (32, 32, 32) of a, b and c."""
    a, b = torch.meshgrid(torch.arange(NUM_STRINGS), torch.arange(NUM_STRINGS), indexing="ij")
    probabilities = torch.zeros(NUM_STRINGS, NUM_STRINGS, NUM_STRINGS)
    probabilities[a, b, a ^ b] += fraction / NUM_STRINGS**2
    probabilities[a, b, a] += (1 - fraction) / NUM_STRINGS**2
    return probabilities


def sample_strings(count: int, fraction: float, generator: torch.Generator) -> Tensor:
    """Sample the indices (3, count) of a, b and c."""
    a, b = torch.randint(NUM_STRINGS, (2, count), generator=generator)
    is_xor = torch.rand(count, generator=generator) < fraction
    return torch.stack([a, b, torch.where(is_xor, a ^ b, a)])


def train_embeddings(loss: nn.Module, fraction: float, seed: int, steps: int, encoder: str, peak_lr: float) -> Tensor:
    """Train an encoder for each view, and return the unit embeddings (3, 32, d) of all strings."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        encoders = nn.ModuleList(_build_encoder(encoder) for _ in range(3))
    generator = torch.Generator().manual_seed(seed)
    inputs = 2.0 * (torch.arange(NUM_STRINGS)[:, None] >> torch.arange(BITS) & 1) - 1
    optimizer = torch.optim.Adam([*encoders.parameters(), *loss.parameters()], peak_lr, fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = warmup_cosine_lr(step, steps, 0, peak_lr)
        strings = sample_strings(BATCH_SIZE, fraction, generator)
        z = torch.stack([encode(inputs)[index] for encode, index in zip(encoders, strings, strict=True)], 1)
        optimizer.zero_grad()
        loss(z).backward()
        optimizer.step()
    with torch.no_grad():
        return normalize(torch.stack([encode(inputs) for encode in encoders]), dim=2)


def _build_encoder(kind: str) -> nn.Module:
    if kind == "linear":
        return nn.Linear(BITS, DIM)
    return nn.Sequential(nn.Linear(BITS, HIDDEN_DIM), nn.ReLU(), nn.Linear(HIDDEN_DIM, DIM))


def _score_pairs(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a @ b.T)[:, None] + c @ b.T


def _score_product(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return normalize(a[:, None] * c, dim=2) @ b.T


def _score_volume(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    ab, cb, ac = (a @ b.T)[:, None], c @ b.T, (a @ c.T)[:, :, None]
    return ab**2 + cb**2 + ac**2 - 2 * ab * cb * ac - 1


def _score_area(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    ab, cb, ac = (a @ b.T)[:, None], c @ b.T, (a @ c.T)[:, :, None]
    return (1 - ab - cb + ac) ** 2 - 4 * (1 - ab) * (1 - cb)


def _score_singular(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    ab, cb, ac = torch.broadcast_tensors((a @ b.T)[:, None], c @ b.T, (a @ c.T)[:, :, None])
    one = torch.ones_like(ab)
    gram = torch.stack([one, ab, ac, ab, one, cb, ac, cb, one], -1).unflatten(-1, (3, 3))
    return torch.linalg.eigvalsh(gram)[..., -1]


Score = Callable[[Tensor, Tensor, Tensor], Tensor]
SCORES: dict[str, Score] = {
    "pairs": _score_pairs, "product": _score_product, "volume": _score_volume, "area": _score_area,
    "singular": _score_singular,
}  # fmt: skip
"""Functions of the embeddings of all strings (32, d), to scores (32, 32, 32) of a, c and b."""


def compute_own_score(loss: str, z: Tensor) -> Tensor:
    """Compute the score of a loss (32, 32, 32) for a, c and b; that of a weighted sum is the sum of its parts'."""
    total = torch.zeros(NUM_STRINGS, NUM_STRINGS, NUM_STRINGS)
    for name, weight in parse_sum(loss):
        score = "product" if name.startswith("prod-") else OWN_SCORES.get(name, "pairs")
        total += weight * SCORES[score](*z)
    return total


def compute_accuracies(loss: str, fraction: float, z: Tensor) -> tuple[float, dict[str, float], float]:
    """Compute the accuracies of b from (a, c), by the loss's score and by each score, and of c from a."""
    probabilities = compute_probabilities(fraction)
    of_b, of_c = probabilities.transpose(1, 2), probabilities.sum(1)

    def compute_accuracy(score: Tensor) -> float:
        return float(of_b.gather(2, score.argmax(2, keepdim=True)).sum())

    by_score = {name: compute_accuracy(score(*z)) for name, score in SCORES.items()}
    pairwise = of_c.gather(1, (z[0] @ z[2].T).argmax(1, keepdim=True)).sum()
    return compute_accuracy(compute_own_score(loss, z)), by_score, float(pairwise)


def measure(loss: str, encoder: str, fraction: float, seed: int, setting: SynergySetting | None = None) -> Measurement:
    """Train encoders with a loss, and measure them."""
    setting = setting or SynergySetting()
    with limit_threads(1):
        default = get_default_temperature(loss)
        is_large = default is not None and default > setting.max_temperature
        module = get_loss(loss, temperature=setting.max_temperature) if is_large else get_loss(loss)
        z = train_embeddings(module, fraction, seed, setting.steps, encoder, setting.learning_rate)
        own, by_score, pairwise = compute_accuracies(loss, fraction, z)
    best_score = max(by_score, key=by_score.__getitem__)
    return Measurement(loss, encoder, fraction, seed, own, by_score[best_score], best_score, pairwise)


def measure_all(losses: Sequence[str], setting: SynergySetting, path: Path, jobs: int = 1) -> list[Measurement]:
    """Measure each loss at each p with each seed; measurements that are lines of the file are not repeated.

    With `jobs` 0 nothing is measured, and measurements that are missing are left out.
    """
    cached = dict(_read_measurements(path, setting))
    grid = list(product(losses, setting.encoders, setting.fractions, range(setting.seeds)))
    missing = sorted((point for point in grid if point not in cached), key=lambda point: point[3])
    origin = dataclasses.asdict(Origin.of_this_process())
    for measured in track(_run(missing, setting, jobs), "synergy", len(missing)) if jobs else ():
        result = dataclasses.replace(measured, **origin)
        cached[result.loss, result.encoder, result.fraction, result.seed] = result
        append_line(path, json.dumps({**dataclasses.asdict(result), "setting": _identify(setting)}))
    return [cached[point] for point in grid if point in cached]


Point = tuple[str, str, float, int]
"""Loss, encoder, p and seed."""


def _run(points: Sequence[Point], setting: SynergySetting, jobs: int) -> Iterator[Measurement]:
    measure_point = partial(_measure_point, setting=setting)
    if jobs == 1 or len(points) < 2:
        yield from map(measure_point, points)
        return
    # Forked processes would share the locks of torch's threads.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    try:
        for future in as_completed([pool.submit(measure_point, point) for point in points]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupted command does not measure the rest


def _measure_point(point: Point, setting: SynergySetting) -> Measurement:
    return measure(*point, setting)


def _identify(setting: SynergySetting) -> str:
    """Describe what determines a measurement besides its point."""
    return f"{setting.steps} steps, learning rate {setting.learning_rate:g}, temperature {setting.max_temperature:g}"


def _read_measurements(path: Path, setting: SynergySetting) -> Iterator[tuple[Point, Measurement]]:
    """Read the measurements of a setting; damaged lines are measured again."""
    for fields in JsonLines(path).read_new()[0]:
        with suppress(KeyError, TypeError):
            if fields["setting"] == _identify(setting):
                result = make_checked(Measurement, fields)
                yield (result.loss, result.encoder, result.fraction, result.seed), result
