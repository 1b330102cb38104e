"""`manyviews train`."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from manyviews.cli.console import first_rank, print_lines, unasked
from manyviews.cli.evaluate import show_scores, show_subsets
from manyviews.utils.text import escape_control_characters
from manyviews.utils.untrusted import MALFORMED

if TYPE_CHECKING:
    from manyviews.training import Run

_TRAIN = "Train an encoder: without flags, on the photos in the package, in about two minutes."


def train_command(arguments: list[str]) -> Callable[..., None]:
    """The command whose flags have the defaults of the recipe, or of the run, that the arguments name."""
    if arguments[:1] != ["train"]:
        return unasked(_TRAIN)

    from manyviews.training import Config, Run, get_recipe, recipe_for, train

    names = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--recipe", "--resume", "--data"):
        names.add_argument(name, nargs="?")  # without a value, the flags themselves complain
    given = names.parse_known_args(arguments)[0]
    if given.resume and given.recipe:
        raise ValueError("a resumed run has its recipe: leave --recipe out")
    if given.resume:
        default = Run.open(given.resume).config
    else:
        default = get_recipe(given.recipe) if given.recipe else recipe_for(given.data or "photos")
    if {"-h", "--help"} & set(arguments):  # shows the defaults, which may be those of a stranger's run
        texts = {name: value for name, value in vars(default).items() if isinstance(value, (str, Path))}
        shown = {name: escape_control_characters(value) for name, value in texts.items()}
        default = default.changed({**shown, "modalities": tuple(map(escape_control_characters, default.modalities))})

    def command(
        config: Annotated[Config, tyro.conf.arg(name="")] = default,
        recipe: str | None = None,  # noqa: ARG001 (read above)
        output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
        resume: Path | None = None,
        overwrite: bool = False,
        print_config: bool = False,
    ) -> None:
        """Train an encoder: without flags, on the photos in the package, in about two minutes.

        Args:
            config: what to train.
            recipe: photos, cifar10, cifar100, imagenet100, imagenet1k; for modalities multimodal, ch-sims, cmu-mosei;
                or a .yaml file. That of the data's name, or photos, if not given. Flags change it.
            output: the run's directory; runs/DATA-OBJECTIVE-VIEWS if not given (of modalities runs/DATA-OBJECTIVE).
            resume: the directory of a run to go on with; flags may change what does not change its result. With other
                --epochs, the rest of the run follows the schedule of that number of epochs.
            overwrite: replace a run that is there.
            print_config: print the config and train nothing.
        """
        if print_config:
            config.check()
            print_lines(*config.to_yaml().splitlines())
            return
        show_run(train(config, output=output, resume=resume, overwrite=overwrite))

    return command


def show_run(run: "Run") -> None:
    """A table of what was learned, on the first rank."""
    if not first_rank():
        return
    print_lines(f"{run.path} is finished")
    found = run.evaluation
    if found is not None:
        try:
            show_scores(found)
            show_subsets(found)
        except MALFORMED as error:
            what = f"evaluation.json is not as this version writes it ({type(error).__name__}: {error})"
            raise ValueError(f"{run.path}: {what}: `manyviews evaluate` writes it again") from error
