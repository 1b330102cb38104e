import re
import subprocess
import sys

import pytest

from manyviews.losses import OBJECTIVES


def manyviews(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "manyviews", *arguments], capture_output=True, text=True, check=False
    )


def test_losses_prints_every_objective_with_its_measured_principles() -> None:
    done = manyviews("losses", "--views", "3")
    assert done.returncode == 0, done.stderr
    rows = {
        cells[1]: cells[2:-1]
        for line in done.stdout.splitlines()
        if len(cells := [cell.strip() for cell in line.split("│")]) > 2 and cells[1]
    }
    assert list(rows) == list(OBJECTIVES)
    assert rows["mv-dhel"][1:] == ["M² N", "✓", "✓", "1", "none"]
    assert rows["mv-infonce"][1:] == ["M² N²", "✓", "✓", "1", "direct"]
    assert rows["pvc"][1:] == ["M² N²", "✗", "✗", "6", "direct"]
    assert rows["pwe-infonce"][1:] == ["M² N²", "✗", "✗", "3", "direct"]
    assert all(row[0] for row in rows.values())


@pytest.mark.parametrize(("views", "message"), [("1", "views must be >= 2"), ("x", "views")])
def test_a_mistake_is_a_message_not_a_traceback(views: str, message: str) -> None:
    done = manyviews("losses", "--views", views)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    assert re.search(message, said)
    assert "Traceback" not in said


def test_help_names_the_commands() -> None:
    done = manyviews("--help")
    assert done.returncode == 0
    assert "losses" in done.stdout
