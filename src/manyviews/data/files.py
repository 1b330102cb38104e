"""Images on disk: one file to a uint8 tensor, and a folder of them to splits, classes and labels."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from manyviews.data.dataset import IMAGE, SPLITS, Dataset, DatasetError, DatasetWarning, Split, split_of
from manyviews.utils.budget import memory_share
from manyviews.utils.untrusted import check_regular, read_text

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "GIF")
"""By the first bytes of a file (MPO begins as JPEG). Others that PIL knows start programs: PostScript, Ghostscript."""
ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif"}
MOST_PIXELS = 100_000_000
"""A larger image is taken for a decompression bomb."""
PIXEL_BYTES = 16
"""Bytes of memory that a pixel takes while it is decoded and converted."""
IN_MEMORY = 2**30
"""Bytes of equally large images that are held as one tensor."""
DECODED_WHEN_LOADED = 20_000
"""A folder of more images is trusted by their headers; a broken one is then met when it is read."""


class BadImageError(DatasetError):
    """A file that is no image, or not a whole one."""


class _UnreadableError(Exception):
    """Pixels that do not say what they mean."""


def read_image(path: Path) -> Tensor:
    """uint8 (3, H, W): upright as EXIF says, grey and palette as colours, transparency over white.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (20, 10)).save(f"{folder}/a.png")
        ...     read_image(Path(folder) / "a.png").shape
        torch.Size([3, 10, 20])
    """
    with open_image(path) as picture:
        return pixels(picture)


def pixels(picture: Image.Image) -> Tensor:
    """uint8 (3, H, W) of a PIL picture: upright as EXIF says, grey and palette as colours, transparency over white.

    Examples:
        >>> pixels(Image.new("P", (20, 10))).shape
        torch.Size([3, 10, 20])
    """
    try:
        return _pixels(ImageOps.exif_transpose(picture))
    except _UnreadableError as error:
        raise BadImageError(f"{getattr(picture, 'filename', None) or 'the picture'}: {error}") from error


def check_header(path: Path) -> tuple[int, int]:
    """Height and width of an image; raise if the file does not begin as an image of a sane size."""
    with open_image(path) as picture:
        return picture.height, picture.width


@contextmanager
def open_image(source: Path | IO[bytes]) -> Iterator[Image.Image]:
    """A picture of one of `FORMATS`: the only way in which this package opens an image.

    Raises:
        BadImageError: it is no regular file, or of another format, or not whole.
        DatasetError: it says it has too many pixels.
    """
    bomb = "a decompression bomb? Remove it, or shrink it if you trust it"
    most = min(MOST_PIXELS, memory_share() // PIXEL_BYTES)
    try:
        if isinstance(source, Path):
            check_regular(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images and odd EXIF
            with Image.open(source, formats=FORMATS) as picture:
                if picture.width * picture.height > most:
                    raise DatasetError(f"{source} says it has {picture.width} x {picture.height} pixels: {bomb}")
                yield picture
    except Image.DecompressionBombError as error:
        raise DatasetError(f"{source}: {error}: {bomb}") from error
    except DatasetError:
        raise
    # PIL's readers fail in many ways on a broken file (struct.error, IndexError, ...).
    except Exception as error:
        if isinstance(source, Path) and isinstance(error, UnidentifiedImageError) and (name := _format(source)):
            raise BadImageError(f"{source} is {name}, which is not read: convert it to {_ACCEPTED}") from error
        raise BadImageError(f"{source} is no whole image: {error}") from error


_ACCEPTED = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"


def _format(path: Path) -> str | None:
    """The format that the first bytes of a file are of, if it is one that is not read."""
    with path.open("rb") as file:
        start = file.read(16).ljust(16, b"\0")
    if start.startswith(b"%PDF"):
        return "PDF"
    Image.init()
    # What each of PIL's formats says of the first bytes; a text says that it could be read with another package.
    known = (name for name, (_, accepts) in Image.OPEN.items() if accepts and accepts(start) and name not in FORMATS)
    return next(known, None)


def _pixels(picture: Image.Image) -> Tensor:
    if picture.mode.startswith("I"):
        # 16 bits a pixel; PIL's own conversion cuts values off at 255.
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise _UnreadableError("its pixels are neither 8 nor 16 bits: convert it")
        picture = Image.fromarray((values // 257).astype(np.uint8))
    elif picture.mode == "F":
        raise _UnreadableError("its pixels are floats, of an unknown range: convert it")
    if picture.has_transparency_data:
        colours = picture.convert("RGBA")
        white = Image.new("RGBA", colours.size, "white")
        picture = Image.alpha_composite(white, colours)
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class ImageFiles(Sequence[Tensor]):
    """Images that stay on disk until they are asked for; one that turns out broken is an error if `strict`.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (20, 10)).save(f"{folder}/a.png")
        ...     ImageFiles((Path(folder) / "a.png",))[0].shape
        torch.Size([3, 10, 20])
    """

    paths: tuple[Path, ...] = field(repr=False)
    strict: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        return read_image(self.paths[operator.index(index)])

    def __iter__(self) -> Iterator[Tensor]:
        return (read_image(path) for path in self.paths)

    def whole(self, index: int) -> tuple[Tensor, int, list[str]]:
        """The image, or the next one that can be read: its pixels, its place, and what could not be read before it.

        Raises:
            BadImageError: it is broken, and images are `strict`.
            DatasetError: none can be read.
        """
        broken: list[str] = []
        for step in range(len(self)):
            place = (index + step) % len(self)
            try:
                return self[place], place, broken
            except BadImageError as error:
                if self.strict:
                    raise
                broken.append(str(error))
        raise DatasetError(f"none of {len(self)} images can be read, first: {broken[0]}")


def load_folder(root: Path, classes: Path | None = None, strict: bool = False, follow_links: bool = False) -> Dataset:
    """A folder of images: with a subfolder for each class, or flat; below train, val and test, or not.

    Broken files are named and left out, fatal if `strict`. `classes` is a text file with a class (subfolder) a line.
    A link that leads out of the folder is left out unless `follow_links`.
    """
    wanted = _class_list(classes) if classes else None
    parts = _split_folders(root)
    skipped: list[str] = []
    names: tuple[str, ...] = ()
    splits: dict[str, Split] = {}
    for split, folder in parts.items():
        scan = _Scan(folder, root, strict, follow_links, skipped)
        here = scan.classes(wanted)
        if split == "train":
            names = here
        elif here and here != names:
            odd = sorted(set(here) ^ set(names))
            raise DatasetError(f"{folder} has other classes than {parts['train']}: {', '.join(odd[:5])}")
        splits[split] = scan.split(here)
    if skipped:
        lines = [*skipped[:10], "..."] if len(skipped) > 10 else skipped
        message = f"{len(skipped)} {'file' if len(skipped) == 1 else 'files'} of {root} left out:"
        warnings.warn(f"{message} {'; '.join(lines)}", DatasetWarning, stacklevel=3)
    return Dataset(root.resolve().name, splits, names, tuple(skipped))


def _split_folders(root: Path) -> dict[str, Path]:
    """Folders of splits, if one of them is for training; else the folder itself is."""
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not folder.name.startswith(".")]
    claims: dict[str | None, list[Path]] = {"train": []}
    for folder in folders:
        claims.setdefault(split_of(folder.name), []).append(folder)
    if not claims["train"]:
        return {"train": root}
    if unknown := claims.pop(None, []):
        odd = ", ".join(folder.name for folder in unknown[:5])
        raise DatasetError(
            f"{root} holds {claims['train'][0].name} and also {odd}, which is no split "
            f"({', '.join(SPLITS)}): rename or move it or, if these are classes, put all of them below {root / 'train'}"
        )
    for split, several in claims.items():
        if len(several) > 1:
            raise DatasetError(f"{several[0]} and {several[1]} are both for {split}: keep one")
    return {str(split): folder for split, (folder,) in claims.items()}


def _class_list(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in read_text(file).removeprefix("\ufeff").splitlines()]
    except (OSError, ValueError) as error:
        raise DatasetError(f"cannot read the class list {file}: {error}") from error
    wanted = [line for line in lines if line and not line.startswith("#")]
    if not wanted:
        raise DatasetError(f"the class list {file} names no class")
    return wanted


@dataclass
class _Scan:
    """One folder's images, the classes they are in, and what has to be left out."""

    folder: Path
    root: Path
    strict: bool
    follow_links: bool
    skipped: list[str]

    def classes(self, wanted: list[str] | None) -> tuple[str, ...]:
        """The class folders; of a list, those it names, by its whole lines or their first words."""
        found = sorted(d.name for d in self.folder.iterdir() if d.is_dir() and not d.name.startswith("."))
        if wanted is None:
            return tuple(found)
        if not found:
            raise DatasetError(f"a class list selects subfolders, and {self.folder} has none")
        chosen = [line if line in found else line.split()[0] for line in wanted]
        missing = [name for name in chosen if name not in found]
        if missing:
            raise DatasetError(f"{self.folder} has no folder for {len(missing)} listed classes, such as {missing[0]}")
        if len(set(chosen)) < len(chosen):
            twice = next(name for name in chosen if chosen.count(name) > 1)
            raise DatasetError(f"the class list names {twice} twice")
        return tuple(chosen)

    def split(self, names: tuple[str, ...]) -> Split:
        paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(names):
            before = len(self.skipped)
            own = self.images(self.folder / name)
            if not own:
                why = f": {self.skipped[before]}" if len(self.skipped) > before else ""
                raise DatasetError(f"the class {name} has no image in {self.folder / name}{why}")
            paths += own
            labels += [label] * len(own)
        loose = self.images(self.folder, below=False) if names else []
        for path in loose:
            self.leave_out(f"{path} stands beside the class folders")
        if not names:
            paths = self.images(self.folder)
        if not paths:
            endings = ", ".join(sorted(ENDINGS))
            why = f": {len(self.skipped):,} left out, first: {self.skipped[0]}" if self.skipped else ""
            raise DatasetError(f"{self.folder} holds no images ({endings}), nor folders of them{why}")
        return self.checked(paths, torch.tensor(labels) if names else None, names)

    def images(self, folder: Path, below: bool = True) -> list[Path]:
        found = walk_images(folder, self.leave_out, self.follow_links, root=self.root, below=below)
        return [Path(path) for path in found]

    def checked(self, paths: list[Path], labels: Tensor | None, names: tuple[str, ...]) -> Split:
        decode = len(paths) <= DECODED_WHEN_LOADED
        kept: list[int] = []
        decoded: list[Tensor] = []
        one_tensor, held = decode, 0
        for number, path in enumerate(paths):
            try:
                if decode:
                    image = read_image(path)
                else:
                    check_header(path)
            except BadImageError as error:
                self.leave_out(str(error), error)
                continue
            kept.append(number)
            if one_tensor:
                held += image.nbytes
                one_tensor = held <= IN_MEMORY and (not decoded or image.shape == decoded[0].shape)
                if one_tensor:
                    decoded.append(image)
                else:
                    decoded.clear()
        if not kept:
            raise DatasetError(
                f"none of {len(paths)} files in {self.folder} is a whole image, first: {self.skipped[0]}"
            )
        if labels is not None:
            labels = labels[kept]
            for label, name in enumerate(names):
                if not (labels == label).any():
                    raise DatasetError(f"the class {name} has no whole image in {self.folder / name}")
        on_disk = ImageFiles(tuple(paths[n] for n in kept), self.strict)
        return Split({IMAGE: torch.stack(decoded) if one_tensor else on_disk}, labels)

    def leave_out(self, line: str, error: DatasetError | None = None) -> None:
        if self.strict:
            raise error or DatasetError(line)
        self.skipped.append(line)


LeftOut = Callable[[str], None]
"""Is told of each file that is left out, and why."""


def walk_images(
    folder: Path, left_out: LeftOut, follow_links: bool = False, root: Path | None = None, below: bool = True
) -> Iterator[str]:
    """Paths of the images in a folder and `below` it, in the order of names; no more names are held than folders have.

    What cannot be read is left out alone. What lies out of `root` (the folder, if not given) is left out unless
    `follow_links`; a link to a folder is never followed.
    """
    real_root = (root or folder).resolve()
    is_inside = follow_links or folder.resolve().is_relative_to(real_root)
    remaining = [(str(folder), "folder")]
    while remaining:
        path, kind = remaining.pop()
        if kind == "folder":
            try:
                with os.scandir(path) as entries:
                    inside = sorted(((e.name, _kind(e)) for e in entries if not e.name.startswith(".")), reverse=True)
            except OSError as error:
                left_out(f"{path} cannot be listed: {error}")
                continue
            remaining += [(f"{path}{os.sep}{name}", kind) for name, kind in inside if below or kind != "folder"]
        elif Path(path).suffix.lower() not in ENDINGS:
            if below and kind == _LINKED_FOLDER:
                left_out(f"{path} {kind}")
        elif kind not in ("file", "link"):
            left_out(f"{path} {kind}")
        elif follow_links or (is_inside if kind == "file" else Path(path).resolve().is_relative_to(real_root)):
            yield path
        else:
            left_out(f"{path} is a link out of the folder (follow_links or --follow-links takes it)")


_LINKED_FOLDER = "is a link to a folder, which is not followed"


def _kind(entry: os.DirEntry[str]) -> str:
    """What is in a folder: "folder", "file", "link" to a file, or why it is none of them."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        if entry.is_file():
            return "link" if entry.is_symlink() else "file"
        if entry.is_dir():
            return _LINKED_FOLDER
    except OSError:  # a link to itself
        return "is a link that leads nowhere"
    return "is a link that leads nowhere" if entry.is_symlink() else "is no file"
