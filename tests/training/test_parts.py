"""Optimizers, gradient caching and synchronized batch norm, compared with plain reference implementations."""

import itertools
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn

import manyviews as mv
from manyviews.losses import MVDHELLoss, MVInfoNCELoss, get_loss
from manyviews.models import MultiViewHead, MultiViewModel, ViewBatch, get_encoder
from manyviews.training import (
    LARS,
    CPUSyncBatchNorm,
    build_parameter_groups,
    convert_sync_batch_norm,
    grad_cache_backward,
)
from manyviews.utils import warmup_cosine_lr
from tests.helpers.distributed import RankPool

# optimizers


def slow_lars(
    weight: list[float], gradients: list[list[float]], lr: float, momentum: float, decay: float, trust: float
) -> list[float]:
    buffer = [0.0] * len(weight)
    for gradient in gradients:
        changed = [g + decay * w for g, w in zip(gradient, weight, strict=True)]
        size, length = math.hypot(*weight), math.hypot(*changed)
        scale = trust * size / length if size > 0 and length > 0 else 1.0
        buffer = [momentum * b + scale * c for b, c in zip(buffer, changed, strict=True)]
        weight = [w - lr * b for w, b in zip(weight, buffer, strict=True)]
    return weight


def test_lars_matches_its_definition_and_its_state_resumes() -> None:
    torch.manual_seed(0)
    start = torch.randn(2, 3, dtype=torch.float64)
    gradients = torch.randn(6, 2, 3, dtype=torch.float64)
    weight = nn.Parameter(start.clone())
    optimizer = LARS([weight], lr=0.7, momentum=0.8, weight_decay=0.1, trust_coefficient=0.02)
    for i, gradient in enumerate(gradients):
        if i == 3:  # stop here, and resume with new objects
            state = optimizer.state_dict()
            weight = nn.Parameter(weight.detach().clone())
            optimizer = LARS([weight], lr=0.1)
            optimizer.load_state_dict(state)
        weight.grad = gradient.clone()
        optimizer.step()
    slow = slow_lars(start.flatten().tolist(), gradients.flatten(1).tolist(), 0.7, 0.8, 0.1, 0.02)
    torch.testing.assert_close(weight.detach().flatten(), torch.tensor(slow, dtype=torch.float64))


def test_lars_uses_plain_sgd_for_biases() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    twin = nn.Linear(3, 2)
    twin.load_state_dict(layer.state_dict())
    lars = LARS(build_parameter_groups(layer, 0.5), lr=0.1)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for model, optimizer in ((layer, lars), (twin, sgd)):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    torch.testing.assert_close(layer.bias, twin.bias)
    assert not torch.equal(layer.weight, twin.weight)


def test_lars_is_finite_for_zero_weights_and_gradients() -> None:
    for weight, gradient in ((torch.zeros(2, 2), torch.ones(2, 2)), (torch.ones(2, 2), torch.zeros(2, 2))):
        parameter = nn.Parameter(weight.clone())
        parameter.grad = gradient
        LARS([parameter], lr=0.1).step()
        assert parameter.isfinite().all()
        torch.testing.assert_close(parameter.detach(), weight - 0.1 * gradient)
    with pytest.raises(ValueError, match="lr must be a finite number >= 0, got -1"):
        LARS([parameter], lr=-1)


def test_only_weights_decay() -> None:
    model = MultiViewModel(get_encoder("resnet-small"))
    decayed, free = build_parameter_groups(model, 1e-6)
    assert all(p.dim() > 1 for p in decayed["params"])
    assert (decayed["weight_decay"], free["weight_decay"]) == (1e-6, 0.0)
    trainable = sum(p.requires_grad for p in model.parameters())
    assert len(decayed["params"]) + len(free["params"]) == trainable


def test_learning_rate_warms_up_and_decays_to_zero() -> None:
    rates = [warmup_cosine_lr(step, 100, 10, 2.0) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (k + 1) for k in range(10)])
    assert rates[10] == 2.0
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert 0 < rates[-1] < 0.01
    assert warmup_cosine_lr(100, 100, 10, 2.0) == pytest.approx(0)
    assert warmup_cosine_lr(0, 10, 0, 1.0) == 1.0


# gradient caching


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("chunk_size", [1, 5, 12, 100])
@pytest.mark.parametrize("name", ["mv-dhel", "pvc", "siglip"])
def test_cached_gradients_equal_those_of_the_full_batch(name: str, chunk_size: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    views = torch.randn(12, 3, 6, dtype=torch.float64)
    loss_fn = get_loss(name, learn_temperature=True).double()
    plain = loss_fn(model(views))
    plain.backward()
    expected = gradients(model), gradients(loss_fn)
    model.zero_grad()
    loss_fn.zero_grad()
    cached = grad_cache_backward(model, views, loss_fn, chunk_size)
    torch.testing.assert_close(cached, plain.detach())
    for a, b in zip([*expected[0], *expected[1]], [*gradients(model), *gradients(loss_fn)], strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-12)


def test_dropout_is_the_same_in_both_passes() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 40)
    outputs: list[torch.Tensor] = []

    def embed(x: torch.Tensor) -> torch.Tensor:
        outputs.append(nn.functional.dropout(layer(x), 0.5))
        return outputs[-1]

    grad_cache_backward(embed, torch.randn(8, 2, 6), MVDHELLoss(), chunk_size=4)
    assert len(outputs) == 4
    for first, second in zip(outputs[:2], outputs[2:], strict=True):
        assert torch.equal(first, second.detach())
    assert not torch.equal(outputs[0], outputs[1])


def test_running_statistics_are_updated_once_per_chunk() -> None:
    torch.manual_seed(0)
    views = torch.randn(8, 2, 3, 4, 4)
    norm = nn.BatchNorm2d(3)
    encoder = nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    model = MultiViewModel(encoder, MultiViewHead({"": nn.Linear(12, 5)}, 5), dim=12)
    twin = nn.BatchNorm2d(3)
    with torch.no_grad():
        for chunk in views.split(4):
            twin(encoder[0](chunk.flatten(0, 1)))
    grad_cache_backward(lambda v: model(v).z, views, MVInfoNCELoss(), chunk_size=4, model=model)
    torch.testing.assert_close(norm.running_mean, twin.running_mean)
    torch.testing.assert_close(norm.running_var, twin.running_var)
    assert norm.num_batches_tracked == 2
    assert norm.momentum == 0.1


def test_view_groups_of_different_sizes_are_chunked_together() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = MultiViewModel(encoder, MultiViewHead({"": nn.Linear(3, 4)}, 4), dim=3)
    groups = [torch.rand(6, 2, 3, 8, 8), torch.rand(6, 1, 3, 4, 4)]
    MVDHELLoss()(model(groups).z).backward()
    expected = gradients(model)
    for views in (groups, ViewBatch.from_views(groups)):
        model.zero_grad()
        grad_cache_backward(lambda v: model(v).z, views, MVDHELLoss(), chunk_size=2)
        for a, b in zip(expected, gradients(model), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="chunk_size must be >= 1, got 0"):
        grad_cache_backward(lambda v: model(v).z, groups, MVDHELLoss(), chunk_size=0)


# batch norm over ranks


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return MultiViewModel(get_encoder("resnet-small", width=0.125)).double()


def batch() -> torch.Tensor:
    return torch.rand(8, 2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def step(model: nn.Module, views: torch.Tensor) -> dict[str, torch.Tensor]:
    loss = MVInfoNCELoss(learn_temperature=False)(model(views).z)
    loss.backward()
    tensors = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return tensors | dict(model.named_buffers()) | {"loss": loss.detach()}


def step_on_ranks(rank: int, world: int) -> dict[str, torch.Tensor]:
    model = convert_sync_batch_norm(encoder(), "cpu")
    tensors = step(model, batch().chunk(world)[rank])
    for name, value in tensors.items():
        if name.startswith("gradient"):
            dist.all_reduce(value)
            value.div_(world)
    return tensors


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 4])
def test_synchronized_batch_norm_trains_as_one_process(world: int, two_ranks: RankPool) -> None:
    expected = step(encoder(), batch())
    with nullcontext(two_ranks) if world == 2 else RankPool(world) as pool:
        results = pool.run(step_on_ranks)
    for actual in results:
        assert set(actual) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, rtol=1e-6, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


def normalize_far_from_zero(rank: int, world: int) -> torch.Tensor:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) + 1000
    return CPUSyncBatchNorm(3)(x.chunk(world)[rank]).detach()


@pytest.mark.distributed
def test_synchronized_batch_norm_is_accurate_far_from_zero(two_ranks: RankPool) -> None:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) + 1000
    actual = torch.cat(two_ranks.run(normalize_far_from_zero))
    torch.testing.assert_close(actual, nn.BatchNorm1d(3)(x).detach(), rtol=0, atol=2e-3)


def test_convert_sync_batch_norm_keeps_parameters_and_single_process_output() -> None:
    plain, model = encoder(), encoder()
    before = {name: id(p) for name, p in model.named_parameters()}
    model = convert_sync_batch_norm(model, "cpu")
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert any(isinstance(m, CPUSyncBatchNorm) for m in model.modules())
    assert torch.equal(plain(batch()).z, model(batch()).z)

    class Activated(nn.BatchNorm2d):
        pass

    with pytest.raises(ValueError, match=r"1 is of type Activated, which cannot be synchronized.*--no-sync-batch-norm"):
        convert_sync_batch_norm(nn.Sequential(nn.Conv2d(3, 3, 1), Activated(3)), "cpu")
    with pytest.raises(ValueError, match="batch norm requires"):
        CPUSyncBatchNorm(3)(torch.zeros(3))


@pytest.mark.slow
def test_learned_temperature_uses_a_fraction_of_the_learning_rate(tmp_path: Path) -> None:
    """At the full rate, SigLIP's temperature becomes infinite within five steps of the default recipe."""
    groups = build_parameter_groups(nn.ModuleList([nn.Linear(3, 4), mv.SigLIPLoss()]), 1e-6)
    assert [(len(group["params"]), group.get("lr_mult")) for group in groups] == [(1, 1.0), (1, 1.0), (2, 0.01)]
    config = mv.Config(
        loss="siglip", epochs=1, max_instances=512, batch_size=64, monitor_size=0, evaluate_at_end=False, cpu_threads=1
    )
    run = mv.train(config, output=tmp_path / "run")
    temperatures = [row["temperature"] for row in run.read_metrics()]
    assert all(0.05 < temperature < 0.5 for temperature in temperatures)
    assert len(set(temperatures)) == len(temperatures)
