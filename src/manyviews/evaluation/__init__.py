"""Representations h and embeddings z -> kNN, linear probe, retrieval, geometry: plain functions of tensors."""

from manyviews.evaluation.geometry import (
    alignment,
    numerical_rank,
    rankme,
    spectrum,
    uniformity,
    wasserstein_uniformity,
)
from manyviews.evaluation.knn import choose_k, knn_classify, score_knn
from manyviews.evaluation.probe import (
    PAPER_PROBE,
    LinearProbe,
    LinearRegressionProbe,
    few_labels,
    linear_probe,
    linear_regression_probe,
)
from manyviews.evaluation.represent import augmented, representations
from manyviews.evaluation.retrieve import retrieval
from manyviews.evaluation.sentiment import majority_baseline, sentiment_metrics

__all__ = [
    "PAPER_PROBE",
    "LinearProbe",
    "LinearRegressionProbe",
    "alignment",
    "augmented",
    "choose_k",
    "few_labels",
    "knn_classify",
    "linear_probe",
    "linear_regression_probe",
    "majority_baseline",
    "numerical_rank",
    "rankme",
    "representations",
    "retrieval",
    "score_knn",
    "sentiment_metrics",
    "spectrum",
    "uniformity",
    "wasserstein_uniformity",
]
