"""The commands on a bundle of modalities, as a person calls them."""

from pathlib import Path

import numpy as np
import pytest

import manyviews as mv
from manyviews.cli.evaluate import evaluate_run
from manyviews.cli.train import show_run
from manyviews.cli.use import embed, export_run, neighbours
from manyviews.models import EncoderError
from manyviews.training import EvaluationConfig, Run, train
from tests.test_cli import manyviews
from tests.training.bundle import MODAL, bundle


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bundle(tmp_path_factory.mktemp("data") / "three.npz")


@pytest.fixture(scope="module")
def run(data: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = mv.Config(**{**vars(MODAL), "data": data, "probe": True})
    return train(config, output=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def cells(said: str) -> dict[str, list[str]]:
    """The rows of all tables, by their first cells."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows}


def test_a_finished_run_shows_its_scores_and_subsets(run: Run, capsys: pytest.CaptureFixture) -> None:
    show_run(run)
    rows = cells(capsys.readouterr().out)
    assert {"majority", "raw features", "trained encoder", "mean embedding", "text", "text + audio"} <= set(rows)
    assert len(rows["text + video"]) == 4
    assert all(cell.endswith("%") for cell in rows["text + video"])


def test_evaluate_shows_every_table_and_what_is_dropped(run: Run, capsys: pytest.CaptureFixture) -> None:
    evaluate_run(run.path, EvaluationConfig(few=(), drop=("audio",)))
    said = capsys.readouterr().out
    assert said.startswith("three: 40 test instances without audio, labels of 80; probe lbfgs\n")
    rows = cells(said)
    assert "recall at 1 / 5 / 10 (%)" in said
    assert "text and video" in rows
    assert "audio" not in rows
    assert said.splitlines()[-1] == f"written to {run.path / 'evaluation-without-audio.json'}"


def test_embed_writes_fused_representations(run: Run, data: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out.npz"
    embed(run.path, data, out)
    assert capsys.readouterr().out == f"{out}: 120 vectors of 48 dimensions\n"
    with np.load(out) as found:
        assert found["ids"].tolist()[:2] == ["train/0", "train/1"]
        assert found["ids"].tolist()[-1] == "test/39"
        assert found["vectors"].shape == (120, 48)


def test_what_is_for_images_says_so(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(EncoderError, match=r"is of modalities \(text, audio, video\), not of images"):
        export_run(run.path, "onnx")
    with pytest.raises(ValueError, match="neighbours are drawn of images"):
        neighbours(run.path, "photos", ("test/1",), tmp_path / "near.png")
    export_run(run.path, "safetensors", tmp_path / "mine.safetensors")
    assert "encoders of text, audio, video" in capsys.readouterr().out
    assert mv.load_encoder(tmp_path / "mine.safetensors").names == ("text", "audio", "video")


def test_mistakes_are_one_line(data: str) -> None:
    for arguments, message in (
        (["train", "--data", data], "has no images, only text, audio, video: train on these with --recipe multimodal"),
        (["train", "--data", data, "--recipe", "multimodal", "--modalities", "smell"], "has no modality 'smell'"),
        (["reproduce", "table9"], "no table or figure 'table9': did you mean table1"),
        (["reproduce", "views", "--jobs", "0"], "jobs and seeds must be >= 1, got 0 and 1"),
    ):
        done = manyviews(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_reproduce_lists_tables_and_cells(tmp_path: Path) -> None:
    assert "fixed-batch" in manyviews("reproduce", "list").stdout
    done = manyviews(
        "reproduce", "memory", "--scale", "smoke", "--limit", "64", "--dry-run", "--output", str(tmp_path / "out")
    )
    assert "2 cells, about 0:0" in done.stdout, done.stderr
    assert "to do" in done.stdout
    assert not (tmp_path / "out").exists()
