"""Images to encode as they come: a folder of any size, one file, or a data set."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from manyviews.data import DatasetError, load_dataset, path_of, read_image
from manyviews.data.files import ENDINGS
from manyviews.data.load import is_plain_folder
from manyviews.evaluation.knn import check_finite
from manyviews.evaluation.progress import tracked
from manyviews.models import ImageEncoder
from manyviews.views.plain import PIECE, plain_files

LeftOut = Callable[[str], None]
"""Is told of each file that is left out, and why."""


def warn(line: str) -> None:
    warnings.warn(f"left out: {line}", stacklevel=2)


@dataclass(frozen=True)
class Pictures:
    """Images by their ids: the path below a folder, or SPLIT/NUMBER in a data set.

    Examples:
        >>> pictures = Pictures.of("photos")
        >>> pictures["test/17"].shape
        torch.Size([3, 32, 32])
    """

    source: str
    path: Path | None
    """Of a folder, or of one image."""
    splits: Mapping[str, Tensor]
    follow_links: bool = False

    @classmethod
    def of(cls, source: str | Path, follow_links: bool = False) -> Pictures:
        """A folder of images, labelled or not; an image; or what `load_dataset` takes."""
        path = path_of(source)
        if path and (is_plain_folder(path) or (path.is_file() and path.suffix.lower() in ENDINGS)):
            return cls(str(source), path, {}, follow_links)
        splits = {name: split.images for name, split in load_dataset(source).splits.items()}
        return cls(str(source), None, {name: images for name, images in splits.items() if isinstance(images, Tensor)})

    @property
    def folder(self) -> Path | None:
        return self.path if self.path is None or self.path.is_dir() else self.path.parent

    def __getitem__(self, name: str) -> Tensor:
        """The image (C, H, W) of an id.

        Raises:
            KeyError: there is none.
        """
        if self.folder is not None:
            if not (self.folder / name).is_file():
                raise KeyError(name)
            return read_image(self.folder / name)
        split, _, number = name.partition("/")
        if split not in self.splits or not number.isdecimal() or int(number) >= len(self.splits[split]):
            raise KeyError(name)
        return self.splits[split][int(number)]

    def encoded(
        self, encoder: ImageEncoder, workers: int = 0, left_out: LeftOut = warn
    ) -> Iterator[tuple[list[str], Tensor]]:
        """Ids and representations (B, dim), batch by batch, in the order of names: no more is held than a batch.

        Raises:
            DatasetError: there is not one image that can be read.
        """
        found = False
        batches = self._files(encoder.size, left_out, workers) if self.path else self._arrays()
        for names, images in tracked(batches, "images", None, lambda batch: len(batch[0])):
            found = True
            h = encoder(images).float().cpu()
            check_finite(f"representations of {names[0]} and others", h)
            yield names, h
        if not found:
            raise DatasetError(f"{self.source} holds no image that can be read ({', '.join(sorted(ENDINGS))})")

    def _arrays(self) -> Iterator[tuple[list[str], Tensor]]:
        for split, images in self.splits.items():
            for first in range(0, len(images), PIECE):
                part = images[first : first + PIECE]
                yield [f"{split}/{first + place}" for place in range(len(part))], part

    def _files(self, size: int, left_out: LeftOut, workers: int) -> Iterator[tuple[list[str], Tensor]]:
        assert self.path is not None
        assert self.folder is not None
        paths = listed(self.path, left_out, self.follow_links) if self.path.is_dir() else iter([str(self.path)])
        for batch in plain_files(paths, size, workers):
            names, views = [], []
            for path, view in batch:
                if isinstance(view, DatasetError):
                    left_out(str(view))
                else:
                    names.append(os.path.relpath(path, self.folder))
                    views.append(view)
            if names:
                yield names, torch.stack(views)


def listed(folder: Path, left_out: LeftOut, follow_links: bool = False) -> Iterator[str]:
    """Paths of the images below a folder, in the order of names; no more names are held than a folder has."""
    root = folder.resolve()

    def below(where: str) -> Iterator[str]:
        try:
            with os.scandir(where) as entries:
                names = sorted((e.name, e.is_dir(follow_symlinks=False), e.is_symlink(), e.is_file()) for e in entries)
        except OSError as error:
            left_out(f"{where} cannot be listed: {error}")
            return
        for name, is_folder, is_link, is_file in names:
            path = f"{where}{os.sep}{name}"
            if name.startswith("."):
                continue
            if is_folder:
                yield from below(path)
            elif Path(name).suffix.lower() in ENDINGS:
                if not is_file:
                    left_out(f"{path} is no file")
                elif not is_link or follow_links or Path(path).resolve().is_relative_to(root):
                    yield path
                else:
                    left_out(f"{path} is a link out of the folder (--follow-links takes it)")
            elif is_link and Path(path).is_dir():
                left_out(f"{path} is a link to a folder, which is not followed")

    return below(str(folder))
