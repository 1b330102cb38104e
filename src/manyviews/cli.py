"""The command line: `manyviews train`, `manyviews losses`, `manyviews views`."""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from manyviews.losses import Objective
    from manyviews.training import Run

app = tyro.extras.SubcommandApp()


def main() -> None:
    """Run a command; a mistake of the user's is one line, not a traceback, and so is a warning."""
    warnings.showwarning = lambda message, *_: _complain(message)
    try:
        app.command(name="train")(_train_command(sys.argv[1:]))
        app.cli(prog="manyviews", description="Contrastive learning from any number of views.")
    except (ValueError, OSError) as error:
        _complain(error)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        _complain(str(stop) or "interrupted")
        sys.exit(getattr(stop, "exit_code", 130))


def _first_rank() -> bool:
    """Whether this process is the first of those that torchrun, SLURM or we have started."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def _complain(message: object) -> None:
    if _first_rank():
        print(f"manyviews: {message}", file=sys.stderr)


_TRAIN = "Train an encoder: without flags, on the photos in the package, in about a minute and a half."


def _train_command(arguments: list[str]) -> Callable[..., None]:
    """The command whose flags have the defaults of the recipe, or of the run, that the arguments name."""
    if arguments[:1] != ["train"]:
        return _described(lambda: None)  # for the list of commands: a config takes seconds to import

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

    def command(
        config: Annotated[Config, tyro.conf.arg(name="")] = default,
        recipe: str | None = None,  # noqa: ARG001 (read above)
        output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
        resume: Path | None = None,
        overwrite: bool = False,
        print_config: bool = False,
    ) -> None:
        """Train an encoder.

        Args:
            config: what to train.
            recipe: photos, cifar10, cifar100, imagenet100, imagenet1k, or a .yaml file; that of the data's name, or
                photos, if not given. Flags change it.
            output: the run's directory; runs/DATA-OBJECTIVE-VIEWS if not given.
            resume: the directory of a run to go on with; flags may change what does not change its result.
            overwrite: replace a run that is there.
            print_config: print the config and train nothing.
        """
        if print_config:
            config.check()
            print(config.to_yaml(), end="")
            return
        show_run(train(config, output=output, resume=resume, overwrite=overwrite))

    return _described(command)


def _described(command: Callable[..., None]) -> Callable[..., None]:
    command.__doc__ = (command.__doc__ or _TRAIN).replace("Train an encoder.", _TRAIN)
    return command


def show_run(run: "Run") -> None:
    """A table of what was learned, on the first rank."""
    from rich.console import Console
    from rich.table import Table

    if not _first_rank():
        return
    print(f"{run.path} is finished")
    found = run.evaluation
    if found is None:
        return
    print(f"{found['data']}: {found['test_instances']:,} test instances, labels of {found['train_instances']:,}")
    table = Table()
    table.add_column("representation")
    table.add_column("kNN", justify="right")
    table.add_column("linear probe", justify="right")
    for name, score in found["scores"].items():
        table.add_row(name, f"{score['knn']:.1%}", f"{score['linear']:.1%}")
    Console().print(table)


@app.command
def losses(views: int = 4) -> None:
    """Show every objective: its equation, its cost and its measured principles.

    Args:
        views: how many views an instance has where the principles are measured.
    """
    from rich.console import Console
    from rich.table import Table

    from manyviews.losses import OBJECTIVES, audit

    table = Table(caption=_LEGEND.format(views=views), caption_justify="left", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("loss of an instance")
    table.add_column("cost", no_wrap=True)
    table.add_column("P1", justify="center")
    table.add_column("P2", justify="center")
    table.add_column("P3", justify="right")
    table.add_column("coupling")
    for name, make in OBJECTIVES.items():
        objective = make()
        found = audit(objective, views=int(min(views, objective.most_views)))
        table.add_row(
            name,
            objective.equation,
            cost(objective),
            _MARKS[found.simultaneous_alignment],
            _MARKS[found.accurate_energy],
            str(found.terms),
            found.coupling,
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=132)
    console.print(table, markup=False)


def cost(objective: "Objective") -> str:
    """How the number of products grows, from the energies the objective reads."""
    if objective.most_views == 2:
        return "M²"
    few, many = (int(objective.blocks(views).sum()) for views in (8, 16))
    return "M² N²" if many > 3 * few else "M² N"


_MARKS = {True: "✓", False: "✗"}
_LEGEND = """\
M instances, N views. P positives, A energies (N, N); LSE log-sum-exp, (+) logaddexp, off all l != m.
Measured by differentiating each loss at {views} views (2 for losses of two views): P1 all views aligned
at once, P2 energy of a complete configuration, P3 terms of an instance, and what couples alignment to
uniformity."""


@app.command(name="views")
def draw_views(
    data: str = "photos",
    views: int = 4,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("views.png"),
    instances: int = 8,
    size: int | None = None,
    strength: float | None = None,
    blur: float | None = None,
    seed: int = 0,
    epoch: int = 0,
    classes: Path | None = None,
    strict: bool = False,
    follow_links: bool = False,
) -> None:
    """Draw instances and their views on a sheet, so that you see what the model sees.

    Args:
        data: photos, digits, cifar10, cifar100, or a path: a folder of images, a .npz or .npy file.
        views: how many views of each instance.
        output: the PNG to write.
        instances: how many instances, drawn by the seed.
        size: height and width of a view; the images' own, at most 224, if not given.
        strength: of the colour jitter; 0.5 for small images and 1 for large ones if not given.
        blur: probability of a blur; 0 for small images and 0.5 for large ones if not given.
        seed: of the views.
        epoch: of the views: each has its own.
        classes: a text file that names the classes (subfolders) to take, one a line.
        strict: a broken image is an error, instead of being named and left out.
        follow_links: take images behind links that lead out of the folder.
    """
    import torch

    from manyviews.data import load_dataset
    from manyviews.views import SimCLRPolicy, contact_sheet, natural_size, save_png
    from manyviews.views.keyed import permutation

    if views < 1 or instances < 1:
        raise ValueError(f"views and instances must be >= 1, got {views} and {instances}")
    if output.suffix.lower() != ".png":
        raise ValueError(f"the sheet is a PNG: name it so, not {output}")
    images = load_dataset(data, classes=classes, strict=strict, follow_links=follow_links)["train"].images
    index = permutation(len(images), seed)[:instances]
    chosen = [images[int(i)] for i in index]
    side = natural_size(images) if size is None else size
    large = side > 64
    policy = SimCLRPolicy(
        side,
        strength=(1.0 if large else 0.5) if strength is None else strength,
        blur=(0.5 if large else 0.0) if blur is None else blur,
    )
    same = len({image.shape for image in chosen}) == 1
    drawn = policy(torch.stack(chosen) if same else chosen, views=views, seed=seed, epoch=epoch, index=index)
    save_png(contact_sheet(chosen, drawn), output)
    print(f"{output}: {len(chosen)} instances of {data}, each with {views} views of {side} x {side}")
