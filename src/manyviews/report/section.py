"""The section of one run in a report, with reasons for missing parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from markupsafe import Markup

from manyviews.report.charts import Figure
from manyviews.report.curves import draw_spectra
from manyviews.report.embedding_map import EmbeddingMap, build_map
from manyviews.report.image_grids import ImageGrid, make_neighbor_grid, make_view_grid
from manyviews.report.rerun import RerunInfo, describe_run, get_rerun_info
from manyviews.report.sample import encode_sample
from manyviews.report.subset_charts import draw_subsets_figure, list_subset_kinds, make_subsets_table
from manyviews.report.summary import RunSummary
from manyviews.report.tables import (
    Table,
    make_comparison_table,
    make_geometry_table,
    make_pairwise_geometry_table,
    make_retrieval_table,
    make_scores_table,
)
from manyviews.utils import MALFORMED

T = TypeVar("T")


@dataclass(frozen=True)
class EvaluationTables:
    """The content of evaluation.json as tables and charts."""

    scores: Table | None
    geometry: Table | None
    retrieval: Table | None
    pairwise: Table | None
    subsets: Figure | None
    subset_table: Table | None
    subset_legend: list[tuple[str, Markup]]


@dataclass
class RunSection:
    """Everything a report shows about one run."""

    summary: RunSummary
    description: dict[str, str]
    rerun: RerunInfo
    evaluation: EvaluationTables
    views: ImageGrid | None = None
    neighbors: ImageGrid | None = None
    map: EmbeddingMap | None = None
    missing_reasons: dict[str, str] = field(default_factory=dict)
    """Why a part is missing, by its name."""


def drop_invalid_evaluation(summary: RunSummary) -> RunSummary:
    """Drop the evaluation if its schema is invalid."""
    try:
        make_evaluation_tables(summary)
        make_comparison_table([summary])
        draw_spectra([summary])
    except MALFORMED as error:
        problem = f"evaluation.json has an unexpected format ({type(error).__name__}: {error})."
        return dataclasses.replace(summary, evaluation={}, problems=[*summary.problems, problem])
    return summary


def make_evaluation_tables(summary: RunSummary) -> EvaluationTables:
    result = summary.evaluation
    return EvaluationTables(
        make_scores_table(result) if result.get("scores") else None,
        make_geometry_table(summary),
        make_retrieval_table(result),
        make_pairwise_geometry_table(result),
        draw_subsets_figure(result),
        make_subsets_table(result),
        list_subset_kinds(result),
    )


def build_section(summary: RunSummary, instances: int, workers: int, device: torch.device) -> RunSection:
    """Build the section; load the run's data, if it still exists, and encode a sample of it."""
    run = summary.run
    section = RunSection(summary, describe_run(summary), get_rerun_info(run), make_evaluation_tables(summary))
    if section.evaluation.scores is None:
        section.missing_reasons["scores"] = str(
            summary.evaluation.get("why") or "There is no evaluation.json with scores."
        )
    data = _try_part(section, ("views", "neighbors", "map"), "Cannot load the data", run.load_data)
    if data is None:
        return section
    section.views = _try_part(section, ("views",), "Cannot draw the views", lambda: make_view_grid(run, data))
    message = "Cannot encode the test instances"
    sample = _try_part(
        section, ("neighbors", "map"), message, lambda: encode_sample(run, data, instances, workers, device)
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
    except (OSError, RuntimeError, MemoryError, *MALFORMED) as error:
        section.missing_reasons |= dict.fromkeys(parts, f"{message}: {error}")
        return None
