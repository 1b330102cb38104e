import signal
from pathlib import Path

import pytest
import torch

from manyviews.training import train
from tests.training.small import small


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests run side by side, and small operations are slower on two threads than on one."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _default_interrupt() -> None:
    """Processes that tests start obey Ctrl-C, also where the tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small run that is finished; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    train(small(epochs=1), output=path, quiet=True)
    return path
