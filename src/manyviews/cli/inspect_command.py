"""`manyviews inspect`: print the content of a dataset and possible problems."""

from __future__ import annotations

import warnings
from typing import Annotated

import manyviews as mv
from manyviews.cli.common import DataArg, OptionalPath, OptionalText, Unset, print_lines, show_table


def inspect_command(
    data: DataArg,
    class_list: OptionalPath = None,
    raise_on_corrupt: bool = False,
    follow_symlinks: bool = False,
    kinds: Annotated[tuple[str, ...], Unset] = (),
    id_column: OptionalText = None,
    split_column: OptionalText = None,
    label_column: OptionalText = None,
) -> None:
    """Print the splits, modalities, kinds, shapes, lengths, labels and missing entries of a dataset, and problems.

    Args:
        data: Dataset: photos, digits, cifar10, cifar100, hf:NAME_OR_FOLDER, an image folder, a table (.csv, .tsv,
            .jsonl, .parquet), tar shards such as 'shards/{000..099}.tar', or a .npz, .npy, .pkl or .mat file.
        class_list: Text file with the names of the classes (subfolders) to use, one per line.
        raise_on_corrupt: Stop with an error at a corrupt image instead of skipping it with a warning.
        follow_symlinks: Follow symbolic links, and paths in a table, that lead out of the folder of the data.
        kinds: Kinds of a table's columns that are recognized wrongly: COLUMN=KIND, with image, text, sequence, vector
            or skip.
        id_column: Column of a table with the ids of its rows. Default: id.
        split_column: Column of a table with the split of each row. Default: split.
        label_column: Column of a table with the labels. Default: label, class, target or group.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mv.data.DatasetWarning)  # shown below
        dataset = mv.load_dataset(
            data,
            class_list=class_list,
            raise_on_corrupt=raise_on_corrupt,
            follow_symlinks=follow_symlinks,
            kinds=kinds,
            id_column=id_column,
            split_column=split_column,
            label_column=label_column,
        )
    print_lines(dataset.name, *([f"splits: {dataset.split_rule}"] if dataset.split_rule else []))
    rows = []
    for name, split in dataset.splits.items():
        first = f"{name}: {len(split):,}"
        for modality, column in split.modalities.items():
            num_missing = int((~column.get_mask()).sum())
            missing = f"{num_missing:,} instances" if num_missing else ""
            rows.append((first, modality, column.kind, column.describe(), column.describe_lengths(), missing))
            first = ""
        rows.append(("", "labels", "", _describe_labels(split, dataset.class_names), "", ""))
    show_table(("split", "modality", "kind", "values", "steps", "missing"), rows)
    problems = mv.data.find_problems(dataset)
    print_lines(*(["warnings:", *(f"  {line}" for line in problems)] if problems else ["no problems found"]))


def _describe_labels(split: mv.Dataset, class_names: tuple[str, ...]) -> str:
    if split.labels is None:
        return "none"
    if split.labels.is_floating_point():
        return f"{split.labels.min():.4g} to {split.labels.max():.4g}, mean {split.labels.mean():.4g}"
    counts = split.labels.bincount(minlength=len(class_names))
    return f"{len(class_names)} classes of {int(counts.min()):,} to {int(counts.max()):,}"
