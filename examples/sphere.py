"""Free points on a sphere, moved by each objective: do views meet, and do instances spread?

python examples/sphere.py [--steps 300]
"""

import argparse

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import normalize

from manyviews import get_objective
from manyviews.evaluation import alignment, rankme, uniformity
from manyviews.losses import OBJECTIVES

INSTANCES, VIEWS, DIM = 64, 4, 16


def fit(name: str | None, steps: int) -> torch.Tensor:
    """Unit points (instances, views, dim) after so many steps of Adam from a random start."""
    objective = get_objective(name) if name else None
    views = int(min(VIEWS, objective.most_views)) if objective else VIEWS
    points = torch.nn.Parameter(torch.randn(INSTANCES, views, DIM, generator=torch.Generator().manual_seed(0)))
    labels = {"labels": torch.arange(INSTANCES)} if name == "supcon" else {}  # each instance a class of its own
    optimiser = torch.optim.Adam([points], lr=0.05)
    for _ in range(steps if objective else 0):
        optimiser.zero_grad()
        objective(points, **labels).backward()
        optimiser.step()
    return normalize(points.detach(), dim=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    table = Table(
        title=f"{INSTANCES} instances of {VIEWS} views, free on a sphere in {DIM} dimensions",
        caption="alignment: 0 when the views of an instance meet; uniformity: the lower the more even; "
        f"RankMe: {DIM} when all dimensions are used",
    )
    table.add_column("objective")
    for column in ("alignment", "uniformity", "RankMe"):
        table.add_column(column, justify="right")
    for name in (None, *OBJECTIVES):
        z = fit(name, steps)
        table.add_row(name or "(start)", f"{alignment(z):.4f}", f"{uniformity(z):.3f}", f"{rankme(z):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
