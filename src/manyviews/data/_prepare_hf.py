"""A program that converts a Hugging Face dataset to Arrow files of its cache, in a process of its own.

A parquet file of few bytes can claim any number of values: memory is limited and, for files on disk, so is the size of
the result. See `hf_datasets.py`.
"""

import json
import os
import sys
from contextlib import suppress
from typing import Any

INTERPRETER_BYTES = 2**32
"""Address space of Python, numpy, pyarrow, datasets, and of their threads."""


def prepare(arguments: dict[str, Any], max_memory: int, max_file: int | None) -> None:
    """Write the Arrow files of `load_dataset_builder(**arguments)`; an error is printed as the last line of stderr."""
    if sys.platform != "win32":
        import resource

        limits = [(resource.RLIMIT_AS, INTERPRETER_BYTES + max_memory)]
        if max_file is not None:
            limits.append((resource.RLIMIT_FSIZE, max_file))
        for kind, limit in limits:
            with suppress(ValueError):  # a lower limit is set already
                resource.setrlimit(kind, (limit, limit))
    import datasets

    builder = datasets.load_dataset_builder(**arguments)
    builder.download_and_prepare(max_shard_size="1PB" if max_file is not None else None)


if __name__ == "__main__":
    status = 0
    try:
        prepare(**json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 (pyarrow raises any kind of error on a corrupt file)
        cause = error.__cause__ or error  # `datasets` wraps errors of readers
        print(" ".join(f"{type(cause).__name__}: {cause}".split()), file=sys.stderr, flush=True)
        status = 1
    # Without destructors: they may print more, and threads of pyarrow that still run may crash them.
    os._exit(status)
