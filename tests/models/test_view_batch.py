"""`ViewBatch`: gather and scatter, split and unpack undo each other, for batches with and without missing views."""

import pytest
import torch
from torch import Tensor

from manyviews.models import ViewBatch, ViewGroup

POSITIONS = ((0, 3), (2,), (1, 4))
"""Views of images, of a sequence, and of vectors."""


def make_batch(missing_rate: float, count: int = 7) -> tuple[ViewBatch, list[list[Tensor | None]]]:
    """Return a batch of five views per instance, and the views of each instance."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(count, 5, generator=generator) >= missing_rate
    lengths = torch.randint(1, 5, (count,), generator=generator)
    expected: list[list[Tensor | None]] = [[None] * 5 for _ in range(count)]
    groups = []
    for encoder, views in zip(("image", "text", "audio"), POSITIONS, strict=True):
        shape = {"image": (3, 2, 2), "text": (4, 6), "audio": (3,)}[encoder]
        rows, steps = [], []
        for i in range(count):
            for view in views:
                if mask[i, view]:
                    rows.append(torch.randn(shape, generator=generator))
                    steps.append(int(lengths[i]))
                    expected[i][view] = rows[-1][: steps[-1]] if encoder == "text" else rows[-1]
        values = torch.stack(rows) if rows else torch.empty(0, *shape)
        groups.append(ViewGroup(encoder, views, values, torch.tensor(steps).long() if encoder == "text" else None))
    return ViewBatch(tuple(groups), torch.arange(count) * 10, mask if missing_rate else None), expected


def assert_same_views(ours: list[list[Tensor | None]], expected: list[list[Tensor | None]]) -> None:
    assert len(ours) == len(expected)
    for one, other in zip(ours, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)


@pytest.mark.parametrize("missing_rate", [0.0, 0.4, 1.0])
def test_unpack_returns_each_view_without_padding(missing_rate: float) -> None:
    batch, expected = make_batch(missing_rate)
    assert (batch.num_instances, batch.num_views) == (7, 5)
    assert_same_views(batch.unpack(), expected)


@pytest.mark.parametrize("missing_rate", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("size", [1, 3, 7, 9])
def test_split_batches_have_the_views_of_their_instances(missing_rate: float, size: int) -> None:
    batch, expected = make_batch(missing_rate)
    parts = list(batch.split(size))
    assert [part.num_instances for part in parts] == [min(size, 7 - start) for start in range(0, 7, size)]
    assert torch.equal(torch.cat([part.indices for part in parts]), batch.indices)
    assert_same_views([views for part in parts for views in part.unpack()], expected)
    for part in parts:
        assert (part.mask is None) == (batch.mask is None)
        assert part.num_views == 5


@pytest.mark.parametrize("missing_rate", [0.0, 0.4, 1.0])
def test_scatter_puts_gathered_rows_back(missing_rate: float) -> None:
    batch, _ = make_batch(missing_rate)
    features = torch.randn(7, 5, 3, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(7, 5, dtype=torch.bool) if batch.mask is None else batch.mask
    rows = [batch.gather(features, views) for views in POSITIONS]
    for part, views in zip(rows, POSITIONS, strict=True):
        expected = [features[i, view] for i in range(7) for view in views if mask[i, view]]
        assert torch.equal(part, torch.stack(expected) if expected else torch.empty(0, 3))
    assert torch.equal(batch.scatter(rows, POSITIONS), features * mask[..., None])
    assert torch.equal(batch.gather(features, range(5)), features[mask])


def test_scattered_rows_of_mixed_precision_have_the_higher_one() -> None:
    batch, _ = make_batch(0.4)
    rows = [torch.ones(len(group.values), 2, dtype=torch.bfloat16) for group in batch.groups]
    rows[1] = rows[1].float() + 1e-6
    out = batch.scatter(rows, POSITIONS)
    assert out.dtype == torch.float32
    assert torch.equal(out[batch.mask[:, 2], 2], rows[1])


def test_groups_of_one_shape_are_merged_instance_by_instance() -> None:
    groups = [torch.randn(4, 2, 3), torch.randn(4, 1, 5), torch.randn(4, 3, 3)]
    batch = ViewBatch.from_views(groups, "audio")
    assert [(group.encoder, group.views) for group in batch.groups] == [("audio", (0, 1, 3, 4, 5)), ("audio", (2,))]
    views = [[view for part in groups for view in part[i]] for i in range(4)]
    assert_same_views(batch.unpack(), views)


def test_moving_a_batch_keeps_integers_and_indices() -> None:
    batch, _ = make_batch(0.4)
    text = ViewGroup("text", (2,), torch.zeros(2, 4, dtype=torch.uint8), torch.tensor([4, 1]))
    moved = batch._replace(groups=(batch.groups[0], text)).to(torch.zeros((), dtype=torch.float64))
    assert [group.values.dtype for group in moved.groups] == [torch.float64, torch.uint8]
    assert (moved.groups[1].lengths.dtype, moved.mask.dtype) == (torch.int64, torch.bool)
    assert moved.indices is batch.indices
