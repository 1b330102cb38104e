"""The built-in datasets: photos and digits.

Photos are the first 250 images of each class in CIFAR-10's training set (batches 1 to 5 in order) and the first 100
of each class in its test set, class by class, on two lossless sheets of fifty columns. Digits are the 1,797 images of
UCI's optical digits (the test set), 8 x 8 with values 0 to 16, in scikit-learn's order; the last 360 are for testing.
"""

import math
from importlib.resources import files
from io import BytesIO

import numpy as np
import torch
from torch import Tensor

from manyviews.data.dataset import IMAGE_MODALITY, Dataset, DatasetDict
from manyviews.data.image_files import open_image

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_photos() -> DatasetDict:
    splits = {}
    for split in ("train", "test"):
        with open_image(_get_asset(f"photos-{split}.webp")) as sheet:
            pixels = torch.from_numpy(np.array(sheet))
        rows, columns = (side // 32 for side in pixels.shape[:2])
        images = pixels.view(rows, 32, columns, 32, 3).permute(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
        labels = torch.arange(10).repeat_interleave(len(images) // 10)
        splits[split] = Dataset({IMAGE_MODALITY: images.contiguous()}, labels)
    return DatasetDict("photos", splits, CIFAR10_CLASSES)


def load_digits() -> DatasetDict:
    with np.load(_get_asset("digits.npz")) as arrays:
        pixels, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]).long()
    images = (pixels.float() * (255 / 16)).round().to(torch.uint8)[:, None]
    modalities = {IMAGE_MODALITY: images, **compute_digit_features(pixels.float() / 16)}
    train, test = slice(None, -360), slice(-360, None)
    splits = {
        name: Dataset({modality: features[part] for modality, features in modalities.items()}, labels[part])
        for name, part in (("train", train), ("test", test))
    }
    names = tuple(name for name in modalities if name != IMAGE_MODALITY)
    return DatasetDict("digits", splits, tuple(str(digit) for digit in range(10)), default_modalities=names)


def compute_digit_features(pixels: Tensor) -> dict[str, Tensor]:
    """Compute four feature views of images (n, 8, 8) in [0, 1]: float32 (n, 64), (n, 40), (n, 16), (n, 32)."""
    dy = pixels[:, 2:, 1:-1] - pixels[:, :-2, 1:-1]
    dx = pixels[:, 1:-1, 2:] - pixels[:, 1:-1, :-2]
    magnitude = torch.sqrt(dy**2 + dx**2)
    bins = ((torch.atan2(dy, dx) + math.pi) / (2 * math.pi) * 8).long() % 8
    votes = torch.nn.functional.one_hot(bins, 8) * magnitude[..., None]
    cells = votes.unflatten(1, (2, 3)).unflatten(3, (2, 3)).sum((2, 4))
    return {
        "pixels": pixels.flatten(1),
        "fourier": torch.fft.rfft2(pixels).abs().flatten(1),
        "profiles": torch.cat([pixels.sum(1), pixels.sum(2)], 1),
        "gradients": cells.flatten(1),
    }


def _get_asset(name: str) -> BytesIO:
    return BytesIO(files("manyviews.data").joinpath("assets", name).read_bytes())
