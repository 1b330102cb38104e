import pytest
import torch

from manyviews.metrics import compute_retrieval


def vectors(seed: int) -> torch.Tensor:
    return torch.randn(25, 4, generator=torch.Generator().manual_seed(seed))


def test_ranks_match_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.metrics.retrieval.RETRIEVAL_BLOCK", 7)
    a, b = vectors(0), vectors(0) + 0.7 * vectors(1)
    ranks = []
    for i in range(25):
        cosines = [torch.cosine_similarity(a[i], b[j], dim=0).item() for j in range(25)]
        ranks.append(1 + sum(c > cosines[i] for j, c in enumerate(cosines) if j != i))
    metrics = compute_retrieval(a, b, ks=[1, 3, 25])
    assert metrics["recall@1"] == pytest.approx(sum(r <= 1 for r in ranks) / 25)
    assert metrics["recall@3"] == pytest.approx(sum(r <= 3 for r in ranks) / 25)
    assert metrics["recall@25"] == 1.0
    assert metrics["median_rank"] == sorted(ranks)[12]
    assert 0 < metrics["recall@1"] < 1


def test_recall_of_a_collapsed_gallery_is_zero() -> None:
    assert compute_retrieval(vectors(0), torch.ones(25, 4), ks=[1, 10]) == {
        "recall@1": 0,
        "recall@10": 0,
        "median_rank": 25,
    }


def test_masked_instances_are_ignored() -> None:
    a, b = vectors(0), vectors(2)
    mask = torch.arange(25) % 3 > 0
    assert compute_retrieval(a, b, mask=mask) == compute_retrieval(a[mask], b[mask])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: compute_retrieval(a, a[:3]), r"must both be \(M, d\), got \(25, 4\) and \(3, 4\)"),
        (lambda a: compute_retrieval(a, a, ks=[0]), "k >= 1"),
        (lambda a: compute_retrieval(a, a, mask=torch.ones(25)), "mask must be bool"),
        (lambda a: compute_retrieval(a, a, mask=torch.zeros(25, dtype=torch.bool)), "got 0 instances"),
    ],
)
def test_invalid_input_raises(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(vectors(0))
