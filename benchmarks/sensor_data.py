"""Write small sets of sequences as .npz files that `manyviews train --data` and `benchmarks.results` read.

    python -m benchmarks.sensor_data FOLDER

- `synthetic.npz`: 12 classes of latent movements seen by three sensors (imu, pose, depth) of different noise. Gain,
  offset, speed, delay and dropouts of each sensor are nuisance. 431 training and 430 test sequences.
- `watch.npz`: seven shoulder exercises recorded by the accelerometer and gyroscope of a watch, from the package
  seglearn (`pip install seglearn`; left out without it). 420 training sequences of six persons, 280 test sequences of
  four others.
- `vowels.npz`: JapaneseVowels of the package aeon (`pip install --no-deps aeon`; left out without it), nine speakers.
  Its 12 features are three modalities (low, mid, high). 270 training sequences, 370 test sequences.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

SENSORS = {"imu": (6, 0.6, 0.5), "pose": (10, 0.3, 0.6), "depth": (8, 1.5, 1.0)}
"""Number of features, noise, and strength of gain and offset of each synthetic sensor."""
CLASSES, LATENT, STEPS = 12, 4, 25
TRAIN_PERSONS, WINDOWS, STRIDE = 6, 5, 6
VOWEL_FEATURES = {"low": slice(0, 4), "mid": slice(4, 8), "high": slice(8, 12)}
VOWELS_PATH = "datasets/data/JapaneseVowels/JapaneseVowels_{}.ts"


def make_synthetic(seed: int = 0) -> dict[str, Any]:
    """Make sequences (n, STEPS, features) of each sensor, with lengths and labels."""
    rng = np.random.default_rng(seed)
    shape = (CLASSES, LATENT, 3)
    frequency, amplitude, phase = rng.integers(1, 5, shape), rng.normal(size=shape), rng.uniform(0, 2 * np.pi, shape)
    mixing = {name: rng.normal(size=(LATENT, dim)) / np.sqrt(LATENT) for name, (dim, _, _) in SENSORS.items()}
    arrays: dict[str, Any] = {}
    for split, count in (("train", 431), ("test", 430)):
        labels = np.arange(count) % CLASSES
        rng.shuffle(labels)
        lengths = rng.integers(15, STEPS + 1, count)
        values = {name: np.zeros((count, STEPS, dim), np.float32) for name, (dim, _, _) in SENSORS.items()}
        for i, (label, length) in enumerate(zip(labels, lengths, strict=True)):
            time = np.linspace(0, 1, length)
            time = (
                time * rng.uniform(0.8, 1.25)
                + rng.uniform(-0.15, 0.15)
                + (0.06 * np.sin(2 * np.pi * (time + rng.uniform())) * rng.normal())
            )
            size = amplitude[label] * (1 + 0.25 * rng.normal(size=shape[1:]))
            angle = 2 * np.pi * frequency[label] * time[:, None, None] + phase[label]
            latent = (size * np.sin(angle)).sum(2)
            for name, (dim, noise, strength) in SENSORS.items():
                x = latent @ mixing[name]
                gain, offset = np.exp(0.3 * strength * rng.normal()), strength * rng.normal(size=dim)
                x = gain * x + offset + noise * rng.normal(size=x.shape)
                start, width = int(rng.integers(0, length)), int(rng.integers(0, length // 4 + 1))
                x[start : start + width] = offset  # a dropout
                values[name][i, :length] = x
        for name, array in values.items():
            arrays |= {f"{split}/{name}": array, f"{split}/{name}_length": lengths}
        arrays[f"{split}/label"] = labels
    return arrays


def make_watch() -> dict[str, Any]:
    """Cut windows of 2 to 3.2 seconds out of the recordings of seglearn, at 8.3 steps per second."""
    from seglearn.datasets import load_watch  # type: ignore[import-not-found]

    data, rng = load_watch(), np.random.default_rng(0)
    windows: dict[str, list[tuple[Any, int]]] = {"train": [], "test": []}
    for recording, label, person in zip(data["X"], data["y"], data["subject"], strict=True):
        for start in np.linspace(0, len(recording) - 160, WINDOWS).astype(int):
            stop = start + int(rng.integers(100, 161))
            split = "train" if person <= TRAIN_PERSONS else "test"
            windows[split].append((recording[start:stop:STRIDE], label))
    arrays: dict[str, Any] = {}
    for split, pairs in windows.items():
        lengths = np.array([len(window) for window, _ in pairs])
        values = np.zeros((len(pairs), lengths.max(), 6), np.float32)
        for i, (window, _) in enumerate(pairs):
            values[i, : len(window)] = window
        for name, part in (("acc", values[..., :3]), ("gyro", values[..., 3:])):
            arrays |= {f"{split}/{name}": part, f"{split}/{name}_length": lengths}
        arrays[f"{split}/label"] = np.array([label for _, label in pairs], np.int64)
    return arrays


def make_vowels(package: Path) -> dict[str, Any]:
    """Read the files of JapaneseVowels: a line has 12 features, separated by colons, then the label."""
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        lines = (package / VOWELS_PATH.format(split.upper())).read_text().partition("@data")[2].split()
        rows = [line.split(":") for line in lines]
        sequences = [np.array([part.split(",") for part in row[:-1]], np.float32).T for row in rows]
        lengths = np.array([len(sequence) for sequence in sequences])
        values = np.zeros((len(sequences), lengths.max(), 12), np.float32)
        for i, sequence in enumerate(sequences):
            values[i, : len(sequence)] = sequence
        for name, features in VOWEL_FEATURES.items():
            arrays |= {f"{split}/{name}": values[..., features], f"{split}/{name}_length": lengths}
        arrays[f"{split}/label"] = np.array([int(row[-1]) - 1 for row in rows])
    return arrays


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "synthetic.npz", **make_synthetic())
    left_out = []
    if find_spec("seglearn"):
        np.savez(folder / "watch.npz", **make_watch())
    else:
        left_out.append("watch.npz needs seglearn")
    if (aeon := find_spec("aeon")) and aeon.submodule_search_locations:
        np.savez(folder / "vowels.npz", **make_vowels(Path(aeon.submodule_search_locations[0])))
    else:
        left_out.append("vowels.npz needs aeon (pip install --no-deps aeon)")
    print(f"wrote {folder}", *(f"left out: {reason}" for reason in left_out), sep="\n")


if __name__ == "__main__":
    main()
