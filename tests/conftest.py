import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests run side by side, and small operations are slower on two threads than on one."""
    torch.set_num_threads(1)
