"""Image grids: instances with their views, and queries with their nearest neighbors."""

from dataclasses import dataclass

import torch
from markupsafe import Markup
from torch import Tensor

from manyviews.data import Dataset, DatasetDict, Features
from manyviews.models import Standardize
from manyviews.report.sample import EncodedSample, get_images, group_labels, list_instance_ids, read_image_or_gray
from manyviews.report.thumbnails import draw_modality, make_img_tag
from manyviews.runs import Run
from manyviews.training import ImageTask, MultimodalTask
from manyviews.utils import draw_permutation

NUM_ROWS = 6
MAX_VIEWS = 8
NUM_NEIGHBORS = 7


@dataclass(frozen=True)
class GridCell:
    """An image, or None, and its caption."""

    image: Markup | None
    caption: str
    subcaption: str = ""
    is_other_class: bool = False
    """A neighbor whose class is not the query's."""


@dataclass(frozen=True)
class ImageGrid:
    """Rows of cells; the first cell of a row is set apart."""

    rows: list[list[GridCell]]
    caption: str


def make_view_grid(run: Run, data: DatasetDict) -> ImageGrid:
    """Show some training instances and their views in the first epoch."""
    task = run.make_task(data)
    return _make_modality_grid(run, task) if isinstance(task, MultimodalTask) else _make_crop_grid(run, task)


def _make_crop_grid(run: Run, task: ImageTask) -> ImageGrid:
    config, split = run.config, task.split
    index = task.train_indices[draw_permutation(len(task.train_indices), 0)[:NUM_ROWS]].sort().values
    images = [read_image_or_gray(split.images, i) for i in index.tolist()]
    count = min(config.views, MAX_VIEWS)
    batch = torch.stack(images) if len({image.shape for image in images}) == 1 else images
    views = task.transform(batch, views=count, seed=config.seed, epoch=0, index=index)
    labels, names = group_labels(task.data, split, index).texts, list_instance_ids(run, "train", split, index)
    rows = []
    for image, image_views, label, name in zip(images, views, labels, names, strict=True):
        row = [GridCell(make_img_tag(image, _make_alt_text("training instance", name, label)), label or name)]
        for i, view in enumerate(image_views, start=1):
            row.append(GridCell(make_img_tag(view, f"view {i} of {name}"), f"view {i}"))
        rows.append(row)
    subset = f" (the first {count} of {config.views})" if count < config.views else ""
    return ImageGrid(rows, f"Training instances and their views{subset} in the first epoch.")


def _make_modality_grid(run: Run, task: MultimodalTask) -> ImageGrid:
    split, modalities = task.split, run.config.modalities
    index = draw_permutation(len(split), 0)[:NUM_ROWS].sort().values
    labels, names = group_labels(task.data, split, index).texts, list_instance_ids(run, "train", split, index)
    images, masks = get_images(split), split.get_mask(modalities)[index].tolist()
    rows = []
    for i, label, name, mask in zip(index.tolist(), labels, names, masks, strict=True):
        alt = _make_alt_text("training instance", name, label)
        image = None if images is None else make_img_tag(read_image_or_gray(images, i), alt)
        row = [GridCell(image, label or name, name if label else "")]
        for modality, exists in zip(modalities, mask, strict=True):
            features = _standardize_features(split, modality, i) if exists else None
            tag = None if features is None else draw_modality(features, f"{modality} of {name}")
            row.append(GridCell(tag, modality, "" if exists else "missing"))
        rows.append(row)
    return ImageGrid(
        rows,
        "Training instances and the modalities that are their views. A line is a vector; a gray image is a sequence, "
        "with its steps from left to right. Features are standardized.",
    )


def _standardize_features(split: Dataset, modality: str, i: int) -> Tensor:
    """Return one instance's features without padding, standardized unless they are an image."""
    column = split[modality]
    if isinstance(column, Features):
        return Standardize(column.dim).fit(column.collect_valid())(column.get_item(i))
    return column.load(torch.tensor([i]))[0][0]


def make_neighbor_grid(sample: EncodedSample) -> ImageGrid | None:
    """Show queries from as many classes as possible with their nearest neighbors; None for a single instance."""
    count = min(NUM_NEIGHBORS, len(sample.index) - 1)
    if count < 1:
        return None
    cosine = sample.h @ sample.h.T
    cosine.fill_diagonal_(-torch.inf)
    correct, total = 0, 0
    has_classes = len(sample.labels.names) > 1 and not sample.labels.is_binned
    rows = []
    for query in _pick_queries(sample):
        nearest = cosine[query].topk(count)
        row = [_make_cell(sample, query, "query")]
        for i, value in zip(nearest.indices.tolist(), nearest.values.tolist(), strict=True):
            is_other = has_classes and sample.labels.groups[i] != sample.labels.groups[query]
            correct, total = correct + (not is_other), total + 1
            row.append(_make_cell(sample, i, "neighbor", f"{value:.3f}", is_other))
        rows.append(row)
    caption = f"The nearest of {len(sample.index):,} {sample.split} instances by cosine similarity of representations."
    if has_classes:
        caption += f" {correct} of {total} have the query's class; the others have a dashed frame."
    return ImageGrid(rows, caption)


def _pick_queries(sample: EncodedSample) -> list[int]:
    """Return indices of one instance per class, spread over the classes, then of other instances."""
    groups = torch.tensor(sample.labels.groups)
    order = draw_permutation(len(groups), 1).tolist()
    first_of_class = {int(groups[i]): i for i in reversed(order)}
    by_class = [first_of_class[group] for group in sorted(first_of_class)]
    stride = max(1, len(by_class) / NUM_ROWS)
    chosen = [by_class[int(k * stride)] for k in range(min(NUM_ROWS, len(by_class)))]
    return [*chosen, *(i for i in order if i not in chosen)][: min(NUM_ROWS, len(groups))]


def _make_cell(sample: EncodedSample, i: int, role: str, cosine: str = "", is_other_class: bool = False) -> GridCell:
    name, label = sample.ids[i], sample.labels.texts[i]
    images = get_images(sample.data[sample.split])
    if images is None:
        return GridCell(None, label or name, f"{name}, {cosine or role}" if label else cosine or role, is_other_class)
    image = make_img_tag(read_image_or_gray(images, int(sample.index[i])), _make_alt_text(role, name, label))
    return GridCell(image, label or name, cosine or role, is_other_class)


def _make_alt_text(role: str, name: str, label: str) -> str:
    return f"{role} {name}" + (f", {label}" if label else "")
