"""MATLAB .mat files, version 5 to 7: a cell `X` of views (n, d) and classes `Y`, read by scipy.

scipy trusts a file: an unknown element type makes it follow a wild pointer, nested cells overflow its stack, and a
header allocates any amount of memory. So it runs in a process of its own, with a limit of memory.
"""

import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from manyviews.data.dataset import DatasetDict
from manyviews.data.errors import DatasetError
from manyviews.data.multimodal_arrays import RawSplit, build_dataset
from manyviews.utils import check_regular, get_memory_limit


def load_matlab_views(path: Path) -> DatasetDict:
    """Load the views of a .mat file as modalities view1, view2, ...; every fifth instance of a class is for testing."""
    *views, labels = _read_arrays(path)
    labels = labels.reshape(-1)
    if not (labels == labels.astype(np.int64)).all():
        raise DatasetError(f"{path}: Y must be integers")
    labels = labels.astype(np.int64)
    for i, view in enumerate(views, 1):
        if view.ndim != 2 or len(view) != len(labels):
            raise DatasetError(
                f"{path}: view {i} of X must be ({len(labels)}, d), one row for each of Y, got {view.shape}"
            )
    # The rank of each instance within its class.
    class_rank = np.zeros(len(labels), np.int64)
    order = np.argsort(labels, kind="stable")
    _, first, inverse = np.unique(labels[order], return_index=True, return_inverse=True)
    class_rank[order] = np.arange(len(labels)) - first[inverse]
    raws = {
        split: RawSplit(
            {f"view{i}": view[mask] for i, view in enumerate(views, 1)},
            labels[mask],
            ids=tuple(map(str, np.flatnonzero(mask))),
        )
        for split, mask in (("train", class_rank % 5 != 4), ("test", class_rank % 5 == 4))
        if mask.any()
    }
    rule = "the file has no splits; every fifth instance of each class is in the test split"
    return replace(build_dataset(raws, path.stem, str(path), []), split_rule=rule)


def _read_arrays(path: Path) -> list[np.ndarray]:
    """Read the views and the classes, all of numbers."""
    if find_spec("scipy") is None:
        raise DatasetError(f'reading {path} needs scipy: pip install "manyviews[matlab]"')
    check_regular(path)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "arrays.npz"
        command = [sys.executable, str(Path(__file__).with_name("_read_matlab.py")), str(path), str(output)]
        done = subprocess.run([*command, str(get_memory_limit())], capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            reason = lines[-1] if lines and done.returncode > 0 else f"its reader ended with {done.returncode}"
            raise DatasetError(f"cannot read {path}: {reason}")
        with np.load(output, allow_pickle=False) as arrays:
            return [arrays[f"arr_{i}"] for i in range(len(arrays))]
