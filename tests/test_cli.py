import dataclasses
import os
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
from manyviews.runs import Run
from manyviews.training import RECIPES, Config
from manyviews.transforms import SimCLRTransform
from manyviews.utils import draw_permutation
from tests.helpers.command_line import manyviews


def test_losses_prints_every_loss_with_its_measured_principles() -> None:
    done = manyviews("losses", "--views", "3")
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
    done = manyviews("losses", "--views", views)
    assert done.returncode == 2
    output = done.stdout + done.stderr
    assert re.search(message, output)
    assert "Traceback" not in output


def test_help_lists_the_commands() -> None:
    done = manyviews("--help")
    assert done.returncode == 0
    commands = ["train", "evaluate", "embed", "search", "export", "extract", "report", "inspect", "preview"]
    commands += ["losses", "reproduce"]
    assert re.findall(r"^│ +• (\S+)", done.stdout, re.MULTILINE) == commands


def test_flags_set_whether_the_temperature_is_learned() -> None:
    for flags, expected in (([], "null"), (["--learn-temperature"], "true"), (["--no-learn-temperature"], "false")):
        done = manyviews("train", "--loss", "siglip", "--print-config", *flags)
        assert f"temperature: null\nlearn_temperature: {expected}\n" in done.stdout, done.stderr


def test_preview_writes_a_contact_sheet(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    done = manyviews("preview", "--data", "photos", "--views", "3", "--instances", "5", "-o", str(sheet))
    assert done.returncode == 0, done.stderr
    assert "5 instances of photos, each with the views image:3@32" in done.stdout
    with Image.open(sheet) as image:
        assert image.size == (4 * 96 + 6 * 4, 5 * 100 + 4)
        num_colors = len(image.getcolors(2**20))
    assert num_colors > 1000
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.png"]


def test_preview_equal_the_views_of_training(tmp_path: Path) -> None:
    photos = load_dataset("photos")
    images = photos["train"].images
    for flags, changes in (
        ((), {}),
        (("--crop-scale", "0.5", "0.6", "--blur-prob", "1"), {"crop_scale": (0.5, 0.6), "blur_prob": 1.0}),
    ):
        assert manyviews("preview", "--instances", "3", "-o", str(tmp_path / "sheet.png"), *flags).returncode == 0
        index = draw_permutation(len(images), 0)[:3]
        transform = SimCLRTransform(
            32, **{"jitter_strength": 0.5, "blur_prob": 0.0, "crop_scale": (0.2, 1.0)} | changes
        )
        views = transform(images[index], views=4, seed=0, epoch=0, index=index)
        rows = [[image, *row] for image, row in zip(images[index], views, strict=True)]
        save_png(draw_contact_sheet(rows), tmp_path / "expected.png")
        assert (tmp_path / "sheet.png").read_bytes() == (tmp_path / "expected.png").read_bytes()


def test_preview_skips_a_corrupt_image(tmp_path: Path) -> None:
    for i in range(3):
        Image.new("RGB", (300 + i, 260), (i * 50, 90, 200)).save(tmp_path / f"{i}.jpg")
    (tmp_path / "fake.jpg").write_text("no")
    call = ("preview", "--data", str(tmp_path), "-o", str(tmp_path / "sheet.png"))
    done = manyviews(*call)
    assert done.returncode == 0, done.stderr
    assert "3 instances" in done.stdout
    assert "each with the views image:4@224" in done.stdout
    assert re.search(r"manyviews: warning: skipped 1 file of .*: .*fake.jpg", done.stderr)
    (tmp_path / "sheet.png").unlink()
    done = manyviews(*call, "--raise-on-corrupt")
    assert done.returncode == 2
    assert "fake.jpg cannot be decoded" in done.stderr
    assert "Traceback" not in done.stderr


def test_preview_reports_invalid_arguments(tmp_path: Path) -> None:
    done = manyviews("preview", "-o", str(tmp_path / "nowhere" / "sheet.png"))
    assert done.returncode == 2
    assert "is not a writable folder" in done.stderr
    for flags in (("-o", "sheet.jpg"), ("--image-size", "0"), ("--data", "photo")):
        done = manyviews("preview", *flags)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["train", "evaluate", "preview", "reproduce"])
def test_help_does_not_list_none_as_a_choice(command: str) -> None:
    done = manyviews(command, "--help")
    assert done.returncode == 0, done.stderr
    assert "{None}" not in done.stdout
    assert ("--knn-k" in done.stdout) == (command != "reproduce")


def test_overview_and_version_do_not_import_torch() -> None:
    for flag in ("--help", "--version"):
        code = (
            f"import sys; sys.argv[1:] = ['{flag}']\ntry: main()\nexcept SystemExit: assert 'torch' not in sys.modules"
        )
        call = [sys.executable, "-c", f"from manyviews.cli import main; {code}"]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def read_help(*arguments: str) -> dict[str, dict[str, str]]:
    """The text of each flag, by the title of its group."""
    environment = {**os.environ, "COLUMNS": "100"}
    call = [sys.executable, "-m", "manyviews", *arguments, "--help"]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=environment)
    groups: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        if title := re.match(r"╭─ (.*?) ─", line):
            group = groups[title[1]] = {}
        elif flag := re.match(r"│ (?:-\w(?: [A-Z]+)?, )?(--[a-z-]+)(.*)│", line):
            name = flag[1]
            group[name] = flag[2]
        elif text := re.match(r"│ +(.*)│", line):
            group[name] += " " + text[1]
    return groups


@pytest.mark.slow
def test_help_of_train_has_every_field_in_a_group() -> None:
    groups = read_help("train")
    titles = ["data", "views", "model", "loss", "optimization", "runtime", "logging"]
    assert list(groups) == ["options", *(f"{title} options" for title in titles)]
    flags = [flag for title in titles for flag in groups[f"{title} options"]]
    assert flags == ["--" + field.name.replace("_", "-") for field in dataclasses.fields(Config)]
    assert "--learning-rate" in groups["optimization options"]
    assert all(len(text.split()) > 2 for group in groups.values() for text in group.values())
    preview = read_help("preview")
    assert {title: set(group) for title, group in preview.items() if title != "options"} == {
        title: set(group) for title, group in groups.items() if title != "options"
    }


@pytest.mark.slow
def test_recipe_data_and_resume_set_the_defaults_of_the_flags(tmp_path: Path) -> None:
    for flags in (("--recipe", "cifar10", "--views", "2"), ("--data", "cifar10"), ("--data=cifar10",)):
        groups = read_help("train", *flags)
        assert "(default: 256)" in groups["optimization options"]["--batch-size"]
        assert "(default: resnet18)" in groups["model options"]["--encoder"]
    run = Run.create(tmp_path / "run", Config(views=3, seed=7), overwrite=False)
    assert "(default: 7)" in read_help("train", "--resume", str(run.path))["optimization options"]["--seed"]
    done = manyviews("train", "--resume", str(run.path), "--recipe", "photos")
    assert (done.returncode, done.stderr) == (2, "manyviews: --resume cannot be combined with --recipe\n")
    done = manyviews("train", "--recipe", "cifar10", "--views", "2", "--print-config")
    assert Config.from_yaml(done.stdout) == dataclasses.replace(RECIPES["cifar10"], views=2)


def test_preview_takes_a_recipe(tmp_path: Path) -> None:
    sheet = str(tmp_path / "sheet.png")
    done = manyviews("preview", "--recipe", "imagenet100", "--data", "photos", "--instances", "2", "-o", sheet)
    assert "2 instances of photos, each with the views image:4@224" in done.stdout, done.stderr
    done = manyviews("preview", "--recipe", "multimodal", "--instances", "2", "-o", sheet)
    assert "2 instances of digits, each with the views pixels fourier profiles gradients" in done.stdout, done.stderr


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
