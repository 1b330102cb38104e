"""kNN against a loop, and probes against scikit-learn."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, QuantileRegressor

import manyviews as mv
from manyviews.metrics import (
    choose_k,
    compute_retrieval,
    fit_linear_probe,
    fit_regression_probe,
    knn_classify,
    sample_stratified,
    score_knn,
)
from manyviews.metrics.knn import select_largest
from manyviews.metrics.probe import L2_GRID


def blobs(n: int, d: int = 6, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(classes, (n,), generator=generator)
    return centers[labels] + 1.2 * torch.randn(n, d, generator=generator), labels


def reference_knn(train: list, labels: list, query: list, k: int, temperature: float, classes: int) -> int:
    def cosine(a: list, b: list) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    near = sorted(((cosine(query, row), label) for row, label in zip(train, labels, strict=True)), reverse=True)[:k]
    votes = [sum(math.exp(c / temperature) for c, label in near if label == wanted) for wanted in range(classes)]
    return votes.index(max(votes))


@pytest.mark.parametrize("k", [1, 7, 500])
def test_knn_is_a_weighted_vote(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.metrics.knn.QUERY_BLOCK", 7)
    monkeypatch.setattr("manyviews.metrics.knn.KEY_BLOCK", 13)
    (train, labels), (test, _) = blobs(60), blobs(25, seed=1)
    predictions = knn_classify(train, labels, test, k=k, temperature=0.2)
    expected = [reference_knn(train.tolist(), labels.tolist(), row, k, 0.2, 4) for row in test.tolist()]
    assert predictions.tolist() == expected


@pytest.mark.parametrize("columns", [4, 100])
def test_ties_between_neighbors_go_to_the_first(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.metrics.knn.KEY_BLOCK", columns)
    train = torch.tensor([[0.0, 1.0], *[[1.0, 0.0]] * 9])
    for first in range(10):
        labels = torch.full((10,), 2)
        labels[1:4] = first % 3
        assert knn_classify(train, labels, torch.tensor([[2.0, 0.0]]), k=3, num_classes=3).item() == first % 3


@pytest.mark.parametrize("block", [7, 40, 1000])
@pytest.mark.parametrize("max_normalized", [0, 10**6])
@pytest.mark.parametrize("k", [1, 5, 20])
def test_ties_of_many_neighbors_go_to_the_first(
    k: int, max_normalized: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row of the training set has many copies, some of them in other blocks."""
    monkeypatch.setattr("manyviews.metrics.knn.KEY_BLOCK", block)
    monkeypatch.setattr("manyviews.metrics.knn.MAX_NORMALIZED", max_normalized)
    train = torch.eye(6)[torch.arange(90) * 7 % 6]
    test = torch.tensor([[1.0, 0.9, 0.8, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0, 0.1]])
    labels = torch.arange(90) % 5
    cosines = torch.nn.functional.normalize(test, dim=1) @ train.T
    nearest = cosines.argsort(dim=1, descending=True, stable=True)[:, :k]
    votes = torch.zeros(2, 5).scatter_add_(1, labels[nearest], (cosines.gather(1, nearest) / 0.07).exp())
    assert torch.equal(knn_classify(train, labels, test, k=k), votes.argmax(1))


@pytest.mark.parametrize("max_normalized", [0, 10**6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_knn_of_any_precision_and_of_zeros(
    dtype: torch.dtype, max_normalized: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyviews.metrics.knn.MAX_NORMALIZED", max_normalized)
    train = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]], dtype=dtype, requires_grad=True)
    predictions = knn_classify(train, torch.tensor([2, 0, 1]), torch.tensor([[1.0, 0.1], [0.1, 1.0]], dtype=dtype), k=1)
    assert predictions.tolist() == [0, 1]


@pytest.mark.parametrize(("length", "count"), [(3, 7), (64, 1), (500, 3), (501, 20), (1003, 60)])
def test_largest_values_are_those_of_topk(length: int, count: int) -> None:
    values = torch.randint(40, (9, length), generator=torch.Generator().manual_seed(0)).float()
    largest, index = select_largest(values, count)
    assert torch.equal(largest.sort(1, descending=True).values, values.topk(min(count, length)).values)
    assert torch.equal(values.gather(1, index), largest)
    assert all(len(set(row)) == len(row) for row in index.tolist())


@pytest.mark.parametrize(
    ("class_size", "name", "classes", "k"),
    [
        (48, "leaves", "abc", 4),
        (5, "leaves", "abc", 1),
        (9000, "leaves", "abc", 200),
        (500, "cifar100", "abc", 200),
        (500, "leaves", "abc", 50),
        (1300, "pictures", ("n01440764", "n01443537", "n01484850"), 200),
        (100, "cifar10", "abc", 10),  # a subset, such as the kNN bank of a training run
    ],
)
def test_k_follows_the_class_size_or_the_paper(class_size: int, name: str, classes: Sequence[str], k: int) -> None:
    labels = torch.arange(3).repeat(class_size)
    data = mv.DatasetDict(name, {}, tuple(classes))
    assert choose_k(labels, data) == k
    assert choose_k(labels, data, k=7) == 7
    assert choose_k(labels, data, k=10**6) == len(labels)


def test_default_k_does_not_change_the_ranking_for_small_classes() -> None:
    """With 48 digits per class, profiles are better than gradients for k = 1, but not for k = 200."""
    digits = mv.load_dataset("digits")
    train, test = digits["train"], digits["test"]
    index = torch.cat([(train.labels == label).nonzero()[:48, 0] for label in range(10)])

    def scores(k: int | None) -> list[float]:
        pairs = [(train[name].values[index], test[name].values) for name in ("profiles", "gradients")]
        return [score_knn(h, train.labels[index], queries, test.labels, digits, k)["knn"] for h, queries in pairs]

    assert choose_k(train.labels[index], digits) == 4
    (nearest, other), (voted, voted_other), (many, many_other) = scores(1), scores(None), scores(200)
    assert nearest > other + 0.03
    assert voted > voted_other + 0.03
    assert many < many_other - 0.03


def test_knn_with_empty_classes_and_tied_votes() -> None:
    train = torch.eye(2)
    assert knn_classify(train, torch.tensor([3, 1]), torch.ones(1, 2), k=2, num_classes=6).tolist() == [1]


def test_probe_matches_scikit_learn() -> None:
    (x, y), (test, truth) = blobs(400), blobs(300, seed=1)
    x[:, 0] = 5.0  # constant
    for l2 in (1.0, 1e-2, 1e-4):
        probe = fit_linear_probe(x, y, l2_grid=[l2])
        mean, spread = x.numpy().mean(0), x.numpy().std(0)
        spread[0] = np.inf
        oracle = LogisticRegression(C=1 / (l2 * len(x)), max_iter=1000, tol=1e-8)
        oracle.fit((x.numpy() - mean) / spread, y.numpy())
        expected = oracle.decision_function((test.numpy() - mean) / spread)
        logits = probe.logits(test).numpy()
        # Logits are determined up to a constant per instance.
        np.testing.assert_allclose(
            logits - logits.mean(1, keepdims=True), expected - expected.mean(1, keepdims=True), atol=0.02
        )
        agreement = oracle.score((test.numpy() - mean) / spread, truth.numpy())
        assert probe.accuracy(test, truth) == pytest.approx(agreement, abs=0.01)


def test_sgd_converges_to_the_minimum_without_penalty_and_is_deterministic() -> None:
    (x, y), (test, truth) = blobs(400), blobs(300, seed=1)
    probe = fit_linear_probe(x, y, solver="sgd", epochs=60, batch_size=32)
    oracle = LogisticRegression(C=1e6, max_iter=2000).fit(x.numpy(), y.numpy())
    agreement = (probe.logits(test).argmax(1).numpy() == oracle.predict(test.numpy())).mean()
    assert agreement > 0.97
    assert probe.accuracy(test, truth) == pytest.approx(oracle.score(test.numpy(), truth.numpy()), abs=0.02)
    assert torch.equal(probe.weight, fit_linear_probe(x, y, solver="sgd", epochs=60, batch_size=32).weight)
    assert not torch.equal(probe.weight, fit_linear_probe(x, y, solver="sgd", epochs=60, batch_size=32, seed=1).weight)


def autograd_probe(x: torch.Tensor, y: torch.Tensor, classes: int, epochs: int, rate: float) -> torch.Tensor:
    """Reference with torch's layer, loss, optimizer and schedule."""
    layer = torch.nn.Linear(x.shape[1], classes)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    solver = torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(solver, epochs)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=generator).split(32):
            solver.zero_grad()
            torch.nn.functional.cross_entropy(layer(x[index]), y[index]).backward()
            solver.step()
        schedule.step()
    return torch.cat([layer.weight, layer.bias[:, None]], 1).detach()


def test_sgd_matches_torch() -> None:
    x, y = blobs(100)
    probe = fit_linear_probe(x, y, solver="sgd", epochs=7, batch_size=32, learning_rate=0.3)
    weights = torch.cat([probe.weight, probe.bias[:, None]], 1)
    torch.testing.assert_close(weights, autograd_probe(x, y, 4, 7, 0.3), atol=1e-5, rtol=1e-4)


def test_sgd_uses_the_augmented_representations() -> None:
    (x, y), calls = blobs(100), []

    def augment(epoch: int, batches: list[torch.Tensor]) -> object:
        calls.append((epoch, sum(map(len, batches))))
        return ((x[index], index) for index in batches)

    probe = fit_linear_probe(torch.full_like(x, 1e6), y, solver="sgd", epochs=5, augment=augment)
    assert torch.equal(probe.weight, fit_linear_probe(x, y, solver="sgd", epochs=5).weight)
    assert calls == [(epoch, 100) for epoch in range(5)]
    with pytest.raises(ValueError, match="augment requires solver sgd"):
        fit_linear_probe(x, y, augment=augment)


def test_stratified_sample_has_at_least_one_label_per_class() -> None:
    labels = torch.cat([torch.full((250,), 0), torch.full((250,), 1), torch.full((3,), 5)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    index = sample_stratified(labels, 0.01)
    assert len(index.unique()) == len(index)
    assert torch.equal(labels[index].bincount(), torch.tensor([2, 2, 0, 0, 0, 1]))
    assert len(sample_stratified(torch.arange(10).repeat_interleave(250), 0.01)) == 25
    assert torch.equal(index, sample_stratified(labels, 0.01))
    assert not torch.equal(index, sample_stratified(labels, 0.01, seed=1))
    assert torch.equal(sample_stratified(labels, 1.0), torch.arange(len(labels)))


def test_regression_probe_minimizes_the_absolute_error() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 5 + 3 * torch.randn(300, 4, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 7 + 0.3 * torch.randn(300, generator=generator)
    y[::50] += 100  # outliers for a least-squares fit
    probe = fit_regression_probe(x, y, learning_rate=0.1, epochs=200)
    oracle = QuantileRegressor(quantile=0.5, alpha=0).fit(x.numpy(), y.numpy())
    min_error = np.abs(oracle.predict(x.numpy()) - y.numpy()).mean()
    assert probe.error(x, y) == pytest.approx(min_error, rel=0.01)
    np.testing.assert_allclose(probe.weight.numpy(), oracle.coef_, atol=0.05)


def test_l2_is_chosen_on_validation_instances() -> None:
    generator = torch.Generator().manual_seed(0)
    noise, labels = torch.randn(60, 50, generator=generator), torch.randint(4, (60,), generator=generator)
    # A weak penalty overfits noise: perfect on the fitted instances, worse than chance on the others.
    assert fit_linear_probe(noise, labels, l2_grid=[1e-5]).accuracy(noise, labels) == 1
    assert fit_linear_probe(noise, labels).l2 == max(L2_GRID)
    assert fit_linear_probe(*blobs(4000)).l2 < 0.1


def test_probe_is_deterministic() -> None:
    x, y = blobs(200)
    assert torch.equal(fit_linear_probe(x, y).weight, fit_linear_probe(x, y).weight)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.int16])
def test_labels_may_have_any_integer_dtype(kind: torch.dtype) -> None:
    x, y = blobs(60)
    for solver in ("lbfgs", "sgd"):
        probe = fit_linear_probe(x, y, solver=solver)
        assert torch.equal(fit_linear_probe(x, y.to(kind), solver=solver).weight, probe.weight)
        assert probe.accuracy(x, y.to(kind)) == probe.accuracy(x, y)
    assert torch.equal(knn_classify(x, y.to(kind), x), knn_classify(x, y, x))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nonfinite_input_raises(value: float) -> None:
    x, y = blobs(40)
    bad = x.clone()
    bad[3, 2] = value
    for call in (
        lambda: knn_classify(bad, y, x),
        lambda: knn_classify(x, y, bad),
        lambda: fit_linear_probe(bad, y),
        lambda: fit_linear_probe(bad, y, solver="sgd"),
        lambda: fit_linear_probe(x, y).accuracy(bad, y),
        lambda: fit_regression_probe(bad, x[:, 0]),
        lambda: fit_regression_probe(x, bad[:, 2]),
        lambda: compute_retrieval(bad, x),
        lambda: compute_retrieval(x, bad),
    ):
        with pytest.raises(ValueError, match="must be finite"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: knn_classify(x, y, x[:, :2]), r"test must be \(m, 6\)"),
        (lambda x, y: knn_classify(x, y, x, k=0), "k must be >= 1"),
        (lambda x, y: knn_classify(x, y, x, num_classes=2), "labels must be integers 0 to 1, got 0 to 3"),
        (lambda x, y: fit_linear_probe(x, y[:3]), "with n labels"),
        (lambda x, y: fit_linear_probe(x, y - 1), "labels must be integers"),
        (lambda x, y: fit_linear_probe(x, y, l2_grid=[0.0]), "l2_grid must be one or more values > 0"),
        (lambda x, y: fit_linear_probe(x[:3], y[:3]), "3 instances are too few"),
        (lambda x, y: fit_linear_probe(x, y, solver="adam"), "solver must be lbfgs or sgd"),
        (
            lambda x, y: fit_linear_probe(x, y, solver="sgd", epochs=0),
            "epochs, batch_size and learning_rate must be > 0",
        ),
        (lambda x, y: fit_regression_probe(x, y[:2]), "with n targets"),
        (lambda x, y: fit_linear_probe(x, y).accuracy(x, y + 2), "labels must be integers 0 to 3, got 2 to 5"),
        (lambda x, y: sample_stratified(y, 0.0), r"fraction must be in \(0, 1\], got 0.0"),
    ],
)
def test_invalid_input_raises(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*blobs(40))
