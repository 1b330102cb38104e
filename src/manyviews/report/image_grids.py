"""Image grids: instances with their views, and queries with their nearest neighbors."""

from dataclasses import dataclass

import torch
from markupsafe import Markup
from torch import Tensor

from manyviews.data import DatasetDict
from manyviews.report.sample import EncodedSample, group_labels, list_instance_ids
from manyviews.report.thumbnails import draw_modality, make_img_tag
from manyviews.runs import Run
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
    index = task.train_indices[draw_permutation(len(task.train_indices), 0)[:NUM_ROWS]].sort().values
    labels, names = group_labels(data, task.split, index).texts, list_instance_ids(run, "train", task.split, index)
    view_names = task.spec.view_names[:MAX_VIEWS]
    rows = []
    for i, views, label, name in zip(
        index.tolist(), task.make_loader(num_workers=0).show(index, epoch=0), labels, names, strict=True
    ):
        alt = _make_alt_text("training instance", name, label)
        image = task.split.get_image(i)
        row = [GridCell(None if image is None else make_img_tag(image, alt), label or name, name if label else "")]
        row += [
            _make_view_cell(view, view_name, name)
            for view, view_name in zip(views[:MAX_VIEWS], view_names, strict=True)
        ]
        rows.append(row)
    subset = f" (the first {MAX_VIEWS} of {task.spec.num_views})" if task.spec.num_views > MAX_VIEWS else ""
    caption = f"Training instances and their views{subset} in the first epoch."
    legends = dict.fromkeys(data["train"][modality].legend for modality in task.spec.modalities)
    return ImageGrid(rows, " ".join([caption, *filter(None, legends)]))


def _make_view_cell(view: Tensor | str | None, view_name: str, name: str) -> GridCell:
    if view is None:
        return GridCell(None, view_name, "missing")
    # By kind: a text is a caption, and everything else is drawn.
    if isinstance(view, str):
        return GridCell(None, view, view_name)
    return GridCell(draw_modality(view, f"{view_name} of {name}"), view_name)


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
    split, instance = sample.data[sample.split], int(sample.index[i])
    image, text = split.get_image(instance), split.get_text(instance)
    if image is None:
        details = [name] if label else []
        return GridCell(None, text or label or name, ", ".join([*details, cosine or role]), is_other_class)
    tag = make_img_tag(image, _make_alt_text(role, name, label))
    return GridCell(tag, label or name, cosine or role, is_other_class)


def _make_alt_text(role: str, name: str, label: str) -> str:
    return f"{role} {name}" + (f", {label}" if label else "")
