"""A process ends with its parent: by a signal of the kernel on Linux, by a thread elsewhere."""

import os
import signal
import subprocess
import sys

import pytest

CHILD = """
import sys, time
from manyviews.utils.processes import exit_with_parent
sys.platform = sys.argv[1]
exit_with_parent()
print("ready", flush=True)
time.sleep(300)
"""
PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(300)"


@pytest.mark.skipif(sys.platform != "linux", reason="simulates other systems on Linux")
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_process_ends_when_its_parent_is_killed(platform: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, platform], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    output, _ = parent.communicate(timeout=60)  # returns when the child, which has the pipe too, has ended
    assert output == ""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_process_ends_if_its_parent_has_already_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    environment = {**os.environ, "MANYVIEWS_PARENT_PID": str(ended.pid)}
    child = subprocess.run([sys.executable, "-c", CHILD, sys.platform], env=environment, check=False, timeout=60)
    assert child.returncode == -signal.SIGTERM
