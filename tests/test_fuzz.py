"""Every reader of files: mutated ones are read, or refused by an error of ours; `python -m tests.fuzz` makes more."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import fuzz

COUNT = 15


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited as Linux does it")
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tests.fuzz", "--count", str(COUNT), "--seed", "0"]
    done = subprocess.run(
        call, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=900, check=False,
        env={**fuzz.os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in fuzz.FORMATS:
        assert f"{kind:15} {COUNT:6,} mutations" in done.stdout
    assert sum(int(line.split()[-2]) for line in done.stdout.splitlines()) > 5 * len(fuzz.FORMATS)


def test_a_reader_that_fails_otherwise_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(fuzz.tempfile, "tempdir", str(tmp_path))
    readers = {
        "wrong": lambda folder, name: {}[name],
        "slow": lambda folder, name: [number for number in iter(int, 1) if number],
        "stuck": lambda folder, name: sum(iter(int, 1)),
        "large": lambda folder, name: len(b"1" * 2**28) and fuzz.load_dataset(folder / name),
        "dead": lambda folder, name: fuzz.os.kill(fuzz.os.getpid(), 9),
    }
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "STUCK_SECONDS", 3)
    for kind, read in readers.items():
        made = fuzz.Format({"a.npy": b"nothing"}, read, max_bytes=2**27)
        monkeypatch.setitem(fuzz.FORMATS, kind, lambda made=made: made)
        assert any(line.startswith("bad: ") for line in fuzz.lines_of(kind, 1, 0)), kind
