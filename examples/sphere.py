"""Optimize free points on a sphere with each loss: do views align, and do instances spread?

python examples/sphere.py [--steps 300]
"""

import argparse

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import normalize

from manyviews.losses import LOSSES, get_loss
from manyviews.metrics import alignment, rankme, uniformity

INSTANCES, VIEWS, DIM = 64, 4, 16


def fit(name: str | None, steps: int) -> torch.Tensor:
    """Unit points (instances, views, dim) after `steps` steps of Adam from a random start."""
    loss_fn = get_loss(name) if name else None
    views = int(min(VIEWS, loss_fn.max_views)) if loss_fn else VIEWS
    points = torch.nn.Parameter(torch.randn(INSTANCES, views, DIM, generator=torch.Generator().manual_seed(0)))
    labels = {"labels": torch.arange(INSTANCES)} if name == "supcon" else {}  # each instance has its own class
    optimizer = torch.optim.Adam([points], lr=0.05)
    for _ in range(steps if loss_fn else 0):
        optimizer.zero_grad()
        loss_fn(points, **labels).backward()
        optimizer.step()
    return normalize(points.detach(), dim=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    table = Table(
        title=f"{INSTANCES} instances of {VIEWS} views, free on a sphere in {DIM} dimensions",
        caption="alignment: 0 if the views of an instance coincide; uniformity: lower is more uniform; "
        f"RankMe: {DIM} if all dimensions are used",
    )
    table.add_column("loss")
    for column in ("alignment", "uniformity", "RankMe"):
        table.add_column(column, justify="right")
    for name in (None, *LOSSES):
        z = fit(name, steps)
        table.add_row(name or "(start)", f"{alignment(z):.4f}", f"{uniformity(z):.3f}", f"{rankme(z):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
