"""`ViewSpec`: which views an instance has in a batch, and which encoder each of them has."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from manyviews.data import Dataset, DatasetDict, DatasetError, Images
from manyviews.utils import suggest

DEFAULT_VIEWS = 4
"""Number of views if the data has one modality and none is specified."""
SHARED_IMAGE_ENCODER = "image"
"""Name of the encoder that several image modalities share."""
EXAMPLES = "4, image:4, text audio vision, image:2@224 image:6@96 or image:2 caption"
_NUMBER = re.compile(r"[-+\d.]+")
_ITEM = re.compile(r"(?P<modality>.+?)(:(?P<count>\d+))?(@(?P<size>\d+))?")


@dataclass(frozen=True)
class ModalityViews:
    """`count` views of one modality; those of images have `size` x `size` pixels (0: the default)."""

    modality: str
    count: int = 1
    size: int = 0
    encoder: str = ""
    """Name of the encoder; several modalities may share one."""

    def __str__(self) -> str:
        count = f":{self.count}" if self.count > 1 else ""
        return f"{self.modality}{count}{f'@{self.size}' if self.size else ''}"


@dataclass(frozen=True)
class ViewSpec:
    """The views of an instance, in order: `items` of one modality and one size each.

    Examples:
        >>> spec = ViewSpec.parse(["image:2@224", "image:6@96"])
        >>> spec.num_views, spec.modalities, [item.size for item in spec.items]
        (8, ('image',), [224, 96])
    """

    items: tuple[ModalityViews, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> ViewSpec:
        """Parse items `MODALITY[:COUNT][@SIZE]`; a number is the number of views of the only image modality."""
        items = []
        for text in texts:
            match = _ITEM.fullmatch(text)
            is_number = _NUMBER.fullmatch(text) is not None
            if match is None or "0" in (match["count"], match["size"], text) or (is_number and not text.isdecimal()):
                raise ValueError(f"invalid view {text!r}: expected for instance {EXAMPLES}")
            if is_number:
                items.append(ModalityViews("", int(text)))
            else:
                items.append(ModalityViews(match["modality"], int(match["count"] or 1), int(match["size"] or 0)))
        if any(not item.modality for item in items) and len(items) > 1:
            raise ValueError(f"a number of views cannot be combined with others, got {' '.join(texts)}: {EXAMPLES}")
        return cls(tuple(items))

    def to_texts(self) -> tuple[str, ...]:
        """Return the texts that `parse` reads."""
        return tuple(str(item) if item.modality else str(item.count) for item in self.items)

    @property
    def num_views(self) -> int:
        return sum(item.count for item in self.items)

    def is_short_for(self, other: ViewSpec) -> bool:
        """Return whether this is a number of views, such as 4, and the other spec has so many of one modality.

        Examples:
            >>> ViewSpec.parse(["4"]).is_short_for(ViewSpec.parse(["image:4"]))
            True
        """
        match self.items, other.items:
            case [ModalityViews("", count)], [ModalityViews(_, same, 0)]:
                return count == same
        return False

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities, in order, each once."""
        return tuple(dict.fromkeys(item.modality for item in self.items))

    @property
    def view_names(self) -> tuple[str, ...]:
        """Name of each view: its modality, with a number if it has several."""
        counts = {name: len(self.list_modality_views(name)) for name in self.modalities}
        names = [item.modality for item in self.items for _ in range(item.count)]
        numbers = {name: iter(range(1, count + 1)) for name, count in counts.items()}
        return tuple(f"{name} {next(numbers[name])}" if counts[name] > 1 else name for name in names)

    @property
    def encoders(self) -> dict[str, str]:
        """Name of the encoder of each modality."""
        return {item.modality: item.encoder for item in self.items}

    @property
    def first_views(self) -> list[int]:
        """Position of the first view of each item."""
        return list(accumulate((item.count for item in self.items[:-1]), initial=0))

    def list_modality_views(self, modality: str) -> list[int]:
        """List the positions of a modality's views."""
        starts = zip(self.items, self.first_views, strict=True)
        return [
            view for item, start in starts if item.modality == modality for view in range(start, start + item.count)
        ]

    def get_size(self, modality: str) -> int:
        """Return the largest size of a modality's views; 0 if they are not images."""
        return max(item.size for item in self.items if item.modality == modality)

    def resolve(self, data: DatasetDict, *, separate_encoders: bool = False) -> ViewSpec:
        """Fill in the modalities of a dataset, and the encoder of each item.

        Without items, a dataset of one modality has four views of it, and one of several modalities a view of each.
        Several image modalities share one encoder unless `separate_encoders`.

        Raises:
            DatasetError: the dataset does not have a modality.
        """
        train = data["train"]
        names = data.default_modalities or tuple(train.modalities)
        items = self.items or tuple(ModalityViews(name, DEFAULT_VIEWS if len(names) == 1 else 1) for name in names)
        if not items[0].modality:
            items = (dataclasses.replace(items[0], modality=_find_only_modality(data)),)
        for item in items:
            if item.modality not in train.modalities:
                hint = suggest(item.modality, train.modalities)
                raise DatasetError(f"{data.name} has no modality {item.modality!r}{hint}")
            if item.size and not train[item.modality].min_size:
                raise DatasetError(f"{item}: only views of images and videos have a size, {item.modality} has neither")
        images = {item.modality for item in items if isinstance(train[item.modality], Images)}
        shared = SHARED_IMAGE_ENCODER if len(images) > 1 and not separate_encoders else ""
        if shared in {item.modality for item in items} - images:
            shared = "shared image"
        return ViewSpec(
            tuple(
                dataclasses.replace(item, encoder=(shared if item.modality in images else "") or item.modality)
                for item in items
            )
        )

    def list_groups(self) -> Iterator[tuple[str, list[int], tuple[int, ...]]]:
        """Yield the encoder, the items and the positions of the views of each group of one encoder and one size."""
        groups: dict[tuple[str, int], list[int]] = {}
        for i, item in enumerate(self.items):
            groups.setdefault((item.encoder, item.size), []).append(i)
        for (encoder, _), members in groups.items():
            views = [
                view for i in members for view in range(self.first_views[i], self.first_views[i] + self.items[i].count)
            ]
            yield encoder, members, tuple(views)


def _find_only_modality(data: DatasetDict) -> str:
    """Return the name of the only image modality, or of the only modality."""
    train: Dataset = data["train"]
    images = [name for name, column in train.modalities.items() if isinstance(column, Images)]
    candidates = images if len(images) == 1 else list(data.default_modalities or train.modalities)
    if len(candidates) != 1:
        names = ", ".join(candidates)
        raise DatasetError(
            f"a number of views is for data with one image modality, {data.name} has {names}: name them, such as "
            f"--views {candidates[0]}:2 {candidates[1]}"
        )
    return candidates[0]
