"""The losses that are not functions of P and A, as slow loops straight from their equations.

`u` (M, N, d) are unit vectors, `z` raw embeddings; missing views are skipped.
"""

import itertools
import math

import torch
from torch import Tensor

from tests.losses.reference import average


def full_mask(z: Tensor) -> Tensor:
    return torch.ones(z.shape[:2], dtype=torch.bool)


def cross_entropy(logits: list[Tensor], target: int, smoothing: float) -> Tensor:
    log_probabilities = torch.stack(logits).log_softmax(0)
    return -(1 - smoothing) * log_probabilities[target] - smoothing * log_probabilities.mean()


def symile(u: Tensor, t: float, permutations: Tensor) -> Tensor:
    M, N, _ = u.shape
    losses = []
    for l in range(N):
        others = [m for m in range(N) if m != l]
        for i in range(M):
            logits = []
            for j in range(M):
                product = u[i, l]
                for m in others:
                    product = product * u[i if j == i else permutations[l, m, j], m]
                logits.append(product.sum() / t)
            losses.append(cross_entropy(logits, i, 0.0))
    return average(losses)


def symile_all(u: Tensor, t: float, mask: Tensor | None = None) -> Tensor:
    complete = (full_mask(u) if mask is None else mask).all(1).nonzero().flatten().tolist()
    N, losses = u.shape[1], []
    for l in range(N):
        others = [m for m in range(N) if m != l]
        for i in complete:
            combinations = list(itertools.product(complete, repeat=N - 1))
            logits = []
            for combination in combinations:
                product = u[i, l]
                for j, m in zip(combination, others, strict=True):
                    product = product * u[j, m]
                logits.append(product.sum() / t)
            losses.append(cross_entropy(logits, combinations.index((i,) * (N - 1)), 0.0))
    return average(losses)


def contrast_with_anchors(score: object, rows: list[int], columns: list[int], smoothing: float) -> Tensor:
    """Cross-entropy of score(i, j) over columns and over rows, of the instances that are in both."""
    losses = []
    for i in sorted({*rows} & {*columns}):
        by_row = cross_entropy([score(i, j) for j in columns], columns.index(i), smoothing)  # type: ignore[operator]
        by_column = cross_entropy([score(j, i) for j in rows], rows.index(i), smoothing)  # type: ignore[operator]
        losses.append((by_row + by_column) / 2)
    return average(losses)


def gram(u: Tensor, t: float, mask: Tensor | None = None, smoothing: float = 0.1, anchor: int = 0) -> Tensor:
    mask = full_mask(u) if mask is None else mask
    M, N, _ = u.shape

    def score(i: int, j: int) -> Tensor:
        vectors = torch.stack([u[i, anchor], *(u[j, m] for m in range(N) if m != anchor and mask[j, m])])
        return -torch.linalg.det(vectors @ vectors.T).abs().sqrt() / t

    columns = [j for j in range(M) if any(mask[j, m] for m in range(N) if m != anchor)]
    return contrast_with_anchors(score, [i for i in range(M) if mask[i, anchor]], columns, smoothing)


def triangle(
    u: Tensor,
    t: float,
    mask: Tensor | None = None,
    smoothing: float = 0.1,
    anchor: int = 0,
    square_root: bool = False,
) -> Tensor:
    mask = full_mask(u) if mask is None else mask
    first, second = (m for m in range(3) if m != anchor)

    def score(i: int, j: int) -> Tensor:
        a, b = u[i, anchor] - u[j, first], u[i, anchor] - u[j, second]
        squared = (a @ a) * (b @ b) - (a @ b) ** 2
        return -(squared.sqrt() if square_root else squared) / 2 / t

    columns = [j for j in range(len(u)) if mask[j, first] and mask[j, second]]
    return contrast_with_anchors(score, [i for i in range(len(u)) if mask[i, anchor]], columns, smoothing)


def pmrl(u: Tensor, t: float, mask: Tensor | None = None, inter_t: float = 0.1) -> Tensor:
    mask = full_mask(u) if mask is None else mask
    instances = [i for i in range(len(u)) if mask[i].any()]
    intra, directions = {}, []
    for i in instances:
        U, S, _ = torch.linalg.svd(u[i, mask[i]].T, full_matrices=False)
        intra[i] = cross_entropy(list(S / t), 0, 0.0)
        directions.append(U[:, 0] * torch.sign(U[:, 0] @ u[i, mask[i]].sum(0)))
    losses = []
    for index, i in enumerate(instances):
        if mask[i].sum() > 1:
            logits = [directions[index] @ other / inter_t for other in directions]
            losses.append(intra[i] + cross_entropy(logits, index, 0.0))
    return average(losses)


def mmcr(u: Tensor, mask: Tensor | None = None, local_weight: float = 0.0) -> Tensor:
    mask = full_mask(u) if mask is None else mask
    instances = [i for i in range(len(u)) if mask[i].any()]
    centroids = torch.stack([u[i, mask[i]].mean(0) for i in instances])
    local = average([torch.linalg.svdvals(u[i, mask[i]]).sum() for i in instances])
    return local_weight * local - torch.linalg.svdvals(centroids).sum()


def emp_ssl(u: Tensor, mask: Tensor | None = None, weight: float = 200.0, eps: float = 0.2) -> Tensor:
    mask = full_mask(u) if mask is None else mask
    _, N, d = u.shape
    cosines, rates = [], []
    for i in range(len(u)):
        views = u[i, mask[i]]
        if len(views) > 1:
            cosines += [torch.cosine_similarity(view, views.mean(0), dim=0) for view in views]
    for l in range(N):
        rows = u[mask[:, l], l]
        if len(rows):
            gram = torch.eye(d, dtype=u.dtype) + d / (len(rows) * eps) * rows.T @ rows
            rates.append(torch.logdet(gram) / 2)
    return -weight * average(cosines) - average(rates)


def sigreg(rows: Tensor, slices: Tensor) -> Tensor:
    """Distance of rows (M, d) from the normal distribution, in the directions (d, S)."""
    dt, distances = 3 / 16, []
    for direction in slices.T:
        x = rows @ direction
        total = torch.tensor(0.0, dtype=rows.dtype)
        for k in range(17):
            t = k * dt
            target = math.exp(-(t**2) / 2)
            error = ((t * x).cos().mean() - target) ** 2 + (t * x).sin().mean() ** 2
            total = total + (dt if k in (0, 16) else 2 * dt) * target * error
        distances.append(len(rows) * total)
    return average(distances)


def lejepa(z: Tensor, slices: Tensor, mask: Tensor | None = None, weight: float = 0.02) -> Tensor:
    mask = full_mask(z) if mask is None else mask
    distances = [sigreg(z[mask[:, l], l], slices) for l in range(z.shape[1]) if mask[:, l].any()]
    squares = []
    for i in range(len(z)):
        views = z[i, mask[i]]
        if len(views) > 1:
            squares += [(view - views.mean(0)).square().mean() for view in views]
    return weight * average(distances) + (1 - weight) * average(squares)
