"""What the commands say, once: on the first rank."""

import os
import sys


def first_rank() -> bool:
    """Whether this process is the first of those that torchrun, SLURM or we have started."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def complain(message: object) -> None:
    if first_rank():
        print(f"manyviews: {message}", file=sys.stderr)
