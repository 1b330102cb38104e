"""`manyviews preview-views`: draw the augmented views of some images."""

from pathlib import Path
from typing import Annotated

from manyviews.cli.common import OutputFlag, print_lines


def preview_views_command(
    data: str = "photos",
    views: int = 4,
    output: Annotated[Path, OutputFlag] = Path("views.png"),
    instances: int = 8,
    image_size: int | None = None,
    crop_scale: tuple[float, float] | None = None,
    jitter_strength: float | None = None,
    blur_prob: float | None = None,
    seed: int = 0,
    epoch: int = 0,
    class_list: Path | None = None,
    raise_on_corrupt: bool = False,
    follow_symlinks: bool = False,
) -> None:
    """Draw some images and their augmented views, as the model sees them in training.

    Args:
        data: photos, digits, cifar10, cifar100, or the path of an image folder or a .npz or .npy file.
        views: number of views per instance.
        output: PNG file to write.
        instances: number of instances, a random sample that depends on the seed.
        image_size: height and width of a view in pixels. Default: that of the images, at most 224.
        crop_scale: minimum and maximum area of a random crop, as fractions of the image. Default: the data's recipe.
        jitter_strength: strength of the color jitter. Default: 0.5 for views of up to 64 pixels, 1 for larger ones.
        blur_prob: probability of a Gaussian blur. Default: 0 for views of up to 64 pixels, 0.5 for larger ones.
        seed: seed of the views.
        epoch: epoch of the views; every epoch has different ones.
        class_list: text file with the names of the classes (subfolders) to use, one per line.
        raise_on_corrupt: stop with an error at a corrupt image instead of skipping it with a warning.
        follow_symlinks: follow symbolic links that lead out of the image folder.
    """
    import dataclasses
    from typing import Any

    import torch

    from manyviews.data import load_dataset
    from manyviews.export import draw_contact_sheet, save_png
    from manyviews.training import ImageTask, build_transform, get_default_recipe
    from manyviews.utils import check_writable, draw_permutation

    if views < 1 or instances < 1:
        raise ValueError(f"views and instances must be >= 1, got {views} and {instances}")
    check_writable(output, (".png",), inputs=[data])
    dataset = load_dataset(
        data, class_list=class_list, raise_on_corrupt=raise_on_corrupt, follow_symlinks=follow_symlinks
    )
    images = dataset["train"].images
    index = draw_permutation(len(images), seed)[:instances]
    originals = [images[int(i)] for i in index]
    options: dict[str, Any] = {
        "image_size": image_size,
        "crop_scale": crop_scale,
        "jitter_strength": jitter_strength,
        "blur_prob": blur_prob,
    }
    options = {name: value for name, value in options.items() if value is not None}
    config = ImageTask.resolve_config(dataclasses.replace(get_default_recipe(data), **options), dataset)
    transform = build_transform(config)
    same_size = len({image.shape for image in originals}) == 1
    batch = torch.stack(originals) if same_size else originals
    augmented = transform(batch, views=views, seed=seed, epoch=epoch, index=index)
    save_png(draw_contact_sheet([[image, *row] for image, row in zip(originals, augmented, strict=True)]), output)
    size = f"{transform.size} x {transform.size}"
    print_lines(f"{output}: {len(originals)} instances of {data}, each with {views} views of {size}")
