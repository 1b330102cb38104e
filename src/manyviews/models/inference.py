"""An image encoder with its preprocessing."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from manyviews.data import DatasetError, pil_to_tensor, read_image
from manyviews.models.encoders import get_representation_dim
from manyviews.transforms import center_crop_batch

ImageLike = Tensor | Image.Image | str | Path


class ImageEncoder(nn.Module):
    """An encoder with its preprocessing: maps images of any size to representations (B, dim).

    Accepts uint8 images (B, C, H, W), floats in [0, 1] of size `size`, or a sequence of file paths, PIL images and
    uint8 images (C, H, W). Images of another size are center-cropped and resized, as in evaluation.

    Examples:
        >>> from manyviews.models import get_encoder
        >>> encoder = ImageEncoder(get_encoder("resnet-small"), size=32)
        >>> encoder(torch.zeros(5, 3, 100, 80, dtype=torch.uint8)).shape
        torch.Size([5, 192])
    """

    def __init__(self, encoder: nn.Module, size: int) -> None:
        super().__init__()
        self.encoder, self.size = encoder, size
        self.dim = get_representation_dim(encoder, torch.zeros(1, 3, size, size))
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor | Sequence[ImageLike]) -> Tensor:
        reference = next(self.encoder.parameters(), torch.zeros(()))
        return self.encoder(self._preprocess(images).to(reference))

    def _preprocess(self, images: Tensor | Sequence[ImageLike]) -> Tensor:
        if not isinstance(images, Tensor):
            if isinstance(images, (str, Path)) or not isinstance(images, Sequence) or not len(images):
                got = f"{images!r}" if isinstance(images, (str, Path, list)) else type(images).__name__
                raise ValueError(f"images must be a tensor or a list of images, got {got}")
            return center_crop_batch([_load_image(image).expand(3, -1, -1) for image in images], self.size)
        if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
            raise ValueError(f"images must be (B, 1 or 3, height, width), got {tuple(images.shape)}")
        if images.dtype == torch.uint8:
            return center_crop_batch(images, self.size)
        if not images.is_floating_point() or images.shape[2:] != (self.size, self.size):
            expected, got = f"{self.size} x {self.size}", f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images must be uint8 of any size, or floats in [0, 1] of {expected}, got {got}")
        low, high = images.aminmax()
        if not (low > -0.01 and high < 1.01):
            raise ValueError(f"float images must be in [0, 1], got values from {low} to {high}: divide by 255?")
        return images


def _load_image(image: ImageLike) -> Tensor:
    if isinstance(image, (str, Path)):
        if not Path(image).is_file():
            raise DatasetError(f"no such file: {image}")
        return read_image(Path(image))
    if isinstance(image, Image.Image):
        return pil_to_tensor(image)
    is_bytes = isinstance(image, Tensor) and image.dtype == torch.uint8 and image.numel() > 0
    if is_bytes and image.dim() == 3 and image.shape[0] in (1, 3):
        return image
    got = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
    raise ValueError(f"an image must be a path, a PIL image or uint8 (1 or 3, height, width), got {got}")
