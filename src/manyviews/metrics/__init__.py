"""Metrics of representations h and embeddings z as pure functions: kNN, probes, retrieval, geometry, sentiment."""

from manyviews.metrics.geometry import (
    GEOMETRY_HELP,
    alignment,
    compute_geometry,
    make_sphere_angle_grid,
    numerical_rank,
    rankme,
    spectrum,
    uniformity,
    wasserstein_uniformity,
)
from manyviews.metrics.knn import PAPER_K, choose_k, knn_classify, score_knn
from manyviews.metrics.probe import (
    PAPER_PROBE_SETTINGS,
    REGRESSION_PROBE_SETTINGS,
    VAL_FOLDS,
    FeatureStream,
    LinearProbe,
    LinearRegressionProbe,
    ProbeSettings,
    ProbeSolver,
    fit_linear_probe,
    fit_regression_probe,
    sample_stratified,
)
from manyviews.metrics.retrieval import compute_retrieval
from manyviews.metrics.sentiment import (
    SentimentScale,
    compute_majority_baseline,
    compute_regression_metrics,
    compute_sentiment_metrics,
    compute_weighted_f1,
)

__all__ = [
    "GEOMETRY_HELP",
    "PAPER_K",
    "PAPER_PROBE_SETTINGS",
    "REGRESSION_PROBE_SETTINGS",
    "VAL_FOLDS",
    "FeatureStream",
    "LinearProbe",
    "LinearRegressionProbe",
    "ProbeSettings",
    "ProbeSolver",
    "SentimentScale",
    "alignment",
    "choose_k",
    "compute_geometry",
    "compute_majority_baseline",
    "compute_regression_metrics",
    "compute_retrieval",
    "compute_sentiment_metrics",
    "compute_weighted_f1",
    "fit_linear_probe",
    "fit_regression_probe",
    "knn_classify",
    "make_sphere_angle_grid",
    "numerical_rank",
    "rankme",
    "sample_stratified",
    "score_knn",
    "spectrum",
    "uniformity",
    "wasserstein_uniformity",
]
