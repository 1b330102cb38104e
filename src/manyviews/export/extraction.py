"""Extract features with frozen models of transformers: texts, audio, images and videos -> a bundle .npz to train on.

Features are computed in parts of a fixed number of instances, each of which is saved in a folder next to the output as
soon as it is complete. An extraction that was stopped continues with the first missing part. At the end the parts are
copied into the bundle, one after another, so the memory does not depend on the number of instances.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from manyviews.data import DatasetDict, DatasetError
from manyviews.models import FeatureExtractor, FeatureOptions, load_feature_extractor
from manyviews.utils import (
    atomic_path,
    check_writable,
    escape_surrogates,
    exclusive_lock,
    logger,
    suggest,
    track,
    write_atomic,
)

PART_INSTANCES = 64
FINGERPRINT_FILE, LOCK_FILE = "fingerprint.txt", "lock"
RESERVED_NAMES = ("label", "labels", "y", "id", "ids")
RESERVED_SUFFIXES = ("_length", "_lengths", "_mask")


@dataclass(frozen=True)
class _Part:
    """Features of some instances of a split, in a file."""

    path: Path
    split: str
    index: range

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of steps of each instance, 0 if it is missing."""
        with np.load(self.path, allow_pickle=False) as arrays:
            lengths: np.ndarray = arrays["lengths"]
        return lengths

    def read_steps(self) -> np.ndarray:
        """Read the steps (sum of the lengths, d) of all instances."""
        with np.load(self.path, allow_pickle=False) as arrays:
            steps: np.ndarray = arrays["steps"]
        return steps


def extract_features(
    data: DatasetDict,
    models: Mapping[str, str],
    output: Path,
    options: FeatureOptions | None = None,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 8,
    num_workers: int = 2,
    part_instances: int = PART_INSTANCES,
) -> dict[str, int]:
    """Extract features of modalities and write them to a bundle, with ids, labels and splits.

    Args:
        data: the dataset.
        models: the frozen model `hf:NAME_OR_FOLDER` of each modality.
        output: the .npz file to write. Finished parts are in the folder OUTPUT.parts until it is complete.
        options: what is extracted.
        device: device of the models.
        batch_size: number of instances that are encoded together.
        num_workers: number of threads that read files.
        part_instances: number of instances of a part.

    Returns:
        the dimension of the features of each modality.

    Raises:
        ValueError: a model does not encode its modality, or the folder has parts of another extraction.

    Examples:
        >>> import tempfile
        >>> from transformers import ViTConfig, ViTModel
        >>> from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
        >>> from manyviews.data import Dataset
        >>> data = DatasetDict("black", {"train": Dataset({"image": torch.zeros(3, 3, 9, 9, dtype=torch.uint8)})})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ViTModel(ViTConfig(image_size=32, hidden_size=24, num_hidden_layers=1)).save_pretrained(folder)
        ...     _ = ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
        ...     extract_features(data, {"image": f"hf:{folder}"}, Path(folder) / "bundle.npz")
        {'image': 24}
    """
    options = options or FeatureOptions()
    check_writable(output, (".npz",))
    _check_names(data, models)
    if min(batch_size, num_workers, part_instances) < 1:
        raise ValueError("batch_size, num_workers and part_instances must be at least 1")
    folder = output.with_name(f"{output.name}.parts")
    folder.mkdir(exist_ok=True)
    (folder / LOCK_FILE).touch()
    with exclusive_lock(folder, LOCK_FILE):
        parts = {}
        for number, (name, model) in enumerate(models.items()):
            extractor = load_feature_extractor(data["train"][name], model, options, device)
            subfolder = folder / str(number)
            _check_fingerprint(
                subfolder, f"{_hash_column(data, name, part_instances)} {extractor.compute_fingerprint()}"
            )
            parts[name] = _list_parts(subfolder, data, part_instances)
            with ThreadPoolExecutor(num_workers) as pool:
                left = [part for part in parts[name] if not part.path.exists()]
                total = sum(len(part.index) for part in left)
                for part in track(left, name, total, lambda part: len(part.index)):
                    _extract_part(part, data, name, extractor, batch_size, pool)
            del extractor  # one model at a time is in memory
        dims = _write_bundle(output, data, parts, options.level == "frame")
    shutil.rmtree(folder)
    return dims


def _check_names(data: DatasetDict, models: Mapping[str, str]) -> None:
    modalities = data["train"].modalities
    if not models:
        raise ValueError(f"no model is given: {data.name} has the modalities {', '.join(modalities)}")
    for name in models:
        if name not in modalities:
            raise DatasetError(f"{data.name} has no modality {name!r}{suggest(name, modalities)}")
        if name in RESERVED_NAMES or name.endswith(RESERVED_SUFFIXES) or "/" in name:
            raise DatasetError(
                f"a bundle cannot have a modality {name!r}: {', '.join(RESERVED_NAMES)} and names that end in "
                f"{', '.join(RESERVED_SUFFIXES)} are other arrays: rename the column"
            )


def _hash_column(data: DatasetDict, name: str, part_instances: int) -> str:
    digest = hashlib.blake2b(f"{part_instances} {name}".encode("utf-8", "surrogatepass"), digest_size=16)
    for split, dataset in data.splits.items():
        column = dataset[name]
        digest.update(f"{split} {len(column)} {column.kind}".encode())
        for content in column.list_content():
            digest.update(content if isinstance(content, bytes) else content.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _check_fingerprint(folder: Path, fingerprint: str) -> None:
    path = folder / FINGERPRINT_FILE
    if path.exists() and path.read_text() != fingerprint:
        raise ValueError(
            f"{folder.parent} has parts of an extraction from other data, with other models or options: remove it to "
            "start again, or choose another output"
        )
    folder.mkdir(exist_ok=True)
    write_atomic(path, fingerprint)


def _list_parts(folder: Path, data: DatasetDict, part_instances: int) -> list[_Part]:
    return [
        _Part(folder / f"{split}-{start}.npz", split, range(start, min(start + part_instances, len(dataset))))
        for split, dataset in data.splits.items()
        for start in range(0, len(dataset), part_instances)
    ]


def _extract_part(
    part: _Part, data: DatasetDict, name: str, extractor: FeatureExtractor, batch_size: int, pool: ThreadPoolExecutor
) -> None:
    """Extract the features of a part and save them; a file that cannot be read is skipped with a warning."""
    column = data[part.split][name]
    valid = [i for i in part.index if column.get_mask()[i]]
    batches = [valid[start : start + batch_size] for start in range(0, len(valid), batch_size)]

    def read(i: int) -> Any:
        try:
            return extractor.read(column, i)
        except DatasetError as error:
            if getattr(column, "raise_on_corrupt", False):
                raise
            return error

    features: dict[int, Tensor] = {}
    following = [pool.submit(read, i) for i in batches[0]] if batches else []
    for number, batch in enumerate(batches):
        items = dict(zip(batch, (future.result() for future in following), strict=True))
        following = [pool.submit(read, i) for i in batches[number + 1]] if number + 1 < len(batches) else []
        for i in [i for i in items if isinstance(items[i], DatasetError)]:
            logger.warning(f"skipped: {name} of instance {i} of {part.split}: {items.pop(i)}")
        if items:
            features.update(zip(items, extractor.extract(list(items.values())), strict=True))
    lengths = np.array([len(features[i]) if i in features else 0 for i in part.index])
    steps = torch.cat(list(features.values())).numpy() if features else np.zeros((0, 0), np.float32)
    with atomic_path(part.path) as temporary, temporary.open("wb") as file:
        np.savez(file, steps=steps, lengths=lengths)


def _write_bundle(output: Path, data: DatasetDict, parts: Mapping[str, list[_Part]], is_frame: bool) -> dict[str, int]:
    dims = {name: _read_dim(name, modality_parts) for name, modality_parts in parts.items()}
    with atomic_path(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for split, dataset in data.splits.items():
            lengths = {name: _join_lengths(modality_parts, split) for name, modality_parts in parts.items()}
            keep = np.stack(list(lengths.values())).max(0) > 0
            if not keep.all():
                logger.warning(
                    f"{split}: {int((~keep).sum()):,} instances without any of {', '.join(parts)} are left out"
                )
            if not keep.any():
                continue
            for name, modality_parts in parts.items():
                _write_features(archive, f"{split}/{name}", modality_parts, split, keep, dims[name], is_frame)
                exists = lengths[name] > 0
                if is_frame:
                    _write_array(archive, f"{split}/{name}_length", lengths[name][keep])
                if not exists[keep].all():
                    _write_array(archive, f"{split}/{name}_mask", exists[keep])
            kept = np.flatnonzero(keep).tolist()
            ids = dataset.ids or tuple(map(str, range(len(dataset))))
            _write_array(archive, f"{split}/id", np.array([escape_surrogates(ids[i]) for i in kept]))
            if dataset.labels is not None:
                labels = dataset.labels[torch.from_numpy(keep)].numpy()
                _write_array(archive, f"{split}/label", _name_labels(labels, data.class_names))
    return dims


def _name_labels(labels: np.ndarray, class_names: Sequence[str]) -> np.ndarray:
    """Replace indices of classes by their names, which are integers or texts; regression targets stay."""
    if not class_names:
        return labels
    is_integer = all(name == str(number) for number, name in enumerate(class_names))
    return labels if is_integer else np.array(class_names)[labels]


def _read_dim(name: str, parts: Sequence[_Part]) -> int:
    for part in parts:
        if part.lengths.any():
            return int(part.read_steps().shape[1])
    raise DatasetError(f"no instance has {name}: nothing can be extracted")


def _join_lengths(parts: Sequence[_Part], split: str) -> np.ndarray:
    return np.concatenate([part.lengths for part in parts if part.split == split])


def _iterate_instances(parts: Sequence[_Part], split: str) -> Iterator[np.ndarray]:
    """Yield the steps (T, d) of each instance of a split; one part is in memory."""
    for part in (part for part in parts if part.split == split):
        yield from np.split(part.read_steps(), part.lengths.cumsum()[:-1])


def _write_features(
    archive: zipfile.ZipFile, key: str, parts: Sequence[_Part], split: str, keep: np.ndarray, dim: int, is_frame: bool
) -> None:
    """Write vectors (n, d), or sequences (n, T, d) padded with zeros to the longest, instance by instance."""
    longest = max(1, int(_join_lengths(parts, split)[keep].max()))
    shape = (int(keep.sum()), longest, dim) if is_frame else (int(keep.sum()), dim)
    with _open_array(archive, key, np.dtype(np.float32), shape) as file:
        for steps, is_kept in zip(_iterate_instances(parts, split), keep, strict=True):
            if is_kept:
                file.write(steps.tobytes())
                file.write(bytes(4 * dim * (longest - len(steps))))


def _write_array(archive: zipfile.ZipFile, key: str, array: np.ndarray) -> None:
    with _open_array(archive, key, array.dtype, array.shape) as file:
        file.write(array.tobytes())


def _open_array(archive: zipfile.ZipFile, key: str, dtype: np.dtype, shape: Sequence[int]) -> IO[bytes]:
    """Open an array of an .npz file for writing its values."""
    file = archive.open(f"{key}.npy", "w", force_zip64=True)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(file, header)
    return file
