"""A new objective in five lines, with its audit, and what it does to free points on a sphere.

python examples/new_objective.py [--steps 200]
"""

import argparse

import torch

import manyviews as mv
from manyviews.evaluation import alignment, rankme, uniformity
from manyviews.losses import audit, logsumexp, mean


# Align each view with its furthest other view; spread each view by itself. P and A are (instances, views, views).
class Hardest(mv.Objective):
    def formula(self, P: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        there = P != -torch.inf  # what is not there is the logarithm of nothing
        furthest = -logsumexp((-P).masked_fill(~there, -torch.inf), 2)  # a smooth minimum
        return mean(A.diagonal(dim1=1, dim2=2) - furthest, there.any(2), 1)


class Cheaper(Hardest):
    """The same: it says that it reads A[l,l] alone, and so needs N times fewer products."""

    def blocks(self, views: int) -> torch.Tensor:
        return torch.eye(views, dtype=torch.bool)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    print(audit(Hardest(), views=4))
    for objective in (Hardest(), Cheaper(), mv.MVDHEL()):
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
