"""Center crops of any number of image files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torch import Tensor
from torch.utils import data as torch_data

from manyviews.data import DatasetError, read_image
from manyviews.loading.encoding import choose_eval_batch_size
from manyviews.loading.workers import make_item_loader
from manyviews.transforms import center_crop


def iterate_file_crops(
    paths: Iterable[str], size: int, num_workers: int = 0
) -> Iterator[list[tuple[str, Tensor | DatasetError]]]:
    """Iterate over batches of (path, uint8 center crop (3, size, size) or the error); `paths` is consumed lazily."""
    batch_size = choose_eval_batch_size(size)
    crops = iter(make_item_loader(_FileCrops(size), paths, num_workers, min(16, batch_size)))
    while batch := list(islice(crops, batch_size)):
        yield batch


@dataclass(frozen=True)
class _FileCrops(torch_data.Dataset[tuple[str, Tensor | DatasetError]]):
    size: int

    def __getitem__(self, path: str) -> tuple[str, Tensor | DatasetError]:
        try:
            return path, center_crop(read_image(Path(path)), self.size)[0]
        except DatasetError as error:
            return path, error
