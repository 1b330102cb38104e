"""The commands on a bundle of modalities, as a person calls them."""

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from pyarrow import parquet
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.cli.evaluate import evaluate_run
from manyviews.cli.train import show_run
from manyviews.cli.use import embed, export_run, neighbours
from manyviews.evaluation.modalities import embedded, mean_embedding
from manyviews.models import EncoderError
from manyviews.training import EvaluationConfig, Run, train
from manyviews.views import ModalityBatches
from tests.test_cli import manyviews
from tests.training.bundle import MODAL, NAMES, bundle


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


def mat_file(path: Path) -> tuple[str, np.ndarray]:
    """Twenty instances of two classes, and their first view."""
    views = np.empty((1, 2), dtype=object)
    generator = np.random.default_rng(0)
    views[0] = [generator.normal(size=(20, 3)), generator.normal(size=(20, 4))]
    scipy.io.savemat(path, {"X": views, "Y": np.arange(20)[:, None] % 2 + 7})
    return str(path), views[0, 0]


def test_embed_of_a_mat_file_has_its_rows_in_its_order(tmp_path: Path) -> None:
    data, _ = mat_file(tmp_path / "views.mat")
    config = mv.Config(**{**vars(MODAL), "data": data, "epochs": 1, "batch_size": 8})
    run = train(config, output=tmp_path / "run", quiet=True)
    embed(run.path, data, tmp_path / "out.npz", labels=True)
    split = mv.load_dataset(data)["test"]
    batch = ModalityBatches(split, ("view1", "view2")).of(torch.arange(len(split)))
    encoder = mv.load_encoder(run.path)
    with np.load(tmp_path / "out.npz") as found:
        assert found["ids"].tolist() == [str(row) for row in range(20)]
        assert found["labels"].tolist() == ["7", "8"] * 10
        expected = encoder.fused(encoder(batch), batch[-1])
        torch.testing.assert_close(torch.from_numpy(found["vectors"][list(map(int, split.ids))]), expected)


@pytest.fixture(scope="module")
def with_ids(data: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ids") / "ids.npz"
    with np.load(data) as arrays:
        ids = {f"{split}/id": np.array([f"{split[0]}{n}" for n in range(len(arrays[f"{split}/label"]))])
               for split in ("train", "test")}  # fmt: skip
        np.savez(path, **arrays, **ids)
    return str(path)


def test_ids_of_a_bundle_are_its_own_split_by_split(run: Run, with_ids: str, tmp_path: Path) -> None:
    embed(run.path, with_ids, tmp_path / "out.npy", labels=True)
    lines = (tmp_path / "out.ids.csv").read_text().splitlines()
    data = mv.load_dataset(with_ids)
    own = [
        f"{split}/{name},{label}"
        for split, part in data.splits.items()
        for name, label in zip(part.ids, part.labels.tolist(), strict=True)
    ]
    assert lines == ["id,label", *own]
    assert lines[1].startswith("train/t0,")
    assert np.load(tmp_path / "out.npy").shape == (120, 48)


@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_each_modality_and_embeddings(run: Run, data: str, tmp_path: Path, ending: str) -> None:
    each, z = tmp_path / f"each{ending}", tmp_path / f"z{ending}"
    embed(run.path, data, each, what="each-modality", labels=True)
    embed(run.path, data, z, what="z")
    test = mv.load_dataset(data)["test"]
    h, own, present = embedded(run.embedder, ModalityBatches(test, NAMES), torch.arange(len(test)))
    mean = normalize(mean_embedding(own, present), dim=1)
    if ending == ".npz":
        with np.load(each) as found, np.load(z) as other:
            assert sorted(found.files) == ["audio", "ids", "labels", "text", "video"]
            parts, vectors = [found[name] for name in NAMES], other["vectors"]
    elif ending == ".csv":
        with each.open() as one, z.open() as two:
            header = next(one).strip().split(",")
            assert header[:3] == ["id", "label", "text.0"]
            assert header[-1] == "video.15"
            flat = np.array([line.split(",")[2:] for line in one], np.float32).reshape(120, 3, 16)
            vectors = np.array([line.split(",")[1:] for line in two][1:], np.float32)
            parts = list(flat.transpose(1, 0, 2))
    else:
        table = parquet.read_table(each)
        assert table.column_names == ["id", "label", *NAMES]
        parts = [np.array(table[name].to_pylist(), np.float32) for name in NAMES]
        vectors = np.array(parquet.read_table(z)["vector"].to_pylist(), np.float32)
    for number, part in enumerate(parts):
        there = present[:, number].numpy()
        assert np.isnan(part[80:][~there]).all()
        np.testing.assert_allclose(part[80:][there], h[there, number].numpy(), rtol=1e-4, atol=1e-5)
    assert not present[:, 1].all()
    np.testing.assert_allclose(vectors[80:], mean.numpy(), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_embedded_is_named(run: Run, data: str, tmp_path: Path, finished_run: Path) -> None:
    (tmp_path / "flat").mkdir()
    export_run(run.path, "safetensors", tmp_path / "mine.safetensors")
    for where, source, output, flags, message in (
        (run.path, data, "a.npy", {"what": "each-modality"}, r"one array, not one for each modality: write a \.npz"),
        (tmp_path / "mine.safetensors", data, "a.npz", {"what": "z"}, "without its head"),
        (finished_run, "photos", "a.npz", {"what": "each-modality"}, "is of images, and has no other modality"),
        (finished_run, str(tmp_path / "flat"), "a.npz", {"labels": True}, "no folders of classes"),
    ):
        with pytest.raises(ValueError, match=message):
            embed(where, source, tmp_path / output, **flags)
        assert not (tmp_path / output).exists()


def test_regression_targets_are_numbers(tmp_path: Path) -> None:
    data = bundle(tmp_path / "mood.npz", labels="quantities", gaps=False)
    supervised = {**vars(MODAL), "data": data, "epochs": 1, "supervised": True}
    run = train(mv.Config(**supervised), output=tmp_path / "run", quiet=True)
    expected = torch.cat([part.labels for part in mv.load_dataset(data).splits.values()]).double().numpy()
    embed(run.path, data, tmp_path / "out.npz", labels=True)
    embed(run.path, data, tmp_path / "out.parquet", labels=True)
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["labels"], expected)
    assert parquet.read_table(tmp_path / "out.parquet")["label"].to_pylist() == expected.tolist()
    with pytest.raises(ValueError, match="has predictions instead of embeddings"):
        embed(run.path, data, tmp_path / "z.npz", what="z")
