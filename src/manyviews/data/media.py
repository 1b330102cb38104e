"""`Media`: recordings in encoded files, which are decoded when views of them are made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from manyviews.data.blobs import Blobs
from manyviews.data.column import Column
from manyviews.data.errors import DatasetError
from manyviews.utils import describe_type

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False, repr=False)
class Media(Column):
    """Recordings, one file per instance; the file of a missing instance is never opened."""

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

    def list_content(self) -> list[Tensor | bytes]:
        """List the content of the files that are not missing, and the mask."""
        mask = self.get_mask()
        return [*self.values.select(mask.nonzero().squeeze(1).tolist()).list_content(), mask]
