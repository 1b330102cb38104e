"""A program that copies the arrays of a .mat file to a .npz file, in a process of its own; see `matlab.py`."""

import sys
from contextlib import suppress

import numpy as np

INTERPRETER_BYTES = 2**31
"""Address space of Python, numpy and scipy."""


def copy_arrays(source: str, target: str, max_bytes: int) -> None:
    """Copy each view of the cell X, then Y. An error is printed as the last line of stderr."""
    if sys.platform != "win32":
        import resource

        limit = INTERPRETER_BYTES + max_bytes
        with suppress(ValueError):  # a lower limit is set already
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from scipy.io import loadmat, whosmat

    try:
        content = loadmat(source, variable_names=("X", "Y"))
    except NotImplementedError:
        sys.exit("version 7.3 is not supported: save it again with `save -v7` in MATLAB")
    views, labels = content.get("X"), content.get("Y")
    if views is None or labels is None or views.dtype != object:
        names = ", ".join(name for name, *_ in whosmat(source))
        sys.exit(f"expected a cell X of views and an array Y of classes, got {names}")
    arrays = [np.asarray(array) for array in (*views.ravel(order="F"), labels)]
    if any(array.dtype.kind not in "biuf" for array in arrays):
        sys.exit("the views in X and the classes Y must be real numbers")
    np.savez(target, *arrays)


if __name__ == "__main__":
    copy_arrays(sys.argv[1], sys.argv[2], int(sys.argv[3]))
