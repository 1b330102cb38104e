"""`Media`: recordings in encoded files, which are decoded when views of them are made."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from manyviews.data.blobs import Blobs, FileBlobs
from manyviews.data.column import Column
from manyviews.data.errors import DatasetError
from manyviews.data.media_files import CorruptMediaError, Kind, read_seconds
from manyviews.utils import describe_type

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False, repr=False)
class Media(Column):
    """Recordings, one file per instance; the file of a missing instance is never opened.

    Examples:
        >>> from pathlib import Path
        >>> from manyviews.data import Audio, FileBlobs, Video
        >>> [issubclass(kind, Media) for kind in (Audio, Video)], len(Audio(FileBlobs((Path("a.wav"),))))
        ([True, True], 1)
    """

    kind: ClassVar[Kind]
    values: Blobs = field(repr=False)
    raise_on_corrupt: bool = field(default=False, kw_only=True)
    """Whether a corrupt file is an error, and not only skipped with a warning."""

    def __post_init__(self) -> None:
        if not isinstance(self.values, Blobs):
            raise DatasetError(f"{self.kind} must be Blobs, such as FileBlobs(PATHS), got {describe_type(self.values)}")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def reads_files(self) -> bool:
        return True

    def select(self, index: Tensor) -> Self:
        return replace(self, values=self.values.select(index.tolist()), mask=self._select_mask(index))

    def describe(self) -> str:
        return self.kind

    def describe_lengths(self) -> str:
        """Describe the durations that the headers of the files have."""
        seconds = [seconds for i in self._list_valid() if (seconds := self.read_seconds(i))]
        if not seconds:
            return ""
        return f"{min(seconds):.1f} to {max(seconds):.1f} s, median {statistics.median_low(seconds):.1f} s"

    def describe_item(self, i: int) -> str:
        """Describe a recording, such as "audio, 3.2 s"."""
        seconds = self.read_seconds(i)
        return f"{self.kind}, {seconds:.1f} s" if seconds else self.kind

    def list_content(self) -> list[Tensor | bytes]:
        """List the content of the files that are not missing, and the mask."""
        return [*self.values.select(self._list_valid()).list_content(), self.get_mask()]

    def read_seconds(self, i: int) -> float:
        """Read the duration of a recording from its header, 0 if the header has none.

        Raises:
            CorruptMediaError: the file is not a recording of this kind.
        """
        with self.open(i) as (file, name):
            return read_seconds(file, name, self.kind)

    @contextmanager
    def open(self, i: int) -> Iterator[tuple[IO[bytes], str]]:
        """Open the file of a recording; an error of the file system means that it is corrupt."""
        name = self.values.get_name(i)
        try:
            file = self.values.open(i)
        except OSError as error:
            raise CorruptMediaError(f"{name} cannot be read: {error}") from error
        with file:
            yield file, name

    def _list_valid(self) -> list[int]:
        valid: list[int] = self.get_mask().nonzero().squeeze(1).tolist()
        return valid

    @classmethod
    def from_values(cls, values: Any) -> Self:
        """Make a column of paths, or of Blobs."""
        if isinstance(values, Blobs):
            return cls(values)
        if isinstance(values, (str, Path)) or not isinstance(values, Sequence):
            raise DatasetError(f"expected a list of paths, got {describe_type(values)}")
        if invalid := [value for value in values if not isinstance(value, (str, Path))]:
            raise DatasetError(f"expected a list of paths, got {describe_type(invalid[0])} in it")
        paths = tuple(Path(value).expanduser() for value in values)
        if missing := [path for path in paths if not path.is_file()]:
            raise DatasetError(f"no such file: {missing[0]}")
        return cls(FileBlobs(paths))
