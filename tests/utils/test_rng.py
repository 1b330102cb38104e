import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyviews.loading import EpochBatches
from manyviews.utils import hash_key, permute


@given(st.integers(1, 3000), st.integers(0, 2**40), st.integers(0, 100))
def test_permute_maps_positions_one_to_one(length: int, seed: int, epoch: int) -> None:
    order = permute(torch.arange(length), length, seed, epoch)
    assert order.sort().values.tolist() == list(range(length))


def test_permute_does_not_depend_on_the_other_positions() -> None:
    order = permute(torch.arange(1000), 1000, 3, 1)
    for position in (0, 17, 999):
        assert permute(torch.tensor([position]), 1000, 3, 1) == order[position]
    assert permute(torch.tensor([5, 10**12 - 1]), 10**12, 0).max() < 10**12  # no memory for the others


@pytest.mark.slow
def test_permutations_of_different_keys_are_unrelated() -> None:
    orders = torch.stack([permute(torch.arange(50), 50, seed, 0) for seed in range(2000)])
    counts = torch.stack([row.bincount(minlength=50) for row in orders.T])  # how often an index has a position
    assert counts.sum() == 50 * 2000
    # A uniform count has mean 40 and standard deviation 6.3.
    assert (counts - 40).abs().max() < 40
    assert abs(counts.double().var().item() / 39.2 - 1) < 0.15
    assert (orders[:, 1:] == orders[:, :-1] + 1).float().mean() < 0.03  # neighbors do not stay neighbors


def test_epoch_batches_are_slices_of_the_permutation() -> None:
    order = permute(torch.arange(23), 23, 7, 2)
    batches = EpochBatches(23, 4, seed=7, epoch=2)
    assert len(batches) == 5
    assert torch.equal(torch.cat(list(batches)), order[:20])
    assert len(EpochBatches(10**12, 4096, seed=0, epoch=0)) == 10**12 // 4096


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_a_key_of_ints_has_the_hash_of_a_key_of_tensors(key: list[int]) -> None:
    expected = hash_key(*[torch.tensor(part) for part in key])
    assert hash_key(*key) == expected
    assert hash_key(*key[:-1], torch.tensor(key[-1])) == expected
