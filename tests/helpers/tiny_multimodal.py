"""A dataset of three modalities with missing entries, and a config that trains on it in a second."""

from pathlib import Path

import numpy as np

from manyviews.training import Config

MODAL = Config(
    monitor_size=0,
    hidden_dim=16,
    transformer_heads=4,
    transformer_layers=1,
    embed_dim=8,
    epochs=3,
    batch_size=16,
    optimizer="adamw",
    learning_rate=0.05,
    monitor_every=4,
    log_every=1,
    checkpoint_every_steps=2,
    cpu_threads=1,
    num_workers=0,
    evaluate_at_end=False,
    precision="32",
)
"""Five steps per epoch, fifteen in total; the same bits on CPUs with and without bfloat16."""

NAMES = ("text", "audio", "video")


def bundle(path: Path, labels: str = "classes", gaps: bool = True, splits: tuple[str, ...] = ("train", "test")) -> str:
    """Write text (n, 7, 6) of 1 to 7 steps, audio (n, 4), video (n, 5, 3); text and audio depend on the label."""
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
        target = (label - 1 + 0.3 * generator.normal(size=count)).astype(np.float32)
        arrays |= {f"{split}/video": video, f"{split}/label": label if labels == "classes" else target}
    np.savez(path, **arrays)
    return str(path)
