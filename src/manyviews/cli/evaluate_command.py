"""`manyviews evaluate`."""

from __future__ import annotations

from typing import Annotated

import manyviews as mv
from manyviews.cli.common import Device, RunArg, Unset, print_lines
from manyviews.cli.config_flags import EvaluationFlags


def evaluate_command(
    run: RunArg,
    eval_config: Annotated[mv.EvaluationConfig, EvaluationFlags],
    data: Annotated[str | None, Unset] = None,
    device: Device = "auto",
) -> None:
    """Evaluate a run (kNN, linear probe, embedding geometry) and write RUN/evaluation.json.

    For a multimodal run, every subset of the modalities and the retrieval between modalities are evaluated too.

    Args:
        run: Directory of a finished run.
        eval_config: Settings of the evaluation.
        data: Other data to transfer to: photos, digits, cifar10, cifar100, or a path. Default: the run's own data.
        device: Device; auto uses a GPU if available.
    """
    from manyviews.evaluation import evaluate, get_evaluation_filename, list_tables
    from manyviews.runs import Run

    opened = Run.open(run)
    result = evaluate(opened, data=data, config=eval_config, device=device)
    if result.skipped_reason:
        print_lines(result.skipped_reason)
    for table in list_tables(result):
        table.print()
    print_lines(f"written to {opened.path / get_evaluation_filename(data, result.dataset, eval_config)}")
