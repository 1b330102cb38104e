"""`manyviews train`: train an encoder."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from manyviews.cli.common import OutputFlag, is_first_rank, make_lazy_stub, print_lines
from manyviews.utils import escape_control_characters

if TYPE_CHECKING:
    from manyviews.runs import Run


_SUMMARY = "Train an encoder. Without flags: on the bundled photos, in about two minutes."


def train_command(arguments: list[str]) -> Callable[..., None]:
    """Build the command; the defaults of its flags are those of the recipe or the resumed run in the arguments."""
    if arguments[:1] != ["train"]:
        return make_lazy_stub(_SUMMARY)

    from manyviews.api import train
    from manyviews.runs import Run
    from manyviews.training import Config, get_default_recipe, get_recipe

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--recipe", "--resume", "--data"):
        parser.add_argument(name, nargs="?")  # tyro reports a missing value
    known = parser.parse_known_args(arguments)[0]
    if known.resume and known.recipe:
        raise ValueError("--resume cannot be combined with --recipe")
    if known.resume:
        default = Run.open(known.resume).config
    else:
        default = get_recipe(known.recipe) if known.recipe else get_default_recipe(known.data or "photos")
    if {"-h", "--help"} & set(arguments):  # the help shows defaults, possibly of an untrusted run
        texts = {name: value for name, value in vars(default).items() if isinstance(value, (str, Path))}
        escaped = {name: escape_control_characters(value) for name, value in texts.items()}
        default = default.with_fields(
            {**escaped, "modalities": tuple(map(escape_control_characters, default.modalities))}
        )

    def command(
        config: Annotated[Config, tyro.conf.arg(name="")] = default,
        recipe: str | None = None,  # noqa: ARG001 (read above)
        output: Annotated[Path | None, OutputFlag] = None,
        resume: Path | None = None,
        overwrite: bool = False,
        print_config: bool = False,
    ) -> None:
        """Train an encoder. Without flags: on the bundled photos, in about two minutes.

        Args:
            config: settings of the run.
            recipe: set of defaults that flags override: photos, cifar10, cifar100, imagenet100, imagenet1k, multimodal,
                ch-sims, cmu-mosei, or a .yaml file. Default: the recipe with the name of the data, or photos.
            output: directory of the run. Default: runs/DATA-LOSS-VIEWS (multimodal: runs/DATA-LOSS).
            resume: directory of a run to resume; only flags that do not affect its result may change. With other
                --epochs, the remaining steps follow the schedule of that number of epochs.
            overwrite: replace an existing run.
            print_config: print the config and exit.
        """
        if print_config:
            config.check()
            print_lines(*config.to_yaml().splitlines())
            return
        show_run(train(config, output=output, resume=resume, overwrite=overwrite))

    return command


def show_run(run: "Run") -> None:
    """Print the evaluation of a finished run, on rank zero."""
    from manyviews.evaluation import load_evaluation, make_scores_table, make_subset_table

    if not is_first_rank():
        return
    print_lines(f"{run.path} is finished")
    result = load_evaluation(run)
    for table in (make_scores_table([result]), make_subset_table([result], compact=True)) if result else ():
        if table:
            table.print()
