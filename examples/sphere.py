"""Free points on a sphere, moved by each objective: do views meet, and do instances spread?

python examples/sphere.py [--steps 300]
"""

import argparse

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import normalize

from manyviews import get_objective
from manyviews.losses import OBJECTIVES

INSTANCES, VIEWS, DIM = 64, 4, 16


def fit(name: str, steps: int) -> torch.Tensor:
    """Unit points (instances, views, dim) after so many steps of Adam from a random start."""
    objective = get_objective(name)
    views = int(min(VIEWS, objective.most_views))
    start = torch.randn(INSTANCES, views, DIM, generator=torch.Generator().manual_seed(0))
    points = torch.nn.Parameter(start)
    optimiser = torch.optim.Adam([points], lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        objective(points).backward()
        optimiser.step()
    return normalize(points.detach(), dim=2)


def geometry(z: torch.Tensor) -> tuple[float, float, float]:
    """Alignment (mean squared distance of views), uniformity (Wang and Isola), effective rank."""
    views = z.shape[1]
    squared = 2 - 2 * (z @ z.mT)
    alignment = squared.sum() / (len(z) * views * (views - 1))
    flat = z.transpose(0, 1)
    uniformity = torch.stack([torch.pdist(view).square().mul(-2).exp().mean() for view in flat]).mean().log()
    share = normalize(torch.linalg.svdvals(z.mean(1)), p=1, dim=0)
    rank = torch.exp(-(share * share.clamp_min(1e-12).log()).sum())
    return alignment.item(), uniformity.item(), rank.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    table = Table(
        title=f"{INSTANCES} instances of {VIEWS} views, free on a sphere in {DIM} dimensions",
        caption="alignment: 0 when the views of an instance meet; uniformity: the lower the more even; "
        f"rank: {DIM} when all dimensions are used",
    )
    table.add_column("objective")
    for column in ("alignment", "uniformity", "rank"):
        table.add_column(column, justify="right")
    random = torch.randn(INSTANCES, VIEWS, DIM, generator=torch.Generator().manual_seed(0))
    for name in ("(start)", *OBJECTIVES):
        z = normalize(random, dim=2) if name == "(start)" else fit(name, steps)
        alignment, uniformity, rank = geometry(z)
        table.add_row(name, f"{alignment:.4f}", f"{uniformity:.3f}", f"{rank:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
