"""The same operations by PIL, image by image: the oracle of the tests and the rival of the benchmark."""

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from manyviews.views import SimCLRPolicy, colour, crop


def image(tensor: torch.Tensor) -> Image.Image:
    """uint8 (3, H, W) as a PIL image."""
    return Image.fromarray(tensor.permute(1, 2, 0).contiguous().numpy())


def tensor(picture: Image.Image) -> torch.Tensor:
    """A PIL image as float32 (3, H, W) in [0, 1]."""
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


def hue(picture: Image.Image, turn: float) -> Image.Image:
    h, s, v = picture.convert("HSV").split()
    turned = (np.asarray(h).astype(np.int16) + round(turn * 256)) % 256
    return Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), s, v)).convert("RGB")


def grey(picture: Image.Image) -> Image.Image:
    return picture.convert("L").convert("RGB")


OPERATIONS = (brightness, contrast, saturation, hue)


def views(policy: SimCLRPolicy, images: list[Image.Image], count: int, seed: int) -> torch.Tensor:
    """N views of each image, with numbers drawn at once: what is timed is PIL."""
    random = torch.rand(len(images), count, 40, generator=torch.Generator().manual_seed(seed))
    sizes = torch.tensor([(picture.height, picture.width) for picture in images])
    boxes = crop.boxes(random[..., :22], sizes, policy.scale, policy.ratio).tolist()
    out = torch.empty(len(images), count, 3, policy.size, policy.size)
    for i, picture in enumerate(images):
        for n, draws in enumerate(random[i].tolist()):
            view = resized(picture, boxes[i][n], policy.size)
            if draws[22] < policy.mirror:
                view = ImageOps.mirror(view)
            if draws[23] < policy.jitter:
                for operation in colour.ORDERS[int(draws[24] * 24)]:
                    spread = policy.strength * (0.2 if operation == 3 else 0.8)
                    centre = 0 if operation == 3 else 1
                    view = OPERATIONS[operation](view, centre + spread * (2 * draws[25 + operation] - 1))
            if draws[30] < policy.grey:
                view = grey(view)
            if draws[31] < policy.blur:
                view = view.filter(ImageFilter.GaussianBlur(0.2 + 1.8 * draws[32]))
            out[i, n] = tensor(view)
    return out
