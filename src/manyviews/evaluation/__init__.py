"""Evaluation of finished runs: kNN, linear probes, retrieval and geometry."""

from manyviews.evaluation.modality_features import average_embeddings as average_embeddings
from manyviews.evaluation.run_evaluation import evaluate as evaluate
from manyviews.evaluation.run_evaluation import evaluate_model as evaluate_model
from manyviews.evaluation.run_evaluation import get_evaluation_filename as get_evaluation_filename
from manyviews.evaluation.scores import EvaluationConfig as EvaluationConfig
from manyviews.evaluation.scores import Subset as Subset
from manyviews.evaluation.scores import choose_test_split as choose_test_split
from manyviews.metrics import NON_PERCENT_METRICS as NON_PERCENT_METRICS
from manyviews.metrics import SUBSET_PROBES as SUBSET_PROBES
from manyviews.metrics import EvaluationResult as EvaluationResult
from manyviews.metrics import Representation as Representation
from manyviews.metrics import Score as Score
from manyviews.metrics import SubsetProbe as SubsetProbe
from manyviews.metrics import SubsetScore as SubsetScore
from manyviews.metrics import format_geometry as format_geometry
from manyviews.metrics import format_metric as format_metric
from manyviews.metrics import get_compared_metrics as get_compared_metrics
from manyviews.metrics import list_tables as list_tables
from manyviews.metrics import make_geometry_table as make_geometry_table
from manyviews.metrics import make_modality_geometry_table as make_modality_geometry_table
from manyviews.metrics import make_retrieval_table as make_retrieval_table
from manyviews.metrics import make_scores_table as make_scores_table
from manyviews.metrics import make_subset_table as make_subset_table
from manyviews.runs import load_evaluation as load_evaluation
