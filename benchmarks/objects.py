"""Render photos of objects, as two tables that `manyviews train --data` and `benchmarks.results` read.

    python -m benchmarks.objects FOLDER

An object has one of ten shapes, which is its label, and its own proportions. Its color is its own (`own-color.csv`), or
that of all objects (`one-color.csv`). A photo shows it turned and tilted at random, in random light, in front of a gray
background. The column `photos` has eight photos of each object that is trained on, the column `photo` the first.
"""

import csv
import math
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

SHAPES = ("sphere", "box", "cylinder", "cone", "torus", "capsule", "octahedron", "cross", "pair", "ring")
SIZE, STEPS = 32, 24
"""Height and width of a photo, and steps of a ray."""
MAX_TILT = 1.0
"""Maximum angle between the axis of an object and the vertical of its photo."""
TRAIN_OBJECTS, TEST_OBJECTS, PHOTOS = 1500, 1000, 8


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
    rgb = rgb if colors == "own-color" else torch.full_like(rgb, 0.7)
    parts = list(zip(shape.split(100), sizes.split(100), rgb.split(100), strict=True))
    images = [torch.cat([render(*part, generator) for part in parts]) for _ in range(photos)]
    return torch.stack(images, 1), shape


def write_objects(folder: Path, colors: str) -> Path:
    """Write the photos and a table of them: an object is a row, with all its photos and the first one alone."""
    rows = []
    for split, objects, photos, seed in (("train", TRAIN_OBJECTS, PHOTOS, 1), ("test", TEST_OBJECTS, 1, 2)):
        images, labels = make_split(objects, photos, seed, colors)
        for i, (views, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            paths = [Path(f"images-{colors}", f"{split}-{i}-{view}.png") for view in range(photos)]
            for path, pixels in zip(paths, views, strict=True):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / path)
            cells = ("|".join(map(str, paths)), str(paths[0]))
            rows.append((f"{colors}-{split}-{i}", split, SHAPES[label], *cells))
    table = folder / f"{colors}.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("id", "split", "label", "photos", "photo"), *rows])
    return table


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for colors in ("one-color", "own-color"):
        print(write_objects(folder, colors))


if __name__ == "__main__":
    main()
