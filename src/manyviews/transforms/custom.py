"""`CustomTransform`: any function of a PIL image as a transform."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from manyviews.data import pil_to_tensor
from manyviews.transforms.transform import ImageBatch, ImageTransform
from manyviews.utils import describe_type, hash_key


@dataclass(frozen=True)
class CustomTransform(ImageTransform):
    """A function from a PIL image to a view: a PIL image, or a tensor (3, size, size), uint8 or in [0, 1].

    The random states of torch, numpy and the standard library are set before each call, by (seed, epoch, index of the
    instance, view), and restored afterwards.

    Examples:
        >>> halve = CustomTransform(lambda image: image.resize((16, 16)), size=16)
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> halve.crop(images, views=2, seed=0, epoch=0, index=torch.arange(8)).shape
        torch.Size([8, 2, 3, 16, 16])
    """

    function: Callable[[Image.Image], Any]
    size: int
    uses_workers = True

    def crop(
        self, images: ImageBatch, *, views: int, seed: int, epoch: int, index: Tensor, first_view: int = 0
    ) -> Tensor:
        rows = []
        for image, i in zip(images, index.tolist(), strict=True):
            pil_image = Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).cpu().contiguous().numpy())
            for view in range(first_view, first_view + views):
                with set_random_states(int(hash_key(seed, epoch, i, view))):
                    rows.append(self._to_tensor(self.function(pil_image)))
        return torch.stack(rows).unflatten(0, (len(images), views)).to(images[0].device)

    def augment_color(self, crops: Tensor, **_key: Any) -> Tensor:
        """Convert to floats; the colors stay as they are."""
        return crops.float().div_(255) if crops.dtype == torch.uint8 else crops

    def _to_tensor(self, view: Any) -> Tensor:
        view = pil_to_tensor(view) if isinstance(view, Image.Image) else view
        if not isinstance(view, Tensor) or view.shape != (3, self.size, self.size):
            got = tuple(view.shape) if isinstance(view, Tensor) else describe_type(view)
            raise ValueError(
                f"the transform must return a PIL image or a tensor (3, {self.size}, {self.size}), got {got}"
            )
        if view.dtype != torch.uint8 and not (view.amin() > -0.01 and view.amax() < 1.01):
            raise ValueError(
                "the transform must return values in [0, 1], as encoders take them, got "
                f"{view.amin():.3g} to {view.amax():.3g}: leave out Normalize"
            )
        return view


def make_custom_transform(function: Callable[[Image.Image], Any], example: Tensor) -> CustomTransform:
    """Make a transform from a function; its size is that of the view of an example image (C, H, W).

    Examples:
        >>> example = torch.zeros(3, 32, 32, dtype=torch.uint8)
        >>> make_custom_transform(lambda image: image.crop((0, 0, 8, 8)), example).size
        8
    """
    pil_image = Image.fromarray(example.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    with set_random_states(0):
        view = function(pil_image)
    view = pil_to_tensor(view) if isinstance(view, Image.Image) else view
    if not isinstance(view, Tensor) or view.dim() != 3 or view.shape[1] != view.shape[2]:
        got = tuple(view.shape) if isinstance(view, Tensor) else describe_type(view)
        raise ValueError(f"the transform must return a square PIL image or a tensor (3, size, size), got {got}")
    return CustomTransform(function, view.shape[1])


@contextmanager
def set_random_states(seed: int) -> Iterator[None]:
    """Within this context, torch, numpy and the standard library draw the random numbers of a seed."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (transforms of others use it)
    try:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
