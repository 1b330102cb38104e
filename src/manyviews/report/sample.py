"""Encode a sample of the test set for the map and the nearest-neighbor grid."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import Dataset, DatasetDict
from manyviews.evaluation import EvaluationConfig, choose_test_split
from manyviews.runs import Run
from manyviews.utils import check_finite, draw_permutation, track

GRAY = torch.full((3, 8, 8), 128, dtype=torch.uint8)
NUM_BINS = 5
"""Bins of regression targets, each with a color."""


@dataclass(frozen=True)
class LabelGroups:
    """Instances grouped by label."""

    groups: list[int]
    """Index into `names` for each instance."""
    names: list[str]
    texts: list[str]
    """The label of each instance as text."""
    is_binned: bool = False
    """Whether groups are bins of regression targets."""


@dataclass(frozen=True)
class EncodedSample:
    """Instances `index` (n,) of a split and their unit representations h (n, d)."""

    data: DatasetDict
    split: str
    index: Tensor
    h: Tensor
    labels: LabelGroups
    ids: list[str]

    def load_images(self) -> list[Tensor] | None:
        """Load an image of each instance, gray where there is none; None if they have no images."""
        split = self.data[self.split]
        images = [split.get_image(i) for i in track(self.index.tolist(), "thumbnails", len(self.index))]
        if all(image is None for image in images):
            return None
        return [GRAY if image is None else image for image in images]


def encode_sample(run: Run, data: DatasetDict, count: int, num_workers: int, device: torch.device) -> EncodedSample:
    """Encode up to `count` test instances: the same ones for all runs on the same data.

    Raises:
        ValueError: the run is not finished, or its encoder does not fit the data.
    """
    name = choose_test_split(data, EvaluationConfig())
    split = data[name]
    index = draw_permutation(len(split), 0)[:count].sort().values
    with run.limit_cpu_threads(data):
        h, index = run.encode(split, index, device, num_workers)
    check_finite("representations", h)
    ids, groups = list_instance_ids(run, name, split, index), group_labels(data, split, index)
    return EncodedSample(data, name, index, normalize(h, dim=1).cpu(), groups, ids)


def group_labels(data: DatasetDict, split: Dataset, index: Tensor) -> LabelGroups:
    """Group instances by class, or regression targets into bins of equal width."""
    if split.labels is None:
        return LabelGroups([0] * len(index), ["unlabeled"], [""] * len(index))
    labels = split.labels[index]
    if split.class_labels is not None:
        classes = sorted(set(labels.tolist()))
        names = [data.class_names[c] if 0 <= c < len(data.class_names) else str(c) for c in classes]
        groups = [classes.index(label) for label in labels.tolist()]
        return LabelGroups(groups, names, [names[group] for group in groups])
    low, high = labels.min().item(), labels.max().item()
    edges = torch.linspace(low, high, NUM_BINS + 1)
    groups = torch.bucketize(labels.float(), edges[1:-1]).tolist()
    names = [f"{a:.3g} to {b:.3g}" for a, b in zip(edges.tolist(), edges[1:].tolist(), strict=False)]
    return LabelGroups(groups, names, [f"{label:.3g}" for label in labels.tolist()], is_binned=True)


def list_instance_ids(run: Run, name: str, split: Dataset, index: Tensor) -> list[str]:
    """List the ids of instances: their own, paths relative to the folder, or SPLIT/INDEX."""
    if split.ids or not split.paths:
        return [split.ids[i] if split.ids else f"{name}/{i}" for i in index.tolist()]
    root, paths = Path(run.config.data).expanduser().resolve(), [split.paths[i] for i in index.tolist()]
    return [str(path.relative_to(root)) if path.is_relative_to(root) else path.name for path in paths]
