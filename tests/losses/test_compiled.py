"""Values and gradients of a compiled loss equal those of the eager loss."""

import shutil

import pytest
import torch

from manyviews.losses import LOSSES
from manyviews.losses import _tiled as tiled
from tests.losses.loss_by_name import get_loss

pytestmark = pytest.mark.slow

BACKENDS = [
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler here")),
]


@pytest.mark.filterwarnings("default")  # the compiler itself warns
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LOSSES)
def test_compiled_loss_and_gradients_equal_eager(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    eager = get_loss(name, learn_temperature=True)
    compiled = torch.compile(eager, backend=backend)
    generator = torch.Generator().manual_seed(0)
    views = int(min(4, eager.max_views))
    z = torch.randn(50, views, 8, generator=generator).requires_grad_()
    some_missing = torch.rand(50, views, generator=generator) < 0.8
    options = {"labels": torch.arange(50) % 3} if name == "supcon" else {}
    leaves = {"z": z, **dict(eager.named_parameters())}
    # Several tiles for each view, and several views in a tile.
    for tile_size in (24, 512):
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
    compiled = torch.compile(eager, backend="aot_eager")
    views = int(min(4, eager.max_views))
    for shape in ((20, views, 8), (128, views, 64), (600, 2, 8)):  # the last is larger than a tile
        z = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        some_missing = torch.rand(shape[:2], generator=torch.Generator().manual_seed(1)) < 0.8
        for mask in (None, some_missing):
            results = []
            for call in (eager, compiled):
                loss = call(z, mask)
                results.append((loss.detach(), *torch.autograd.grad(loss, z)))
            torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-7)
