"""Contact sheets: instances and their views, and instances with their nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from markupsafe import Markup
from torch import Tensor

from manyviews.data import Dataset, Split
from manyviews.data.dataset import IMAGE
from manyviews.models import Standardise
from manyviews.models.modalities import known_steps
from manyviews.report.pictures import drawn, shown
from manyviews.report.seen import Seen, class_name, ids, image_of
from manyviews.training import ConfigError, Run
from manyviews.training.images import policy_of
from manyviews.training.modalities import learned_from
from manyviews.training.source import apart
from manyviews.views import ModalityBatches
from manyviews.views.keyed import permutation

ROWS = 6
MOST_VIEWS = 8
NEIGHBOURS = 7


@dataclass(frozen=True)
class Item:
    """A picture and what is written below it; without one, the writing alone."""

    picture: Markup | None
    text: str
    small: str = ""
    wrong: bool = False
    """Of another class than it should be."""


@dataclass(frozen=True)
class Sheet:
    """Rows of items; the first of a row stands apart."""

    rows: list[list[Item]]
    note: str


def view_sheet(run: Run, data: Dataset) -> Sheet:
    """Some training instances and what the model saw of them in the first epoch."""
    if run.config.policy == "modalities":
        return _modality_sheet(run, data)
    config, split = run.config, data["train"]
    if None in (config.size, config.strength, config.blur, config.held_out):
        raise ConfigError("its config.yaml leaves open how views are drawn, which that of a run never does")
    trained = apart(len(split), config.seed, config.held_out)[0]
    index = trained[permutation(len(trained), 0)[:ROWS]].sort().values
    images = [image_of(split.images, number) for number in index.tolist()]
    count = min(config.views, MOST_VIEWS)
    same = len({image.shape for image in images}) == 1
    views = policy_of(config)(
        torch.stack(images) if same else images, views=count, seed=config.seed, epoch=0, index=index
    )
    rows = []
    for image, own, text, name in zip(
        images, views, _texts(data, split, index), ids(run, "train", split, index), strict=True
    ):
        first = Item(shown(image, _alt("training instance", name, text)), text or name)
        rest = [Item(shown(view, f"view {place + 1} of {name}"), f"view {place + 1}") for place, view in enumerate(own)]
        rows.append([first, *rest])
    some = f" (the first {count} of {config.views})" if count < config.views else ""
    return Sheet(rows, f"Training instances, and their views{some} as the model saw them in its first epoch.")


def _modality_sheet(run: Run, data: Dataset) -> Sheet:
    config, split = run.config, learned_from(data, run.config)
    index = permutation(len(split), 0)[:ROWS].sort().values
    names, images = ids(run, "train", split, index), split.modalities.get(IMAGE)
    there = ModalityBatches(split, config.modalities).present(index)
    rows = []
    texts = _texts(data, split, index)
    for place, number in enumerate(index.tolist()):
        text, name = texts[place], names[place]
        picture = None if images is None else shown(image_of(images, number), _alt("training instance", name, text))
        row = [Item(picture, text or name, name if text else "")]
        for modality, present in zip(config.modalities, there[place].tolist(), strict=True):
            made = drawn(_standard(split, modality, number), f"{modality} of {name}") if present else None
            row.append(Item(made, modality, "" if present else "missing"))
        rows.append(row)
    return Sheet(
        rows,
        "Training instances, and the modalities that are their views. A line is a vector, feature by feature; a grey "
        "field a sequence, its steps across. Features are standardised.",
    )


def _standard(split: Split, modality: str, number: int) -> Tensor:
    """One instance's rows, less the padding; features that are no image standardised."""
    rows = split.modalities[modality]
    assert isinstance(rows, Tensor)
    row = rows[number]
    if row.dim() == 3:
        return row
    if row.dim() == 2 and modality in split.lengths:
        row = row[: max(1, int(split.lengths[modality][number]))]
    return Standardise(row.shape[-1]).fit(known_steps(split, modality))(row)


def neighbour_sheet(seen: Seen) -> Sheet | None:
    """Some of the instances, of as many classes as can be, each with those nearest to it."""
    count = min(NEIGHBOURS, len(seen.index) - 1)
    if count < 1:
        return None
    cosine = seen.h @ seen.h.T
    cosine.fill_diagonal_(-torch.inf)
    queries, right, told = _queries(seen), 0, 0
    judged = len(seen.labels.names) > 1 and not seen.labels.quantities
    rows = []
    for query in queries:
        near = cosine[query].topk(count)
        row = [_item(seen, query, "query")]
        for place, value in zip(near.indices.tolist(), near.values.tolist(), strict=True):
            wrong = judged and seen.labels.groups[place] != seen.labels.groups[query]
            right, told = right + (not wrong), told + 1
            row.append(_item(seen, place, "neighbour", f"{value:.3f}", wrong))
        rows.append(row)
    note = f"The nearest of {len(seen.index):,} {seen.split} instances, by cosine (the number) of representations."
    if judged:
        note += f" {right} of {told} are of the query's class; the others are framed with dashes."
    return Sheet(rows, note)


def _queries(seen: Seen) -> list[int]:
    """Places of the first instances of classes, spread over all of them; then others."""
    groups = torch.tensor(seen.labels.groups)
    order = permutation(len(groups), 1).tolist()
    firsts = list({int(groups[place]): place for place in reversed(order)}.items())
    by_class = [place for _, place in sorted(firsts)]
    each = max(1, len(by_class) / ROWS)
    chosen = [by_class[int(number * each)] for number in range(min(ROWS, len(by_class)))]
    return [*chosen, *(place for place in order if place not in chosen)][: min(ROWS, len(groups))]


def _item(seen: Seen, place: int, role: str, cosine: str = "", wrong: bool = False) -> Item:
    name, text = seen.ids[place], seen.labels.texts[place]
    images = seen.data[seen.split].modalities.get(IMAGE)
    picture = None
    if images is not None:
        picture = shown(image_of(images, int(seen.index[place])), _alt(role, name, text))
    small = cosine or role
    if picture is None and text:
        small = f"{name}, {small}"
    return Item(picture, text or name, small, wrong)


def _texts(data: Dataset, split: Split, index: Tensor) -> list[str]:
    if split.labels is None:
        return [""] * len(index)
    labels = split.labels[index].tolist()
    return [class_name(data, label) if split.classes is not None else f"{label:.3g}" for label in labels]


def _alt(what: str, name: str, text: str) -> str:
    return f"{what} {name}" + (f", {text}" if text else "")
