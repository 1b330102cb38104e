"""The commands that come after training, as a person calls them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import manyviews as mv
from manyviews.cli.evaluate import evaluate_run
from manyviews.cli.use import embed, export_run, neighbours
from tests.test_cli import manyviews
from tests.training.small import folder_of_images


def test_evaluate_prints_tables_and_writes_them_down(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    folder = folder_of_images(tmp_path / "images", count=60)
    evaluate_run(run, data=str(folder), few=(0.25,), workers=0)
    said = capsys.readouterr().out
    assert "images: 12 held-out instances, labels of 48; probe lbfgs" in said
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    cells = {row[0]: row[1:] for row in rows}
    assert all(cell.count("%") == 1 for cell in cells["trained encoder"])
    assert "25% labels" in said
    assert "±" in cells["pixels"][2]
    assert cells["rank"][1].endswith("of 16")
    assert (run / "evaluation-images.json").exists()
    evaluate_run(run, data=str(folder_of_images(tmp_path / "plain", count=8, labelled=False)), workers=0)
    said = capsys.readouterr().out
    assert said.startswith("plain has no labels: no kNN and no linear probe\n3 views of 8 train instances")
    assert "alignment" in said


def test_embed_names_and_counts_what_cannot_be_read(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = folder_of_images(tmp_path / "images", count=7, labelled=False)
    (folder / "003.png").write_bytes(b"broken")
    out = tmp_path / "out.npz"
    embed(finished_run, str(folder), out, workers=0)
    said = capsys.readouterr()
    assert said.out == f"{out}: 6 vectors of 64 dimensions; 1 file left out\n"
    assert "left out" in said.err
    assert "003.png is no whole image" in said.err
    with np.load(out) as found:
        assert found["ids"].tolist() == [f"00{number}.png" for number in (0, 1, 2, 4, 5, 6)]
        expected = mv.load_encoder(finished_run)([folder / name for name in found["ids"].tolist()])
        torch.testing.assert_close(torch.from_numpy(found["vectors"]), expected)


def test_neighbours_draws_a_row_for_each_query(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sheet = tmp_path / "sheet.png"
    neighbours(finished_run, "photos", query=("test/3", "test/5"), output=sheet, count=4)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("test/3: t")
    assert said[0].count("(0.") == 4
    assert said[2] == f"{sheet}: the nearest of photos to 2 queries"
    with Image.open(sheet) as picture:
        assert picture.size == (5 * 116 + 8, 2 * (112 + 2 * 13 + 4) + 4)


def test_exports_say_how_to_load_them(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    images = torch.rand(3, 3, 16, 16)
    expected = mv.load_encoder(finished_run)(images)
    paths = {to: tmp_path / f"out.{to}" for to in ("safetensors", "torchvision", "onnx")}
    for to, path in paths.items():
        export_run(finished_run, to, path)
        said = capsys.readouterr().out
        assert said.startswith(f"{path}: resnet-small for images of 16 x 16, RGB in [0, 1], not normalised\n")
        assert repr(str(path)) in said
    assert {path.name for path in tmp_path.iterdir()} == {"out.safetensors", "out.torchvision", "out.onnx"}
    assert torch.equal(mv.load_encoder(paths["safetensors"])(images), expected)
    full = mv.get_encoder("resnet18", stem="strided").eval()
    full.load_state_dict(torch.load(paths["torchvision"], weights_only=True))
    torch.testing.assert_close(full(images)[:, :64], expected)
    assert paths["onnx"].read_bytes()


def test_mistakes_are_one_line_each(finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("text")
    for arguments, message in (
        (["evaluate", str(tmp_path)], "is no run"),
        (["evaluate", str(finished_run), "--data", "fotos"], "no data set 'fotos': did you mean photos?"),
        (["embed", str(finished_run), "photos", "-o", "out.txt"], "ends in .npy"),
        (["neighbours", str(finished_run), "photos", "--query", str(tmp_path / "text.jpg")], "is no whole image"),
        (["export", str(tmp_path), "--to", "onnx"], "is no run"),
    ):
        done = manyviews(*arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("manyviews: ")
        assert message in line
