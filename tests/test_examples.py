"""Every example runs, at a small size, and does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(place: Path, name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_learns(said: str) -> None:
    losses = [float(loss) for loss in re.findall(r"epoch \d+: loss ([\d.]+)", said)]
    assert len(losses) > 2
    assert losses[-1] < losses[0]


def test_examples_are_short_and_each_is_tested_here() -> None:
    tested = set(re.findall(r'run\(tmp_path, "(\w+)"', Path(__file__).read_text()))
    assert tested == {path.stem for path in EXAMPLES.glob("*.py")}
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES.glob("*.py"))


def test_points_on_a_sphere_meet_and_spread(tmp_path: Path) -> None:
    said = run(tmp_path, "sphere", "--steps", "40")
    rows = dict(re.findall(r"│ (\S+) +│ +([\d.]+) │ +-[\d.]+ │", said))
    assert float(rows["(start)"]) > 1.5
    assert float(rows["mv-dhel"]) < 0.2


def test_a_plain_loop_lowers_the_loss(tmp_path: Path) -> None:
    said = run(tmp_path, "plain_loop", "--epochs", "4", "--limit", "128", "--views", "2")
    assert_learns(said)
    assert re.search(r"test photos: [\d.]+%", said)


def test_a_lightning_module_trains(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    assert_learns(run(tmp_path, "lightning_module", "--epochs", "5", "--limit", "64"))


def test_a_bundle_with_missing_entries_is_classified_by_every_subset(tmp_path: Path) -> None:
    said = run(tmp_path, "trimodal", "--epochs", "3")
    assert_learns(said)
    rows = dict(re.findall(r"^([a-z +]+?) +([\d.]+)%$", said, re.MULTILINE))
    assert len(rows) == 7
    assert "29% of the entries missing" in said


def test_a_new_objective_is_audited_and_fits(tmp_path: Path) -> None:
    said = run(tmp_path, "new_objective", "--steps", "60")
    assert "Audit(simultaneous_alignment=True, accurate_energy=True, terms=4, coupling='none')" in said
    alignment = {name: float(number) for name, number in re.findall(r"^(\w+): alignment ([\d.]+)", said, re.MULTILINE)}
    assert alignment["Hardest"] < 0.1
    assert alignment["Cheaper"] == pytest.approx(alignment["Hardest"], abs=1e-3)


def test_photos_are_found_by_example_and_a_run_is_used_again(tmp_path: Path) -> None:
    said = run(tmp_path, "search_photos", "--epochs", "1", "--nearest", "3")
    found = dict(re.findall(r"^(\d+\.png) is like (.*)$", said, re.MULTILINE))
    assert set(found) == {"003.png", "117.png", "250.png"}
    assert all(near.count(".png") == 3 and query not in near for query, near in found.items())
    assert (tmp_path / "found.png").stat().st_size > 1000
    trained = (tmp_path / "runs/search/encoder.safetensors").stat().st_mtime_ns
    again = run(tmp_path, "search_photos", "some-photos", "--query", "007.png", "--nearest", "2")
    assert "007.png is like" in again
    assert (tmp_path / "runs/search/encoder.safetensors").stat().st_mtime_ns == trained
