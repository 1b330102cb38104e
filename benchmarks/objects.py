"""Several photos of an object as views, compared with augmented crops of one photo, on rendered objects.

An object has one of ten shapes and its own proportions. Its color is its own, or that of all objects. A photo shows
it turned and tilted at random, in random light, in front of a gray background. The probe predicts the shape of unseen
objects from one photo.

    python -m benchmarks.objects --seeds 0 1 2
"""

import argparse
import math
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.data import Images
from manyviews.utils import Table, format_mean_std

SHAPES = ("sphere", "box", "cylinder", "cone", "torus", "capsule", "octahedron", "cross", "pair", "ring")
SIZE, STEPS = 32, 24
"""Height and width of a photo, and steps of a ray."""
MAX_TILT = 1.0
"""Maximum angle between the axis of an object and the vertical of its photo."""
SETTINGS = {"photos": "four photos, each augmented", "crops": "four augmented crops of one photo"}

AUGMENTATIONS: dict[str, Any] = {
    "weak": {"crop_scale": (0.8, 1.0), "jitter_strength": 0.5},
    "strong": {"crop_scale": (0.4, 1.0), "jitter_strength": 1.0},
}


def compute_distance(shape: Tensor, p: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return bounds of the distance from points p (n, r, 3) to objects of a shape (n,), with sizes a, b (n, 1)."""
    x, y, z = p.abs().unbind(-1)
    radius, height = (x.square() + z.square()).sqrt(), p[..., 1]
    length = p.norm(dim=-1)

    def box(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return torch.stack([x - u, y - v, z - w]).amax(0)

    bar = b * 0.35
    shifted = (p - torch.stack([a, 0 * a, 0 * a], -1) * p[..., :1].sign()).norm(dim=-1)
    distances = [
        length - a,
        box(a, b, a * 0.8),
        torch.maximum(radius - a, y - b),
        torch.maximum((radius * b + height * a / 2) / (a + b) - a * b / (a + b) / 2, y - b),
        ((radius - a).square() + height.square()).sqrt() - b * 0.4,
        (radius.square() + (y - b).clamp_min(0).square()).sqrt() - a * 0.6,
        (x + y + z - a * 1.3) / math.sqrt(3),
        torch.stack([box(a, bar, bar), box(bar, a, bar), box(bar, bar, a)]).amin(0),
        shifted - b * 0.6,
        torch.maximum(torch.maximum(radius - a, a * 0.6 - radius), y - b * 0.5),
    ]
    return torch.stack(distances).gather(0, shape.view(1, -1, 1).expand(1, -1, p.shape[1]))[0]


def make_rotation(azimuth: Tensor, tilt: Tensor, direction: Tensor) -> Tensor:
    """Return rotations (n, 3, 3): by the azimuth around the axis of the objects, then a tilt in a direction."""
    zero = torch.zeros_like(tilt)
    axis = torch.stack([direction.cos(), zero, direction.sin()], -1) * tilt[:, None]
    generators = [
        torch.linalg.cross(torch.eye(3)[None], v[:, None, :]) for v in (axis, azimuth[:, None] * torch.eye(3)[1])
    ]
    return torch.linalg.matrix_exp(generators[0]) @ torch.linalg.matrix_exp(generators[1])


def render(shape: Tensor, sizes: Tensor, colors: Tensor, generator: torch.Generator) -> Tensor:
    """Render a photo (n, 3, SIZE, SIZE) of each object from a random direction."""
    count, draw = len(shape), lambda *size: torch.rand(*size, generator=generator)
    rotation = make_rotation(2 * math.pi * draw(count), MAX_TILT * draw(count), 2 * math.pi * draw(count))
    grid = torch.linspace(-1.2, 1.2, SIZE)
    ys, xs = torch.meshgrid(-grid, grid, indexing="ij")
    p = torch.stack([xs, ys, torch.full_like(xs, -2.0)], -1).view(1, -1, 3).expand(count, -1, -1).clone()
    p[..., :2] += 0.3 * draw(count, 1, 2) - 0.15
    a, b = sizes[:, :1], sizes[:, 1:]

    def distance(q: Tensor) -> Tensor:
        return compute_distance(shape, q @ rotation, a, b)

    for _ in range(STEPS):
        p[..., 2] += distance(p).clamp(-0.2, 0.3)
    hit = distance(p) < 0.05
    normal = torch.stack([distance(p + d) - distance(p - d) for d in 0.02 * torch.eye(3)], -1)
    light = normalize(torch.randn(count, 1, 3, generator=generator) - torch.tensor([0.0, 0.0, 1.5]), dim=-1)
    shade = 0.25 + 0.75 * (normalize(normal, dim=-1) * light).sum(-1).clamp_min(0)
    background = draw(count, 1, 1) + 0.2 * (draw(count, SIZE * SIZE, 1) - 0.5)
    tint = 0.8 + 0.4 * draw(count, 1, 3)
    image = torch.where(hit[..., None], colors[:, None] * tint * shade[..., None], background)
    return (image.clamp(0, 1) * 255).byte().view(count, SIZE, SIZE, 3).permute(0, 3, 1, 2)


def make_split(objects: int, photos: int, seed: int, colors: str) -> tuple[Tensor, Tensor]:
    """Return photos (objects, photos, 3, SIZE, SIZE) and the shapes (objects,)."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.arange(objects) % len(SHAPES)
    sizes = 0.45 + 0.4 * torch.rand(objects, 2, generator=generator)
    rgb = torch.rand(objects, 3, generator=generator)
    rgb = rgb if colors == "own" else torch.full_like(rgb, 0.7)
    parts = list(zip(shape.split(100), sizes.split(100), rgb.split(100), strict=True))
    images = [torch.cat([render(*part, generator) for part in parts]) for _ in range(photos)]
    return torch.stack(images, 1), shape


def make_dataset(setting: str, objects: int, photos: int, colors: str) -> dict[str, mv.Dataset]:
    """Return objects with all photos or, for crops, with the first one; test objects have one photo."""
    train, labels = make_split(objects, photos if setting == "photos" else 1, 1, colors)
    test, test_labels = make_split(1000, 1, 2, colors)
    counts = torch.full((objects,), train.shape[1])
    return {
        "train": mv.Dataset({"photo": Images(train.flatten(0, 1), counts)}, labels),
        "test": mv.Dataset({"photo": test[:, 0]}, test_labels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--losses", nargs="+", default=["mv-dhel", "mv-infonce", "pwe-ntxent"])
    parser.add_argument("--colors", nargs="+", choices=["own", "same"], default=["same", "own"])
    parser.add_argument("--augmentation", nargs="+", choices=list(AUGMENTATIONS), default=list(AUGMENTATIONS))
    parser.add_argument("--views", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--objects", type=int, default=1500)
    parser.add_argument("--photos", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--precision", default="32")
    parser.add_argument("--output", type=Path, default=Path("runs/objects"))
    options = parser.parse_args()
    config = mv.EvaluationConfig(label_fractions=(), baselines=False)
    rows = []
    for colors, setting in product(options.colors, options.views):
        data = make_dataset(setting, options.objects, options.photos, colors)
        for loss, augmentation in product(options.losses, options.augmentation):
            results = []
            for seed in options.seeds:
                run = mv.train(
                    data,
                    views="photo:4",
                    loss=loss,
                    epochs=options.epochs,
                    batch_size=64,
                    **AUGMENTATIONS[augmentation],
                    precision=options.precision,
                    seed=seed,
                    cpu_threads=1,
                    evaluate_at_end=False,
                    output=options.output / f"{loss}-{setting}-{augmentation}-{colors}-{seed}",
                    overwrite=True,
                )
                score = mv.evaluate(run, data=data, config=config).scores["trained"]
                results.append((score.linear, score.knn))
            cells = [format_mean_std([100 * value for value in column]) for column in zip(*results, strict=True)]
            rows.append((colors, SETTINGS[setting], augmentation, loss, *cells))
            print(rows[-1], flush=True)
    header = ("colors of objects", "views", "augmentation", "loss", "linear probe", "kNN")
    print(Table.from_texts("Shapes of unseen objects from one photo", header, rows).to_markdown())


if __name__ == "__main__":
    main()
