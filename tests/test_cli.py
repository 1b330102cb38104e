import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from manyviews import __version__
from manyviews.data import load_dataset
from manyviews.losses import OBJECTIVES
from manyviews.training import Config
from manyviews.training.images import policy_of
from manyviews.training.setup import fitted
from manyviews.views import contact_sheet, save_png
from manyviews.views.keyed import permutation


def manyviews(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "manyviews", *arguments], capture_output=True, text=True, check=False)


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
    for command in (
        "train",
        "evaluate",
        "report",
        "reproduce",
        "embed",
        "neighbours",
        "export",
        "data",
        "views",
        "losses",
    ):
        assert command in done.stdout


def test_a_temperature_is_learned_if_told_so() -> None:
    for flags, expected in (([], "null"), (["--learnable"], "true"), (["--no-learnable"], "false")):
        done = manyviews("train", "--objective", "siglip", "--print-config", *flags)
        assert f"temperature: null\nlearnable: {expected}\n" in done.stdout, done.stderr


def test_views_draws_a_sheet(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    done = manyviews("views", "--data", "photos", "--views", "3", "--instances", "5", "-o", str(sheet))
    assert done.returncode == 0, done.stderr
    assert "5 instances of photos, each with 3 views of 32 x 32" in done.stdout
    with Image.open(sheet) as picture:
        assert picture.size == (4 * 96 + 6 * 4, 5 * 100 + 4)
        colours = len(picture.getcolors(2**20))
    assert colours > 1000
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.png"]


def test_views_are_those_of_training(tmp_path: Path) -> None:
    photos = load_dataset("photos")
    images = photos["train"].images
    for flags, changes in (((), {}), (("--scale", "0.5", "0.6", "--blur", "1"), {"scale": (0.5, 0.6), "blur": 1.0})):
        assert manyviews("views", "--instances", "3", "-o", str(tmp_path / "sheet.png"), *flags).returncode == 0
        index = permutation(len(images), 0)[:3]
        policy = policy_of(fitted(Config(**changes), photos, 1))
        drawn = policy(images[index], views=4, seed=0, epoch=0, index=index)
        rows = [[image, *own] for image, own in zip(images[index], drawn, strict=True)]
        save_png(contact_sheet(rows), tmp_path / "expected.png")
        assert (tmp_path / "sheet.png").read_bytes() == (tmp_path / "expected.png").read_bytes()


def test_views_of_a_folder_with_a_broken_image(tmp_path: Path) -> None:
    for number in range(3):
        Image.new("RGB", (300 + number, 260), (number * 50, 90, 200)).save(tmp_path / f"{number}.jpg")
    (tmp_path / "fake.jpg").write_text("no")
    call = ("views", "--data", str(tmp_path), "-o", str(tmp_path / "sheet.png"))
    done = manyviews(*call)
    assert done.returncode == 0, done.stderr
    assert "3 instances" in done.stdout
    assert "224 x 224" in done.stdout
    assert re.search(r"manyviews: 1 file of .* left out: .*fake.jpg", done.stderr)
    (tmp_path / "sheet.png").unlink()
    done = manyviews(*call, "--strict")
    assert done.returncode == 2
    assert "fake.jpg is no whole image" in done.stderr
    assert "Traceback" not in done.stderr


def test_views_that_cannot_be_written(tmp_path: Path) -> None:
    done = manyviews("views", "-o", str(tmp_path / "nowhere" / "sheet.png"))
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    for wrong in (("-o", "sheet.jpg"), ("--size", "0"), ("--data", "photo")):
        done = manyviews("views", *wrong)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["train", "evaluate", "views", "reproduce"])
def test_help_names_no_none_as_a_choice(command: str) -> None:
    done = manyviews(command, "--help")
    assert done.returncode == 0, done.stderr
    assert "{None}" not in done.stdout
    assert ("--knn-k" in done.stdout) == (command in ("train", "evaluate"))


def test_version_is_told() -> None:
    assert manyviews("--version").stdout == f"manyviews {__version__}\n"
