"""A program that converts a Hugging Face dataset to Arrow files of its cache, in a process of its own.

A parquet file of few bytes can claim any number of values: memory is limited and, for files on disk, so is the size of
the result. See `hf_datasets.py`.
"""

import json
import os
import sys
from typing import Any

INTERPRETER_BYTES = 2**32
"""Address space of Python, numpy, pyarrow, datasets, and of their threads."""


def prepare(
    path: str, config: str | None, data_files: Any, cache_dir: str | None, max_memory: int, max_file: int | None
) -> None:
    """Write the Arrow files. The message of an error is the last line of stderr."""
    if sys.platform != "win32":
        import resource

        limit = INTERPRETER_BYTES + max_memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if max_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file, max_file))
    import datasets

    builder = datasets.load_dataset_builder(path, config, data_files=data_files, cache_dir=cache_dir)
    builder.download_and_prepare(max_shard_size="1PB" if max_file is not None else None)


if __name__ == "__main__":
    try:
        prepare(**json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 (pyarrow raises any kind of error on a corrupt file)
        cause = error.__cause__ or error  # `datasets` wraps errors of readers
        print(" ".join(f"{type(cause).__name__}: {cause}".split()), file=sys.stderr, flush=True)
        os._exit(1)  # without the destructors, which may print more
