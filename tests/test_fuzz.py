"""Every reader accepts a mutated file or raises an error of this package; `python -m tests.fuzz` tries more files."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import fuzz

pytestmark = pytest.mark.slow

COUNT = 15


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory limit needs Linux")
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tests.fuzz", "--count", str(COUNT), "--seed", "0"]
    result = subprocess.run(
        call, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=900, check=False,
        env={**fuzz.os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    for kind in fuzz.FORMATS:
        assert f"{kind:15} {COUNT:6,} mutations" in result.stdout
    assert sum(int(line.split()[-2]) for line in result.stdout.splitlines()) > 5 * len(fuzz.FORMATS)


def test_readers_with_other_failures_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(fuzz.tempfile, "tempdir", str(tmp_path))
    readers = {
        "wrong": lambda folder, name: {}[name],
        "slow": lambda folder, name: [i for i in iter(int, 1) if i],
        "stuck": lambda folder, name: sum(iter(int, 1)),
        "large": lambda folder, name: len(b"1" * 2**28) and fuzz.load_dataset(folder / name),
        "dead": lambda folder, name: fuzz.os.kill(fuzz.os.getpid(), 9),
    }
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "STUCK_SECONDS", 3)
    for kind, read in readers.items():
        file_format = fuzz.Format({"a.npy": b"nothing"}, read, max_bytes=2**27)
        monkeypatch.setitem(fuzz.FORMATS, kind, lambda file_format=file_format: file_format)
        assert any(line.startswith("bad: ") for line in fuzz.run_in_process(kind, 1, 0)), kind
