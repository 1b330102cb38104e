"""Views a second on one core: our policy against the same policy by PIL, image by image.

    python -m benchmarks.views

Medians of calls interleaved in one process, one thread.
"""

from __future__ import annotations

from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from tests.views import pil

from benchmarks.timing import interleaved
from manyviews.views import SimCLRPolicy

CASES = [
    ("CIFAR: 256 of 32 x 32, 4 views at 32", SimCLRPolicy(32), (256, 32, 32), 4, 2.5),
    (
        "ImageNet: 8 of 375 x 500, 4 views at 224",
        SimCLRPolicy(224, strength=1.0, blur=0.5),
        (8, 375, 500),
        4,
        1.0,
    ),
]


def photos(count: int, height: int, width: int) -> torch.Tensor:
    """Smooth random pictures: PIL's time does not depend on what is in them."""
    small = torch.rand(count, 3, height // 8 + 1, width // 8 + 1, generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(small, (height, width), mode="bicubic")
    return large.clamp(0, 1).mul(255).to(torch.uint8)


def main() -> None:
    torch.set_num_threads(1)
    table = Table(title="views a second, one thread")
    for column in ("policy", "PIL", "ours", "ratio", "bar"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    missed = []
    for label, policy, (count, height, width), views, bar in CASES:
        images = photos(count, height, width)
        pictures = [pil.image(image) for image in images]
        given = images if height == width else list(images)
        index = torch.arange(count)
        seconds = interleaved(
            {
                "ours": partial(policy, given, views=views, seed=0, epoch=0, index=index),
                "PIL": partial(pil.views, policy, pictures, views, seed=0),
            },
            5.0,
        )
        rate = {name: count * views / s for name, s in seconds.items()}
        ratio = rate["ours"] / rate["PIL"]
        table.add_row(label, f"{rate['PIL']:,.0f}", f"{rate['ours']:,.0f}", f"{ratio:.2f}", f"{bar:.1f}")
        if ratio < bar:
            missed.append(f"{label}: {ratio:.2f}, bar {bar}")
    console = Console(width=120)
    console.print(table)
    console.print("\n".join(["bars missed:", *missed]) if missed else "all bars met")


if __name__ == "__main__":
    main()
