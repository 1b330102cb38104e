"""Every loss as slow loops, straight from its equation; missing views are skipped.

`z` (M, N, d) are unit vectors, `views(i)` are the existing views of instance i.
"""

import itertools
import math

import torch
from torch import Tensor


class Loops:
    def __init__(self, z: Tensor, temperature: Tensor | float, mask: Tensor | None = None) -> None:
        self.z, self.temperature = z, temperature
        self.M, self.N, _ = z.shape
        self.mask = torch.ones(self.M, self.N, dtype=torch.bool) if mask is None else mask

    def views(self, i: int) -> list[int]:
        return [l for l in range(self.N) if self.mask[i, l]]

    def pairs(self, i: int) -> list[tuple[int, int]]:
        return [(l, m) for l in self.views(i) for m in self.views(i) if l != m]

    def others(self, i: int, m: int) -> list[int]:
        return [j for j in range(self.M) if j != i and self.mask[j, m]]

    def K(self, i: int, l: int, j: int, m: int) -> Tensor:
        return torch.exp(self.z[i, l] @ self.z[j, m] / self.temperature)

    def energy(self, i: int, l: int, m: int) -> Tensor:
        return add(self.K(i, l, j, m) for j in self.others(i, m))

    def counted(self) -> list[int]:
        return [i for i in range(self.M) if len(self.views(i)) >= 2]

    def loss(self, name: str, **options: object) -> Tensor:
        term = getattr(self, name.replace("-", "_"))
        return average([term(i, **options) for i in self.counted()])

    def mv_infonce(self, i: int, same_view_negatives: bool = False) -> Tensor:
        positive = add(self.K(i, l, i, m) for l, m in self.pairs(i))
        negative = positive
        for l in self.views(i):
            negative = negative + add(self.energy(i, l, m) for m in range(self.N) if m != l or same_view_negatives)
        return -torch.log(positive) + torch.log(negative)

    def mv_dhel(self, i: int) -> Tensor:
        positive = add(self.K(i, l, i, m) for l, m in self.pairs(i))
        return -torch.log(positive) + add(log_or_skip(self.energy(i, l, l)) for l in self.views(i))

    def mv_cl1(self, i: int) -> Tensor:
        terms = []
        for l in self.views(i):
            positive = add(self.K(i, l, i, m) for m in self.views(i) if m != l)
            negative = add(self.energy(i, l, m) for m in range(self.N) if m != l)
            terms.append(-torch.log(positive) + torch.log(positive + negative))
        return average(terms)

    def mv_cl2(self, i: int, uniformity: str = "mean") -> Tensor:
        alignment = average(
            [-torch.log(add(self.K(i, l, i, m) for m in self.views(i) if m != l)) for l in self.views(i)]
        )
        energies = [torch.log(e) for l in self.views(i) if (e := self.energy(i, l, l)) > 0]
        if not energies:
            return alignment
        return alignment + (average(energies) if uniformity == "mean" else add(energies))

    def pwe_infonce(self, i: int) -> Tensor:
        return average(
            [-torch.log(k / (k + self.energy(i, l, m))) for l, m in self.pairs(i) for k in [self.K(i, l, i, m)]]
        )

    def pwe_ntxent(self, i: int) -> Tensor:
        return average(
            [
                -torch.log(k / (k + self.energy(i, l, l) + self.energy(i, l, m)))
                for l, m in self.pairs(i)
                for k in [self.K(i, l, i, m)]
            ]
        )

    def pwe_dhel(self, i: int) -> Tensor:
        return average(
            [
                -torch.log(self.K(i, l, i, m)) + log_or_skip(self.energy(i, l, l)) + log_or_skip(self.energy(i, m, m))
                for l, m in self.pairs(i)
            ]
        )

    def infonce(self, i: int) -> Tensor:
        return self.pwe_infonce(i)

    def dhel(self, i: int) -> Tensor:
        return self.pwe_dhel(i)

    def ntxent(self, i: int) -> Tensor:
        terms = []
        for l, m in self.pairs(i):
            total = add(self.K(i, l, i, n) for n in self.views(i) if n != l)
            total = total + add(self.energy(i, l, n) for n in range(self.N))
            terms.append(-torch.log(self.K(i, l, i, m) / total))
        return average(terms)

    def dcl(self, i: int) -> Tensor:
        return average(
            [
                -torch.log(self.K(i, l, i, m) / add(self.energy(i, l, n) for n in range(self.N)))
                for l, m in self.pairs(i)
            ]
        )

    def _pvc_ratio(self, i: int, l: int, m: int) -> Tensor:
        k = self.K(i, l, i, m)
        return k / (k + add(self.energy(i, l, n) for n in range(self.N)))

    def pvc(self, i: int) -> Tensor:
        return average([-torch.log(self._pvc_ratio(i, l, m)) for l, m in self.pairs(i)])

    def pvc_arithmetic(self, i: int) -> Tensor:
        return average(
            [-torch.log(average([self._pvc_ratio(i, l, m) for m in self.views(i) if m != l])) for l in self.views(i)]
        )

    def _leave_one_out(self, name: str, normalize_mean: bool) -> Tensor:
        """A two-view problem for each view and the mean of the others."""
        losses: dict[int, list[Tensor]] = {}
        for l in range(self.N):
            instances = [i for i in range(self.M) if self.mask[i, l]]
            pairs, has_others = [], []
            for i in instances:
                others = [self.z[i, m] for m in self.views(i) if m != l]
                has_others.append(bool(others))
                mean = add(others) / max(len(others), 1)
                if not others:
                    mean = torch.zeros_like(self.z[i, l])
                elif normalize_mean:
                    mean = mean / mean.norm()
                pairs.append(torch.stack([self.z[i, l], mean]))
            if not instances:
                continue
            mask = torch.tensor([[True, has_other] for has_other in has_others])
            problem = Loops(torch.stack(pairs), self.temperature, mask)
            for index, i in enumerate(instances):
                if has_others[index]:
                    losses.setdefault(i, []).append(getattr(problem, name)(index))
        return average([average(terms) for terms in losses.values()])

    def avg(self, pair: str, normalize_mean: bool) -> Tensor:
        return self._leave_one_out(f"pwe_{pair}", normalize_mean)

    def anchored(self, anchor: int = 0) -> Tensor:
        losses = []
        for i in range(self.M):
            others = [m for m in self.views(i) if m != anchor]
            if self.mask[i, anchor] and others:
                pairs = [(anchor, m) for m in others] + [(m, anchor) for m in others]
                terms = []
                for l, m in pairs:
                    k = self.K(i, l, i, m)
                    terms.append(-torch.log(k / (k + self.energy(i, l, m))))
                losses.append(average(terms))
        return average(losses)

    def supcon(self, labels: Tensor) -> Tensor:
        losses = []
        points = [(i, l) for i in range(self.M) for l in self.views(i)]
        for i in range(self.M):
            terms = []
            for l in self.views(i):
                others = [p for p in points if p != (i, l)]
                total = add(self.K(i, l, *p) for p in others)
                same = [p for p in others if labels[p[0]] == labels[i]]
                if same:
                    terms.append(average([-torch.log(self.K(i, l, *p) / total) for p in same]))
            if terms:
                losses.append(average(terms))
        return average(losses)

    def siglip(self, i: int, bias: Tensor | float = -10.0) -> Tensor:
        terms = []
        for l, m in self.pairs(i):
            term = log1pexp(-(self.z[i, l] @ self.z[i, m] / self.temperature + bias))
            for j in self.others(i, m):
                term = term + log1pexp(self.z[i, l] @ self.z[j, m] / self.temperature + bias)
            terms.append(term)
        return average(terms)

    def kcl(self, i: int, kernel: object, gamma: float = 16.0) -> Tensor:
        def K(a: Tensor, b: Tensor) -> Tensor:
            return kernel((a - b).square().sum())  # type: ignore[operator]

        positive = average([K(self.z[i, l], self.z[i, m]) for l, m in self.pairs(i)])
        energies = []
        for l in self.views(i):
            others = self.others(i, l)
            energies.append(average([K(self.z[i, l], self.z[j, l]) for j in others]) if others else torch.tensor(0.0))
        return -positive + gamma * average(energies)


def add(terms: object) -> Tensor:
    return sum(terms, torch.tensor(0.0, dtype=torch.float64))  # type: ignore[call-overload]


def average(terms: list[Tensor]) -> Tensor:
    return add(terms) / len(terms)


def log_or_skip(value: Tensor) -> Tensor:
    return torch.log(value) if value > 0 else torch.tensor(0.0, dtype=torch.float64)


def log1pexp(value: Tensor) -> Tensor:
    return torch.log1p(torch.exp(value))


def imq(temperature: float, c: float = 1.0) -> object:
    return lambda x: (c / torch.sqrt(c**2 + x)) ** (1 / temperature)


def gaussian(temperature: float) -> object:
    return lambda x: torch.exp(-x / (2 * temperature))


def logarithmic(s: float, beta: float) -> object:
    return lambda x: -0.5 * torch.log(s * x + beta)


def riesz(s: float) -> object:
    return lambda x: -(x ** (-s / 2))


def unit(z: Tensor) -> Tensor:
    return z / z.norm(dim=-1, keepdim=True)


def table_one_pwe(P: Tensor, A: Tensor) -> Tensor:
    """Pwe as in the paper's Table I: cross-view InfoNCE in one direction, over l < m."""
    views = P.shape[1]
    pairs = itertools.combinations(range(views), 2)
    terms = [torch.logaddexp(P[:, l, m], A[:, l, m]) - P[:, l, m] for l, m in pairs]
    return torch.stack(terms).sum(0) * 2 / math.comb(views, 2)
