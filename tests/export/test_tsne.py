import pytest
import torch
from sklearn.manifold import TSNE, trustworthiness
from torch import Tensor

from manyviews.export import tsne as module
from manyviews.export.tsne import (
    compute_neighbor_probabilities,
    compute_pair_probabilities,
    compute_principal_components,
    compute_tsne,
)


def make_clusters(each: int = 20, count: int = 4, apart: float = 6.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count).repeat_interleave(each)
    features = torch.randn(len(labels), 12, generator=generator)
    features[:, :count] += apart * torch.nn.functional.one_hot(labels, count)
    return features, labels


def test_clusters_stay_separated() -> None:
    features, labels = make_clusters()
    coords = compute_tsne(features)
    distance = torch.cdist(coords, coords).fill_diagonal_(torch.inf)
    assert (labels[distance.argmin(1)] == labels).all()
    same = labels[:, None] == labels
    assert distance[same].nan_to_num(posinf=0).max() < 2 * distance[~same].min() + distance[~same].median()


def test_map_is_deterministic() -> None:
    features, _ = make_clusters(each=10)
    torch.manual_seed(1)
    one = compute_tsne(features)
    torch.manual_seed(2)
    assert torch.equal(one, compute_tsne(features))


def test_map_is_wider_than_high() -> None:
    low, high = compute_tsne(make_clusters(count=2)[0]).aminmax(dim=0)
    assert (high - low)[0] > (high - low)[1]


def divergence(p: Tensor, coords: Tensor) -> float:
    kernel = 1 / (1 + torch.cdist(coords, coords).square())
    kernel.fill_diagonal_(0)
    q = kernel / kernel.sum()
    return torch.where(p > 0, p * (p / q.clamp_min(1e-300)).log(), 0).sum().item()


def test_map_is_as_good_as_that_of_scikit_learn() -> None:
    features, _ = make_clusters(each=30, apart=3.0)
    p = compute_pair_probabilities(features.double(), 30)
    reference = TSNE(perplexity=30, method="exact", init="pca", random_state=0).fit_transform(features.numpy())
    coords = compute_tsne(features)
    assert divergence(p, coords.double()) < 1.05 * divergence(p, torch.from_numpy(reference).double())
    assert trustworthiness(features.numpy(), coords.numpy()) > trustworthiness(features.numpy(), reference) - 0.02


def test_every_instance_has_the_given_perplexity() -> None:
    features = make_clusters()[0].double()
    p = compute_neighbor_probabilities(features, 10.0)
    torch.testing.assert_close(torch.special.entr(p).sum(1).exp(), torch.full((len(p),), 10.0).double())
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)).double())
    joint = compute_pair_probabilities(features, 10.0)
    assert torch.equal(joint, joint.T)
    torch.testing.assert_close(joint.sum().item(), 1.0)


def test_identical_features_are_one_point() -> None:
    assert compute_tsne(torch.ones(12, 5)).eq(0).all()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.zeros(3, 2), r"features \(n, d\) of at least 4 instances, got shape \(3, 2\)"),
        (torch.zeros(9), r"features \(n, d\) of at least 4 instances, got shape \(9,\)"),
        (torch.full((9, 2), torch.nan), "finite features, got NaN or infinity"),
    ],
)
def test_too_few_instances_and_nan_are_refused(features: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"t-SNE needs {message}"):
        compute_tsne(features)


def test_components_do_not_depend_on_the_signs_of_the_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    features, svd = make_clusters()[0].double(), torch.linalg.svd
    one = compute_principal_components(features, 3)
    monkeypatch.setattr(module.torch.linalg, "svd", lambda x, **k: [-part for part in svd(x, **k)])
    torch.testing.assert_close(compute_principal_components(features, 3), one)
