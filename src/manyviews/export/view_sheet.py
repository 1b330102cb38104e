"""A sheet of instances and their views, as the model sees them in training."""

from PIL import Image

from manyviews.export.contact_sheet import draw_contact_sheet
from manyviews.training import Config, TrainingTask, load_data, resolve_task
from manyviews.utils import draw_permutation


def draw_views(config: Config | TrainingTask, instances: int = 8, epoch: int = 0) -> Image.Image:
    """Draw a random sample of training instances, one in a row, and their views in an epoch.

    The views are those that `mv.train(config)` trains on. The sample depends on the seed of the config.

    Raises:
        ConfigError: config and data are incompatible.

    Examples:
        >>> draw_views(Config(data="photos", views=3), instances=2).size
        (408, 204)
    """
    if instances < 1:
        raise ValueError(f"instances must be >= 1, got {instances}")
    task = config if isinstance(config, TrainingTask) else resolve_task(config, load_data(config), ranks=1)
    index = draw_permutation(len(task.split), task.config.seed)[:instances]
    views = task.make_loader(num_workers=0).show(index, epoch)
    rows = [[task.split.get_image(i), *row] for i, row in zip(index.tolist(), views, strict=True)]
    captions = [["", *task.spec.view_names]] * len(rows) if len(task.spec.modalities) > 1 else None
    return draw_contact_sheet(rows, captions)
