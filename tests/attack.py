"""Stress test: kill many trainings, or fill their disk (`python -m tests.attack kills`).

Each resumed run must equal an uninterrupted one bit for bit, no process may outlive its parent, and no temporary file
may remain. `python -m tests.fuzz` tests the file readers with mutated files.
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

from tests.helpers.tiny_multimodal import MODAL, bundle
from tests.helpers.tiny_run import assert_same_run, flags, folder_of_images, run_to_end, start, tiny_config
from tests.training.test_kill_resume import steps_written

STEPS = {"epochs": 100, "checkpoint_every_steps": 3}
SECONDS_TO_END = 30


def make_arguments(folder: Path) -> dict[str, list[str]]:
    """Return train arguments for images in memory, images in files, and features."""
    files = folder_of_images(folder / "images")
    features = bundle(folder / "features.npz")
    return {
        "images": flags(tiny_config(**STEPS)),
        "files": flags(tiny_config(**STEPS, num_workers=2, data=str(files))),
        "features": flags(
            replace(MODAL, epochs=400, checkpoint_every_steps=3, data=features)
        ),  # a step takes milliseconds
    }


def list_session_processes(leader: int) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] not in "ZX":
                pids.append(int(entry.name))
    return pids


def attack_with_kills(count: int, seed: int, kinds: list[str]) -> None:
    """Send SIGKILL to all processes of a training or only the first, at random moments including startup."""
    rng, total, leaders, worst = random.Random(seed), 0, 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [(kind, ranks) for kind in kinds for ranks in (1, 2)]
        arguments = make_arguments(folder)
        for i, (kind, ranks) in enumerate(cases):
            kills = count // len(cases) + (i < count % len(cases))
            devices = ["--devices", "2", "--device", "cpu"] * (ranks == 2)
            whole, killed = folder / f"{kind}-{ranks}-whole", folder / f"{kind}-{ranks}-killed"
            run_to_end(*arguments[kind], *devices, "--output", whole)
            for _ in range(kills):
                first = [*arguments[kind], *devices, "--output", killed]
                process = start(*(["--resume", killed, *devices] if killed.exists() else first))
                if rng.random() < 0.3:
                    time.sleep(rng.uniform(0, 8))
                else:
                    target, end = steps_written(killed) + rng.randint(1, 8), time.monotonic() + 120
                    while process.poll() is None and steps_written(killed) < target and time.monotonic() < end:
                        time.sleep(0.002)
                    time.sleep(rng.uniform(0, 0.05))
                if process.poll() is not None:
                    raise SystemExit(
                        f"{kind}, {ranks} ranks: the training ended before it was killed:\n{process.communicate()[0]}"
                    )
                is_leader = rng.random() < 0.5
                os.kill(process.pid, signal.SIGKILL) if is_leader else os.killpg(process.pid, signal.SIGKILL)
                total, leaders, began = total + 1, leaders + is_leader, time.monotonic()
                while list_session_processes(process.pid):
                    if time.monotonic() - began > SECONDS_TO_END:
                        raise SystemExit(f"{kind}, {ranks} ranks: processes outlive their parent by {SECONDS_TO_END} s")
                    time.sleep(0.05)
                worst = max(worst, time.monotonic() - began)
                process.communicate(timeout=60)
            for _ in range(2):  # the second resume of a finished run must not change it
                run_to_end("--resume", killed, *devices)
            assert_same_run(whole, killed)
            leftovers = [path.name for path in (*killed.rglob(".*"), *folder.glob(f".{killed.name}*"))]
            assert not leftovers, f"not removed: {leftovers}"
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
    """Compare model and metrics; the last checkpoint may be missing because the disk was full."""
    for file in ("metrics.csv", "encoder.safetensors", "head.safetensors"):
        assert (a / file).read_bytes() == (b / file).read_bytes(), file


def attack_with_full_disks(count: int, seed: int, kinds: list[str]) -> None:
    """Fill the disk at random moments and free it later; and limit the file size (`ulimit -f`), stop and resume."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = make_arguments(folder)[kinds[0]]
        whole = folder / "whole"
        run_to_end(*arguments, "--output", whole)
        size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        waited = 0
        for i in range(count):
            with small_disk(folder / f"disk-{i}", 16) as disk:
                run, filler = disk / "run", disk / "filler"
                process = start(*arguments, "--output", run)
                target = rng.choice([0, 30, 300, 499])
                while process.poll() is None and steps_written(run) < target:
                    time.sleep(0.002)
                stat = os.statvfs(disk)
                spare = rng.choice([0, size // 8, size // 2])
                with suppress(OSError):  # the training may have used some of it
                    filler.write_bytes(bytes(max(0, stat.f_bavail * stat.f_frsize - spare)))
                time.sleep(rng.uniform(5, 25))
                waited += process.poll() is None
                filler.unlink()
                output, _ = process.communicate(timeout=180)
                if process.returncode:
                    raise SystemExit(f"a full disk ended the training ({process.returncode}):\n{output}")
                assert "Traceback" not in output, output
                assert_same_result(whole, run)
        print(f"{count} disks filled during a training, {waited} until after its last step: all ended with equal bits")
        for i in range(count):
            run, limit = folder / f"limited-{i}", rng.randint(2_000, size // 2)
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
            run_to_end(*(["--resume", run] if run.exists() else [*arguments, "--output", run]))
            assert_same_result(whole, run)
        print(f"{count} trainings with limited file size: stopped, resumed without the limit, equal bits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "disk"])
    parser.add_argument("--count", type=int, default=100, help="kills, or disks and limits")
    parser.add_argument("--seed", type=int, default=0)
    kinds = ["images", "files", "features"]
    parser.add_argument(
        "--on", nargs="+", choices=kinds, default=kinds, help="data to train on; `disk` uses only the first"
    )
    args = parser.parse_args()
    (attack_with_kills if args.what == "kills" else attack_with_full_disks)(args.count, args.seed, args.on)


if __name__ == "__main__":
    sys.exit(main())
