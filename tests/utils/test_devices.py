"""CPU threads follow the limits of the machine, and small encoders use one."""

import os
from pathlib import Path

import pytest
import torch

import manyviews as mv
from manyviews.training import Config, limit_cpu_threads
from manyviews.utils import choose_threads, limit_threads
from manyviews.utils import devices as module
from manyviews.utils.devices import count_cpus, get_available_memory, read_cpu_quota


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate eight CPUs without a limit."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(module, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(module, "CGROUP_MEMBERSHIP", tmp_path / "membership")
    for name in module.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        ({"membership": "0::/", "cpu.max": "300000 100000"}, 3),
        ({"membership": "0::/", "cpu.max": "150000 100000"}, 1),  # rounded down
        ({"membership": "0::/", "cpu.max": "20000 100000"}, 1),
        ({"membership": "0::/", "cpu.max": "max 100000"}, 8),
        ({"membership": "0::/", "cpu.max": "nonsense"}, 8),
        ({"membership": "0::/a/b", "a/cpu.max": "200000 100000", "a/b/cpu.max": "500000 100000"}, 2),  # the parent
        ({"membership": "0::/outside/alone", "cpu.max": "400000 100000"}, 4),  # in a container
        ({"membership": "2:cpuset:/x\n1:cpu,cpuacct:/job", "cpu/job/cpu.cfs_quota_us": "250000",
          "cpu/job/cpu.cfs_period_us": "50000"}, 5),
        ({"membership": "1:cpu:/", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"membership": "1:cpu:/x\n0::/", "cpu/cpu.cfs_quota_us": "600000", "cpu/cpu.cfs_period_us": "100000"}, 6),
        ({"membership": "0::/", "cpu.max": "9900000 100000"}, 8),
    ],
    ids=str,
)  # fmt: skip
def test_cgroup_quota_limits_cpus(files: dict[str, str], cpus: int, tmp_path: Path) -> None:
    write(tmp_path, files)
    assert count_cpus() == cpus
    assert choose_threads() == cpus
    assert read_cpu_quota() >= cpus or cpus == 1


@pytest.mark.parametrize(
    ("variables", "processes", "expected"),
    [
        ({}, 1, 8),
        ({}, 3, 2),
        ({}, 9, 1),
        ({"OMP_NUM_THREADS": "2"}, 1, 2),
        ({"OMP_NUM_THREADS": "2"}, 2, 2),  # per process
        ({"MKL_NUM_THREADS": "3", "OMP_NUM_THREADS": "5,2"}, 1, 3),
        ({"OMP_NUM_THREADS": "64"}, 1, 8),
        ({"OMP_NUM_THREADS": "many", "MKL_NUM_THREADS": "0"}, 1, 8),
    ],
)
def test_environment_and_processes_limit_threads(
    variables: dict[str, str], processes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert choose_threads(processes) == expected
    assert choose_threads(processes, small=True) == 1


def test_feature_encoders_use_one_thread_unless_configured() -> None:
    digits, before = mv.load_dataset("digits"), torch.get_num_threads()
    features = Config(data="digits", views=("pixels", "fourier"))
    for config, expected in (
        (Config(data="digits", views=4), 8),
        (Config(data="digits", views="image:4", devices=2), 4),
        (Config(data="digits", views=4, cpu_threads=3), 3),
        (Config(data="digits"), 1),
        (features, 1),
        (features.with_fields({"cpu_threads": 5}), 5),
        (features.with_fields({"views": ("image", "fourier")}), 8),
    ):
        with limit_cpu_threads(config, digits):
            assert torch.get_num_threads() == expected
    long = mv.data.DatasetDict("long", {"train": mv.data.Dataset({"pixels": torch.zeros(2, 400, 3)})})
    with limit_cpu_threads(features.with_fields({"views": ("pixels:2",)}), long):
        assert torch.get_num_threads() == 8
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), limit_threads(2):
        raise KeyError
    assert torch.get_num_threads() == before


def test_available_memory_is_that_of_the_machine_or_of_its_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < get_available_memory() <= module.get_machine_memory()
    monkeypatch.setattr(module, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(module, "CGROUP_ROOT", tmp_path)
    assert get_available_memory() == module.get_machine_memory()
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  4000 kB\n")
    assert get_available_memory() == 4000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert get_available_memory() == 2000
