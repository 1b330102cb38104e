"""Names that are a stranger's: not UTF-8, or full of control characters, through every command."""

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
from manyviews.cli import main
from manyviews.utils.text import decode_file_name, encode_file_name, escape_control_characters, escape_surrogates
from tests.training.bundle import MODAL, bundle
from tests.training.small import flags, small

ODD = os.fsdecode(b"x\xff\x1b[31m\ny\xc2\x9b") + "\u202e"
"""A byte that is not UTF-8, a colour, a new line, a C1 control character, and a mark that turns the writing round."""
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffd]")
SHOWN = r"x\xff\x1b[31m\ny\x9b\u202e"


def call(capfd: pytest.CaptureFixture, *arguments: object, code: int = 0) -> str:
    """What a command prints, which is text without a control character; a line is no other than the program's."""
    terminated, argv = signal.getsignal(signal.SIGTERM), sys.argv
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        sys.argv = ["manyviews", *map(str, arguments)]
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            sys.argv = argv
            signal.signal(signal.SIGTERM, terminated)
    said = "\n".join(capfd.readouterr())
    assert status == code, said
    assert not RAW.search(said), RAW.search(said)
    assert not any(line.startswith("y") for line in said.splitlines())
    return said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a folder of two classes, one of them of an odd name, 24 images of odd names, and one that is broken."""
    place = tmp_path_factory.mktemp("names")
    generator = np.random.default_rng(0)
    for number in range(24):
        path = place / f"data{ODD}" / ("plain", f"class{ODD}")[number % 2] / f"{number:02}{ODD}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            Image.fromarray(generator.integers(0, 256, (16 + number % 3, 20, 3), np.uint8)).save(file, format="PNG")
    (place / f"data{ODD}" / "plain" / f"broken{ODD}.png").write_bytes(b"nothing")
    return place


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    config = small(data=str(place / f"data{ODD}"), limit=None, held_out=4, batch_size=8, epochs=1, probe=True, views=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mv.train(config, output=place / f"run{ODD}", quiet=True).path


def test_names_of_files_and_texts_are_told_apart() -> None:
    names = [ODD, r"x\xff", os.fsdecode(b"x\xff"), "x\\", "x\\\\", "日本/é.png"]
    encoded = [encode_file_name(name) for name in names]
    assert len(set(encoded)) == len(names)
    assert [decode_file_name(text) for text in encoded] == names
    assert all(text.encode() for text in encoded)
    assert escape_control_characters(ODD) == SHOWN


def test_a_run_finds_its_data_again_and_goes_on(
    run: Path, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert yaml.safe_load((run / "config.yaml").read_bytes())["data"] == str(place / f"data{ODD}")
    assert (run / "config.yaml").read_text(encoding="ascii")
    again = Path(shutil.copytree(run, tmp_path / f"again{ODD}"))
    (again / "encoder.safetensors").unlink()
    (again / "evaluation.json").unlink()
    assert f"again{SHOWN} is finished" in call(capfd, "train", "--resume", again)
    assert (again / "encoder.safetensors").read_bytes() == (run / "encoder.safetensors").read_bytes()
    log = (again / "log.txt").read_text(encoding="utf-8")
    assert f"resuming at step 2: {tmp_path}/again{SHOWN}" in log
    assert not RAW.search(log)
    said = call(capfd, "evaluate", again)
    assert f"data{SHOWN}: " in said
    found = mv.Run.open(again).evaluation
    assert found["data"] == escape_surrogates(f"data{ODD}")
    call(capfd, "train", "--resume", again, "--help")  # shows the path of the data as a default


def test_train_prints_and_logs_escaped_names(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    config = small(data=str(place / f"data{ODD}"), limit=None, held_out=4, batch_size=8, epochs=1, views=2)
    said = call(capfd, "train", *flags(config), "--output", tmp_path / f"run{ODD}")
    assert f"broken{SHOWN}.png is no whole image" in said
    assert f"run{SHOWN} is finished" in said
    assert f"run{SHOWN} exists" in call(capfd, "train", *flags(config), "--output", tmp_path / f"run{ODD}", code=2)


def test_ids_are_text_that_leads_back_to_the_files(
    run: Path, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    folder, out = place / f"data{ODD}", tmp_path / f"out{ODD}"
    for ending in (".npz", ".csv", ".npy", ".parquet"):
        said = call(capfd, "embed", run, folder, "-o", f"{out}{ending}", "--labels", "--workers", 0)
        assert f"out{SHOWN}{ending}: 24 vectors of 64 dimensions" in said
        assert f"left out: {place}/data{SHOWN}/plain/broken{SHOWN}.png is no whole image" in said
    with np.load(f"{out}.npz") as found:
        ids, labels = found["ids"].tolist(), found["labels"].tolist()
    assert sorted(folder / decode_file_name(one) for one in ids) == sorted(
        path for path in folder.rglob("*.png") if "broken" not in path.name
    )
    assert set(labels) == {"plain", encode_file_name(f"class{ODD}")}
    for beside in (f"{out}.csv", f"{out}.ids.csv"):
        with Path(beside).open(newline="", encoding="utf-8") as file:
            assert [row["id"] for row in csv.DictReader(file)] == ids
    said = call(capfd, "neighbours", run, folder, "--query", ids[0], "-o", f"{out}.png", "--workers", 0)
    assert said.startswith(escape_control_characters(ids[0]))
    assert f"out{SHOWN}.png: the nearest of {place}/data{SHOWN} to 1 query" in said


def test_other_commands_show_names_escaped(
    run: Path, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    folder = place / f"data{ODD}"
    said = call(capfd, "data", folder)
    assert said.startswith(f"data{SHOWN}\n")
    assert f"broken{SHOWN}.png is no whole image" in said
    assert f"v{SHOWN}.png: 8 instances" in call(capfd, "views", "--data", folder, "-o", tmp_path / f"v{ODD}.png")
    page = tmp_path / f"r{ODD}.html"
    assert f"r{SHOWN}.html: 1 run" in call(capfd, "report", run, "-o", page, "--workers", 0)
    text = page.read_text(encoding="utf-8")
    assert not RAW.search(text)
    assert r"datax\xff\x1b[31m" in text
    assert f"e{SHOWN}.safetensors: resnet-small" in call(
        capfd, "export", run, "--to", "safetensors", "-o", tmp_path / f"e{ODD}.safetensors"
    )
    for arguments in (
        ("data", place / f"nothing{ODD}"),
        ("evaluate", place / f"nothing{ODD}"),
        ("report", place / f"nothing{ODD}"),
        ("embed", run, place / f"nothing{ODD}", "-o", tmp_path / "a.npz"),
        ("embed", run, folder, "-o", tmp_path / f"a{ODD}.txt"),
        ("neighbours", run, folder, "--query", f"nothing{ODD}"),
        ("export", place / f"nothing{ODD}", "--to", "onnx"),
        ("views", "--data", place / f"nothing{ODD}"),
        ("train", "--resume", place / f"nothing{ODD}"),
    ):
        assert r"\x1b[31m" in call(capfd, *arguments, code=2)


def test_names_inside_files_are_shown_escaped(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    label = np.array([ODD, "b"] * 8)
    rows = np.random.default_rng(0).normal(size=(16, 3))
    np.savez(tmp_path / "a.npz", text_train=rows, audio_train=rows, y_train=np.array(["b"] * 16), text_test=rows,
             audio_test=rows, y_test=label, id_train=label, id_test=label)  # fmt: skip
    assert r"\x1b[31m" in call(capfd, "data", tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", **{"te\x1b[31mxt_train": rows, "audio_train": rows})
    assert r"\x1b[31m" in call(capfd, "data", tmp_path / "b.npz", code=2)
    scipy.io.savemat(tmp_path / "c.mat", {"Qqqqqq": rows})
    (tmp_path / "c.mat").write_bytes((tmp_path / "c.mat").read_bytes().replace(b"Qqqqqq", b"\x1b[31mQ"))
    assert r"\x1b[31m" in call(capfd, "data", tmp_path / "c.mat", code=2)
    (tmp_path / "recipe.yaml").write_text('"ep\\e[31mochs\\n": 3\n')
    assert r"\x1b[31m" in call(capfd, "train", "--recipe", tmp_path / "recipe.yaml", code=2)
    (tmp_path / "recipe.yaml").write_text("a: [\n")
    assert r"\n" not in call(capfd, "train", "--recipe", tmp_path / "recipe.yaml", code=2)


def test_a_bundle_of_an_odd_name_is_trained_on(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    data = bundle(tmp_path / f"b{ODD}.npz")
    config = mv.Config(**{**vars(MODAL), "data": data, "epochs": 1})
    run = mv.train(config, output=tmp_path / f"run{ODD}", quiet=True).path
    assert f"b{SHOWN}: 40 test instances" in call(capfd, "evaluate", run)
    said = call(capfd, "embed", run, data, "-o", tmp_path / f"o{ODD}.csv", "--what", "each-modality")
    assert f"o{SHOWN}.csv: 120 vectors of 16 dimensions of text, audio, video" in said
    call(capfd, "report", run, "-o", tmp_path / "r.html")


def test_a_strangers_evaluation_is_shown_escaped(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    theirs = Path(shutil.copytree(run, tmp_path / "theirs"))
    found = json.loads((theirs / "evaluation.json").read_text())
    found["data"], found["notes"] = ODD, [ODD]
    found["scores"][ODD] = found["scores"]["trained encoder"]
    (theirs / "evaluation.json").write_text(json.dumps(found))
    assert call(capfd, "train", "--resume", theirs).count(SHOWN) >= 3
    call(capfd, "report", theirs, "-o", tmp_path / "r.html", "--workers", 0)
    assert not RAW.search((tmp_path / "r.html").read_text())


def test_commands_print_through_one_function() -> None:
    """`print_lines`, `show_table` and `complain` escape what they print; a bare print would not."""
    for file in Path(manyviews.cli.__file__).parent.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        bare = [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
        allowed = {"console.py": 2, "__init__.py": 1}.get(file.name, 0)
        assert len(bare) <= allowed, f"{file.name}, lines {bare}: use print_lines"
