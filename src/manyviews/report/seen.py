"""Some instances of a run's test set, represented: what the map and the neighbours are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import Dataset, DatasetError, ImageFiles, Split
from manyviews.data.dataset import IMAGE
from manyviews.evaluation.knn import check_finite
from manyviews.evaluation.modalities import represented
from manyviews.evaluation.progress import tracked
from manyviews.evaluation.represent import representations
from manyviews.models.saved import read_encoder, read_modality_encoder
from manyviews.training import EvaluationConfig, Run
from manyviews.training.scores import Part, tested_split
from manyviews.training.setup import threads
from manyviews.views import ModalityBatches
from manyviews.views.keyed import permutation

BINS = 5
"""Of quantities, each with a colour."""


@dataclass(frozen=True)
class Labelled:
    """Instances by their labels, as a person reads them."""

    groups: list[int]
    """Which name each instance has."""
    names: list[str]
    texts: list[str]
    """What is said of each instance."""
    quantities: bool = False


@dataclass(frozen=True)
class Seen:
    """Instances `index` (n,) of a split and their unit representations h (n, d)."""

    data: Dataset
    split: str
    index: Tensor
    h: Tensor
    labels: Labelled
    ids: list[str]

    @property
    def pictures(self) -> list[Tensor] | None:
        """Of the instances, where there are images at all."""
        images = self.data[self.split].modalities.get(IMAGE)
        if images is None:
            return None
        numbers = tracked(self.index.tolist(), "thumbnails", len(self.index))
        return [image_of(images, number) for number in numbers]


def see(run: Run, data: Dataset, count: int, workers: int, device: torch.device) -> Seen:
    """Encode up to `count` instances of what the run is tested on: the same for all runs of the same data.

    Raises:
        ValueError: the run is not finished, or its encoder and the data do not go together.
    """
    name = tested_split(data, EvaluationConfig())
    split = data[name]
    part = Part.of(data, name)
    index = part.index[permutation(len(part.index), 0)[:count]].sort().values
    with threads(dataclasses.replace(run.config, devices=1), data):
        if run.config.policy == "modalities":
            fused = read_modality_encoder(run.encoder_file).to(device)
            h = fused.fused(*represented(fused, ModalityBatches(split, fused.names), index))
        else:
            encoder, about = read_encoder(run.encoder_file)
            h, index = representations(encoder.to(device), split.images, index, about.size, workers)
    check_finite("representations", h)
    return Seen(
        data, name, index, normalize(h, dim=1).cpu(), labelled(data, split, index), ids(run, name, split, index)
    )


def labelled(data: Dataset, split: Split, index: Tensor) -> Labelled:
    """The classes of instances by name; quantities in bins of the same width."""
    if split.labels is None:
        return Labelled([0] * len(index), ["not labelled"], [""] * len(index))
    labels = split.labels[index]
    if split.classes is not None:
        known = sorted(set(labels.tolist()))
        names = [class_name(data, label) for label in known]
        groups = [known.index(label) for label in labels.tolist()]
        return Labelled(groups, names, [names[group] for group in groups])
    low, high = labels.min().item(), labels.max().item()
    edges = torch.linspace(low, high, BINS + 1)
    groups = torch.bucketize(labels.float(), edges[1:-1]).tolist()
    names = [f"{a:.3g} to {b:.3g}" for a, b in zip(edges.tolist(), edges[1:].tolist(), strict=False)]
    return Labelled(groups, names, [f"{label:.3g}" for label in labels.tolist()], quantities=True)


def class_name(data: Dataset, label: int) -> str:
    return data.classes[label] if 0 <= label < len(data.classes) else str(label)


def ids(run: Run, name: str, split: Split, index: Tensor) -> list[str]:
    """The instances' own ids, the path below the folder, or SPLIT/NUMBER."""
    if split.ids:
        return [split.ids[number] for number in index.tolist()]
    images = split.modalities.get(IMAGE)
    if isinstance(images, ImageFiles):
        return [_below(images.paths[number], Path(run.config.data)) for number in index.tolist()]
    return [f"{name}/{number}" for number in index.tolist()]


def image_of(images: Tensor | ImageFiles | Sequence[Tensor], number: int) -> Tensor:
    """An image (C, H, W); grey where a file has broken since."""
    try:
        return images[number]
    except DatasetError:
        return torch.full((3, 8, 8), 128, dtype=torch.uint8)


def _below(path: Path, folder: Path) -> str:
    place = folder.expanduser().resolve()
    return str(path.relative_to(place)) if path.is_relative_to(place) else path.name
