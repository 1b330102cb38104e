"""`manyviews inspect`: print the content of a dataset and possible problems."""

from __future__ import annotations

import warnings

import manyviews as mv
from manyviews.cli.common import DataArg, OptionalPath, print_lines, show_table


def inspect_command(
    data: DataArg, class_list: OptionalPath = None, raise_on_corrupt: bool = False, follow_symlinks: bool = False
) -> None:
    """Print the splits, modalities, shapes, lengths, labels and missing entries of a dataset, and possible problems.

    Args:
        data: Dataset: photos, digits, cifar10, cifar100, an image folder, or a .npz, .npy, .pkl or .mat file.
        class_list: Text file with the names of the classes (subfolders) to use, one per line.
        raise_on_corrupt: Stop with an error at a corrupt image instead of skipping it with a warning.
        follow_symlinks: Follow symbolic links that lead out of the image folder.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mv.data.DatasetWarning)  # shown below
        dataset = mv.load_dataset(
            data, class_list=class_list, raise_on_corrupt=raise_on_corrupt, follow_symlinks=follow_symlinks
        )
    print_lines(dataset.name, *([f"splits: {dataset.split_rule}"] if dataset.split_rule else []))
    rows = []
    for name, split in dataset.splits.items():
        first = f"{name}: {len(split):,}"
        for modality, column in split.modalities.items():
            missing = "" if column.mask is None else f"{int((~column.mask).sum()):,} instances"
            rows.append((first, modality, column.describe(), column.describe_lengths(), missing))
            first = ""
        rows.append(("", "labels", _describe_labels(split, dataset.class_names), "", ""))
    show_table(("split", "modality", "kind", "steps", "missing"), rows)
    problems = mv.data.find_problems(dataset)
    print_lines(*(["warnings:", *(f"  {line}" for line in problems)] if problems else ["no problems found"]))


def _describe_labels(split: mv.Dataset, class_names: tuple[str, ...]) -> str:
    if split.labels is None:
        return "none"
    if split.labels.is_floating_point():
        return f"{split.labels.min():.4g} to {split.labels.max():.4g}, mean {split.labels.mean():.4g}"
    counts = split.labels.bincount(minlength=len(class_names))
    return f"{len(class_names)} classes of {int(counts.min()):,} to {int(counts.max()):,}"
