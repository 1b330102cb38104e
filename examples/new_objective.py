"""A new objective in five lines, with its audit, and what it does to free points on a sphere.

python examples/new_objective.py [--steps 200]
"""

import argparse

import torch

import manyviews as mv
from manyviews.evaluation import alignment, rankme, uniformity
from manyviews.losses import audit, logsumexp, mean


class Hardest(mv.Objective):
    """Align each view with its furthest other view; spread each view by itself."""

    equation = "mean_l [-min_m P[l,m] + A[l,l]]"

    def blocks(self, views: int) -> torch.Tensor:  # it reads A[l,l] alone: N times fewer products
        return torch.eye(views, dtype=torch.bool)

    def formula(self, P: torch.Tensor, A: torch.Tensor) -> torch.Tensor:  # (instances, views, views), -inf: not there
        there = P != -torch.inf
        furthest = -logsumexp((-P).masked_fill(~there, -torch.inf), 2)  # a smooth minimum
        return mean(A.diagonal(dim1=1, dim2=2) - furthest, there.any(2), 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    print(audit(Hardest(), views=4))
    for objective in (Hardest(), mv.MVDHEL()):
        z = torch.nn.Parameter(torch.randn(64, 4, 16, generator=torch.Generator().manual_seed(0)))
        optimiser = torch.optim.Adam([z], lr=0.05)
        for _ in range(steps):
            optimiser.zero_grad()
            objective(z).backward()
            optimiser.step()
        unit = torch.nn.functional.normalize(z.detach(), dim=2)
        print(
            f"{type(objective).__name__}: alignment {alignment(unit):.4f} (0: views meet), "
            f"uniformity {uniformity(unit):.3f} (the lower the more even), RankMe {rankme(unit):.1f} of 16"
        )


if __name__ == "__main__":
    main()
