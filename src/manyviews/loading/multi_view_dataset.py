"""`MultiViewDataset`: views for training loops other than ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils import data as torch_data

from manyviews.data import MapDataset, array_to_tensor, pil_to_tensor
from manyviews.transforms import ImageTransform, make_custom_transform
from manyviews.utils import describe_type

UNSET_EPOCH = -1
"""Epoch before the first call of `set_epoch`."""


class MultiViewDataset(torch_data.Dataset[Any]):
    """A dataset of N views of each image, for any `DataLoader`.

    Items are views (N, C, size, size), float32 in [0, 1]; those of a dataset of tuples (image, label, ...) are
    (views, label, ...). Torch's generator draws the views. If `set_epoch` is called before each epoch, they are a
    function of (seed, epoch, index, view) and do not depend on the workers.

    Args:
        dataset: a map-style dataset of images, or of tuples that start with one: PIL images, uint8 tensors (C, H, W) or
            arrays (H, W, C).
        transform: a `SimCLRTransform`, or any function from a PIL image to a PIL image or a tensor in [0, 1].
        views: number N of views.
        seed: seed of the views, for `set_epoch`.

    Examples:
        >>> from manyviews.transforms import SimCLRTransform
        >>> dataset = MultiViewDataset([(Image.new("RGB", (40, 60)), 3)] * 8, SimCLRTransform(32), views=4)
        >>> for views, labels in torch.utils.data.DataLoader(dataset, batch_size=8):
        ...     print(views.shape, labels.shape)
        torch.Size([8, 4, 3, 32, 32]) torch.Size([8])
    """

    def __init__(
        self,
        dataset: MapDataset,
        transform: ImageTransform | Callable[[Image.Image], Any],
        *,
        views: int = 2,
        seed: int = 0,
    ) -> None:
        if views < 1:
            raise ValueError(f"views must be >= 1, got {views}")
        if not callable(transform) and not isinstance(transform, ImageTransform):
            raise TypeError(f"transform must be a SimCLRTransform or a function, got {describe_type(transform)}")
        self.dataset, self.views, self.seed = dataset, views, seed
        # Shared with persistent workers, so that they see a new epoch.
        self._epoch = torch.tensor(UNSET_EPOCH).share_memory_()
        if not isinstance(transform, ImageTransform):
            transform = make_custom_transform(transform, self._read_image(0)[0])
        self.transform = transform

    def set_epoch(self, epoch: int) -> None:
        """Select the views of an epoch; call it before each, as for a `DistributedSampler`."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        image, others = self._read_image(index)
        epoch = int(self._epoch)
        if epoch == UNSET_EPOCH:  # workers have other generators in each epoch
            epoch = int(torch.randint(2**62, ()))
        key: dict[str, Any] = {"seed": self.seed, "epoch": epoch, "index": torch.tensor([index % len(self)])}
        views = self.transform.augment_color(self.transform.crop(image[None], views=self.views, **key), **key)[0]
        return (views, *others) if others else views

    def _read_image(self, index: int) -> tuple[Tensor, tuple[Any, ...]]:
        item = self.dataset[index]
        image, *others = item if isinstance(item, tuple | list) else (item,)
        if isinstance(image, Image.Image):
            return pil_to_tensor(image), tuple(others)
        if isinstance(image, np.ndarray) and image.ndim == 3 and image.dtype == np.uint8:
            image = array_to_tensor(image)
        if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.dim() != 3:
            got = f"{image.dtype} {tuple(image.shape)}" if hasattr(image, "dtype") else describe_type(image)
            raise TypeError(f"items must be PIL images, uint8 tensors (C, H, W) or arrays (H, W, C), got {got}")
        return image, tuple(others)
