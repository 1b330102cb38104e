"""Images on disk: one file to a uint8 tensor, and a folder of them to splits, classes and labels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from manyviews.data.dataset import IMAGE, Dataset, DatasetError, Split

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif"}
MOST_PIXELS = 100_000_000
"""A larger image is taken for a decompression bomb."""
IN_MEMORY = 2**30
"""Bytes of equally large images that are held as one tensor."""
DECODED_WHEN_LOADED = 20_000
"""A folder of more images is trusted by their headers; a broken one is then met when it is read."""
SPLITS = {"train": ("train",), "valid": ("val", "valid", "validation"), "test": ("test",)}


class BadImageError(DatasetError):
    """A file that is no image, or not a whole one."""


def read_image(path: Path) -> Tensor:
    """uint8 (3, H, W): upright as EXIF says, grey and palette as colours, transparency over white."""
    with _opened(path) as picture:
        return _pixels(ImageOps.exif_transpose(picture))


def check_header(path: Path) -> None:
    """Raise if the file does not begin as an image of a sane size."""
    with _opened(path):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A PIL image, all its troubles turned into ours."""
    bomb = "a decompression bomb? Remove it, or shrink it if you trust it"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images and odd EXIF
            with Image.open(path) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    raise DatasetError(f"{path} says it has {picture.width} x {picture.height} pixels: {bomb}")
                yield picture
    except Image.DecompressionBombError as error:
        raise DatasetError(f"{path}: {error}: {bomb}") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, DatasetError):
            raise
        raise BadImageError(f"{path} is no whole image: {error}") from error


def _pixels(picture: Image.Image) -> Tensor:
    if picture.mode.startswith("I") or picture.mode == "F":
        # 16 bits a pixel; PIL's own conversion cuts values off at 255.
        values = np.asarray(picture).astype(np.float32)
        picture = Image.fromarray((values * (255 / max(65535.0, values.max()))).astype(np.uint8))
    if picture.has_transparency_data:
        colours = picture.convert("RGBA")
        white = Image.new("RGBA", colours.size, "white")
        picture = Image.alpha_composite(white, colours)
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class ImageFiles(Sequence[Tensor]):
    """Images that stay on disk until they are asked for."""

    paths: tuple[Path, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        return read_image(self.paths[index])

    def __iter__(self) -> Iterator[Tensor]:
        return (read_image(path) for path in self.paths)


def load_folder(root: Path, classes: Path | None = None, strict: bool = False, follow_links: bool = False) -> Dataset:
    """A folder of images: with a subfolder for each class, or flat; below train, val and test, or not.

    Broken files are named and left out, fatal if `strict`. `classes` is a text file with a class (subfolder) a line.
    A link that leads out of the folder is left out unless `follow_links`.
    """
    wanted = _class_list(classes) if classes else None
    parts = {split: root / name for split, names in SPLITS.items() for name in names if (root / name).is_dir()}
    if "train" not in parts:
        parts = {"train": root}
    skipped: list[str] = []
    names: tuple[str, ...] = ()
    splits: dict[str, Split] = {}
    for split, folder in parts.items():
        scan = _Scan(folder, root, wanted, strict, follow_links, skipped)
        here = scan.classes()
        if splits and here != names:
            odd = sorted(set(here) ^ set(names))
            raise DatasetError(f"{folder} has other classes than {parts['train']}: {', '.join(odd[:5])}")
        names = here
        splits[split] = scan.split(names)
    if skipped:
        lines = [*skipped[:10], "..."] if len(skipped) > 10 else skipped
        warnings.warn("\n  ".join([f"{len(skipped)} files of {root} are left out:", *lines]), stacklevel=3)
    return Dataset(root.name, splits, names, tuple(skipped))


def _class_list(file: Path) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read the class list {file}: {error}") from error
    wanted = tuple(line.split()[0] for line in lines if line and not line.startswith("#"))
    if not wanted:
        raise DatasetError(f"the class list {file} names no class")
    return wanted


@dataclass
class _Scan:
    folder: Path
    root: Path
    wanted: tuple[str, ...] | None
    strict: bool
    follow_links: bool
    skipped: list[str]

    def classes(self) -> tuple[str, ...]:
        found = sorted(d.name for d in self.folder.iterdir() if d.is_dir() and not d.name.startswith("."))
        if self.wanted is None:
            return tuple(found)
        missing = [name for name in self.wanted if name not in found]
        if missing:
            raise DatasetError(f"{self.folder} has no folder for {len(missing)} listed classes, such as {missing[0]}")
        return self.wanted

    def split(self, names: tuple[str, ...]) -> Split:
        paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(names):
            own = self.images(self.folder / name)
            if not own:
                raise DatasetError(f"the class {name} has no image in {self.folder / name}")
            paths += own
            labels += [label] * len(own)
        if not names:
            paths = self.images(self.folder)
        if not paths:
            endings = ", ".join(sorted(ENDINGS))
            raise DatasetError(f"{self.folder} holds no images ({endings}), nor folders of them")
        return self.checked(paths, torch.tensor(labels) if names else None, names)

    def images(self, folder: Path) -> list[Path]:
        found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and not p.name.startswith("."))
        inside = []
        for path in found:
            if not self.follow_links and not path.resolve().is_relative_to(self.root.resolve()):
                self.leave_out(f"{path} is a link out of the folder (follow_links=True allows it)")
            elif path.is_file():
                inside.append(path)
        return inside

    def checked(self, paths: list[Path], labels: Tensor | None, names: tuple[str, ...]) -> Split:
        decode = len(paths) <= DECODED_WHEN_LOADED
        kept: list[int] = []
        decoded: list[Tensor] = []
        held = 0
        for number, path in enumerate(paths):
            try:
                image = read_image(path) if decode else None
                if not decode:
                    check_header(path)
            except BadImageError as error:
                self.leave_out(str(error), error)
                continue
            kept.append(number)
            if image is not None and held <= IN_MEMORY and (not decoded or image.shape == decoded[0].shape):
                decoded.append(image)
                held += image.nbytes
            else:
                decoded, held = [], IN_MEMORY + 1
        if not kept:
            raise DatasetError(
                f"none of {len(paths)} files in {self.folder} is a whole image, first: {self.skipped[0]}"
            )
        if labels is not None:
            labels = labels[kept]
            for label, name in enumerate(names):
                if not (labels == label).any():
                    raise DatasetError(f"the class {name} has no whole image in {self.folder / name}")
        rows: Tensor | ImageFiles = ImageFiles(tuple(paths[n] for n in kept))
        if len(decoded) == len(kept):
            rows = torch.stack(decoded)
        return Split({IMAGE: rows}, labels)

    def leave_out(self, line: str, error: DatasetError | None = None) -> None:
        if self.strict:
            raise error or DatasetError(line)
        self.skipped.append(line)
