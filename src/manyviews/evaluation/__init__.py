"""Representations h and embeddings z -> kNN, linear probe, retrieval, geometry: plain functions of tensors."""

from manyviews.evaluation.geometry import (
    alignment,
    numerical_rank,
    rankme,
    spectrum,
    uniformity,
    wasserstein_uniformity,
)
from manyviews.evaluation.knn import knn_classify
from manyviews.evaluation.probe import LinearProbe, LinearRegressionProbe, linear_probe, linear_regression_probe
from manyviews.evaluation.retrieve import retrieval

__all__ = [
    "LinearProbe",
    "LinearRegressionProbe",
    "alignment",
    "knn_classify",
    "linear_probe",
    "linear_regression_probe",
    "numerical_rank",
    "rankme",
    "retrieval",
    "spectrum",
    "uniformity",
    "wasserstein_uniformity",
]
