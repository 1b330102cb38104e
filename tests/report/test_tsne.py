import pytest
import torch
from sklearn.manifold import TSNE, trustworthiness
from torch import Tensor

from manyviews.report import tsne as module
from manyviews.report.tsne import components, neighbour_probabilities, pair_probabilities, tsne


def clusters(each: int = 20, count: int = 4, apart: float = 6.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count).repeat_interleave(each)
    rows = torch.randn(len(labels), 12, generator=generator)
    rows[:, :count] += apart * torch.nn.functional.one_hot(labels, count)
    return rows, labels


def test_clusters_stay_apart() -> None:
    rows, labels = clusters()
    places = tsne(rows)
    distance = torch.cdist(places, places).fill_diagonal_(torch.inf)
    assert (labels[distance.argmin(1)] == labels).all()
    same = labels[:, None] == labels
    assert distance[same].nan_to_num(posinf=0).max() < 2 * distance[~same].min() + distance[~same].median()


def test_the_same_rows_give_the_same_map() -> None:
    rows, _ = clusters(each=10)
    torch.manual_seed(1)
    one = tsne(rows)
    torch.manual_seed(2)
    assert torch.equal(one, tsne(rows))


def test_the_longer_side_lies_across() -> None:
    low, high = tsne(clusters(count=2)[0]).aminmax(dim=0)
    assert (high - low)[0] > (high - low)[1]


def divergence(p: Tensor, places: Tensor) -> float:
    near = 1 / (1 + torch.cdist(places, places).square())
    near.fill_diagonal_(0)
    q = near / near.sum()
    return torch.where(p > 0, p * (p / q.clamp_min(1e-300)).log(), 0).sum().item()


def test_as_good_a_map_as_scikit_learns() -> None:
    rows, _ = clusters(each=30, apart=3.0)
    p = pair_probabilities(rows.double(), 30)
    theirs = TSNE(perplexity=30, method="exact", init="pca", random_state=0).fit_transform(rows.numpy())
    ours = tsne(rows)
    assert divergence(p, ours.double()) < 1.05 * divergence(p, torch.from_numpy(theirs).double())
    assert trustworthiness(rows.numpy(), ours.numpy()) > trustworthiness(rows.numpy(), theirs) - 0.02


def test_every_row_has_the_perplexity_that_is_asked_for() -> None:
    rows = clusters()[0].double()
    p = neighbour_probabilities(rows, 10.0)
    torch.testing.assert_close(torch.special.entr(p).sum(1).exp(), torch.full((len(p),), 10.0).double())
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)).double())
    joint = pair_probabilities(rows, 10.0)
    assert torch.equal(joint, joint.T)
    torch.testing.assert_close(joint.sum().item(), 1.0)


def test_rows_that_are_all_the_same_are_one_point() -> None:
    assert tsne(torch.ones(12, 5)).eq(0).all()


@pytest.mark.parametrize("rows", [torch.zeros(3, 2), torch.zeros(9), torch.full((9, 2), torch.nan)])
def test_no_map_of_too_little_or_of_nan(rows: Tensor) -> None:
    with pytest.raises(ValueError, match="a map"):
        tsne(rows)


def test_components_are_the_same_whatever_the_signs_of_the_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, svd = clusters()[0].double(), torch.linalg.svd
    one = components(rows, 3)
    monkeypatch.setattr(module.torch.linalg, "svd", lambda x, **k: [-part for part in svd(x, **k)])
    torch.testing.assert_close(components(rows, 3), one)
