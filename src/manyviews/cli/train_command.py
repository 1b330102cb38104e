"""`manyviews train`: train an encoder."""

from __future__ import annotations

from typing import Annotated

import manyviews as mv
from manyviews.cli.common import OptionalPath, OutputFlag, Unset, is_rank_zero, print_lines
from manyviews.cli.config_flags import ConfigFlags


def train_command(
    config: Annotated[mv.Config, ConfigFlags],
    recipe: Annotated[str | None, Unset] = None,  # noqa: ARG001 (it sets the defaults of `config`)
    output: Annotated[OptionalPath, OutputFlag] = None,
    resume: OptionalPath = None,
    overwrite: bool = False,
    print_config: bool = False,
) -> None:
    """Train an encoder. Without flags: on the bundled photos, in about a minute.

    Args:
        config: Settings of the run.
        recipe: Set of defaults that flags override: photos, demo, cifar10, cifar100, imagenet100, imagenet1k,
            multimodal, ch-sims, cmu-mosei, or a .yaml file. Default: the recipe with the name of the data, or photos.
        output: Directory of the run. Default: runs/DATA-LOSS-VIEWS, or runs/DATA-LOSS without --views.
        resume: Directory of a run to resume; only flags that do not affect its result may change. With other
            --epochs, the remaining steps follow the schedule of that number of epochs.
        overwrite: Replace an existing run.
        print_config: Print the config and exit.
    """
    if print_config:
        config.check()
        print_lines(*config.to_yaml().splitlines())
    else:
        show_run(mv.train(config, output=output, resume=resume, overwrite=overwrite))


def show_run(run: mv.Run) -> None:
    """Print the evaluation of a finished run, on rank zero."""
    from manyviews.evaluation import load_evaluation, make_scores_table, make_subset_table

    if not is_rank_zero():
        return
    print_lines(f"{run.path} is finished")
    result = load_evaluation(run)
    for table in (make_scores_table([result]), make_subset_table([result], compact=True)) if result else ():
        if table:
            table.print()
