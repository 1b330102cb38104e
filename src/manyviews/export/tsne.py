"""Exact, deterministic t-SNE (van der Maaten and Hinton 2008).

Instance i has neighbor j with probability p_j|i, from a Gaussian whose width is set by the perplexity; on the map the
pair probabilities q come from a Student t. Gradient descent minimizes KL(P || Q), whose gradient at a point y_i is

    4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)

The map is initialized with the first two principal components, so that it is deterministic.
"""

import math

import torch
from torch import Tensor

from manyviews.utils import track

PERPLEXITY = 30.0
COMPONENTS = 50
"""Principal components that distances are computed on."""
EARLY_STEPS, STEPS = 150, 600
"""Steps with exaggerated probabilities, which form the clusters; and all steps."""
EXAGGERATION = 12.0
MAX_STEP = 5.0
"""Max step of a point, for stability."""


def compute_tsne(features: Tensor) -> Tensor:
    """Map features (n, d) to coordinates (n, 2) that preserve neighborhoods; the map is wider than high.

    Memory and time grow with n^2: use it for a few thousand instances at most.

    Examples:
        >>> compute_tsne(torch.eye(10)).shape
        torch.Size([10, 2])
    """
    if features.dim() != 2 or len(features) < 4:
        raise ValueError(f"t-SNE needs features (n, d) of at least 4 instances, got shape {tuple(features.shape)}")
    if not features.isfinite().all():
        raise ValueError("t-SNE needs finite features, got NaN or infinity")
    features = compute_principal_components(features.detach().cpu().double(), COMPONENTS)
    p = compute_pair_probabilities(features, min(PERPLEXITY, (len(features) - 1) / 3)).float()
    coords = compute_principal_components(features, 2).float()
    coords = _optimize(1e-4 * coords / coords[:, 0].std().clamp_min(1e-12), p)
    return compute_principal_components(coords.double(), 2).float()


def compute_principal_components(features: Tensor, count: int) -> Tensor:
    """Return principal components (n, count) of features (n, d), zero-padded; the largest value of each is positive."""
    features = features - features.mean(0)
    _, _, directions = torch.linalg.svd(features, full_matrices=False)
    components = features @ directions[:count].T
    largest = components.gather(0, components.abs().argmax(0, keepdim=True))
    components = components * torch.where(largest < 0, -1.0, 1.0)
    return torch.nn.functional.pad(components, (0, max(0, count - components.shape[1])))


def compute_pair_probabilities(features: Tensor, perplexity: float) -> Tensor:
    """Return P (n, n), symmetric, with sum 1."""
    p = compute_neighbor_probabilities(features, perplexity)
    return (p + p.T) / (2 * len(p))


def compute_neighbor_probabilities(features: Tensor, perplexity: float) -> Tensor:
    """Return p_j|i as row i of (n, n); bisection finds the width of each Gaussian that gives the perplexity."""
    distance = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").square()
    distance.fill_diagonal_(torch.inf)
    nearest = distance.amin(1, keepdim=True)
    low, high = torch.full_like(nearest, -80.0), torch.full_like(nearest, 80.0)
    for _ in range(60):
        precision = (low + high) / 2
        log_p = (-(distance - nearest) * precision.exp()).log_softmax(1)
        entropy = torch.special.entr(log_p.exp()).sum(1, keepdim=True)
        too_wide = entropy > math.log(perplexity)
        low, high = torch.where(too_wide, precision, low), torch.where(too_wide, high, precision)
    return log_p.exp()


def _optimize(coords: Tensor, p: Tensor) -> Tensor:
    """Descend with momentum and a gain per coordinate, which adapts to the signs of its gradients."""
    learning_rate = max(len(p) / EXAGGERATION / 4, 10.0)
    step, gain = torch.zeros_like(coords), torch.ones_like(coords)
    for i in track(range(STEPS), "t-SNE steps", STEPS):
        early = i < EARLY_STEPS
        gradient = _compute_gradient(coords, p * EXAGGERATION if early else p)
        gain = torch.where(gradient.sign() == step.sign(), gain * 0.8, gain + 0.2).clamp_min(0.01)
        step = (0.5 if early else 0.8) * step - learning_rate * gain * gradient
        coords = coords + step.clamp(-MAX_STEP, MAX_STEP)
    return coords


def _compute_gradient(coords: Tensor, p: Tensor) -> Tensor:
    square = coords.square().sum(1)
    kernel = 1 / (1 + (square[:, None] + square - 2 * coords @ coords.T).clamp_min(0))
    kernel.fill_diagonal_(0)
    pull = (p - kernel / kernel.sum()) * kernel
    return 4 * (pull.sum(1, keepdim=True) * coords - pull @ coords)
