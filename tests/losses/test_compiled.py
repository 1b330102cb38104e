"""Values and gradients of a compiled loss equal those of the eager loss."""

import shutil
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from manyviews.losses import LOSSES, InverseMultiquadric
from manyviews.losses import _tiled as tiled
from manyviews.losses._accumulate import IDENTITY, RegisteredKernel, register_kernel
from tests.losses.loss_by_name import get_loss, limit_views
from tests.losses.test_combinations import FunctionKernel

pytestmark = pytest.mark.slow

# Inductor takes a long time, and generates code only for what is not in an operator.
WITH_INDUCTOR = ("mv-dhel", "siglip", "gram", "lejepa", "symile", "mv-dhel+0.5*prod-dhel")
CASES = [(name, "aot_eager") for name in LOSSES] + [
    pytest.param(name, "inductor", marks=pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler here"))
    for name in WITH_INDUCTOR
]


@dataclass(frozen=True)
class MyKernel:
    """A kernel of a user."""

    def log(self, cosine: torch.Tensor) -> torch.Tensor:
        return torch.atan(2 * cosine)

    def value(self, cosine: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.log(cosine) / temperature)


@pytest.mark.filterwarnings("default")  # the compiler itself warns
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_compiled_loss_and_gradients_equal_eager(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    eager = get_loss(name, learn_temperature=True)
    compiled = torch.compile(eager, backend=backend, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    views = limit_views(name, 4)
    z = torch.randn(50, views, 8, generator=generator).requires_grad_()
    some_missing = torch.rand(50, views, generator=generator) < 0.8
    options = {"labels": torch.arange(50) % 3} if name == "supcon" else {}
    leaves = {"z": z, **dict(eager.named_parameters())}
    # Several tiles for each view, and several views in a tile.
    for tile_size in (24, 512) if backend == "aot_eager" else (24,):
        monkeypatch.setitem(tiled.TILE_ROWS, "cpu", tile_size)
        for mask in (None, some_missing):
            results = []
            for call in (eager, compiled):
                loss = call(z, mask, **options)
                gradients = torch.autograd.grad(loss, [*leaves.values()])
                results.append({"loss": loss.detach(), **dict(zip(leaves, gradients, strict=True))})
            torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", LOSSES)
def test_a_compiled_loss_accepts_batches_of_other_shapes(name: str) -> None:
    torch.compiler.reset()
    eager = get_loss(name)
    compiled = torch.compile(eager, backend="aot_eager", fullgraph=True)
    views = limit_views(name, 4)
    for shape in ((20, views, 8), (128, views, 64), (600, limit_views(name, 2), 8)):  # the last is larger than a tile
        z = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        some_missing = torch.rand(shape[:2], generator=torch.Generator().manual_seed(1)) < 0.8
        for mask in (None, some_missing):
            results = []
            for call in (eager, compiled):
                loss = call(z, mask)
                results.append((loss.detach(), *torch.autograd.grad(loss, z)))
            torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mv-dhel+0.5*prod-dhel", {}),
        ("mv-dhel+0.5*prod-dhel", {"memory_bank": 70}),
        ("pwe-infonce", {"pair_weights": [[0, 1, 2], [1, 0, 0], [2, 0, 0]]}),
        ("pvc", {"kernel": InverseMultiquadric()}),
        ("pvc", {"kernel": MyKernel(), "implementation": "tiled"}),
        ("pvc", {"kernel": FunctionKernel(), "implementation": "tiled"}),
        ("mv-infonce", {"temperature": 0.005}),
    ],
)
def test_options_can_be_compiled(name: str, options: dict[str, Any]) -> None:
    torch.compiler.reset()
    eager, other = (get_loss(name, learn_temperature=True, **options).double() for _ in range(2))
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):  # the memory bank is filled in the first two
        z = torch.randn(40, 3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
        ids = torch.randint(30, (40,), generator=generator)
        results = []
        for loss_fn, call in ((eager, eager), (other, compiled)):
            loss = call(z, ids=ids)
            results.append((loss.detach(), *torch.autograd.grad(loss, [z, *loss_fn.parameters()])))
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other.state_dict(), eager.state_dict())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", [IDENTITY, register_kernel(torch.sin)])
def test_the_operators_satisfy_the_rules_of_torch(kernel: RegisteredKernel, masked: bool) -> None:
    x = torch.randn(7, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.rand(7, 3, generator=torch.Generator().manual_seed(1)) < 0.8 if masked else None
    ids = torch.tensor([0, 1, 2, 3, 4, 4, 5]) if masked else None
    pairs, max_logit = list(range(9)), 30.0 if kernel == IDENTITY else None
    num_cached = 30 if kernel == IDENTITY else 0  # the first tiles have 9, 9, 3 and 9 values
    options = (pairs, kernel.number, True, max_logit, 3, False)
    torch.library.opcheck(tiled._tiled_energies, (x, mask, ids, [], num_cached, *options))
    energies, cache = (tensor.detach() for tensor in tiled._tiled_energies(x, mask, ids, [], num_cached, *options))
    inputs = (torch.ones_like(energies), energies, cache, x.detach(), mask, ids, [])
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(tiled._tiled_energies_backward, (*inputs, *options), test_utils=tests)
