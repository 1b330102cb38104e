import pytest
import torch

from manyviews.evaluation import retrieval


def vectors(seed: int) -> torch.Tensor:
    return torch.randn(25, 4, generator=torch.Generator().manual_seed(seed))


def test_retrieval_counts_those_that_are_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.evaluation.retrieve.ROWS", 7)
    a, b = vectors(0), vectors(0) + 0.7 * vectors(1)
    ranks = []
    for i in range(25):
        cosines = [torch.cosine_similarity(a[i], b[j], dim=0).item() for j in range(25)]
        ranks.append(1 + sum(c > cosines[i] for j, c in enumerate(cosines) if j != i))
    found = retrieval(a, b, ks=[1, 3, 25])
    assert found["recall@1"] == pytest.approx(sum(r <= 1 for r in ranks) / 25)
    assert found["recall@3"] == pytest.approx(sum(r <= 3 for r in ranks) / 25)
    assert found["recall@25"] == 1.0
    assert found["median_rank"] == sorted(ranks)[12]
    assert 0 < found["recall@1"] < 1


def test_a_collapsed_gallery_finds_nothing() -> None:
    assert retrieval(vectors(0), torch.ones(25, 4), ks=[1, 10]) == {"recall@1": 0, "recall@10": 0, "median_rank": 25}


def test_absent_instances_are_left_out() -> None:
    a, b = vectors(0), vectors(2)
    present = torch.arange(25) % 3 > 0
    assert retrieval(a, b, present=present) == retrieval(a[present], b[present])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: retrieval(a, a[:3]), r"must both be \(M, d\), got \(25, 4\) and \(3, 4\)"),
        (lambda a: retrieval(a, a, ks=[0]), "k >= 1"),
        (lambda a: retrieval(a, a, present=torch.ones(25)), "present must be a bool"),
        (lambda a: retrieval(a, a, present=torch.zeros(25, dtype=torch.bool)), "got 0 instances"),
    ],
)
def test_a_mistake_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(vectors(0))
