import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from manyviews import __version__
from manyviews.data import load_dataset
from manyviews.export import draw_contact_sheet, save_png
from manyviews.losses import LOSSES
from manyviews.training import Config, build_transform, resolve_config
from manyviews.utils import draw_permutation
from tests.helpers.command_line import manyviews


def test_list_losses_prints_every_loss_with_its_measured_principles() -> None:
    done = manyviews("list-losses", "--views", "3")
    assert done.returncode == 0, done.stderr
    rows = {
        cells[1]: cells[2:-1]
        for line in done.stdout.splitlines()
        if len(cells := [cell.strip() for cell in line.split("│")]) > 2 and cells[1]
    }
    assert list(rows) == list(LOSSES)
    assert rows["mv-dhel"][1:] == ["M² N", "✓", "✓", "1", "none"]
    assert rows["mv-infonce"][1:] == ["M² N²", "✓", "✓", "1", "direct"]
    assert rows["pvc"][1:] == ["M² N²", "✗", "✗", "6", "direct"]
    assert rows["pwe-infonce"][1:] == ["M² N²", "✗", "✗", "3", "direct"]
    assert all(row[0] for row in rows.values())


@pytest.mark.parametrize(("views", "message"), [("1", "views must be >= 2"), ("x", "invalid literal for int.*'x'")])
def test_invalid_arguments_print_a_message_without_traceback(views: str, message: str) -> None:
    done = manyviews("list-losses", "--views", views)
    assert done.returncode == 2
    output = done.stdout + done.stderr
    assert re.search(message, output)
    assert "Traceback" not in output


def test_help_lists_the_commands() -> None:
    done = manyviews("--help")
    assert done.returncode == 0
    for command in (
        "train",
        "evaluate",
        "report",
        "reproduce",
        "embed",
        "search",
        "export",
        "inspect",
        "preview-views",
        "list-losses",
    ):
        assert command in done.stdout


def test_flags_set_whether_the_temperature_is_learned() -> None:
    for flags, expected in (([], "null"), (["--learn-temperature"], "true"), (["--no-learn-temperature"], "false")):
        done = manyviews("train", "--loss", "siglip", "--print-config", *flags)
        assert f"temperature: null\nlearn_temperature: {expected}\n" in done.stdout, done.stderr


def test_preview_views_writes_a_contact_sheet(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    done = manyviews("preview-views", "--data", "photos", "--views", "3", "--instances", "5", "-o", str(sheet))
    assert done.returncode == 0, done.stderr
    assert "5 instances of photos, each with 3 views of 32 x 32" in done.stdout
    with Image.open(sheet) as image:
        assert image.size == (4 * 96 + 6 * 4, 5 * 100 + 4)
        num_colors = len(image.getcolors(2**20))
    assert num_colors > 1000
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.png"]


def test_preview_views_equal_the_views_of_training(tmp_path: Path) -> None:
    photos = load_dataset("photos")
    images = photos["train"].images
    for flags, changes in (
        ((), {}),
        (("--crop-scale", "0.5", "0.6", "--blur-prob", "1"), {"crop_scale": (0.5, 0.6), "blur_prob": 1.0}),
    ):
        assert manyviews("preview-views", "--instances", "3", "-o", str(tmp_path / "sheet.png"), *flags).returncode == 0
        index = draw_permutation(len(images), 0)[:3]
        transform = build_transform(resolve_config(Config(**changes), photos, 1))
        views = transform(images[index], views=4, seed=0, epoch=0, index=index)
        rows = [[image, *row] for image, row in zip(images[index], views, strict=True)]
        save_png(draw_contact_sheet(rows), tmp_path / "expected.png")
        assert (tmp_path / "sheet.png").read_bytes() == (tmp_path / "expected.png").read_bytes()


def test_preview_views_skips_a_corrupt_image(tmp_path: Path) -> None:
    for i in range(3):
        Image.new("RGB", (300 + i, 260), (i * 50, 90, 200)).save(tmp_path / f"{i}.jpg")
    (tmp_path / "fake.jpg").write_text("no")
    call = ("preview-views", "--data", str(tmp_path), "-o", str(tmp_path / "sheet.png"))
    done = manyviews(*call)
    assert done.returncode == 0, done.stderr
    assert "3 instances" in done.stdout
    assert "224 x 224" in done.stdout
    assert re.search(r"manyviews: 1 file of .* left out: .*fake.jpg", done.stderr)
    (tmp_path / "sheet.png").unlink()
    done = manyviews(*call, "--raise-on-corrupt")
    assert done.returncode == 2
    assert "fake.jpg cannot be decoded" in done.stderr
    assert "Traceback" not in done.stderr


def test_preview_views_reports_invalid_arguments(tmp_path: Path) -> None:
    done = manyviews("preview-views", "-o", str(tmp_path / "nowhere" / "sheet.png"))
    assert done.returncode == 2
    assert "is not a writable folder" in done.stderr
    for flags in (("-o", "sheet.jpg"), ("--image-size", "0"), ("--data", "photo")):
        done = manyviews("preview-views", *flags)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["train", "evaluate", "preview-views", "reproduce"])
def test_help_does_not_list_none_as_a_choice(command: str) -> None:
    done = manyviews(command, "--help")
    assert done.returncode == 0, done.stderr
    assert "{None}" not in done.stdout
    assert ("--knn-k" in done.stdout) == (command in ("train", "evaluate"))


@pytest.mark.slow
def test_module_prints_version_and_returns_the_exit_code() -> None:
    """In a process of its own: the other commands run in that of the tests."""
    command = [sys.executable, "-m", "manyviews"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"manyviews {__version__}\n"
    done = subprocess.run([*command, "inspect", "nowhere"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("manyviews: no dataset or path 'nowhere'")
    assert len(done.stderr.splitlines()) == 1
