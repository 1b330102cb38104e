"""`manyviews data`."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

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
    from rich.console import Console
    from rich.table import Table

    from manyviews.data import DatasetWarning, load_dataset, suspicious

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatasetWarning)  # shown below
        found = load_dataset(data, classes=classes, strict=strict, follow_links=follow_links)
    print(found.name)
    table = Table()
    for title in ("split", "modality", "kind", "steps", "missing"):
        table.add_column(title)
    for split, part in found.splits.items():
        for number, name in enumerate(part.modalities):
            first = f"{split}: {len(part):,}" if not number else ""
            table.add_row(first, name, _kind(part, name), _steps(part, name), _missing(part, name))
        table.add_row("", "labels", _labels(part, found.classes), "", "", end_section=True)
    Console().print(table, markup=False)
    lines = suspicious(found)
    print("\n".join(["looks odd:", *(f"  {line}" for line in lines)]) if lines else "nothing looks odd")


def _kind(part: "Split", name: str) -> str:
    shape = getattr(part.modalities[name], "shape", None)
    if shape is None:
        return "images on disk"
    sizes = " x ".join(map(str, shape[1:]))
    return {2: f"vectors of {sizes}", 3: f"sequences of {sizes}", 4: f"images of {sizes}"}[len(shape)]


def _steps(part: "Split", name: str) -> str:
    if name not in part.lengths:
        return ""
    lengths = part.lengths[name].float()
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
