"""The section of one run in a report, with reasons for missing parts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from manyviews.evaluation import (
    EvaluationResult,
    make_geometry_table,
    make_modality_geometry_table,
    make_retrieval_table,
    make_scores_table,
    make_subset_table,
)
from manyviews.report.embedding_map import EmbeddingMap, build_map
from manyviews.report.image_grids import ImageGrid, make_neighbor_grid, make_view_grid
from manyviews.report.rerun import RerunInfo, describe_run, get_rerun_info
from manyviews.report.sample import encode_sample
from manyviews.report.subset_charts import SubsetFigure, draw_subset_figure
from manyviews.report.summary import RunSummary
from manyviews.utils import MALFORMED_ERRORS, Table

T = TypeVar("T")


@dataclass
class RunSection:
    """Everything a report shows about one run."""

    summary: RunSummary
    description: dict[str, str]
    rerun: RerunInfo
    evaluation: dict[str, Table | SubsetFigure | None]
    """The evaluation as tables and charts, by the names of `TABLES`."""
    views: ImageGrid | None = None
    neighbors: ImageGrid | None = None
    map: EmbeddingMap | None = None
    missing_reasons: dict[str, str] = field(default_factory=dict)
    """Why a part is missing, by its name."""


TABLES: dict[str, Callable[[EvaluationResult], Table | SubsetFigure | None]] = {
    "scores": lambda result: make_scores_table([result]),
    "geometry": make_geometry_table,
    "retrieval": make_retrieval_table,
    "pairwise": make_modality_geometry_table,
    "subsets": draw_subset_figure,
    "subset_table": lambda result: make_subset_table([result]),
}


def make_evaluation_tables(result: EvaluationResult | None) -> dict[str, Table | SubsetFigure | None]:
    return {name: make(result) if result else None for name, make in TABLES.items()}


def build_section(summary: RunSummary, instances: int, num_workers: int, device: torch.device) -> RunSection:
    """Build the section; load the run's data, if it still exists, and encode a sample of it."""
    run, tables = summary.run, make_evaluation_tables(summary.evaluation)
    section = RunSection(summary, describe_run(summary), get_rerun_info(run), tables)
    if tables["scores"] is None:
        reason = summary.evaluation.skipped_reason if summary.evaluation else ""
        section.missing_reasons["scores"] = reason or "There is no evaluation.json with scores."
    data = _try_part(section, ("views", "neighbors", "map"), "Cannot load the data", run.load_data)
    if data is None:
        return section
    section.views = _try_part(section, ("views",), "Cannot draw the views", lambda: make_view_grid(run, data))
    message = "Cannot encode the test instances"
    sample = _try_part(
        section, ("neighbors", "map"), message, lambda: encode_sample(run, data, instances, num_workers, device)
    )
    if sample is None:
        return section
    section.neighbors = make_neighbor_grid(sample)
    section.map = build_map(sample, summary.name)
    for part in ("neighbors", "map"):
        if getattr(section, part) is None:
            section.missing_reasons[part] = f"There are too few instances: {len(sample.index)}."
    return section


def _try_part(section: RunSection, parts: tuple[str, ...], message: str, work: Callable[[], T]) -> T | None:
    """Return the result of `work`; if it fails, record the reason for the parts that need it."""
    try:
        return work()
    except (OSError, RuntimeError, MemoryError, *MALFORMED_ERRORS) as error:
        section.missing_reasons |= dict.fromkeys(parts, f"{message}: {error}")
        return None
