"""The commands on multimodal data."""

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from pyarrow import parquet
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.api import train
from manyviews.cli.embed_command import embed_command
from manyviews.cli.evaluate_command import evaluate_command
from manyviews.cli.export_command import export_command
from manyviews.cli.search_command import search_command
from manyviews.cli.train_command import show_run
from manyviews.evaluation import EvaluationConfig, average_embeddings
from manyviews.loading import embed_instances, make_eval_loader
from manyviews.runs import Run
from tests.helpers.command_line import manyviews
from tests.helpers.terminal import parse_tables
from tests.helpers.tiny_multimodal import MODAL, NAMES, bundle


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bundle(tmp_path_factory.mktemp("data") / "three.npz")


@pytest.fixture(scope="module")
def run(data: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = mv.Config(**{**vars(MODAL), "data": data, "evaluate_at_end": True})
    return train(config, output=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_finished_run_shows_scores_and_subsets(run: Run, capsys: pytest.CaptureFixture) -> None:
    show_run(run)
    rows = parse_tables(capsys.readouterr().out)
    assert {"majority", "raw features", "trained encoder", "mean embedding", "text", "text + audio"} <= set(rows)
    assert len(rows["text + video"]) == 4
    assert all(cell.endswith("%") for cell in rows["text + video"])


def test_evaluate_shows_every_table_without_dropped_modalities(run: Run, capsys: pytest.CaptureFixture) -> None:
    evaluate_command(run.path, EvaluationConfig(label_fractions=(), drop_modalities=("audio",)))
    output = capsys.readouterr().out
    assert "\nthree: 40 test instances without audio, 80 labels; lbfgs probe.\n" in output
    rows = parse_tables(output)
    assert "\nRecall at 1 (below: at 5 and 10) among 40 instances; chance level 2.5%. Rows query columns.\n" in output
    assert rows["from \\ to"] == ["text", "video"]
    assert "text and video" in rows
    assert "audio" not in rows
    assert output.splitlines()[-1] == f"written to {run.path / 'evaluation-without-audio.json'}"


def test_embed_writes_fused_representations(run: Run, data: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out.npz"
    embed_command(run.path, data, out)
    assert capsys.readouterr().out == f"{out}: 120 vectors of 48 dimensions\n"
    with np.load(out) as arrays:
        assert arrays["ids"].tolist()[:2] == ["train/0", "train/1"]
        assert arrays["ids"].tolist()[-1] == "test/39"
        assert arrays["vectors"].shape == (120, 48)


def test_image_only_commands_raise(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ValueError, match="the encoder has no modality of images, only text, audio, video"):
        export_command(run.path, "onnx")
    with pytest.raises(ValueError, match="no modality 'text': the split has image"):
        search_command(run.path, "photos", ("test/1",), tmp_path / "near.png")
    export_command(run.path, "safetensors", tmp_path / "exported.safetensors")
    assert "encoders of text, audio, video" in capsys.readouterr().out
    assert mv.load_encoder(tmp_path / "exported.safetensors").modalities == ("text", "audio", "video")


def test_errors_are_one_line(data: str) -> None:
    for arguments, message in (
        (["train", "--data", data, "--views", "4"], "has text, audio, video: name them, such as --views text:2 audio"),
        (
            ["train", "--data", data, "--views", "smell", "text"],
            "has no modality 'smell'. There are audio, text, video",
        ),
        (
            ["train", "--data", data, "--image-size", "16"],
            "image_size is for image or video views, got text audio video",
        ),
        (["train", "--data", data, "--encoder", "text=mlp"], "no encoder 'mlp' for sequence"),
        (["train", "--data", data, "--modalities", "text"], "--modalities"),
        (["reproduce", "table9"], "no table or figure 'table9': did you mean table1"),
        (["reproduce", "views", "--jobs", "0"], "jobs and seeds must be >= 1, got 0 and 1"),
    ):
        process = manyviews(*arguments)
        assert process.returncode == 2
        assert message in process.stderr
        assert "Traceback" not in process.stderr


def test_reproduce_lists_tables_and_trials(tmp_path: Path) -> None:
    assert "fixed-batch" in manyviews("reproduce", "--list").stdout
    process = manyviews(
        "reproduce",
        "memory",
        "--scale",
        "smoke",
        "--max-instances",
        "64",
        "--dry-run",
        "--output",
        str(tmp_path / "out"),
    )
    assert "2 trials, about 0:0" in process.stdout, process.stderr
    assert "to do" in process.stdout
    assert not (tmp_path / "out").exists()


def make_mat_file(path: Path) -> tuple[str, np.ndarray]:
    """Write two views of twenty instances in two classes; return the path and the first view."""
    views = np.empty((1, 2), dtype=object)
    generator = np.random.default_rng(0)
    views[0] = [generator.normal(size=(20, 3)), generator.normal(size=(20, 4))]
    scipy.io.savemat(path, {"X": views, "Y": np.arange(20)[:, None] % 2 + 7})
    return str(path), views[0, 0]


def test_embed_keeps_the_row_order_of_a_mat_file(tmp_path: Path) -> None:
    data, _ = make_mat_file(tmp_path / "views.mat")
    config = mv.Config(data=data, epochs=1, batch_size=8, hidden_dim=16, monitor_size=0, evaluate_at_end=False)
    run = train(config, output=tmp_path / "run", quiet=True)
    embed_command(run.path, data, tmp_path / "out.npz", labels=True)
    split = mv.load_dataset(data)["test"]
    encoder = mv.load_encoder(run.path).encoder
    assert encoder.modalities == ("view1", "view2")
    batch = make_eval_loader(split, encoder).load(torch.arange(len(split)))
    assert batch.mask is None
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["ids"].tolist() == [str(row) for row in range(20)]
        assert arrays["labels"].tolist() == ["7", "8"] * 10
        expected = encoder(batch).flatten(1)
        torch.testing.assert_close(torch.from_numpy(arrays["vectors"][list(map(int, split.ids))]), expected)


@pytest.fixture(scope="module")
def with_ids(data: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ids") / "ids.npz"
    with np.load(data) as arrays:
        ids = {f"{split}/id": np.array([f"{split[0]}{n}" for n in range(len(arrays[f"{split}/label"]))])
               for split in ("train", "test")}  # fmt: skip
        np.savez(path, **arrays, **ids)
    return str(path)


def test_ids_are_those_of_the_data_split_by_split(run: Run, with_ids: str, tmp_path: Path) -> None:
    embed_command(run.path, with_ids, tmp_path / "out.npy", labels=True)
    lines = (tmp_path / "out.ids.csv").read_text().splitlines()
    data = mv.load_dataset(with_ids)
    expected = [
        f"{split}/{name},{label}"
        for split, part in data.splits.items()
        for name, label in zip(part.ids, part.labels.tolist(), strict=True)
    ]
    assert lines == ["id,label", *expected]
    assert lines[1].startswith("train/t0,")
    assert np.load(tmp_path / "out.npy").shape == (120, 48)


@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_embed_each_modality_and_z_equal_the_model(run: Run, data: str, tmp_path: Path, ending: str) -> None:
    each, z = tmp_path / f"each{ending}", tmp_path / f"z{ending}"
    embed_command(run.path, data, each, vectors="each-modality", labels=True)
    embed_command(run.path, data, z, vectors="z")
    test = mv.load_dataset(data)["test"]
    model = run.load_model()
    assert model.encoder.modalities == NAMES
    h, embeddings, mask = embed_instances(model, make_eval_loader(test, model.encoder), torch.arange(len(test)))
    mean = normalize(average_embeddings(embeddings, mask), dim=1)
    if ending == ".npz":
        with np.load(each) as arrays, np.load(z) as z_arrays:
            assert sorted(arrays.files) == ["audio", "ids", "labels", "text", "video"]
            parts, vectors = [arrays[name] for name in NAMES], z_arrays["vectors"]
    elif ending == ".csv":
        with each.open() as each_file, z.open() as z_file:
            header = next(each_file).strip().split(",")
            assert header[:3] == ["id", "label", "text.0"]
            assert header[-1] == "video.15"
            flat = np.array([line.split(",")[2:] for line in each_file], np.float32).reshape(120, 3, 16)
            vectors = np.array([line.split(",")[1:] for line in z_file][1:], np.float32)
            parts = list(flat.transpose(1, 0, 2))
    else:
        table = parquet.read_table(each)
        assert table.column_names == ["id", "label", *NAMES]
        parts = [np.array(table[name].to_pylist(), np.float32) for name in NAMES]
        vectors = np.array(parquet.read_table(z)["vector"].to_pylist(), np.float32)
    for i, part in enumerate(parts):
        valid = mask[:, i].numpy()
        assert np.isnan(part[80:][~valid]).all()
        np.testing.assert_allclose(part[80:][valid], h[valid, i].numpy(), rtol=1e-4, atol=1e-5)
    assert not mask[:, 1].all()
    np.testing.assert_allclose(vectors[80:], mean.numpy(), rtol=1e-4, atol=1e-5)


def test_embed_raises_on_impossible_requests(run: Run, data: str, tmp_path: Path, finished_run: Path) -> None:
    (tmp_path / "flat").mkdir()
    export_command(run.path, "safetensors", tmp_path / "exported.safetensors")
    for encoder, source, output, flags, message in (
        (run.path, data, "a.npy", {"vectors": "each-modality"}, r"cannot store an array per modality: use a \.npz"),
        (tmp_path / "exported.safetensors", data, "a.npz", {"vectors": "z"}, "without a head"),
        (finished_run, str(tmp_path / "flat"), "a.npz", {"labels": True}, "has no class folders"),
    ):
        with pytest.raises(ValueError, match=message):
            embed_command(encoder, source, tmp_path / output, **flags)
        assert not (tmp_path / output).exists()
    embed_command(finished_run, "photos", tmp_path / "each.npz", vectors="each-modality")
    embed_command(finished_run, "photos", tmp_path / "all.npz")
    with np.load(tmp_path / "each.npz") as each, np.load(tmp_path / "all.npz") as fused:
        np.testing.assert_array_equal(each["image"], fused["vectors"])


def test_embed_writes_regression_targets_as_numbers(tmp_path: Path) -> None:
    data = bundle(tmp_path / "mood.npz", labels="quantities", gaps=False)
    supervised = {**vars(MODAL), "data": data, "epochs": 1, "supervised": True}
    run = train(mv.Config(**supervised), output=tmp_path / "run", quiet=True)
    expected = torch.cat([part.labels for part in mv.load_dataset(data).splits.values()]).double().numpy()
    embed_command(run.path, data, tmp_path / "out.npz", labels=True)
    embed_command(run.path, data, tmp_path / "out.parquet", labels=True)
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["labels"], expected)
    assert parquet.read_table(tmp_path / "out.parquet")["label"].to_pylist() == expected.tolist()
    with pytest.raises(
        ValueError, match="z needs a model with projection heads: a supervised run or an encoder file has none"
    ):
        embed_command(run.path, data, tmp_path / "z.npz", vectors="z")


def test_tables_are_read_as_the_run_read_them(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The run changes the kinds of columns and the column of labels; another table may lack some of these columns."""
    lines = [f"{i},group {i % 7},{i % 5},{'ab'[i % 2]},http://a.test/{i}.png" for i in range(60)]
    own, other = tmp_path / "own.csv", tmp_path / "other.csv"
    own.write_text("\n".join(["key,group,size,y,photo", *lines]))
    other.write_text("\n".join(["group,size,y", *(line.split(",", 1)[1].rpartition(",")[0] for line in lines)]))
    kinds = ("group=text", "size=vector", "photo=skip")
    options = {"kinds": kinds, "id_column": "key", "label_column": "y", "views": ("group", "size")}
    config = mv.Config(**{**vars(MODAL), "data": str(own), "batch_size": 16, "epochs": 1, **options})
    run = train(config, output=tmp_path / "run", quiet=True)
    for data, first in ((own, "0"), (other, "0")):
        embed_command(run.path, str(data), tmp_path / "out.npz", labels=True)
        with np.load(tmp_path / "out.npz") as arrays:
            assert arrays["ids"][0] == first
            assert set(arrays["labels"].tolist()) == {"a", "b"}
            assert len(arrays["vectors"]) == 60
    result = mv.evaluate(run, data=other, config=EvaluationConfig(label_fractions=(), baselines=False))
    assert result.scores["trained"].linear is not None
    search_command(run.path, str(own), ("group 3",), tmp_path / "out.png", target_modality="size")
    export_command(run.path, "safetensors", tmp_path / "encoder.safetensors")
    embed_command(tmp_path / "encoder.safetensors", str(other), tmp_path / "file.npz")
    with np.load(tmp_path / "file.npz") as arrays:
        assert len(arrays["vectors"]) == 60
