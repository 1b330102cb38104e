"""A new loss in five lines: its measured principles, and its effect on free points on a sphere.

python examples/new_loss.py [--steps 200]
"""

import argparse

import torch

import manyviews as mv
from manyviews.losses import check_principles, masked_logsumexp, masked_mean
from manyviews.metrics import alignment, rankme, uniformity


# Align each view with its most distant other view; uniformity within each view. P and A are (instances, views, views).
class Hardest(mv.EnergyLoss):
    def formula(self, P: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        is_positive = P != -torch.inf  # undefined entries are -inf = log 0
        most_distant = -masked_logsumexp((-P).masked_fill(~is_positive, -torch.inf), 2)  # a smooth minimum
        return masked_mean(A.diagonal(dim1=1, dim2=2) - most_distant, is_positive.any(2), 1)


class Cheaper(Hardest):
    """The same loss: it reads only A[l,l], so required_energies saves a factor N of the products."""

    def required_energies(self, views: int) -> set[tuple[int, int]]:
        return {(l, l) for l in range(views)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    print(check_principles(Hardest(), views=4))
    for loss_fn in (Hardest(), Cheaper(), mv.MVDHELLoss()):
        z = torch.nn.Parameter(torch.randn(64, 4, 16, generator=torch.Generator().manual_seed(0)))
        optimizer = torch.optim.Adam([z], lr=0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            loss_fn(z).backward()
            optimizer.step()
        unit = torch.nn.functional.normalize(z.detach(), dim=2)
        print(
            f"{type(loss_fn).__name__}: alignment {alignment(unit):.4f} (0: views coincide), "
            f"uniformity {uniformity(unit):.3f} (lower is more uniform), RankMe {rankme(unit):.1f} of 16"
        )


if __name__ == "__main__":
    main()
