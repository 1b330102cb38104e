"""Drawing views on one core: our policy beside the same policy by PIL, image by image."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from tests.transforms import pil

from benchmarks.measure import Row, interleaved, timed
from manyviews.transforms import SimCLRTransform

CASES = (
    ("CIFAR's policy, {} of 32 x 32, 4 views at 32", SimCLRTransform(32), (256, 32, 32), 1 / 2.5),
    (
        "ImageNet's policy, {} of 375 x 500, 4 views at 224",
        SimCLRTransform(224, jitter_strength=1.0, blur_prob=0.5),
        (8, 375, 500),
        1.0,
    ),
)


def photos(count: int, height: int, width: int) -> torch.Tensor:
    """Smooth random pictures: PIL's time does not depend on what is in them."""
    small = torch.rand(count, 3, height // 8 + 1, width // 8 + 1, generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(small, (height, width), mode="bicubic")
    return large.clamp(0, 1).mul(255).to(torch.uint8)


def measure(quick: bool) -> Iterator[Row | str]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for label, policy, (count, height, width), bar in CASES:
        images = photos(2 if quick else count, height, width)
        given = images if height == width else list(images)
        work = {
            "ours": partial(policy, given, views=4, seed=0, epoch=0, index=torch.arange(len(images))),
            "PIL": partial(pil.views, policy, [pil.image(image) for image in images], 4, seed=0),
        }
        took = interleaved(work, 0.1 if quick else 5.0)
        yield timed("views", label.format(len(images)), "PIL, one by one", took["ours"], took["PIL"], bar=bar)
        ours, theirs = (4 * len(images) / statistics.median(taken) for taken in took.values())
        yield f"{label.format(len(images))}: {ours:,.0f} views a second, PIL {theirs:,.0f}"
    torch.set_num_threads(threads)
