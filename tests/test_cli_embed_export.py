"""The commands that use a finished run: evaluate, embed, search, export."""

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
from manyviews.cli.common import LoaderOptions
from manyviews.cli.embed_command import embed_command
from manyviews.cli.evaluate_command import evaluate_command
from manyviews.cli.export_command import export_command
from manyviews.cli.search_command import search_command
from manyviews.evaluation import EvaluationConfig
from tests.helpers.command_line import manyviews
from tests.helpers.terminal import parse_tables
from tests.helpers.tiny_run import folder_of_images


def test_evaluate_prints_tables_and_writes_a_json_file(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    folder = folder_of_images(tmp_path / "images", count=60)
    evaluate_command(run, EvaluationConfig(label_fractions=(0.25,), num_workers=0), str(folder))
    output = capsys.readouterr().out
    assert "images: 12 held-out instances, 48 labels; lbfgs probe; few labels sampled 3 times.\n" in output
    cells = parse_tables(output)
    assert len(cells["trained encoder"]) == 3
    assert all(cell.count("%") == 1 for cell in cells["trained encoder"])
    assert "12 labels" in output
    assert "kNN (k = 1)" in output  # a tenth of 16 a class
    assert "±" in cells["raw features"][2]
    assert cells["rank"][1].endswith("of 16")
    (written,) = run.glob("evaluation-images-*.json")
    assert output.splitlines()[-1] == f"written to {written}"
    plain = folder_of_images(tmp_path / "plain", count=8, labelled=False)
    evaluate_command(run, EvaluationConfig(num_workers=0), str(plain))
    output = capsys.readouterr().out
    assert output.startswith("plain has no labels: no kNN and no linear probe\nGeometry")
    assert "\n3 views of 8 train instances.\n" in output
    assert len(parse_tables(output)["alignment"]) == 3
    assert "Evaluation" not in output


def test_embed_prints_and_counts_skipped_files(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = folder_of_images(tmp_path / "images", count=7, labelled=False)
    (folder / "003.png").write_bytes(b"broken")
    out = tmp_path / "out.npz"
    embed_command(finished_run, str(folder), out, LoaderOptions(num_workers=0))
    output = capsys.readouterr()
    assert output.out == f"{out}: 6 vectors of 64 dimensions; 1 file skipped\n"
    assert "skipped: " in output.err
    assert "003.png cannot be decoded" in output.err
    with np.load(out) as content:
        assert content["ids"].tolist() == [f"00{i}.png" for i in (0, 1, 2, 4, 5, 6)]
        expected = mv.load_encoder(finished_run)([folder / name for name in content["ids"].tolist()])
        torch.testing.assert_close(torch.from_numpy(content["vectors"]), expected)


def test_embed_writes_labels_and_embeddings(finished_run: Path, tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=6)
    embed_command(finished_run, str(folder), tmp_path / "out.npz", LoaderOptions(num_workers=0), "z", labels=True)
    run = mv.Run.open(finished_run)
    with np.load(tmp_path / "out.npz") as content:
        assert content["ids"].tolist() == [f"{c}/{n:03}.png" for c, n in zip("aabbcc", (0, 3, 1, 4, 2, 5), strict=True)]
        assert content["labels"].tolist() == list("aabbcc")
        h = run.load_encoder()([folder / name for name in content["ids"].tolist()])
        (head,) = run.load_model().head.heads
        z = torch.nn.functional.normalize(head(h), dim=1)
        torch.testing.assert_close(torch.from_numpy(content["vectors"]), z)


def test_ids_in_an_array_file_are_kept_and_can_be_queried(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    names = np.array([f"p{i}" for i in (3, 1, 4, 5, 9, 2)])
    np.savez(tmp_path / "in.npz", x_train=images[:4], id_train=names[:4], x_test=images[4:], id_test=names[4:])
    embed_command(finished_run, str(tmp_path / "in.npz"), tmp_path / "out.npz", LoaderOptions(num_workers=0))
    with np.load(tmp_path / "out.npz") as content:
        assert content["ids"].tolist() == [*(f"train/{name}" for name in names[:4]), "test/p9", "test/p2"]
    search_command(finished_run, str(tmp_path / "in.npz"), ("test/p9",), tmp_path / "near.png", neighbors=2)
    assert "test/p9: t" in capsys.readouterr().out
    with pytest.raises(ValueError, match="in has no labels in train: omit --labels"):
        embed_command(
            finished_run, str(tmp_path / "in.npz"), tmp_path / "out.npz", LoaderOptions(num_workers=0), labels=True
        )


def test_search_draws_a_row_for_each_query(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sheet = tmp_path / "sheet.png"
    search_command(finished_run, "photos", query=("test/3", "test/5"), output=sheet, neighbors=4)
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("test/3: t")
    assert output[0].count("(0.") == 4
    assert output[2] == f"{sheet}: nearest neighbors in photos of 2 queries"
    with Image.open(sheet) as image:
        assert image.size == (5 * 116 + 8, 2 * (112 + 2 * 13 + 4) + 4)


@pytest.mark.slow
def test_exports_print_how_to_load_them(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    images = torch.rand(3, 3, 16, 16)
    expected = mv.load_encoder(finished_run)(images)
    paths = {to: tmp_path / f"out{end}" for to, end in (("safetensors", ".safetensors"), ("torchvision", ".pth"))}
    paths["onnx"] = tmp_path / "out.onnx"
    for to, path in paths.items():
        export_command(finished_run, to, path)
        output = capsys.readouterr().out
        assert output.startswith(f"{path}: resnet-small for images of 16 x 16, RGB in [0, 1], not normalized\n")
        assert repr(str(path)) in output
    assert {path.name for path in tmp_path.iterdir()} == {"out.safetensors", "out.pth", "out.onnx"}
    assert torch.equal(mv.load_encoder(paths["safetensors"])(images), expected)
    full = mv.get_encoder("resnet18", stem="small-strided").eval()
    full.load_state_dict(torch.load(paths["torchvision"], weights_only=True))
    torch.testing.assert_close(full(images)[:, :64], expected)
    session = onnxruntime.InferenceSession(paths["onnx"], providers=["CPUExecutionProvider"])
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"images": images.numpy()})[0]), expected)


def test_export_hub_writes_a_folder_with_the_card_of_the_run(finished_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    for arguments, folder in (([], run / "hub"), (["-o", str(tmp_path / "shared")], tmp_path / "shared")):
        done = manyviews("export", str(run), "hub", *arguments)
        assert done.returncode == 0, done.stderr
        assert f"{folder}: encoders of image; choose a license in README.md" in done.stdout
        assert f"encoder = manyviews.load_encoder({str(folder)!r})" in done.stdout
        assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
        assert "| loss | mv-dhel |" in (folder / "README.md").read_text()
        images = torch.rand(2, 3, 16, 16)
        assert torch.equal(mv.load_encoder(folder)(images), mv.load_encoder(run)(images))
    assert manyviews("export", str(run), "hub", "-o", str(run / "config.yaml")).stderr.startswith(
        "manyviews: cannot write"
    )


@pytest.mark.slow
def test_an_exported_file_can_be_exported_again_and_the_run_is_unchanged(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    before = (run / "encoder.safetensors").read_bytes()
    export_command(run, "safetensors")
    assert f"{run}/encoder.safetensors: resnet-small" in capsys.readouterr().out
    export_command(run, "torchvision")
    assert (run / "encoder-torchvision.pth").exists()
    for to, output, message in (
        ("torchvision", run / "encoder.safetensors", r"must end in \.pth, \.pt"),
        ("safetensors", run / "encoder.safetensors", "another output"),
        ("timm", run / "encoder.safetensors", "another output"),
        ("timm", run, "is the directory of the run"),
        ("hub", run, "is the directory of the run"),
        ("onnx", tmp_path / "nowhere" / "a.onnx", "is not a writable folder"),
    ):
        with pytest.raises(ValueError, match=message):
            export_command(run, to, output)
    assert (run / "encoder.safetensors").read_bytes() == before
    export_command(run, "safetensors", tmp_path / "a.safetensors")
    export_command(tmp_path / "a.safetensors", "torchvision", tmp_path / "b.pth")
    assert (tmp_path / "b.pth").exists()
    monkeypatch.setattr("manyviews.export.weights.TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="ONNX export check failed"):
        export_command(run, "onnx")
    assert not (run / "encoder.onnx").exists()


SLOW = """
import sys, time
from manyviews.cli import main
from manyviews.export import Collection

def encode(self, *_):
    torch = __import__("torch")
    yield (["a"], torch.zeros(1, 64), []), torch.ones(1, dtype=torch.bool)
    time.sleep(100)

Collection.encode = encode
sys.argv[0] = "manyviews"
main()
"""


@pytest.mark.slow
def test_terminated_embed_removes_its_files(finished_run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, "embed", str(finished_run), "photos", "-o", str(tmp_path / "a.npz")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.iterdir()) and process.poll() is None:
            time.sleep(0.01)
        process.terminate()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    assert "manyviews: terminated" in stderr.splitlines()
    assert not list(tmp_path.iterdir())


def test_errors_are_one_line_each(finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("text")
    for arguments, message in (
        (["evaluate", str(tmp_path)], "is not a run directory"),
        (["evaluate", str(finished_run), "--data", "fotos"], "'fotos': did you mean photos?"),
        (["evaluate", str(finished_run), "--knn-k", "0"], "knn_k must be >= 1, got 0"),
        (["embed", str(finished_run), "photos", "-o", "out.txt"], "must end in .npy"),
        (["search", str(finished_run), "photos", "--query", str(tmp_path / "text.jpg")], "cannot be decoded"),
        (["search", str(finished_run), "photos", "--query", "a.png", "-o", "/nowhere/b.png"], "not a writable folder"),
        (["export", str(tmp_path), "onnx"], "is not a run directory"),
    ):
        done = manyviews(*arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("manyviews: ")
        assert message in line
