"""Products of views, weighted sums, pair weights, ids and the memory bank, each against slow loops."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.losses import LOSSES, EnergyLoss, InverseMultiquadric, get_loss
from manyviews.losses import _tiled as tiled
from tests.losses.reference import Loops

PAIR_LOSSES = ("infonce", "ntxent", "dhel")
ENERGY_LOSSES = [name for name in LOSSES if isinstance(get_loss(name), EnergyLoss) and name != "supcon"]
CONTRASTIVE = [name for name in ENERGY_LOSSES if name not in ("siglip", "kcl")]


class LearnedKernel(nn.Module):
    """A kernel with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def log(self, cosine: Tensor) -> Tensor:
        return torch.atan(self.slope * cosine)

    def value(self, cosine: Tensor, temperature: Tensor) -> Tensor:
        return torch.exp(self.log(cosine) / temperature)


class Arctangent(torch.autograd.Function):
    """A function that autograd differentiates, but `torch.func` does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.atan(2 * x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 2 / (1 + 4 * x.square())


class FunctionKernel:
    def log(self, cosine: Tensor) -> Tensor:
        return Arctangent.apply(cosine)

    def value(self, cosine: Tensor, temperature: Tensor) -> Tensor:
        return torch.exp(self.log(cosine) / temperature)


def make_batch(M: int = 12, N: int = 3, d: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(M, N, d, dtype=torch.float64, generator=generator).requires_grad_()
    return z, torch.rand(M, N, generator=generator) < 0.75


def count_views(name: str) -> int:
    return int(min(3, get_loss(name).max_views))


def assert_same(a: Tensor, b: Tensor, *leaves: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    gradients = [torch.autograd.grad(loss.sum(), leaves, retain_graph=True) for loss in (a, b)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)


def multiply_slowly(z: Tensor, pair_loss: str, temperature: float, mask: Tensor | None) -> Tensor:
    """Each view against the normalized product of the others, as loops over pairs of points."""
    unit = normalize(z, dim=2)
    M, N, _ = z.shape
    views = [[l for l in range(N) if mask is None or mask[i, l]] for i in range(M)]
    products: dict[tuple[int, int], Tensor] = {}
    for i in range(M):
        for l in views[i]:
            others = [unit[i, m] for m in views[i] if m != l]
            if others:
                products[i, l] = normalize(math.prod(others[1:], start=others[0]), dim=0)
    points = {(i, l): unit[i, l] for i in range(M) for l in views[i]}

    def energy(a: dict, b: dict, i: int, l: int) -> Tensor:
        return sum((torch.exp(a[i, l] @ b[j, m] / temperature) for j, m in b if j != i and m == l), torch.zeros(()))

    losses = []
    for i in range(M):
        terms = []
        for l in views[i]:
            if (i, l) not in products:
                continue
            for a, b in ((points, products), (products, points)):
                positive = torch.exp(a[i, l] @ b[i, l] / temperature)
                if pair_loss == "infonce":
                    terms.append(torch.log(positive + energy(a, b, i, l)) - torch.log(positive))
                elif pair_loss == "ntxent":
                    total = positive + energy(a, b, i, l) + energy(a, a, i, l)
                    terms.append(torch.log(total) - torch.log(positive))
                else:
                    energies = [e for c in (a, b) if (e := energy(c, c, i, l)) > 0]
                    terms.append(sum((torch.log(e) for e in energies), -torch.log(positive)))
        if terms:
            losses.append(torch.stack(terms).mean())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pair_loss", PAIR_LOSSES)
def test_product_of_the_other_views_equals_loops(pair_loss: str, masked: bool, implementation: str) -> None:
    z, mask = make_batch(7, 4, 5)
    mask = mask if masked else None
    loss = get_loss(f"prod-{pair_loss}", temperature=0.3, implementation=implementation)
    assert_same(loss(z, mask), multiply_slowly(z, pair_loss, 0.3, mask), z)


@pytest.mark.parametrize("pair_loss", PAIR_LOSSES)
def test_product_of_one_other_view_is_that_view(pair_loss: str) -> None:
    z, _ = make_batch(N=2)
    pair = get_loss(f"pwe-{pair_loss}", temperature=0.3)
    assert_same(get_loss(f"prod-{pair_loss}", temperature=0.3)(z), pair(z), z)


@pytest.mark.parametrize("pair_loss", PAIR_LOSSES)
def test_a_product_that_vanishes_has_a_direction(pair_loss: str) -> None:
    z = torch.eye(6)[torch.arange(18) % 6].view(6, 3, 6).requires_grad_()  # any two views are orthogonal
    loss = get_loss(f"prod-{pair_loss}")(z)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_products_of_many_views_in_many_dimensions_do_not_underflow() -> None:
    z = torch.randn(8, 24, 512, generator=torch.Generator().manual_seed(0))
    exact = get_loss("prod-infonce", temperature=0.1)(z.double())
    torch.testing.assert_close(get_loss("prod-infonce", temperature=0.1)(z).double(), exact, rtol=1e-4, atol=1e-4)


def test_products_are_on_the_sphere_so_that_other_kernels_are_allowed() -> None:
    z, _ = make_batch()
    assert get_loss("prod-infonce", kernel=InverseMultiquadric())(z).isfinite()
    with pytest.raises(ValueError, match="off the sphere"):
        get_loss("avg-infonce", kernel=InverseMultiquadric())


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "name", ["mv-dhel+0.5*prod-dhel", "0.3*mv-infonce + prod-ntxent + 2*avg-infonce", "pvc+0.1*siglip+kcl"]
)
def test_weighted_sum_equals_the_sum_of_its_parts(name: str, masked: bool, reduction: str) -> None:
    z, mask = make_batch()
    options: dict[str, Any] = {"temperature": 0.3, "reduction": reduction, "learn_temperature": False}
    parts = mv.losses.registry.parse_sum(name)
    arguments = (z, mask) if masked else (z,)
    expected = sum(weight * get_loss(part, **options).double()(*arguments) for part, weight in parts)
    assert_same(get_loss(name, **options).double()(*arguments), expected, z)


def test_parts_of_a_sum_share_energies_and_one_learned_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    compute = mv.losses.energy.compute_tiled_energies

    def record(x: Tensor, required: set, *args: Any, **options: Any) -> Tensor:
        calls.append((x.shape[1], required))
        return compute(x, required, *args, **options)

    monkeypatch.setattr("manyviews.losses.energy.compute_tiled_energies", record)
    z, _ = make_batch()
    loss = get_loss("mv-dhel+0.5*prod-dhel", learn_temperature=True).double()
    loss(z).backward()
    assert calls == [(6, {(l, l) for l in range(6)})]
    assert len(list(loss.parameters())) == 1
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    separate = mv.MVDHELLoss(tau)(z) + 0.5 * mv.LeaveOneOutLoss("dhel", tau, combine="product")(z)
    (gradient,) = torch.autograd.grad(separate, tau)
    (parameter,) = loss.parameters()
    torch.testing.assert_close(parameter.grad, 0.5 * gradient)  # the parameter is log(tau)


def test_a_temperature_is_for_the_parts_that_have_one() -> None:
    z, _ = make_batch()
    loss = get_loss("mv-dhel+0.1*mmcr", temperature=0.2, learn_temperature=True).double()
    learned = mv.MVDHELLoss(0.2, learn_temperature=True).double()
    assert_same(loss(z), learned(z) + 0.1 * mv.MMCRLoss()(z), z)


def test_parts_of_a_sum_start_from_their_own_temperatures() -> None:
    loss = get_loss("mv-dhel+pvc+symile", learn_temperature=True)
    assert [round(part.temperature.item(), 4) for part in loss.parts] == [0.5, 0.5, 0.07]
    assert len(list(loss.parameters())) == 2


def test_sums_of_losses_with_different_temperatures_do_not_share() -> None:
    z, _ = make_batch()
    parts = [mv.MVDHELLoss(0.5), mv.PVCLoss(0.1), mv.SigLIPLoss(bias=-5.0).double(), mv.SigLIPLoss(bias=-1.0).double()]
    loss = mv.WeightedSumLoss([(part, i + 1.0) for i, part in enumerate(parts)])
    assert_same(loss(z), sum((i + 1) * part(z) for i, part in enumerate(parts)), z)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: get_loss("mv-dhel+0.5*prod-dhell"), "unknown loss 'prod-dhell' in the sum .*did you mean prod-dhel"),
        (lambda: get_loss("mv-dhel+x*pvc"), r"written as mv-dhel\+0.5\*prod-dhel, got 'mv-dhel\+x\*pvc'"),
        (lambda: get_loss("mv-dhel+0*pvc"), "weights must be finite and not 0, got 0.0 for pvc"),
        (lambda: mv.WeightedSumLoss([]), "at least one"),
        (lambda: get_loss("mv-dhel+supcon"), "a weighted sum has no labels, which SupConLoss requires"),
        (
            lambda: mv.AnchoredLoss(anchor_view=2, pair_weights=[[0, 1, 0], [1, 0, 0], [0, 0, 0]]),
            "pair_weights of a pair with the anchor view 2 must be > 0",
        ),
        (lambda: get_loss("pvc", kernel=LearnedKernel(), implementation="tiled"), "has parameters of its own"),
        (lambda: mv.WeightedSumLoss([(mv.PVCLoss(reduction="none"), 1.0)]), "must be those of the sum"),
        (lambda: get_loss("mv-dhel+mmcr", reduction="none"), "loss of the whole batch"),
        (lambda: get_loss("mv-dhel+lejepa"), "cannot be summed"),
        (lambda: mv.PairwiseLoss(pair_weights=[[0, 1]]), r"must be \(N, N\) .*got 1 rows of 2"),
        (lambda: mv.PairwiseLoss(pair_weights=[[0, -1], [1, 0]]), r"numbers >= 0, .*got \(\(0.0, -1.0\)"),
        (lambda: mv.PairwiseLoss(pair_weights=torch.eye(3)), "some off the diagonal > 0"),
        (lambda: mv.PairwiseLoss(pair_weights="all"), "got 'all'"),
        (lambda: get_loss("avg-dhel", pair_weights=torch.ones(3, 3)), "pair_weights must be None"),
        (lambda: mv.LeaveOneOutLoss(combine="sum"), "combine must be one of mean, product, got 'sum'"),
        (lambda: mv.LeaveOneOutLoss(combine="product", normalize_mean=True), "an option of combine='mean'"),
        (lambda: mv.MVDHELLoss(memory_bank=-1), "memory_bank must be a number of instances"),
        (lambda: mv.MVDHELLoss(memory_bank=True), "memory_bank must be a number of instances"),
    ],
)
def test_invalid_options(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_pair_weights_of_another_number_of_views() -> None:
    with pytest.raises(ValueError, match=r"pair_weights must be \(3, 3\) for 3 views, got 2 rows"):
        mv.PairwiseLoss(pair_weights=[[0, 1], [1, 0]])(make_batch()[0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pair_loss", PAIR_LOSSES)
def test_pair_weights_weight_the_terms(pair_loss: str, masked: bool) -> None:
    z, mask = make_batch()
    mask = mask if masked else None
    weights = torch.tensor([[7.0, 2.0, 0.5], [1.0, 0.0, 0.0], [0.5, 0.0, 3.0]])
    loops = Loops(normalize(z, dim=2), 0.3, mask)
    losses = []
    for i in range(loops.M):
        total, terms = 0.0, []
        for l, m in loops.pairs(i):
            if weights[l, m] == 0:
                continue
            k, same = loops.K(i, l, i, m), loops.energy(i, l, l)
            if pair_loss == "infonce":
                term = torch.log(k + loops.energy(i, l, m)) - torch.log(k)
            elif pair_loss == "ntxent":
                term = torch.log(k + loops.energy(i, l, m) + same) - torch.log(k)
            else:
                term = torch.log(same) + torch.log(loops.energy(i, m, m)) - torch.log(k)
            total += float(weights[l, m])
            terms.append(weights[l, m] * term)
        if terms:
            losses.append(torch.stack(terms).sum() / total)
    loss = mv.PairwiseLoss(pair_loss, 0.3, pair_weights=weights)
    assert_same(loss(z, mask), torch.stack(losses).mean(), z)


def test_equal_pair_weights_change_nothing_and_weights_can_select_an_anchor() -> None:
    z, mask = make_batch()
    assert_same(mv.PairwiseLoss(pair_weights=torch.full((3, 3), 2.0))(z, mask), mv.PairwiseLoss()(z, mask), z)
    anchored = mv.PairwiseLoss("infonce", pair_weights=[[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    assert anchored.required_energies(3) == mv.AnchoredLoss().required_energies(3)
    assert_same(anchored(z, mask), mv.AnchoredLoss()(z, mask), z)
    weighted = mv.AnchoredLoss(pair_weights=[[0, 3, 1], [3, 0, 9], [1, 9, 0]])
    assert_same(weighted(z), mv.PairwiseLoss("infonce", pair_weights=[[0, 3, 1], [3, 0, 0], [1, 0, 0]])(z), z)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("name", ENERGY_LOSSES)
def test_instances_with_the_same_id_are_not_negatives(
    name: str, implementation: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiled.TILE_ROWS, "cpu", 5)
    z, mask = make_batch(N=count_views(name))
    mask = mask if masked else None
    loss = get_loss(name, implementation=implementation, learn_temperature=False, reduction="none").double()
    assert_same(loss(z, mask, ids=torch.arange(12) * 7 - 3), loss(z, mask), z)
    # Without its copies in the batch, an instance has the negatives that it has with ids.
    ids = torch.tensor([0, 1, 2, 0, 3, 4, 1, 5, 6, 7, 0, 8])
    with_ids = loss(z, mask, ids=ids)
    if name == "kcl" or (masked and name.endswith("dhel")):
        return  # their energies may be empty here; the next test has these losses
    for i in (0, 3, 6, 7):
        keep = [j for j in range(12) if j == i or ids[j] != ids[i]]
        alone = loss(z[keep], None if mask is None else mask[keep])
        torch.testing.assert_close(with_ids[i], alone[keep.index(i)], rtol=1e-9, atol=1e-9)


def test_ids_in_a_mean_of_kernels_count_the_negatives() -> None:
    z, mask = make_batch()
    ids = torch.tensor([0, 1, 2, 0, 3, 4, 1, 5, 6, 7, 0, 8])
    for name in ("kcl", "mv-dhel", "pwe-dhel"):
        dense, fast = (get_loss(name, implementation=i, reduction="none")(z, mask, ids=ids) for i in ("dense", "tiled"))
        assert_same(fast, dense, z)
    keep = [j for j in range(12) if j == 0 or ids[j] != 0]
    with_ids = get_loss("kcl", reduction="none")(z, ids=ids)
    torch.testing.assert_close(with_ids[0], get_loss("kcl", reduction="none")(z[keep])[0])


def test_ids_of_all_instances_equal_leave_no_negatives() -> None:
    z, _ = make_batch()
    ids = torch.zeros(12, dtype=torch.long)
    with pytest.raises(ValueError, match="with different ids: there are no negatives"):
        mv.MVDHELLoss()(z, ids=ids)
    assert mv.MVDHELLoss(validate=False)(z, ids=ids).isnan()
    with pytest.raises(TypeError, match="ids must be an integer tensor"):
        mv.MVDHELLoss()(z, ids=ids.double())
    with pytest.raises(ValueError, match="does not support ids"):
        get_loss("mmcr")(z, ids=ids)


def compute_with_bank(name: str, batches: list[Tensor], size: int, **options: Any) -> Tensor:
    """The loss of the last batch with the previous ones as negatives: instances of a larger batch, one rank of it."""
    loss = get_loss(name, reduction="none", **options).double()
    previous = torch.cat([batch.detach() for batch in reversed(batches[:-1])])[:size]
    return loss(torch.cat([batches[-1], previous]))[: len(batches[-1])]


@pytest.mark.parametrize("name", [*CONTRASTIVE, "siglip"])
def test_memory_bank_has_the_last_instances_as_negatives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiled.TILE_ROWS, "cpu", 5)
    batches = [make_batch(6, count_views(name), seed=seed)[0] for seed in range(4)]
    options: dict[str, Any] = {"temperature": 0.3, "learn_temperature": False}
    with_bank = get_loss(name, memory_bank=15, reduction="none", **options).double()
    for batch in batches[:-1]:
        with_bank(batch)
    assert_same(with_bank(batches[-1]), compute_with_bank(name, batches, 15, **options), batches[-1])


def test_temperature_learns_from_the_memory_bank() -> None:
    batches = [make_batch(6, seed=seed)[0] for seed in range(3)]
    for name in ("mv-infonce", "prod-infonce"):
        with_bank = get_loss(name, memory_bank=12, learn_temperature=True).double()
        for batch in batches[:-1]:
            with_bank(batch)
        with_bank(batches[-1]).backward()
        tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        (expected,) = torch.autograd.grad(compute_with_bank(name, batches, 12, temperature=tau).mean(), tau)
        torch.testing.assert_close(with_bank.log_temperature.grad, 0.5 * expected)


def test_memory_bank_is_saved_and_only_training_fills_it() -> None:
    batches = [make_batch(6, seed=seed)[0].detach() for seed in range(4)]
    loss = get_loss("mv-dhel+0.5*prod-dhel", memory_bank=9).double()
    for batch in batches[:2]:
        loss(batch)
    resumed = get_loss("mv-dhel+0.5*prod-dhel", memory_bank=9).double()
    resumed.load_state_dict(loss.state_dict())
    assert torch.equal(loss(batches[2]), resumed(batches[2]))
    loss.eval()
    before = copy.deepcopy(loss.state_dict())
    first, second = loss(batches[3]), loss(batches[3])
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())
    with pytest.raises(ValueError, match="saved memory bank has 9 instances, this loss has 8"):
        get_loss("mv-dhel+0.5*prod-dhel", memory_bank=8).load_state_dict(loss.state_dict())
    with pytest.raises(ValueError, match="the memory bank has embeddings"):
        loss(make_batch(6, 4)[0])


def test_ids_and_masks_apply_to_the_memory_bank() -> None:
    batches = [make_batch(6, seed=seed) for seed in range(2)]
    ids = [torch.arange(6), torch.tensor([0, 1, 8, 9, 10, 11])]
    loss = get_loss("mv-infonce", memory_bank=6, reduction="none").double()
    loss(*batches[0], ids=ids[0])
    (z, mask), (earlier, earlier_mask) = batches[1], batches[0]
    joined = get_loss("mv-infonce", reduction="none")(
        torch.cat([z, earlier.detach()]), torch.cat([mask, earlier_mask]), ids=torch.cat([ids[1], ids[0]])
    )
    assert_same(loss(z, mask, ids=ids[1]), joined[:6], z)


def test_parts_with_different_energies_share_a_memory_bank_of_earlier_batches() -> None:
    """The bank gets a batch after all parts used it: no instance is its own negative."""
    batches = [make_batch(seed=seed)[0] for seed in range(3)]
    together = get_loss("mv-dhel+0.5*siglip", memory_bank=16, learn_temperature=False).double()
    apart = [get_loss(name, memory_bank=16, learn_temperature=False).double() for name in ("mv-dhel", "siglip")]
    for z in batches:
        assert_same(together(z), apart[0](z) + 0.5 * apart[1](z), z)


def test_any_integer_is_an_id_in_the_memory_bank() -> None:
    without_ids, other_ids = (get_loss("mv-infonce", memory_bank=12).double() for _ in range(2))
    (first, _), (second, _) = make_batch(), make_batch(seed=1)
    without_ids(first)
    other_ids(first, ids=torch.arange(100, 112))
    for ids in (torch.arange(-1, 11), torch.arange(12)):
        torch.testing.assert_close(without_ids.eval()(second, ids=ids), other_ids.eval()(second, ids=ids))


def test_an_empty_memory_bank_is_loaded_into_a_full_one() -> None:
    loss = get_loss("mv-infonce", memory_bank=12).double()
    empty = copy.deepcopy(loss.state_dict())
    z, _ = make_batch()
    expected = loss(z)
    loss.load_state_dict(empty)
    torch.testing.assert_close(loss(z), expected)


def test_comm_is_a_choice_of_pair_weights() -> None:
    """CoMM: two fused views, and each modality against both of them with half the weight."""
    z, _ = make_batch(N=5)
    weights = torch.zeros(5, 5)
    weights[0, 1] = 1.0
    weights[:2, 2:] = 0.5
    loss = mv.PairwiseLoss("infonce", 0.1, pair_weights=weights + weights.T)(z)
    infonce = mv.InfoNCELoss(0.1)
    pairs = [infonce(z[:, [i, m]]) + infonce(z[:, [j, m]]) for i, j in [(0, 1)] for m in (2, 3, 4)]
    expected = (infonce(z[:, :2]) + sum(pairs) / 2) / (1 + 3)
    assert_same(loss, expected, z)


@pytest.mark.parametrize("implementation", ["tiled", "dense"])
def test_a_kernel_may_be_an_autograd_function(implementation: str) -> None:
    z, _ = make_batch(40)
    loss = mv.PVCLoss(kernel=FunctionKernel(), implementation=implementation)(z)
    assert_same(loss, mv.PVCLoss(kernel=InverseTangent(), implementation="dense")(z), z)


class InverseTangent:
    def log(self, cosine: Tensor) -> Tensor:
        return torch.atan(2 * cosine)

    def value(self, cosine: Tensor, temperature: Tensor) -> Tensor:
        return torch.exp(self.log(cosine) / temperature)


def test_parameters_of_a_kernel_are_learned_in_batches_of_any_size() -> None:
    z, _ = make_batch(400)  # more rows than small batches have
    kernel = LearnedKernel()
    losses = [mv.PVCLoss(kernel=kernel, implementation=name)(z) for name in ("auto", "dense")]
    assert_same(*losses, z, kernel.slope)


def test_equal_kernels_are_registered_once() -> None:
    numbers = {mv.PVCLoss(kernel=InverseMultiquadric(c))._kernel_function.number for c in (0.3, 0.3, 0.4)}
    assert len(numbers) == 2
