"""A bundle of three modalities, some of them missing, and a training on it that takes a second."""

from pathlib import Path

import numpy as np

from manyviews.training import Config

MODAL = Config(
    policy="modalities",
    views=0,
    held_out=0,
    dim=16,
    heads=4,
    layers=1,
    projection=8,
    epochs=3,
    batch_size=16,
    optimiser="adamw",
    learning_rate=0.05,
    eval_every=4,
    log_every=1,
    save_every=2,
    threads=1,
    workers=0,
    probe=False,
)
"""Five steps an epoch, fifteen in all."""

NAMES = ("text", "audio", "video")


def bundle(path: Path, labels: str = "classes", gaps: bool = True, splits: tuple[str, ...] = ("train", "test")) -> str:
    """Text (n, 7, 6) of one to seven steps, audio (n, 4), video (n, 5, 3); their mean follows the label."""
    generator = np.random.default_rng(0)
    arrays = {}
    for split, count in zip(splits, (80, 40, 30), strict=False):
        label = generator.integers(0, 3, count)
        shift = label[:, None].astype(np.float32) * 2
        text = generator.normal(size=(count, 7, 6)).astype(np.float32) + shift[..., None]
        lengths = generator.integers(1, 8, count)
        text[np.arange(7) >= lengths[:, None]] = 0
        audio = generator.normal(size=(count, 4)).astype(np.float32) + shift
        if gaps:
            audio[generator.random(count) < 0.25] = np.nan
        video = generator.normal(size=(count, 5, 3)).astype(np.float32)
        arrays |= {f"{split}/text": text, f"{split}/text_length": lengths, f"{split}/audio": audio}
        quantity = (label - 1 + 0.3 * generator.normal(size=count)).astype(np.float32)
        arrays |= {f"{split}/video": video, f"{split}/label": label if labels == "classes" else quantity}
    np.savez(path, **arrays)
    return str(path)
