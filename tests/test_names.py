"""Untrusted names (not UTF-8, or with control characters) in every command."""

import ast
import csv
import json
import os
import re
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import yaml
from PIL import Image

import manyviews as mv
import manyviews.cli
from manyviews.cli.app import run_command
from manyviews.evaluation import load_evaluation
from manyviews.utils import decode_file_name, encode_file_name, escape_control_characters, escape_surrogates
from tests.helpers.tiny_multimodal import MODAL, bundle
from tests.helpers.tiny_run import flags, tiny_config

ODD = os.fsdecode(b"x\xff\x1b[31m\ny\xc2\x9b") + "\u202e"
"""A byte that is not UTF-8, a terminal color, a newline, a C1 control character and a right-to-left override."""
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffd]")
SHOWN = r"x\xff\x1b[31m\ny\x9b\u202e"


def call(capfd: pytest.CaptureFixture, *arguments: object, code: int = 0) -> str:
    """Run a command and return its output, which must not have control characters or lines from a name."""
    terminated, argv = signal.getsignal(signal.SIGTERM), sys.argv
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        sys.argv = ["manyviews", *map(str, arguments)]
        try:
            status = run_command()
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            sys.argv = argv
            signal.signal(signal.SIGTERM, terminated)
    output = "\n".join(capfd.readouterr())
    assert status == code, output
    assert not RAW.search(output), RAW.search(output)
    assert not any(line.startswith("y") for line in output.splitlines())
    return output


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes, one with an odd name, of 24 images with odd names and a corrupt one."""
    root = tmp_path_factory.mktemp("names")
    generator = np.random.default_rng(0)
    for i in range(24):
        path = root / f"data{ODD}" / ("plain", f"class{ODD}")[i % 2] / f"{i:02}{ODD}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            Image.fromarray(generator.integers(0, 256, (16 + i % 3, 20, 3), np.uint8)).save(file, format="PNG")
    (root / f"data{ODD}" / "plain" / f"broken{ODD}.png").write_bytes(b"nothing")
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> Path:
    config = tiny_config(
        data=str(root / f"data{ODD}"),
        max_instances=None,
        monitor_size=4,
        batch_size=8,
        epochs=1,
        evaluate_at_end=True,
        views=2,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mv.train(config, output=root / f"run{ODD}", quiet=True).path


def test_encoded_file_names_are_unique_and_decodable() -> None:
    names = [ODD, r"x\xff", os.fsdecode(b"x\xff"), "x\\", "x\\\\", "日本/é.png"]
    encoded = [encode_file_name(name) for name in names]
    assert len(set(encoded)) == len(names)
    assert [decode_file_name(text) for text in encoded] == names
    assert all(text.encode() for text in encoded)
    assert escape_control_characters(ODD) == SHOWN


@pytest.mark.slow
def test_a_run_finds_its_data_and_resumes(run: Path, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    assert yaml.safe_load((run / "config.yaml").read_bytes())["data"] == str(root / f"data{ODD}")
    assert (run / "config.yaml").read_text(encoding="ascii")
    again = Path(shutil.copytree(run, tmp_path / f"again{ODD}"))
    (again / "encoder.safetensors").unlink()
    (again / "evaluation.json").unlink()
    assert f"again{SHOWN} is finished" in call(capfd, "train", "--resume", again)
    assert (again / "encoder.safetensors").read_bytes() == (run / "encoder.safetensors").read_bytes()
    log = (again / "log.txt").read_text(encoding="utf-8")
    assert f"resuming at step 2: {tmp_path}/again{SHOWN}" in log
    assert not RAW.search(log)
    output = call(capfd, "evaluate", again)
    assert f"data{SHOWN}: " in output
    assert load_evaluation(again).dataset == escape_surrogates(f"data{ODD}")
    call(capfd, "train", "--resume", again, "--help")  # the help shows the path of the data as a default


def test_train_prints_and_logs_escaped_names(root: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    config = tiny_config(
        data=str(root / f"data{ODD}"), max_instances=None, monitor_size=4, batch_size=8, epochs=1, views=2
    )
    output = call(capfd, "train", *flags(config), "--output", tmp_path / f"run{ODD}")
    assert f"broken{SHOWN}.png cannot be decoded" in output
    assert f"run{SHOWN} is finished" in output
    assert f"run{SHOWN} exists" in call(capfd, "train", *flags(config), "--output", tmp_path / f"run{ODD}", code=2)


def test_ids_decode_to_the_paths_of_the_files(
    run: Path, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    folder, out = root / f"data{ODD}", tmp_path / f"out{ODD}"
    for suffix in (".npz", ".csv", ".npy", ".parquet"):
        output = call(capfd, "embed", run, folder, "-o", f"{out}{suffix}", "--labels", "--num-workers", 0)
        assert f"out{SHOWN}{suffix}: 24 vectors of 64 dimensions" in output
        assert f"skipped: {root}/data{SHOWN}/plain/broken{SHOWN}.png cannot be decoded" in output
    with np.load(f"{out}.npz") as arrays:
        ids, labels = arrays["ids"].tolist(), arrays["labels"].tolist()
    assert sorted(folder / decode_file_name(name) for name in ids) == sorted(
        path for path in folder.rglob("*.png") if "broken" not in path.name
    )
    assert set(labels) == {"plain", encode_file_name(f"class{ODD}")}
    for ids_path in (f"{out}.csv", f"{out}.ids.csv"):
        with Path(ids_path).open(newline="", encoding="utf-8") as file:
            assert [row["id"] for row in csv.DictReader(file)] == ids
    output = call(capfd, "search", run, folder, "--query", ids[0], "-o", f"{out}.png", "--num-workers", 0)
    assert output.startswith(escape_control_characters(ids[0]))
    assert f"out{SHOWN}.png: nearest neighbors in {root}/data{SHOWN} of 1 query" in output


def test_other_commands_print_names_escaped(
    run: Path, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    folder = root / f"data{ODD}"
    output = call(capfd, "inspect", folder)
    assert output.startswith(f"data{SHOWN}\n")
    assert f"broken{SHOWN}.png cannot be decoded" in output
    assert f"v{SHOWN}.png: 8 instances" in call(capfd, "preview", "--data", folder, "-o", tmp_path / f"v{ODD}.png")
    page = tmp_path / f"r{ODD}.html"
    assert f"r{SHOWN}.html: 1 run" in call(capfd, "report", run, "-o", page, "--num-workers", 0)
    text = page.read_text(encoding="utf-8")
    assert not RAW.search(text)
    assert r"datax\xff\x1b[31m" in text
    assert f"e{SHOWN}.safetensors: resnet-small" in call(
        capfd, "export", run, "safetensors", "-o", tmp_path / f"e{ODD}.safetensors"
    )
    for arguments in (
        ("inspect", root / f"nothing{ODD}"),
        ("evaluate", root / f"nothing{ODD}"),
        ("report", root / f"nothing{ODD}"),
        ("embed", run, root / f"nothing{ODD}", "-o", tmp_path / "a.npz"),
        ("embed", run, folder, "-o", tmp_path / f"a{ODD}.txt"),
        ("search", run, folder, "--query", f"nothing{ODD}"),
        ("export", root / f"nothing{ODD}", "onnx"),
        ("preview", "--data", root / f"nothing{ODD}"),
        ("train", "--resume", root / f"nothing{ODD}"),
    ):
        assert r"\x1b[31m" in call(capfd, *arguments, code=2)


def test_names_inside_files_are_printed_escaped(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    label = np.array([ODD, "b"] * 8)
    features = np.random.default_rng(0).normal(size=(16, 3))
    train = {"text_train": features, "audio_train": features, "y_train": np.array(["b"] * 16), "id_train": label}
    np.savez(tmp_path / "a.npz", **train, text_test=features, audio_test=features, y_test=label, id_test=label)
    assert r"\x1b[31m" in call(capfd, "inspect", tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", **{"te\x1b[31mxt_train": features, "audio_train": features})
    assert r"\x1b[31m" in call(capfd, "inspect", tmp_path / "b.npz", code=2)
    scipy.io.savemat(tmp_path / "c.mat", {"Qqqqqq": features})
    (tmp_path / "c.mat").write_bytes((tmp_path / "c.mat").read_bytes().replace(b"Qqqqqq", b"\x1b[31mQ"))
    assert r"\x1b[31m" in call(capfd, "inspect", tmp_path / "c.mat", code=2)
    (tmp_path / "recipe.yaml").write_text('"ep\\e[31mochs\\n": 3\n')
    assert r"\x1b[31m" in call(capfd, "train", "--recipe", tmp_path / "recipe.yaml", code=2)
    (tmp_path / "recipe.yaml").write_text("a: [\n")
    assert r"\n" not in call(capfd, "train", "--recipe", tmp_path / "recipe.yaml", code=2)


@pytest.mark.slow
def test_a_multimodal_file_with_an_odd_name_can_be_used(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    data = bundle(tmp_path / f"b{ODD}.npz")
    config = mv.Config(**{**vars(MODAL), "data": data, "epochs": 1})
    run = mv.train(config, output=tmp_path / f"run{ODD}", quiet=True).path
    assert f"b{SHOWN}: 40 test instances" in call(capfd, "evaluate", run)
    output = call(capfd, "embed", run, data, "-o", tmp_path / f"o{ODD}.csv", "--vectors", "each-modality")
    assert f"o{SHOWN}.csv: 120 vectors of 16 dimensions for text, audio, video" in output
    call(capfd, "report", run, "-o", tmp_path / "r.html")


def test_an_untrusted_evaluation_is_printed_escaped(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    untrusted = Path(shutil.copytree(run, tmp_path / "untrusted"))
    evaluation = json.loads((untrusted / "evaluation.json").read_text())
    evaluation["dataset"], evaluation["caveats"], evaluation["better_baselines"] = ODD, [ODD], [ODD]
    (untrusted / "evaluation.json").write_text(json.dumps(evaluation))
    assert call(capfd, "train", "--resume", untrusted).count(SHOWN) >= 3
    call(capfd, "report", untrusted, "-o", tmp_path / "r.html", "--num-workers", 0)
    assert not RAW.search((tmp_path / "r.html").read_text())


def test_commands_print_through_one_function() -> None:
    """`print_lines`, `show_table` and `print_error` escape their text; a bare print does not."""
    for file in Path(manyviews.cli.__file__).parent.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        bare = [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
        allowed = {"common.py": 1}.get(file.name, 0)
        assert len(bare) <= allowed, f"{file.name}, lines {bare}: use print_lines"
