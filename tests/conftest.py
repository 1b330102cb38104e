import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from manyviews.api import train
from tests.helpers.distributed import RankPool
from tests.helpers.tiny_run import tiny_config

SLOW_DOCTESTS = ("reproduce_table", "export_onnx")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of ranks and of the browser are slow, and examples cannot carry a marker."""
    for item in items:
        is_slow_example = isinstance(item, pytest.DoctestItem) and item.name.endswith(SLOW_DOCTESTS)
        if is_slow_example or item.get_closest_marker("distributed") or item.get_closest_marker("browser"):
            item.add_marker("slow")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests run in parallel, and small operations are slower with two threads."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _default_interrupt() -> None:
    """Let subprocesses of tests handle SIGINT, also if the tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a finished tiny run; tests must not change it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    train(tiny_config(epochs=1), output=path, quiet=True)
    return path


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[RankPool]:
    """Two processes of a gloo group."""
    with RankPool(2) as pool:
        yield pool
