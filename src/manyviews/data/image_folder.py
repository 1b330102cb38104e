"""Load a folder of images: splits, classes and labels from its subfolders."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from manyviews.data.dataset import IMAGE_MODALITY, SPLIT_ALIASES, Dataset, DatasetDict, get_canonical_split
from manyviews.data.errors import DatasetError, DatasetWarning
from manyviews.data.image_files import IMAGE_EXTENSIONS, CorruptImageError, LazyImages, check_image_header, read_image
from manyviews.utils import read_text

MAX_IN_MEMORY_BYTES = 2**30
"""Images of one size are held as one tensor up to this many bytes."""
T = TypeVar("T")


def load_image_folder(
    root: Path, class_list: Path | None = None, raise_on_corrupt: bool = False, follow_symlinks: bool = False
) -> DatasetDict:
    """Load a folder of images, flat or with a subfolder for each class; either may be inside train, val and test.

    Corrupt files are skipped with a warning, or raise with `raise_on_corrupt`. `class_list` is a text file with one
    class (subfolder) per line. Links out of the folder are skipped unless `follow_symlinks`.
    """
    listed = _read_class_list(class_list) if class_list else None
    folders = _find_split_folders(root)
    skipped: list[str] = []
    names: tuple[str, ...] = ()
    splits: dict[str, Dataset] = {}
    for split, folder in folders.items():
        scanner = _FolderScanner(folder, root, raise_on_corrupt, follow_symlinks, skipped)
        classes = scanner.find_classes(listed)
        if split == "train":
            names = classes
        elif classes and classes != names:
            different = ", ".join(sorted(set(classes) ^ set(names))[:5])
            raise DatasetError(f"{folder} and {folders['train']} have different classes: {different}")
        splits[split] = scanner.build_split(classes)
    if skipped:
        lines = "; ".join([*skipped[:10], "..."] if len(skipped) > 10 else skipped)
        message = f"skipped {len(skipped)} {'file' if len(skipped) == 1 else 'files'} of {root}: {lines}"
        warnings.warn(message, DatasetWarning, stacklevel=3)
    return DatasetDict(root.resolve().name, splits, names, tuple(skipped))


def _list_folders(root: Path) -> list[Path]:
    return [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not folder.name.startswith(".")]


def _find_split_folders(root: Path) -> dict[str, Path]:
    """Find the folder of each split; without a training folder, the root is the training split."""
    candidates: dict[str | None, list[Path]] = {"train": []}
    for folder in _list_folders(root):
        candidates.setdefault(get_canonical_split(folder.name), []).append(folder)
    if not candidates["train"]:
        return {"train": root}
    if unknown := candidates.pop(None, []):
        names = ", ".join(folder.name for folder in unknown[:5])
        raise DatasetError(
            f"{root} has {candidates['train'][0].name} and also {names}, which is not a split "
            f"({', '.join(SPLIT_ALIASES)}): rename or move it or, if these are classes, move all of them into "
            f"{root / 'train'}"
        )
    for split, matches in candidates.items():
        if len(matches) > 1:
            raise DatasetError(f"{matches[0]} and {matches[1]} are both the {split} split: keep one")
    return {str(split): folder for split, (folder,) in candidates.items()}


def _read_class_list(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in read_text(file).removeprefix("\ufeff").splitlines()]
    except (OSError, ValueError) as error:
        raise DatasetError(f"cannot read the class list {file}: {error}") from error
    listed = [line for line in lines if line and not line.startswith("#")]
    if not listed:
        raise DatasetError(f"the class list {file} is empty")
    return listed


@dataclass
class _FolderScanner:
    """Finds the classes and images of one folder, and collects the reasons for files that are skipped."""

    folder: Path
    root: Path
    raise_on_corrupt: bool
    follow_symlinks: bool
    skipped: list[str]

    def find_classes(self, listed: list[str] | None) -> tuple[str, ...]:
        """Find the class folders; a class list selects them by its lines or by the first word of a line."""
        existing = [folder.name for folder in _list_folders(self.folder)]
        if listed is None:
            return tuple(existing)
        if not existing:
            raise DatasetError(f"a class list selects subfolders, but {self.folder} has none")
        selected = [line if line in existing else line.split()[0] for line in listed]
        if missing := [name for name in selected if name not in existing]:
            raise DatasetError(f"{self.folder} has no folder for {len(missing)} listed classes, such as {missing[0]}")
        if duplicates := [name for name in selected if selected.count(name) > 1]:
            raise DatasetError(f"the class list has {duplicates[0]} twice")
        return tuple(selected)

    def build_split(self, names: tuple[str, ...]) -> Dataset:
        if not names:
            return self.decode(self.list_images(self.folder), [], names)
        paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(names):
            before = len(self.skipped)
            class_paths = self.list_images(self.folder / name)
            if not class_paths:
                reason = f": {self.skipped[before]}" if len(self.skipped) > before else ""
                raise DatasetError(f"the class {name} has no image in {self.folder / name}{reason}")
            paths += class_paths
            labels += [label] * len(class_paths)
        for path in self.list_images(self.folder, recursive=False):
            self.skip(f"{path} is not in a class folder")
        return self.decode(paths, labels, names)

    def list_images(self, folder: Path, recursive: bool = True) -> list[Path]:
        return [Path(path) for path in walk_images(folder, self.skip, self.follow_symlinks, self.root, recursive)]

    def decode(self, paths: list[Path], labels: list[int], names: tuple[str, ...]) -> Dataset:
        """Skip files that are not images; hold the others in memory if they are few and of one size.

        Only headers are read unless all images have one size: a truncated image is then detected when it is needed.
        """
        if not paths:
            extensions = ", ".join(sorted(IMAGE_EXTENSIONS))
            reason = f": {len(self.skipped):,} skipped, first: {self.skipped[0]}" if self.skipped else ""
            hint = f"; for its tar shards, use '{self.folder}/*.tar'" if any(self.folder.glob("*.tar")) else ""
            raise DatasetError(f"{self.folder} has no images ({extensions}) and no folders of images{reason}{hint}")
        sizes = dict(self.try_each(enumerate(paths), check_image_header))
        pixels = [height * width for height, width in sizes.values()]
        one_size = len(set(sizes.values())) == 1 and 3 * sum(pixels) <= MAX_IN_MEMORY_BYTES
        decoded = dict(self.try_each(((i, paths[i]) for i in sizes), read_image)) if one_size else {}
        stackable = len({image.shape for image in decoded.values()}) == 1  # not if EXIF rotates some of them
        kept = list(decoded if one_size else sizes)
        if not kept:
            raise DatasetError(
                f"none of the {len(paths)} files in {self.folder} can be decoded, first: {self.skipped[0]}"
            )
        kept_labels = torch.tensor([labels[i] for i in kept]) if names else None
        if empty := set(labels).difference([] if kept_labels is None else kept_labels.tolist()):
            name = names[min(empty)]
            raise DatasetError(f"the class {name} has no readable image in {self.folder / name}")
        on_disk = LazyImages(tuple(paths[i] for i in kept), self.raise_on_corrupt)
        images = torch.stack(list(decoded.values())) if stackable else on_disk
        return Dataset({IMAGE_MODALITY: images}, kept_labels)

    def try_each(self, paths: Iterable[tuple[int, Path]], read: Callable[[Path], T]) -> Iterator[tuple[int, T]]:
        """Yield what is read from each file, and skip corrupt ones."""
        for i, path in paths:
            try:
                yield i, read(path)
            except CorruptImageError as error:  # noqa: PERF203 (each file may be corrupt)
                self.skip(str(error), error)

    def skip(self, reason: str, error: DatasetError | None = None) -> None:
        if self.raise_on_corrupt:
            raise error or DatasetError(reason)
        self.skipped.append(reason)


SkipCallback = Callable[[str], None]
"""Called with one line for each file that is skipped: its path and the reason."""


def walk_images(
    folder: Path, on_skip: SkipCallback, follow_symlinks: bool = False, root: Path | None = None, recursive: bool = True
) -> Iterator[str]:
    """Yield the paths of the images in a folder and, if `recursive`, in its subfolders, in the order of names.

    Entries that cannot be read are skipped, and so are images outside of `root` (default: the folder), unless
    `follow_symlinks`; links to folders are never followed.
    """
    real_root = (root or folder).resolve()
    is_inside = follow_symlinks or folder.resolve().is_relative_to(real_root)
    remaining = [(str(folder), "folder")]
    while remaining:
        path, kind = remaining.pop()
        if kind == "folder":
            try:
                with os.scandir(path) as entries:
                    children = sorted(
                        ((e.name, _describe_entry(e)) for e in entries if not e.name.startswith(".")), reverse=True
                    )
            except OSError as error:
                on_skip(f"{path} cannot be listed: {error}")
                continue
            remaining += [(f"{path}{os.sep}{name}", kind) for name, kind in children if recursive or kind != "folder"]
        elif Path(path).suffix.lower() not in IMAGE_EXTENSIONS:
            if recursive and kind == _LINKED_FOLDER:
                on_skip(f"{path} {kind}")
        elif kind not in ("file", "link"):
            on_skip(f"{path} {kind}")
        elif follow_symlinks or (is_inside if kind == "file" else Path(path).resolve().is_relative_to(real_root)):
            yield path
        else:
            on_skip(f"{path} is a link out of the folder (include it with follow_symlinks or --follow-symlinks)")


_LINKED_FOLDER = "is a link to a folder, which is not followed"


def _describe_entry(entry: os.DirEntry[str]) -> str:
    """Describe an entry: "folder", "file", "link" to a file, or the reason why it is none of them."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        if entry.is_file():
            return "link" if entry.is_symlink() else "file"
        if entry.is_dir():
            return _LINKED_FOLDER
    except OSError:  # a link to itself
        return "is a broken link"
    return "is a broken link" if entry.is_symlink() else "is not a file"
