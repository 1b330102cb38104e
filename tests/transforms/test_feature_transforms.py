"""Transforms of features: keyed like those of images, relative to the statistics of the training split."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from manyviews.transforms import SequenceTransform, VectorTransform
from manyviews.transforms import feature_transforms as module
from manyviews.utils import draw_normal, draw_uniform

B, T, D, N = 7, 12, 5, 3
MEAN, STD = torch.linspace(-2, 3, D), torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0])
LENGTHS = torch.tensor([12, 1, 2, 7, 12, 5, 9])
INDEX = torch.tensor([40, 3, 17, 0, 5, 1234567, 8])
SEQUENCE = SequenceTransform(MEAN, STD, min_crop=0.4, scaling=0.3, noise=0.2, feature_mask=0.3, time_mask=0.5)
VECTOR = VectorTransform(MEAN, STD, noise=0.2, feature_mask=0.3)


def make_sequences() -> Tensor:
    values = MEAN + STD * torch.randn(B, T, D, generator=torch.Generator().manual_seed(0))
    values[torch.arange(T) >= LENGTHS[:, None]] = 0
    return values


def make_vectors() -> Tensor:
    return MEAN + STD * torch.randn(B, D, generator=torch.Generator().manual_seed(0))


def transform_sequences(transform: SequenceTransform = SEQUENCE, **key: int) -> tuple[Tensor, Tensor]:
    options = {"views": N, "seed": 1, "epoch": 2} | key
    return transform.make_views(make_sequences(), LENGTHS, index=INDEX, **options)


def transform_vectors(transform: VectorTransform = VECTOR, **key: int) -> Tensor:
    options = {"views": N, "seed": 1, "epoch": 2} | key
    return transform.make_views(make_vectors(), None, index=INDEX, **options)[0]


def transform_one_sequence(t: SequenceTransform, x: Tensor, *key: int) -> Tensor:
    """The slow twin: one view (steps, d) of one sequence (length, d), step by step and feature by feature."""

    def uniform(stream: int, counter: int) -> float:
        return draw_uniform(*key, stream, torch.tensor(counter)).item()

    def normal(stream: int, counter: int) -> float:
        return draw_normal(*key, stream, torch.tensor(counter)).item()

    length, d = x.shape
    duration, kept = (t.min_crop + (1 - t.min_crop) * uniform(module.CROP_STREAM, i) for i in (0, 1))
    steps = max(1, round(kept * length))
    start = uniform(module.CROP_STREAM, 2) * (1 - duration) * (length - 1)
    count = min(steps, int(t.time_mask * uniform(module.TIME_MASK_STREAM, 0) * (steps + 1)))
    first = int(uniform(module.TIME_MASK_STREAM, 1) * (steps - count + 1))
    view = torch.empty(steps, d)
    for step in range(steps):
        time = start + step * duration * (length - 1) / max(1, steps - 1)
        low = min(int(time), length - 1)
        high = min(low + 1, length - 1)
        for f in range(d):
            mean, std = t.mean[f].item(), t.std[f].item()
            value = x[low, f].item() * (1 - time + low) + x[high, f].item() * (time - low)
            value = mean + (value - mean) * math.exp(t.scaling * normal(module.SCALING_STREAM, f))
            value += t.noise * std * normal(module.NOISE_STREAM, step * d + f)
            is_masked = uniform(module.FEATURE_MASK_STREAM, f) < t.feature_mask or first <= step < first + count
            view[step, f] = mean if is_masked else value
    return view


def test_batch_of_sequences_equals_loop_over_instances_views_steps_and_features() -> None:
    values, (views, lengths) = make_sequences(), transform_sequences(first_view=4)
    for b in range(B):
        for v in range(N):
            twin = transform_one_sequence(SEQUENCE, values[b, : LENGTHS[b]], 1, 2, int(INDEX[b]), 4 + v)
            assert lengths[b, v] == len(twin)
            torch.testing.assert_close(views[b, v, : len(twin)], twin, rtol=1e-4, atol=1e-4)


def test_batch_of_vectors_equals_loop_over_instances_views_and_features() -> None:
    values, views = make_vectors(), transform_vectors(first_view=4)
    for b in range(B):
        for v in range(N):
            for f in range(D):
                key = 1, 2, int(INDEX[b]), 4 + v
                value = values[b, f] + 0.2 * STD[f] * draw_normal(*key, module.NOISE_STREAM, torch.tensor(f))
                if draw_uniform(*key, module.FEATURE_MASK_STREAM, torch.tensor(f)) < 0.3:
                    value = MEAN[f]
                torch.testing.assert_close(views[b, v, f], value)


def test_views_do_not_depend_on_order_and_split_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"views": N, "seed": 1, "epoch": 2}
    order, (views, lengths), vectors = torch.randperm(B), transform_sequences(), transform_vectors()
    permuted = SEQUENCE.make_views(make_sequences()[order], LENGTHS[order], index=INDEX[order], **key)
    torch.testing.assert_close(permuted, (views[order], lengths[order]), rtol=0, atol=0)
    shuffled = VECTOR.make_views(make_vectors()[order], None, index=INDEX[order], **key)[0]
    torch.testing.assert_close(shuffled, vectors[order], rtol=0, atol=0)
    one = SEQUENCE.make_views(make_sequences()[3:4], LENGTHS[3:4], index=INDEX[3:4], **key)
    torch.testing.assert_close(one, (views[3:4], lengths[3:4]))
    monkeypatch.setattr(module, "MAX_CHUNK_ELEMENTS", 2 * N * T * D)  # chunks of two instances
    torch.testing.assert_close(transform_sequences(), (views, lengths))
    torch.testing.assert_close(transform_vectors(), vectors)


def test_views_do_not_depend_on_padding() -> None:
    views, lengths = transform_sequences()
    padded = torch.cat([make_sequences(), torch.zeros(B, 4, D)], 1)
    padded[torch.arange(T + 4) >= LENGTHS[:, None]] = math.nan
    longer, longer_lengths = SEQUENCE.make_views(padded, LENGTHS, views=N, seed=1, epoch=2, index=INDEX)
    torch.testing.assert_close(longer[:, :, :T], views)
    torch.testing.assert_close(longer_lengths, lengths)
    assert not longer[:, :, T:].any()


def test_padding_is_zero_and_lengths_are_in_bounds() -> None:
    for epoch in range(20):
        views, lengths = transform_sequences(epoch=epoch)
        assert views.isfinite().all()
        assert (lengths >= 1).all()
        assert (lengths <= LENGTHS[:, None]).all()
        assert (lengths >= (0.4 * LENGTHS[:, None]).round()).all()
        assert not views[torch.arange(T) >= lengths[..., None]].any()


def test_first_view_is_an_offset() -> None:
    views, lengths = transform_sequences()
    last, last_lengths = transform_sequences(views=1, first_view=N - 1)
    torch.testing.assert_close(last[:, 0], views[:, -1])
    torch.testing.assert_close(last_lengths[:, 0], lengths[:, -1])
    torch.testing.assert_close(transform_vectors(views=1, first_view=N - 1)[:, 0], transform_vectors()[:, -1])


def test_strength_zero_is_the_identity() -> None:
    views, lengths = transform_sequences(SequenceTransform(MEAN, STD))
    assert torch.equal(views, make_sequences()[:, None].expand(-1, N, -1, -1))
    assert torch.equal(lengths, LENGTHS[:, None].expand(-1, N))
    assert torch.equal(transform_vectors(VectorTransform(MEAN, STD)), make_vectors()[:, None].expand(-1, N, -1))


@pytest.mark.parametrize("option", ["min_crop", "scaling", "noise", "feature_mask", "time_mask"])
def test_each_option_makes_views_that_differ_by_view_epoch_seed_and_instance(option: str) -> None:
    transform = SequenceTransform(torch.zeros(D), torch.ones(D), **{option: 0.5})
    values = torch.randn(1, 40, D, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1)

    def make(epoch: int, seed: int) -> Tensor:
        lengths, index = torch.tensor([40, 40]), torch.tensor([10, 11])
        views, _ = transform.make_views(values, lengths, views=8, seed=seed, epoch=epoch, index=index)
        return views.flatten(1)

    base = make(0, 0)
    views = base.view(2, 8, -1)[0]
    assert sum(not torch.equal(one, other) for one, other in itertools.pairwise(views)) >= 6
    assert all(not torch.equal(base, other) for other in (make(1, 0), make(0, 1)))
    assert not torch.equal(base[0], base[1])


def test_noise_has_the_relative_standard_deviation() -> None:
    count = 4000
    index, zeros = torch.arange(count), torch.zeros(count, D)
    noise, _ = VectorTransform(MEAN, STD, noise=0.3).make_views(zeros, None, views=2, seed=0, epoch=0, index=index)
    torch.testing.assert_close(noise.flatten(0, 1).std(0), 0.3 * STD, rtol=0.05, atol=0)
    correlation = torch.corrcoef(noise[..., [0, 1, 2, 4]].flatten(1).T)
    assert (correlation - torch.eye(8)).abs().max() < 0.08
    x = draw_normal(0, torch.arange(200_000)).double()
    moments = torch.stack([x.mean(), x.var(), (x**3).mean(), (x**4).mean()])
    torch.testing.assert_close(moments, torch.tensor([0.0, 1.0, 0.0, 3.0]).double(), rtol=0, atol=0.05)
    assert x.isfinite().all()


def test_masks_have_the_given_size_and_the_mean() -> None:
    index, values = torch.arange(2000), torch.full((2000, 20, D), 100.0)
    lengths, key = torch.full((2000,), 20), {"views": 1, "seed": 0, "epoch": 0, "index": index}
    views, _ = SequenceTransform(MEAN, STD, feature_mask=0.25).make_views(values, lengths, **key)  # type: ignore[arg-type]
    masked = views[:, 0] == MEAN
    assert (masked.all(1) == masked.any(1)).all()
    assert masked[:, 0].double().mean().item() == pytest.approx(0.25, abs=0.02)
    views, _ = SequenceTransform(MEAN, STD, time_mask=0.5).make_views(values, lengths, **key)  # type: ignore[arg-type]
    masked = views[:, 0] == MEAN
    assert (masked.all(2) == masked.any(2)).all()
    counts = masked[..., 0].sum(1)
    assert (int(counts.min()), int(counts.max())) == (0, 10)
    assert ((masked[:, 1:, 0] & ~masked[:, :-1, 0]).sum(1) <= 1).all()


def test_crop_of_a_ramp_is_a_ramp_of_another_slope() -> None:
    ramp = torch.arange(30.0)[None, :, None].expand(50, -1, 1)
    transform = SequenceTransform(torch.zeros(1), torch.ones(1), min_crop=0.5)
    views, lengths = transform.make_views(ramp, torch.full((50,), 30), views=1, seed=0, epoch=0, index=torch.arange(50))
    for view, length in zip(views[:, 0, :, 0], lengths[:, 0].tolist(), strict=True):
        slopes = view[:length].diff()
        torch.testing.assert_close(slopes, slopes[:1].expand_as(slopes), rtol=0, atol=1e-4)
        duration = (view[length - 1] - view[0]).item() / 29
        assert 0.5 - 1e-5 <= duration <= 1 + 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -1.0}, "noise must be a number >= 0, got -1.0"),
        ({"scaling": math.nan}, "scaling must be a number >= 0, got nan"),
        ({"feature_mask": 1.0}, r"feature_mask must be in \[0, 1\), got 1.0"),
        ({"time_mask": -0.1}, r"time_mask must be in \[0, 1\), got -0.1"),
        ({"min_crop": 0.0}, r"min_crop must be in \(0, 1\], got 0.0"),
    ],
)
def test_invalid_option_is_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceTransform(MEAN, STD, **options)


def test_invalid_input_is_named() -> None:
    key = {"views": 1, "seed": 0, "epoch": 0}
    with pytest.raises(ValueError, match=r"mean and std must be \(d,\), got \(5,\) and \(4,\)"):
        VectorTransform(MEAN, STD[1:])
    with pytest.raises(ValueError, match=r"vectors must be floats \(B, 5\), got torch.float32 \(7, 4\)"):
        VECTOR.make_views(make_vectors()[:, 1:], None, index=INDEX, **key)
    with pytest.raises(ValueError, match=r"lengths must be \(7,\), got None"):
        SEQUENCE.make_views(make_sequences(), None, index=INDEX, **key)
    with pytest.raises(ValueError, match="index must have an integer for each of 7 vectors"):
        VECTOR.make_views(make_vectors(), None, index=INDEX[1:], **key)
