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
    """Draw some images and their augmented views, as the model sees them in training. Takes the flags of `train`.

    Args:
        config: Settings of the run.
        recipe: Set of defaults that flags override, as for `manyviews train`.
        output: PNG file to write.
        instances: Number of instances to show, a random sample that depends on the seed.
        epoch: Epoch of the views; every epoch has different ones.
    """
    import torch

    config.check()
    if instances < 1 or config.task != "images":
        raise ValueError(f"preview shows at least 1 instance of images, got {instances} of task {config.task}")
    utils.check_writable(output, (".png",), inputs=[config.data])
    dataset = mv.training.load_data(config)
    images = dataset["train"].images
    index = utils.draw_permutation(len(images), config.seed)[:instances]
    originals = [images[int(i)] for i in index]
    transform = mv.training.build_transform(mv.training.ImageTask.resolve_config(config, dataset))
    batch = torch.stack(originals) if len({image.shape for image in originals}) == 1 else originals
    augmented = transform(batch, views=config.views, seed=config.seed, epoch=epoch, index=index)
    mv.export.save_png(
        mv.export.draw_contact_sheet([[image, *row] for image, row in zip(originals, augmented, strict=True)]), output
    )
    size = f"{transform.size} x {transform.size}"
    print_lines(f"{output}: {len(originals)} instances of {config.data}, each with {config.views} views of {size}")
