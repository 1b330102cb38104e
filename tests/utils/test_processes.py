"""A process ends with the one that started it: by the kernel's signal on Linux, by a thread elsewhere."""

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


@pytest.mark.skipif(sys.platform != "linux", reason="takes Linux for what it is and for another system")
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_process_ends_with_its_killed_parent(platform: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, platform], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    said, _ = parent.communicate(timeout=60)  # the child has the pipe too: it is closed when the child has ended
    assert said == ""


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_a_parent_that_ended_before_is_noticed() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    environment = {**os.environ, "MANYVIEWS_PARENT_PID": str(ended.pid)}
    child = subprocess.run([sys.executable, "-c", CHILD, sys.platform], env=environment, check=False, timeout=60)
    assert child.returncode == -signal.SIGTERM
