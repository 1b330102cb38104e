"""Making views on one core: the batched transform compared with the same transform in PIL, image by image."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from tests.transforms import pil

from benchmarks.measure import Row, make_time_row, time_interleaved
from manyviews.transforms import SimCLRTransform

CASES = (
    ("CIFAR's transform, {} images of 32 x 32, 4 views at 32", SimCLRTransform(32), (256, 32, 32), 1 / 12),
    (
        "ImageNet's transform, {} images of 375 x 500, 4 views at 224",
        SimCLRTransform(224, jitter_strength=1.0, blur_prob=0.5),
        (8, 375, 500),
        1.0,
    ),
)
"""Label, transform, number, height and width of the images, and the max ratio."""


def make_images(count: int, height: int, width: int) -> torch.Tensor:
    """Smooth random images; PIL's time does not depend on their content."""
    small = torch.rand(count, 3, height // 8 + 1, width // 8 + 1, generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(small, (height, width), mode="bicubic")
    return large.clamp(0, 1).mul(255).to(torch.uint8)


def measure(quick: bool) -> Iterator[Row | str]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for label, transform, (count, height, width), max_ratio in CASES:
        images = make_images(2 if quick else count, height, width)
        batch = images if height == width else list(images)
        functions = {
            "manyviews": partial(transform, batch, views=4, seed=0, epoch=0, index=torch.arange(len(images))),
            "PIL": partial(pil.views, transform, [pil.image(image) for image in images], 4, seed=0),
        }
        times, workload = time_interleaved(functions, 0.1 if quick else 5.0), label.format(len(images))
        yield make_time_row("views", workload, "PIL, one by one", times["manyviews"], times["PIL"], max_ratio=max_ratio)
        rate, pil_rate = (4 * len(images) / statistics.median(seconds) for seconds in times.values())
        yield f"{workload}: {rate:,.0f} views per second, PIL {pil_rate:,.0f}"
    torch.set_num_threads(threads)
