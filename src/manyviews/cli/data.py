"""`manyviews data`."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from manyviews.cli.console import print_lines, show_table

if TYPE_CHECKING:
    from manyviews.data import Split


def show_data(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    classes: Path | None = None,
    strict: bool = False,
    follow_links: bool = False,
) -> None:
    """Show what data holds: splits, modalities, shapes, lengths, labels, what is missing, and what looks wrong.

    Args:
        data: photos, digits, cifar10, cifar100, or a path: a folder of images, a .npz, .npy, .pkl or .mat file.
        classes: a text file that names the classes (subfolders) to take, one a line.
        strict: a broken image is an error, instead of being named and left out.
        follow_links: take images behind links that lead out of the folder.
    """
    from manyviews.data import DatasetWarning, load_dataset, suspicious

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatasetWarning)  # shown below
        found = load_dataset(data, classes=classes, strict=strict, follow_links=follow_links)
    print_lines(found.name, *([f"splits: {found.split_rule}"] if found.split_rule else []))
    rows = []
    for split, part in found.splits.items():
        for number, name in enumerate(part.modalities):
            first = f"{split}: {len(part):,}" if not number else ""
            rows.append((first, name, _kind(part, name), _steps(part, name), _missing(part, name)))
        rows.append(("", "labels", _labels(part, found.classes), "", ""))
    show_table(("split", "modality", "kind", "steps", "missing"), rows)
    lines = suspicious(found)
    print_lines(*(["looks odd:", *(f"  {line}" for line in lines)] if lines else ["nothing looks odd"]))


def _kind(part: "Split", name: str) -> str:
    from manyviews.data.doubts import measure_images

    shape = getattr(part.modalities[name], "shape", None)
    if shape is None:
        sizes = sorted(measure_images(part.modalities[name]), key=lambda size: size[0] * size[1])
        smallest, largest = (" x ".join(map(str, size)) for size in (sizes[0], sizes[-1]))
        return f"images on disk of {smallest}" + (f" to {largest}" if smallest != largest else "")
    shown = " x ".join(map(str, shape[1:]))
    return {2: f"vectors of {shown}", 3: f"sequences of {shown}", 4: f"images of {shown}"}[len(shape)]


def _steps(part: "Split", name: str) -> str:
    if name not in part.lengths:
        return ""
    lengths = part.lengths[name][part.present[name]] if name in part.present else part.lengths[name]
    if not len(lengths):
        return ""
    return f"{int(lengths.min())} to {int(lengths.max())}, median {int(lengths.median())}"


def _missing(part: "Split", name: str) -> str:
    return f"{int((~part.present[name]).sum()):,} instances" if name in part.present else ""


def _labels(part: "Split", classes: tuple[str, ...]) -> str:
    if part.labels is None:
        return "none"
    if part.labels.is_floating_point():
        return f"{part.labels.min():.4g} to {part.labels.max():.4g}, on average {part.labels.mean():.4g}"
    counts = part.labels.bincount(minlength=len(classes))
    return f"{len(classes)} classes of {int(counts.min()):,} to {int(counts.max()):,}"
