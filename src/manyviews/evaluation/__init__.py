"""Evaluation of finished runs: kNN, linear probe, retrieval and geometry, for images and for modalities."""

from manyviews.evaluation.baselines import METRICS, describe_evaluation, name_knn
from manyviews.evaluation.multimodal_features import PROBE_LABELS, average_embeddings
from manyviews.evaluation.run_evaluation import evaluate, evaluate_model, get_evaluation_filename
from manyviews.evaluation.scores import EvaluationConfig, Subset, choose_test_split

__all__ = [
    "METRICS",
    "PROBE_LABELS",
    "EvaluationConfig",
    "Subset",
    "average_embeddings",
    "choose_test_split",
    "describe_evaluation",
    "evaluate",
    "evaluate_model",
    "get_evaluation_filename",
    "name_knn",
]
