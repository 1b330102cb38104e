"""Every example runs at a small size and gives the expected result."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(folder: Path, name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_learns(output: str) -> None:
    losses = [float(loss) for loss in re.findall(r"epoch \d+: loss ([\d.]+)", output)]
    assert len(losses) > 2
    assert losses[-1] < losses[0]


def test_examples_are_short_and_each_is_tested_here() -> None:
    tested = set(re.findall(r'run\(tmp_path, "(\w+)"', Path(__file__).read_text()))
    assert tested == {path.stem for path in EXAMPLES.glob("*.py")}
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES.glob("*.py"))


def test_points_on_a_sphere_align_and_spread(tmp_path: Path) -> None:
    output = run(tmp_path, "sphere", "--steps", "40")
    rows = dict(re.findall(r"│ (\S+) +│ +([\d.]+) │ +-[\d.]+ │", output))
    assert float(rows["(start)"]) > 1.5
    assert float(rows["mv-dhel"]) < 0.2


def test_plain_loop_lowers_the_loss(tmp_path: Path) -> None:
    output = run(tmp_path, "plain_loop", "--epochs", "4", "--max-instances", "128", "--views", "2")
    assert_learns(output)
    assert re.search(r"test photos: [\d.]+%", output)


def test_lightning_module_trains(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    assert_learns(run(tmp_path, "lightning_module", "--epochs", "5", "--max-instances", "64"))


def test_dataset_with_missing_entries_is_classified_with_every_subset(tmp_path: Path) -> None:
    output = run(tmp_path, "trimodal", "--epochs", "3")
    assert_learns(output)
    rows = dict(re.findall(r"^([a-z +]+?) +([\d.]+)%$", output, re.MULTILINE))
    assert len(rows) == 7
    assert "29% of the entries missing" in output


def test_new_loss_is_checked_and_aligns(tmp_path: Path) -> None:
    output = run(tmp_path, "new_loss", "--steps", "60")
    assert "PrinciplesReport(simultaneous_alignment=True, accurate_energy=True, terms=4, coupling='none')" in output
    alignment = {name: float(value) for name, value in re.findall(r"^(\w+): alignment ([\d.]+)", output, re.MULTILINE)}
    assert alignment["Hardest"] < 0.1
    assert alignment["Cheaper"] == pytest.approx(alignment["Hardest"], abs=1e-3)


def test_search_example_finds_photos_and_reuses_an_existing_run(tmp_path: Path) -> None:
    output = run(tmp_path, "search_photos", "--epochs", "1", "--nearest", "3")
    matches = dict(re.findall(r"^(\d+\.png) is similar to (.*)$", output, re.MULTILINE))
    assert set(matches) == {"003.png", "117.png", "250.png"}
    assert all(near.count(".png") == 3 and query not in near for query, near in matches.items())
    assert (tmp_path / "matches.png").stat().st_size > 1000
    trained = (tmp_path / "runs/search/encoder.safetensors").stat().st_mtime_ns
    again = run(tmp_path, "search_photos", "some-photos", "--query", "007.png", "--nearest", "2")
    assert "007.png is similar to" in again
    assert (tmp_path / "runs/search/encoder.safetensors").stat().st_mtime_ns == trained
