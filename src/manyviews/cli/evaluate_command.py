"""`manyviews evaluate`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from manyviews.cli.common import Device, RunArg, make_lazy_stub, print_lines

if TYPE_CHECKING:
    from manyviews.evaluation import EvaluationConfig


_SUMMARY = "Evaluate a run (kNN, linear probe, embedding geometry) and write RUN/evaluation.json."


def evaluate_command(arguments: list[str]) -> Callable[..., None]:
    """Build the command, with the fields of `EvaluationConfig` as flags."""
    if arguments[:1] != ["evaluate"]:
        return make_lazy_stub(_SUMMARY)

    from manyviews.evaluation import EvaluationConfig

    def command(
        run: RunArg,
        eval_config: Annotated[EvaluationConfig, tyro.conf.arg(name="")] = EvaluationConfig(),  # noqa: B008 (frozen)
        data: str | None = None,
        device: Device = "auto",
    ) -> None:
        """Evaluate a run (kNN, linear probe, embedding geometry) and write RUN/evaluation.json.

        For a multimodal run, every subset of the modalities and the retrieval between modalities are evaluated too.

        Args:
            run: directory of a finished run.
            eval_config: settings of the evaluation.
            data: other data to transfer to: photos, digits, cifar10, cifar100, or a path. None: the run's own data.
            device: device to compute on; auto selects a GPU if there is one.
        """
        evaluate_run(run, eval_config, data, device)

    return command


def evaluate_run(run: Path, eval_config: "EvaluationConfig", data: str | None = None, device: Device = "auto") -> None:
    """Evaluate a run and print the tables."""
    from manyviews.evaluation import evaluate, get_evaluation_filename, list_tables
    from manyviews.runs import Run

    opened = Run.open(run)
    result = evaluate(opened, data=data, config=eval_config, device=device)
    if result.skipped_reason:
        print_lines(result.skipped_reason)
    for table in list_tables(result):
        table.print()
    print_lines(f"written to {opened.path / get_evaluation_filename(data, result.data, eval_config)}")
