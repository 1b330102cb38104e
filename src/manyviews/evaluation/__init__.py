"""Evaluation of finished runs: kNN, linear probe, retrieval and geometry, for images and for modalities."""

from manyviews.evaluation.baselines import METRICS as METRICS
from manyviews.evaluation.baselines import describe_evaluation as describe_evaluation
from manyviews.evaluation.baselines import name_knn as name_knn
from manyviews.evaluation.multimodal_features import PROBE_LABELS as PROBE_LABELS
from manyviews.evaluation.multimodal_features import average_embeddings as average_embeddings
from manyviews.evaluation.run_evaluation import evaluate as evaluate
from manyviews.evaluation.run_evaluation import evaluate_model as evaluate_model
from manyviews.evaluation.run_evaluation import get_evaluation_filename as get_evaluation_filename
from manyviews.evaluation.scores import EvaluationConfig as EvaluationConfig
from manyviews.evaluation.scores import Subset as Subset
from manyviews.evaluation.scores import choose_test_split as choose_test_split
