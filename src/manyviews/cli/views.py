"""`manyviews views`."""

from pathlib import Path
from typing import Annotated

import tyro

from manyviews.cli.console import print_lines


def draw_views(
    data: str = "photos",
    views: int = 4,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("views.png"),
    instances: int = 8,
    size: int | None = None,
    scale: tuple[float, float] | None = None,
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
        scale: share of the image's area in a crop; that of the data's recipe if not given.
        strength: of the colour jitter; 0.5 for small images and 1 for large ones if not given.
        blur: probability of a blur; 0 for small images and 0.5 for large ones if not given.
        seed: of the views.
        epoch: of the views: each has its own.
        classes: a text file that names the classes (subfolders) to take, one a line.
        strict: a broken image is an error, instead of being named and left out.
        follow_links: take images behind links that lead out of the folder.
    """
    import dataclasses
    from typing import Any

    import torch

    from manyviews.data import load_dataset
    from manyviews.training import recipe_for
    from manyviews.training.files import check_writable
    from manyviews.training.images import ImageSource, policy_of
    from manyviews.views import contact_sheet, save_png
    from manyviews.views.keyed import permutation

    if views < 1 or instances < 1:
        raise ValueError(f"views and instances must be >= 1, got {views} and {instances}")
    check_writable(output, (".png",), inputs=[data])
    found = load_dataset(data, classes=classes, strict=strict, follow_links=follow_links)
    images = found["train"].images
    index = permutation(len(images), seed)[:instances]
    chosen = [images[int(i)] for i in index]
    told: dict[str, Any] = {"size": size, "scale": scale, "strength": strength, "blur": blur}
    told = {name: value for name, value in told.items() if value is not None}
    policy = policy_of(ImageSource.fit(dataclasses.replace(recipe_for(data), **told), found))
    same = len({image.shape for image in chosen}) == 1
    drawn = policy(torch.stack(chosen) if same else chosen, views=views, seed=seed, epoch=epoch, index=index)
    save_png(contact_sheet([[image, *own] for image, own in zip(chosen, drawn, strict=True)]), output)
    print_lines(
        f"{output}: {len(chosen)} instances of {data}, each with {views} views of {policy.size} x {policy.size}"
    )
