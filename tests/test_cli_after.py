"""The commands that come after training, as a person calls them."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import manyviews as mv
from manyviews.cli.console import Reading
from manyviews.cli.evaluate import evaluate_run
from manyviews.cli.use import embed, export_run, neighbours
from manyviews.training import EvaluationConfig
from tests.test_cli import manyviews
from tests.training.small import folder_of_images


def test_evaluate_prints_tables_and_writes_them_down(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    folder = folder_of_images(tmp_path / "images", count=60)
    evaluate_run(run, EvaluationConfig(few=(0.25,), workers=0), str(folder))
    said = capsys.readouterr().out
    assert "images: 12 held-out instances, labels of 48; probe lbfgs" in said
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    cells = {row[0]: row[1:] for row in rows}
    assert all(cell.count("%") == 1 for cell in cells["trained encoder"])
    assert "12 labels" in said
    assert "kNN (k = 1)" in said  # a tenth of 16 a class
    assert "±" in cells["pixels"][2]
    assert cells["rank"][1].endswith("of 16")
    (written,) = run.glob("evaluation-images-*.json")
    assert said.splitlines()[-1] == f"written to {written}"
    plain = folder_of_images(tmp_path / "plain", count=8, labelled=False)
    evaluate_run(run, EvaluationConfig(workers=0), str(plain))
    said = capsys.readouterr().out
    assert said.startswith("plain has no labels: no kNN and no linear probe\n3 views of 8 train instances")
    assert "alignment" in said


def test_embed_names_and_counts_what_cannot_be_read(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = folder_of_images(tmp_path / "images", count=7, labelled=False)
    (folder / "003.png").write_bytes(b"broken")
    out = tmp_path / "out.npz"
    embed(finished_run, str(folder), out, Reading(workers=0))
    said = capsys.readouterr()
    assert said.out == f"{out}: 6 vectors of 64 dimensions; 1 file left out\n"
    assert "left out" in said.err
    assert "003.png is no whole image" in said.err
    with np.load(out) as found:
        assert found["ids"].tolist() == [f"00{number}.png" for number in (0, 1, 2, 4, 5, 6)]
        expected = mv.load_encoder(finished_run)([folder / name for name in found["ids"].tolist()])
        torch.testing.assert_close(torch.from_numpy(found["vectors"]), expected)


def test_embed_writes_labels_and_embeddings_of_images(finished_run: Path, tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=6)
    embed(finished_run, str(folder), tmp_path / "out.npz", Reading(workers=0), "z", labels=True)
    run = mv.Run.open(finished_run)
    with np.load(tmp_path / "out.npz") as found:
        assert found["ids"].tolist() == [f"{c}/{n:03}.png" for c, n in zip("aabbcc", (0, 3, 1, 4, 2, 5), strict=True)]
        assert found["labels"].tolist() == list("aabbcc")
        h = run.encoder([folder / name for name in found["ids"].tolist()])
        z = torch.nn.functional.normalize(run.embedder.head(h), dim=1)
        torch.testing.assert_close(torch.from_numpy(found["vectors"]), z)


def test_ids_of_images_in_a_file_are_their_ids_and_can_be_asked_for(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    names = np.array([f"p{number}" for number in (3, 1, 4, 5, 9, 2)])
    np.savez(tmp_path / "in.npz", x_train=images[:4], id_train=names[:4], x_test=images[4:], id_test=names[4:])
    embed(finished_run, str(tmp_path / "in.npz"), tmp_path / "out.npz", Reading(workers=0))
    with np.load(tmp_path / "out.npz") as found:
        assert found["ids"].tolist() == [*(f"train/{name}" for name in names[:4]), "test/p9", "test/p2"]
    neighbours(finished_run, str(tmp_path / "in.npz"), ("test/p9",), tmp_path / "near.png", count=2)
    assert "test/p9: t" in capsys.readouterr().out
    with pytest.raises(ValueError, match="in has no labels in train: leave --labels out"):
        embed(finished_run, str(tmp_path / "in.npz"), tmp_path / "out.npz", Reading(workers=0), labels=True)


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
    paths = {to: tmp_path / f"out{end}" for to, end in (("safetensors", ".safetensors"), ("torchvision", ".pth"))}
    paths["onnx"] = tmp_path / "out.onnx"
    for to, path in paths.items():
        export_run(finished_run, to, path)
        said = capsys.readouterr().out
        assert said.startswith(f"{path}: resnet-small for images of 16 x 16, RGB in [0, 1], not normalised\n")
        assert repr(str(path)) in said
    assert {path.name for path in tmp_path.iterdir()} == {"out.safetensors", "out.pth", "out.onnx"}
    assert torch.equal(mv.load_encoder(paths["safetensors"])(images), expected)
    full = mv.get_encoder("resnet18", stem="strided").eval()
    full.load_state_dict(torch.load(paths["torchvision"], weights_only=True))
    torch.testing.assert_close(full(images)[:, :64], expected)
    session = onnxruntime.InferenceSession(paths["onnx"], providers=["CPUExecutionProvider"])
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"images": images.numpy()})[0]), expected)


def test_an_exported_file_is_exported_again_and_a_run_stays_whole(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    before = (run / "encoder.safetensors").read_bytes()
    export_run(run, "safetensors")
    assert f"{run}/encoder.safetensors: resnet-small" in capsys.readouterr().out
    export_run(run, "torchvision")
    assert (run / "encoder-torchvision.pth").exists()
    for to, output, message in (
        ("torchvision", run / "encoder.safetensors", r"must end in \.pth, \.pt"),
        ("safetensors", run / "encoder.safetensors", "is what is read"),
        ("onnx", tmp_path / "nowhere" / "a.onnx", "is no folder"),
    ):
        with pytest.raises(ValueError, match=message):
            export_run(run, to, output)
    assert (run / "encoder.safetensors").read_bytes() == before
    export_run(run, "safetensors", tmp_path / "a.safetensors")
    export_run(tmp_path / "a.safetensors", "torchvision", tmp_path / "b.pth")
    assert (tmp_path / "b.pth").exists()
    monkeypatch.setattr("manyviews.export.weights.TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="other representations"):
        export_run(run, "onnx")
    assert not (run / "encoder.onnx").exists()


SLOW = """
import sys, time
from manyviews.cli import main
from manyviews.export import Pictures

def encoded(self, *_):
    yield ["a"], __import__("torch").zeros(1, 64)
    time.sleep(100)

Pictures.encoded = encoded
sys.argv[0] = "manyviews"
main()
"""


def test_told_to_stop_embed_leaves_nothing_behind(finished_run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, "embed", str(finished_run), "photos", "-o", str(tmp_path / "a.npz")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.iterdir()) and process.poll() is None:
            time.sleep(0.01)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "manyviews: terminated" in said.splitlines()
    assert not list(tmp_path.iterdir())


def test_mistakes_are_one_line_each(finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("text")
    for arguments, message in (
        (["evaluate", str(tmp_path)], "is no run"),
        (["evaluate", str(finished_run), "--data", "fotos"], "no data set 'fotos': did you mean photos?"),
        (["evaluate", str(finished_run), "--knn-k", "0"], "knn_k must be >= 1, got 0"),
        (["embed", str(finished_run), "photos", "-o", "out.txt"], "must end in .npy"),
        (["neighbours", str(finished_run), "photos", "--query", str(tmp_path / "text.jpg")], "is no whole image"),
        (["neighbours", str(finished_run), "photos", "--query", "a.png", "-o", "/nowhere/b.png"], "is no folder"),
        (["export", str(tmp_path), "--to", "onnx"], "is no run"),
    ):
        done = manyviews(*arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("manyviews: ")
        assert message in line
