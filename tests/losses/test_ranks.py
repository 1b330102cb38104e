"""Several processes compute the loss and the averaged gradients of one process."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import distributed as dist

from manyviews.losses import LOSSES, InverseMultiquadric, MultiViewLoss, get_loss
from manyviews.losses._distributed import all_gather
from tests.helpers.distributed import RankPool
from tests.losses.loss_by_name import WITH_TEMPERATURE

pytestmark = pytest.mark.distributed

D = 8


class Case:
    """An encoder, a batch that can be split among two or three ranks, and losses by label."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(12, 3, D, generator=generator)
        self.mask = torch.rand(12, 3, generator=generator) < 0.7
        self.labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 3, 4, 5])
        self.weight = torch.randn(D, D, generator=generator)

    def losses(self) -> dict[str, Callable[[], MultiViewLoss]]:
        losses: dict[str, Callable[[], MultiViewLoss]] = {}
        for name in LOSSES:
            options = {"temperature": 0.3, "learn_temperature": True} if name in WITH_TEMPERATURE else {}
            losses[name] = lambda name=name, options=options: get_loss(name, **options)
        losses["symile of all combinations"] = lambda: get_loss("symile", negatives="all")
        losses["mmcr with a local part"] = lambda: get_loss("mmcr", local_weight=0.1)
        losses["gram of each instance"] = lambda: get_loss("gram", learn_temperature=True, reduction="none")
        losses["mv-infonce at 0.01"] = lambda: get_loss("mv-infonce", temperature=0.01, learn_temperature=True)
        losses["pvc dense"] = lambda: get_loss("pvc", learn_temperature=True, implementation="dense")
        losses["mv-dhel of another kernel"] = lambda: get_loss(
            "mv-dhel", learn_temperature=True, kernel=InverseMultiquadric()
        )
        losses["mv-cl1 of each instance"] = lambda: get_loss("mv-cl1", learn_temperature=True, reduction="none")
        return losses

    def gradients(self, loss_fn: MultiViewLoss, masked: bool, part: slice) -> dict[str, torch.Tensor]:
        layer = torch.nn.Linear(D, D, bias=False)
        with torch.no_grad():
            layer.weight.copy_(self.weight)
        x = self.x[part, : int(min(3, loss_fn.max_views))]
        mask = self.mask[part, : x.shape[1]] if masked else None
        options = {"labels": self.labels[part]} if type(loss_fn).__name__ == "SupConLoss" else {}
        loss = loss_fn(layer(x), mask, **options)
        if loss_fn.reduction == "none":
            # Each rank averages over its own instances.
            loss = loss.mean()
        loss.backward()
        result = {"loss": loss.detach(), "weight": layer.weight.grad}
        return result | {name: p.grad for name, p in loss_fn.named_parameters()}


def compute_all(rank: int, world: int) -> dict[str, dict[str, torch.Tensor]]:
    case = Case()
    size = len(case.x) // world
    part = slice(rank * size, (rank + 1) * size)
    results = {}
    for label, make in case.losses().items():
        for masked in (False, True):
            result = case.gradients(make(), masked, part)
            for name, value in result.items():
                if name != "loss":
                    dist.all_reduce(value)
                    value.div_(world)
            results[f"{label}, masked={masked}"] = result
    return results


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_compute_the_loss_and_gradients_of_one_process(world: int, two_ranks: RankPool) -> None:
    case = Case()
    with nullcontext(two_ranks) if world == 2 else RankPool(world) as pool:
        ranks = pool.run(compute_all)
    for label, make in case.losses().items():
        for masked in (False, True):
            key = f"{label}, masked={masked}"
            expected = case.gradients(make(), masked, slice(None))
            for result in ranks:
                for name, value in expected.items():
                    if name == "loss" and "each instance" in label:
                        continue
                    torch.testing.assert_close(
                        result[key][name],
                        value,
                        rtol=1e-5,
                        atol=1e-6,
                        msg=lambda m, key=key, name=name: f"{key}, {name}: {m}",
                    )
            if "each instance" in label:
                losses = torch.stack([result[key]["loss"] for result in ranks])
                torch.testing.assert_close(losses.mean(), expected["loss"])


def unequal_batches(rank: int, world: int) -> str:
    return get_message(lambda: get_loss("mv-dhel")(torch.randn(4 + rank, 3, D)))


def nan_on_one_rank(rank: int, world: int) -> str:
    z = torch.randn(4, 3, D)
    if rank == 1:
        z[2, 1] = torch.nan
    return get_message(lambda: get_loss("mv-dhel")(z))


def differing(rank: int, world: int) -> list[str]:
    z = torch.randn(4, 3, D)
    labels = torch.arange(4)
    errors = [
        get_message(lambda: get_loss("pvc")(z.double() if rank else z)),
        get_message(lambda: get_loss("pvc")(z.clone().requires_grad_(bool(rank)))),
        get_message(lambda: get_loss("supcon")(z, labels=labels if rank else None)),
        get_message(lambda: get_loss("supcon")(z, labels=labels.int() if rank else labels)),
    ]
    errors += [
        get_message(lambda: get_loss("pvc", temperature=0.5 + 0.1 * rank)(z)),
        get_message(lambda: get_loss("pvc" if rank else "mv-dhel")(z)),
        get_message(lambda: get_loss("kcl", gamma=16.0 + rank)(z)),
        get_message(lambda: get_loss("pvc", implementation="dense" if rank else "tiled")(z)),
        get_message(lambda: get_loss("pvc", kernel=InverseMultiquadric(c=1.0 + rank))(z)),
        get_message(lambda: get_loss("supcon")(z)),
    ]
    broken = get_loss("pvc", temperature=torch.nn.Parameter(torch.tensor(0.5)))
    with torch.no_grad():
        broken.temperature.fill_(torch.nan if rank else 0.5)
    return [*errors, get_message(lambda: broken(z))]


def test_inputs_that_differ_between_ranks_are_an_error_not_a_hang(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(differing)
    for errors in (first, second):
        assert errors[0].startswith("the dtype of embeddings must be the same on all ranks, but rank ")
        assert errors[1].startswith("requires_grad must be the same")
        assert errors[2].startswith("labels (their dtype, and whether they are given) must be the same")
        assert errors[3] == errors[2]
        assert errors[4].startswith("the temperature (if it is learned, ")
        assert all(error.startswith("the loss and its options must be the same") for error in errors[5:9])
        assert "SupConLoss requires labels" in errors[9]
    assert first[10] == "invalid input on rank 1 (see the error of that rank)"
    assert "temperature must be" in second[10]


def get_message(work: Callable[[], object]) -> str:
    try:
        work()
    except ValueError as error:
        # The group is still usable: no rank waits in a collective.
        dist.barrier()
        return str(error)
    return "no error"


def test_unequal_batches_are_an_error_on_every_rank(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(unequal_batches)
    assert first == (
        "embeddings have shape (5, 3, 8) on rank 1 but (4, 3, 8) on rank 0: "
        "every rank must have the same number of instances (drop_last=True)"
    )
    assert "(4, 3, 8) on rank 0 but (5, 3, 8) on rank 1" in second


def test_bad_input_on_one_rank_is_an_error_on_every_rank(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(nan_on_one_rank)
    assert first == "invalid input on rank 1 (see the error of that rank)"
    assert second.startswith("embeddings contain NaN, first at instance 2, view 1")


def bad_list_on_one_rank(rank: int, world: int) -> str:
    views = list(torch.randn(3, 4, D))
    if rank == 1:
        views[2] = views[2][:2]
    return get_message(lambda: get_loss("mv-dhel")(views))


def test_bad_list_of_views_on_one_rank_is_an_error_on_every_rank(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(bad_list_on_one_rank)
    assert first == "invalid input on rank 1 (see the error of that rank)"
    assert second.startswith("views must have the same shape")


def local_only(rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.randn(4, 3, D, generator=torch.Generator().manual_seed(rank))
    return get_loss("pvc", gather_distributed=False)(z), get_loss("pvc")(z)


def test_without_gather_a_rank_uses_only_its_own_instances(two_ranks: RankPool) -> None:
    results = two_ranks.run(local_only)
    parts = [torch.randn(4, 3, D, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    for (local, together), part in zip(results, parts, strict=True):
        torch.testing.assert_close(local, get_loss("pvc")(part))
        torch.testing.assert_close(together, get_loss("pvc")(torch.cat(parts)))


def gather_permuted(rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = (torch.arange(6.0) + 6 * rank).view(2, 3).requires_grad_()
    gathered = all_gather(x)
    weights = (torch.arange(12.0) * (rank + 1)).view(3, 4)
    (gathered.T * weights).sum().backward()  # a gradient that is not contiguous
    return gathered.detach(), x.grad


def test_gathered_gradients_are_summed_even_when_permuted(two_ranks: RankPool) -> None:
    results = two_ranks.run(gather_permuted)
    summed = (torch.arange(12.0) * 3).view(3, 4).T
    for rank, (gathered, gradient) in enumerate(results):
        torch.testing.assert_close(gathered, torch.arange(12.0).view(4, 3))
        torch.testing.assert_close(gradient, summed[2 * rank : 2 * rank + 2])


VARIANTS: dict[str, dict[str, object]] = {
    "mv-dhel+0.5*prod-dhel": {},
    "mv-dhel+0.5*prod-dhel, memory": {"memory_bank": 10},
    "prod-ntxent, memory": {"memory_bank": 30},
    "pvc, ids": {},
    "kcl, ids, memory": {"memory_bank": 10},
    "pwe-infonce, weights": {"pair_weights": [[0, 1, 2], [1, 0, 0], [2, 0, 0]]},
    "mv-infonce, not checked": {"validate": False},
    "mv-infonce, compiled": {},
    "mv-dhel+0.5*prod-dhel, memory, compiled": {"memory_bank": 10},
    "symile, compiled": {},
}


def compute_variants(rank: int, world: int) -> dict[str, dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the compiler itself warns
        return {label: compute_variant(label, rank, world) for label in VARIANTS}


def compute_variant(label: str, rank: int, world: int) -> dict[str, torch.Tensor]:
    """Return the loss, gradients and state of the last of three steps with different embeddings."""
    torch.compiler.reset()
    case = Case()
    size = len(case.x) // world
    part = slice(rank * size, (rank + 1) * size)
    loss_fn = get_loss(label.split(",", maxsplit=1)[0], learn_temperature=True, **VARIANTS[label])
    call = torch.compile(loss_fn, backend="aot_eager", fullgraph=True) if "compiled" in label else loss_fn
    for step in range(3):
        weight = case.weight.roll(step, 0).requires_grad_()
        ids = {"ids": case.labels[part] + 2 * step} if "ids" in label else {}
        loss = call(case.x[part] @ weight, case.mask[part], **ids)
        gradients = torch.autograd.grad(loss, [weight, *loss_fn.parameters()])
    for gradient in gradients:
        if world > 1:
            dist.all_reduce(gradient)
            gradient.div_(world)
    return {"loss": loss.detach(), **{str(i): g for i, g in enumerate(gradients)}, **loss_fn.state_dict()}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_ids_memory_sums_and_compiled_losses_on_ranks(two_ranks: RankPool) -> None:
    expected = compute_variants(0, 1)
    for result in two_ranks.run(compute_variants):
        for label, values in expected.items():
            torch.testing.assert_close(
                result[label], values, rtol=1e-5, atol=1e-6, msg=lambda m, label=label: f"{label}: {m}"
            )
