"""Trainings that are killed and run out of disk space, many more than in the tests: `python -m tests.attack kills`.

Each run ends with the bits of one that was left alone, no process outlives its parent, and no file is left behind.
`python -m tests.fuzz` mutates files for the readers.
"""

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tests.training.bundle import MODAL, bundle
from tests.training.small import assert_same_run, finished, flags, folder_of_images, small, start
from tests.training.test_survival import steps_written

STEPS = {"epochs": 100, "save_every": 3}
SECONDS_TO_END = 30


def settings(folder: Path) -> dict[str, list[str]]:
    """Arguments of trainings on images in memory, images in files, and features."""
    files = folder_of_images(folder / "images")
    features = bundle(folder / "features.npz")
    return {
        "images": flags(small(**STEPS)),
        "files": flags(small(**STEPS, workers=2, data=str(files))),
        "features": flags(replace(MODAL, epochs=400, save_every=3, data=features)),  # its steps take milliseconds
    }


def processes_in_session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def attack_with_kills(count: int, seed: int, kinds: list[str]) -> None:
    """Kill trainings with SIGKILL: all of their processes, or the first alone; at any moment, also of the start."""
    chance, total, leaders, worst = random.Random(seed), 0, 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [(kind, ranks) for kind in kinds for ranks in (1, 2)]
        arguments = settings(folder)
        for number, (kind, ranks) in enumerate(cases):
            kills = count // len(cases) + (number < count % len(cases))
            devices = ["--devices", "2", "--device", "cpu"] * (ranks == 2)
            whole, killed = folder / f"{kind}-{ranks}-whole", folder / f"{kind}-{ranks}-killed"
            finished(*arguments[kind], *devices, "--output", whole)
            for _ in range(kills):
                begin = [*arguments[kind], *devices, "--output", killed]
                given = ["--resume", killed, *devices] if killed.exists() else begin
                process = start(*given)
                if chance.random() < 0.3:
                    time.sleep(chance.uniform(0, 8))
                else:
                    wanted, end = steps_written(killed) + chance.randint(1, 8), time.monotonic() + 120
                    while process.poll() is None and steps_written(killed) < wanted and time.monotonic() < end:
                        time.sleep(0.002)
                    time.sleep(chance.uniform(0, 0.05))
                if process.poll() is not None:
                    raise SystemExit(
                        f"{kind}, {ranks} ranks: it ended before it was killed:\n{process.communicate()[0]}"
                    )
                is_leader = chance.random() < 0.5
                os.kill(process.pid, signal.SIGKILL) if is_leader else os.killpg(process.pid, signal.SIGKILL)
                total, leaders, began = total + 1, leaders + is_leader, time.monotonic()
                while processes_in_session(process.pid):
                    if time.monotonic() - began > SECONDS_TO_END:
                        raise SystemExit(f"{kind}, {ranks} ranks: processes outlive their parent by {SECONDS_TO_END} s")
                    time.sleep(0.05)
                worst = max(worst, time.monotonic() - began)
                process.communicate(timeout=60)
            for _ in range(2):  # if it was finished before the last kill, this changes nothing
                finished("--resume", killed, *devices)
            assert_same_run(whole, killed)
            left = [path.name for path in (*killed.rglob(".*"), *folder.glob(f".{killed.name}*"))]
            assert not left, f"left behind: {left}"
            print(f"{kind}, {ranks} rank(s): {kills} kills, resumed with equal bits", flush=True)
    print(f"{total} kills, {leaders} of them of the first process alone; the others ended within {worst:.1f} s")


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def assert_same_result(a: Path, b: Path) -> None:
    """The same model and metrics; the last checkpoint may have found no room."""
    for file in ("metrics.csv", "encoder.safetensors", "head.safetensors"):
        assert (a / file).read_bytes() == (b / file).read_bytes(), file


def attack_with_full_disks(count: int, seed: int, kinds: list[str]) -> None:
    """Fill the disk at any moment, make room later; and limit the size of files (`ulimit -f`), stop, resume."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = settings(folder)[kinds[0]]
        whole = folder / "whole"
        finished(*arguments, "--output", whole)
        size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        waited = 0
        for number in range(count):
            with small_disk(folder / f"disk-{number}", 16) as disk:
                run, filler = disk / "run", disk / "filler"
                process = start(*arguments, "--output", run)
                wanted = chance.choice([0, 30, 300, 499])
                while process.poll() is None and steps_written(run) < wanted:
                    time.sleep(0.002)
                room = os.statvfs(disk)
                spare = chance.choice([0, size // 8, size // 2])
                with suppress(OSError):  # the training took some of it meanwhile
                    filler.write_bytes(bytes(max(0, room.f_bavail * room.f_frsize - spare)))
                time.sleep(chance.uniform(5, 25))
                waited += process.poll() is None
                filler.unlink()
                output, _ = process.communicate(timeout=180)
                if process.returncode:
                    raise SystemExit(f"a full disk ended the training ({process.returncode}):\n{output}")
                assert "Traceback" not in output, output
                assert_same_result(whole, run)
        print(f"{count} disks filled during a training, {waited} until after its last step: all ended with equal bits")
        for number in range(count):
            run, limit = folder / f"limited-{number}", chance.randint(2_000, size // 2)
            process = start(
                *arguments,
                "--output",
                run,
                preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            )
            try:
                output, _ = process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                output, _ = process.communicate(timeout=60)
            assert "Traceback" not in output, output
            finished(*(["--resume", run] if run.exists() else [*arguments, "--output", run]))
            assert_same_result(whole, run)
        print(f"{count} trainings with a limit of the size of files: stopped, resumed without it, equal bits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "disk"])
    parser.add_argument("--count", type=int, default=100, help="kills, or disks and limits")
    parser.add_argument("--seed", type=int, default=0)
    kinds = ["images", "files", "features"]
    parser.add_argument("--on", nargs="+", choices=kinds, default=kinds, help="what is trained on; of disk the first")
    given = parser.parse_args()
    (attack_with_kills if given.what == "kills" else attack_with_full_disks)(given.count, given.seed, given.on)


if __name__ == "__main__":
    sys.exit(main())
