"""`manyviews preview`: draw the augmented views of some images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import manyviews as mv
from manyviews import utils
from manyviews.cli.common import OutputFlag, Unset, print_lines
from manyviews.cli.config_flags import ConfigFlags


def preview_command(
    config: Annotated[mv.Config, ConfigFlags],
    recipe: Annotated[str | None, Unset] = None,  # noqa: ARG001 (it sets the defaults of `config`)
    output: Annotated[Path, OutputFlag] = Path("views.png"),
    instances: int = 8,
    epoch: int = 0,
) -> None:
    """Draw some instances and their views, as the model sees them in training. Takes the flags of `train`.

    Args:
        config: Settings of the run.
        recipe: Set of defaults that flags override, as for `manyviews train`.
        output: PNG file to write.
        instances: Number of instances to show, a random sample that depends on the seed.
        epoch: Epoch of the views; every epoch has different ones.
    """
    config.check()
    utils.check_writable(output, (".png",), inputs=[config.data])
    task = mv.training.resolve_task(config, mv.training.load_data(config), ranks=1)
    mv.export.save_png(mv.export.draw_views(task, instances, epoch), output)
    count = min(instances, len(task.split))
    print_lines(f"{output}: {count} instances of {config.data}, each with the views {' '.join(task.spec.to_texts())}")
