"""Evaluation of finished runs: kNN, linear probe, retrieval and geometry, for images and for modalities."""

from manyviews.evaluation.evaluation_result import (
    EvaluationResult,
    Representation,
    Score,
    SubsetProbe,
    SubsetScore,
    load_evaluation,
)
from manyviews.evaluation.multimodal_features import average_embeddings
from manyviews.evaluation.result_tables import (
    NON_PERCENT_METRICS,
    SUBSET_PROBES,
    format_geometry,
    format_metric,
    get_compared_metrics,
    list_tables,
    make_geometry_table,
    make_modality_geometry_table,
    make_retrieval_table,
    make_scores_table,
    make_subset_table,
)
from manyviews.evaluation.run_evaluation import evaluate, evaluate_model, get_evaluation_filename
from manyviews.evaluation.scores import EvaluationConfig, Subset, choose_test_split

__all__ = [
    "NON_PERCENT_METRICS",
    "SUBSET_PROBES",
    "EvaluationConfig",
    "EvaluationResult",
    "Representation",
    "Score",
    "Subset",
    "SubsetProbe",
    "SubsetScore",
    "average_embeddings",
    "choose_test_split",
    "evaluate",
    "evaluate_model",
    "format_geometry",
    "format_metric",
    "get_compared_metrics",
    "get_evaluation_filename",
    "list_tables",
    "load_evaluation",
    "make_geometry_table",
    "make_modality_geometry_table",
    "make_retrieval_table",
    "make_scores_table",
    "make_subset_table",
]
