"""Several processes give the loss and the averaged gradients of one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from manyviews import Objective, get_objective
from manyviews.losses import OBJECTIVES, InverseMultiquadric
from manyviews.losses.gather import all_gather
from tests.ranks import on_ranks

D = 8


class Case:
    """An encoder, a batch that divides among two and three ranks, and objectives by label."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(12, 3, D, generator=generator)
        self.present = torch.rand(12, 3, generator=generator) < 0.7
        self.labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 3, 4, 5])
        self.weight = torch.randn(D, D, generator=generator)

    def objectives(self) -> dict[str, Callable[[], Objective]]:
        made: dict[str, Callable[[], Objective]] = {}
        for name in OBJECTIVES:
            made[name] = lambda name=name: get_objective(name, temperature=0.3, learnable=True)
        made["mv-infonce at 0.01"] = lambda: get_objective("mv-infonce", temperature=0.01, learnable=True)
        made["pvc dense"] = lambda: get_objective("pvc", learnable=True, implementation="dense")
        made["mv-dhel of another kernel"] = lambda: get_objective(
            "mv-dhel", learnable=True, kernel=InverseMultiquadric()
        )
        made["mv-cl1 of each instance"] = lambda: get_objective("mv-cl1", learnable=True, reduction="none")
        return made

    def gradients(self, objective: Objective, masked: bool, rows: slice) -> dict[str, torch.Tensor]:
        layer = torch.nn.Linear(D, D, bias=False)
        with torch.no_grad():
            layer.weight.copy_(self.weight)
        x = self.x[rows, : int(min(3, objective.most_views))]
        present = self.present[rows, : x.shape[1]] if masked else None
        options = {"labels": self.labels[rows]} if type(objective).__name__ == "SupCon" else {}
        loss = objective(layer(x), present, **options)
        if objective.reduction == "none":
            # Each rank averages over its own instances, whatever counts in them.
            loss = loss.mean()
        loss.backward()
        found = {"loss": loss.detach(), "weight": layer.weight.grad}
        return found | {name: p.grad for name, p in objective.named_parameters()}


def every_objective(rank: int, world: int) -> dict[str, dict[str, torch.Tensor]]:
    case = Case()
    size = len(case.x) // world
    rows = slice(rank * size, (rank + 1) * size)
    results = {}
    for label, make in case.objectives().items():
        for masked in (False, True):
            found = case.gradients(make(), masked, rows)
            for name, value in found.items():
                if name != "loss":
                    dist.all_reduce(value)
                    value.div_(world)
            results[f"{label}, masked={masked}"] = found
    return results


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_give_the_loss_and_gradients_of_one_process(world: int, tmp_path: Path) -> None:
    case = Case()
    ranks = on_ranks(world, every_objective, tmp_path)
    for label, make in case.objectives().items():
        for masked in (False, True):
            key = f"{label}, masked={masked}"
            expected = case.gradients(make(), masked, slice(None))
            for found in ranks:
                for name, value in expected.items():
                    if name == "loss" and "each instance" in label:
                        continue
                    torch.testing.assert_close(
                        found[key][name],
                        value,
                        rtol=1e-5,
                        atol=1e-6,
                        msg=lambda m, key=key, name=name: f"{key}, {name}: {m}",
                    )
            if "each instance" in label:
                losses = torch.stack([found[key]["loss"] for found in ranks])
                torch.testing.assert_close(losses.mean(), expected["loss"])


def unequal_batches(rank: int, world: int) -> str:
    return message(lambda: get_objective("mv-dhel")(torch.randn(4 + rank, 3, D)))


def one_bad_rank(rank: int, world: int) -> str:
    z = torch.randn(4, 3, D)
    if rank == 1:
        z[2, 1] = torch.nan
    return message(lambda: get_objective("mv-dhel")(z))


def differing(rank: int, world: int) -> list[str]:
    z = torch.randn(4, 3, D)
    labels = torch.arange(4)
    said = [
        message(lambda: get_objective("pvc")(z.double() if rank else z)),
        message(lambda: get_objective("pvc")(z.clone().requires_grad_(bool(rank)))),
        message(lambda: get_objective("supcon")(z, labels=labels if rank else None)),
        message(lambda: get_objective("supcon")(z, labels=labels.int() if rank else labels)),
    ]
    said += [
        message(lambda: get_objective("pvc", temperature=0.5 + 0.1 * rank)(z)),
        message(lambda: get_objective("pvc" if rank else "mv-dhel")(z)),
        message(lambda: get_objective("kcl", gamma=16.0 + rank)(z)),
        message(lambda: get_objective("pvc", implementation="dense" if rank else "tiled")(z)),
        message(lambda: get_objective("pvc", kernel=InverseMultiquadric(c=1.0 + rank))(z)),
        message(lambda: get_objective("supcon")(z)),
    ]
    broken = get_objective("pvc", temperature=torch.nn.Parameter(torch.tensor(0.5)))
    with torch.no_grad():
        broken.temperature.fill_(torch.nan if rank else 0.5)
    return [*said, message(lambda: broken(z))]


def test_ranks_that_differ_get_an_error_not_a_hang(tmp_path: Path) -> None:
    first, second = on_ranks(2, differing, tmp_path)
    for said in (first, second):
        assert "another dtype" in said[0]
        assert "another requires_grad" in said[1]
        assert "other labels" in said[2]
        assert "other labels" in said[3]
        assert "another temperature" in said[4]
        assert all("another loss, or other options of it, on rank" in text for text in said[5:9])
        assert "SupCon needs labels" in said[9]
    assert first[10] == "rank 1 was given bad input (its own error says what)"
    assert "temperature must be" in second[10]


def message(work: Callable[[], object]) -> str:
    try:
        work()
    except ValueError as error:
        # The group is still usable: nobody is left waiting in a collective.
        dist.barrier()
        return str(error)
    return "no error"


def test_unequal_batches_are_an_error_on_every_rank(tmp_path: Path) -> None:
    first, second = on_ranks(2, unequal_batches, tmp_path)
    assert first == (
        "embeddings of shape (5, 3, 8) on rank 1 but (4, 3, 8) on rank 0: "
        "every rank must bring as many instances (drop_last=True)"
    )
    assert "(4, 3, 8) on rank 0 but (5, 3, 8) on rank 1" in second


def test_bad_input_on_one_rank_is_an_error_on_every_rank(tmp_path: Path) -> None:
    first, second = on_ranks(2, one_bad_rank, tmp_path)
    assert first == "rank 1 was given bad input (its own error says what)"
    assert second.startswith("embeddings contain NaN, first at instance 2, view 1")


def local_only(rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.randn(4, 3, D, generator=torch.Generator().manual_seed(rank))
    return get_objective("pvc", gather=False)(z), get_objective("pvc")(z)


def test_without_gather_a_rank_sees_its_own_instances(tmp_path: Path) -> None:
    results = on_ranks(2, local_only, tmp_path)
    parts = [torch.randn(4, 3, D, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    for (local, together), part in zip(results, parts, strict=True):
        torch.testing.assert_close(local, get_objective("pvc")(part))
        torch.testing.assert_close(together, get_objective("pvc")(torch.cat(parts)))


def gather_permuted(rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = (torch.arange(6.0) + 6 * rank).view(2, 3).requires_grad_()
    gathered = all_gather(x, dist.group.WORLD)
    weights = (torch.arange(12.0) * (rank + 1)).view(3, 4)
    (gathered.T * weights).sum().backward()  # a gradient that is not contiguous
    return gathered.detach(), x.grad


def test_gathered_gradients_are_summed_even_when_permuted(tmp_path: Path) -> None:
    results = on_ranks(2, gather_permuted, tmp_path)
    summed = (torch.arange(12.0) * 3).view(3, 4).T
    for rank, (gathered, gradient) in enumerate(results):
        torch.testing.assert_close(gathered, torch.arange(12.0).view(4, 3))
        torch.testing.assert_close(gradient, summed[2 * rank : 2 * rank + 2])
