"""Evaluation of finished runs: kNN, linear probes, retrieval and geometry."""

from manyviews.evaluation.evaluation_result import EvaluationResult as EvaluationResult
from manyviews.evaluation.evaluation_result import Representation as Representation
from manyviews.evaluation.evaluation_result import Score as Score
from manyviews.evaluation.evaluation_result import SubsetProbe as SubsetProbe
from manyviews.evaluation.evaluation_result import SubsetScore as SubsetScore
from manyviews.evaluation.evaluation_result import load_evaluation as load_evaluation
from manyviews.evaluation.modality_features import average_embeddings as average_embeddings
from manyviews.evaluation.result_tables import NON_PERCENT_METRICS as NON_PERCENT_METRICS
from manyviews.evaluation.result_tables import SUBSET_PROBES as SUBSET_PROBES
from manyviews.evaluation.result_tables import format_geometry as format_geometry
from manyviews.evaluation.result_tables import format_metric as format_metric
from manyviews.evaluation.result_tables import get_compared_metrics as get_compared_metrics
from manyviews.evaluation.result_tables import list_tables as list_tables
from manyviews.evaluation.result_tables import make_geometry_table as make_geometry_table
from manyviews.evaluation.result_tables import make_modality_geometry_table as make_modality_geometry_table
from manyviews.evaluation.result_tables import make_retrieval_table as make_retrieval_table
from manyviews.evaluation.result_tables import make_scores_table as make_scores_table
from manyviews.evaluation.result_tables import make_subset_table as make_subset_table
from manyviews.evaluation.run_evaluation import evaluate as evaluate
from manyviews.evaluation.run_evaluation import evaluate_model as evaluate_model
from manyviews.evaluation.run_evaluation import get_evaluation_filename as get_evaluation_filename
from manyviews.evaluation.scores import EvaluationConfig as EvaluationConfig
from manyviews.evaluation.scores import Subset as Subset
from manyviews.evaluation.scores import choose_test_split as choose_test_split
