"""The same operations with PIL, image by image: reference of the tests and baseline of the benchmark."""

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from manyviews.transforms import SimCLRTransform, color, crop


def image(tensor: torch.Tensor) -> Image.Image:
    """Convert uint8 (3, H, W) to a PIL image."""
    return Image.fromarray(tensor.permute(1, 2, 0).contiguous().numpy())


def tensor(picture: Image.Image) -> torch.Tensor:
    """Convert a PIL image to float32 (3, H, W) in [0, 1]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def resized(picture: Image.Image, box: list[int], size: int) -> Image.Image:
    top, left, h, w = box
    return picture.crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BICUBIC)


def brightness(picture: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Brightness(picture).enhance(factor)


def contrast(picture: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Contrast(picture).enhance(factor)


def saturation(picture: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Color(picture).enhance(factor)


def hue(picture: Image.Image, shift: float) -> Image.Image:
    h, s, v = picture.convert("HSV").split()
    shifted = (np.asarray(h).astype(np.int16) + round(shift * 256)) % 256
    return Image.merge("HSV", (Image.fromarray(shifted.astype(np.uint8)), s, v)).convert("RGB")


def grayscale(picture: Image.Image) -> Image.Image:
    return picture.convert("L").convert("RGB")


OPERATIONS = (brightness, contrast, saturation, hue)


def views(transform: SimCLRTransform, images: list[Image.Image], count: int, seed: int) -> torch.Tensor:
    """Return `count` views of each image; random numbers are drawn in advance, so that only PIL is timed."""
    random = torch.rand(len(images), count, 40, generator=torch.Generator().manual_seed(seed))
    sizes = torch.tensor([(picture.height, picture.width) for picture in images])
    boxes = crop.sample_crop_boxes(random[..., :22], sizes, transform.crop_scale, transform.aspect_ratio).tolist()
    out = torch.empty(len(images), count, 3, transform.size, transform.size)
    for i, picture in enumerate(images):
        for n, draws in enumerate(random[i].tolist()):
            view = resized(picture, boxes[i][n], transform.size)
            if draws[22] < transform.hflip_prob:
                view = ImageOps.mirror(view)
            if draws[23] < transform.jitter_prob:
                for operation in color.ORDERS[int(draws[24] * 24)]:
                    spread = transform.jitter_strength * (0.2 if operation == 3 else 0.8)
                    center = 0 if operation == 3 else 1
                    view = OPERATIONS[operation](view, center + spread * (2 * draws[25 + operation] - 1))
            if draws[30] < transform.grayscale_prob:
                view = grayscale(view)
            if draws[31] < transform.blur_prob:
                view = view.filter(ImageFilter.GaussianBlur(0.2 + 1.8 * draws[32]))
            out[i, n] = tensor(view)
    return out
