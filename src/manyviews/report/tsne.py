"""A map of representations in two dimensions: t-SNE (van der Maaten and Hinton 2008), exact, without chance.

Each instance i has neighbours j with probability p_j|i, from a Gaussian as wide as its perplexity asks; on the map
the probabilities q of pairs come from a Student t. What is descended is KL(P || Q), whose gradient at a point y_i is

    4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)

The start is the two main components, so that the same representations always give the same map.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyviews.evaluation.progress import tracked

PERPLEXITY = 30.0
COMPONENTS = 50
"""Of the representations that distances are taken of."""
EARLY, STEPS = 150, 600
"""Steps with the neighbours' probabilities exaggerated, so that clusters come together; and all of them."""
EXAGGERATION = 12.0
LONGEST = 5.0
"""Step of a point, so that none is thrown off the map."""


def tsne(rows: Tensor, perplexity: float = PERPLEXITY) -> Tensor:
    """Places (n, 2) of rows (n, d) such that neighbours stay neighbours; the longer side of the map lies across.

    Memory and time grow with n^2: it is for a few thousand rows at most.

    Examples:
        >>> tsne(torch.eye(10)).shape
        torch.Size([10, 2])
    """
    if rows.dim() != 2 or len(rows) < 4:
        raise ValueError(f"a map needs rows (n, d) of at least four instances, got {tuple(rows.shape)}")
    if not rows.isfinite().all():
        raise ValueError("a map cannot be drawn of representations that are NaN or infinite")
    rows = components(rows.detach().cpu().double(), COMPONENTS)
    p = pair_probabilities(rows, min(perplexity, (len(rows) - 1) / 3)).float()
    places = components(rows, 2).float()
    places = _descended(1e-4 * places / places[:, 0].std().clamp_min(1e-12), p)
    return components(places.double(), 2).float()


def components(rows: Tensor, count: int) -> Tensor:
    """The main components (n, count) of rows (n, d), zeros where there are fewer; each with its largest side up."""
    rows = rows - rows.mean(0)
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    found = rows @ directions[:count].T
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    found = found * torch.where(largest < 0, -1.0, 1.0)
    return torch.nn.functional.pad(found, (0, max(0, count - found.shape[1])))


def pair_probabilities(rows: Tensor, perplexity: float) -> Tensor:
    """P (n, n), symmetric with sum 1."""
    p = neighbour_probabilities(rows, perplexity)
    return (p + p.T) / (2 * len(p))


def neighbour_probabilities(rows: Tensor, perplexity: float) -> Tensor:
    """p_j|i as row i of (n, n): each Gaussian's width is found by bisection, so that its perplexity is as asked."""
    distance = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    distance.fill_diagonal_(torch.inf)
    nearest = distance.amin(1, keepdim=True)
    low, high = torch.full_like(nearest, -80.0), torch.full_like(nearest, 80.0)
    for _ in range(60):
        precision = (low + high) / 2
        log_p = (-(distance - nearest) * precision.exp()).log_softmax(1)
        entropy = torch.special.entr(log_p.exp()).sum(1, keepdim=True)
        wide = entropy > math.log(perplexity)
        low, high = torch.where(wide, precision, low), torch.where(wide, high, precision)
    return log_p.exp()


def _descended(places: Tensor, p: Tensor) -> Tensor:
    """Gradient descent with momentum and a gain for each coordinate, which grows while its direction stays."""
    rate = max(len(p) / EXAGGERATION / 4, 10.0)
    step, gain = torch.zeros_like(places), torch.ones_like(places)
    for number in tracked(range(STEPS), "steps of the map", STEPS):
        early = number < EARLY
        gradient = _gradient(places, p * EXAGGERATION if early else p)
        gain = torch.where(gradient.sign() == step.sign(), gain * 0.8, gain + 0.2).clamp_min(0.01)
        step = (0.5 if early else 0.8) * step - rate * gain * gradient
        places = places + step.clamp(-LONGEST, LONGEST)
    return places


def _gradient(places: Tensor, p: Tensor) -> Tensor:
    square = places.square().sum(1)
    near = 1 / (1 + (square[:, None] + square - 2 * places @ places.T).clamp_min(0))
    near.fill_diagonal_(0)
    pull = (p - near / near.sum()) * near
    return 4 * (pull.sum(1, keepdim=True) * places - pull @ places)
