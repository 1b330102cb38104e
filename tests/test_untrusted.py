"""Files of unknown origin: nothing in them is run, nothing is waited for, and none takes all memory."""

import ast
import functools
import hashlib
import io
import itertools
import json
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import CalledProcessError
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import manyviews
from manyviews import cli
from manyviews.cli.console import Reading
from manyviews.cli.use import embed
from manyviews.data import BadImageError, DatasetError, load_dataset, read_image
from manyviews.data.files import FORMATS, walk_images
from manyviews.experiments.cells import Cell
from manyviews.export import Pictures, query_of
from manyviews.models import ImageEncoder, get_encoder, saved
from manyviews.models.saved import Description, EncoderError, file_of
from manyviews.report import write_report
from manyviews.training import Config, ConfigError, Run, get_recipe, load_encoder
from manyviews.training.checkpoints import CheckpointError, load_checkpoint
from manyviews.utils.budget import MIN_BUDGET_BYTES
from manyviews.utils.untrusted import check_regular, open_regular, read_text
from manyviews.views.plain import batch_size
from tests.training.small import folder_of_images

SOURCE = Path(manyviews.__file__).parent
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 24 24\n%%EndComments\nshowpage\n%%EOF\n"

call = pytest.fixture(lambda monkeypatch, capsys: lambda *words: called(monkeypatch, capsys, *words))


def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *words: object) -> str:
    """What a command says, good or bad; a traceback fails the test."""
    monkeypatch.setattr("sys.argv", ["manyviews", *map(str, words)])
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always")
        patch.setattr("signal.signal", lambda *_: None)
        with suppress(SystemExit):
            cli.main()
    said = capsys.readouterr()
    return said.out + said.err


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a stand-in for `gs` leaves when it is started."""
    mark, folder = tmp_path / "started", tmp_path / "bin"
    folder.mkdir()
    (folder / "gs").write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return mark


def test_the_stand_in_would_be_started(tmp_path: Path, ghostscript: Path) -> None:
    (tmp_path / "a.png").write_bytes(POSTSCRIPT)
    with pytest.raises(CalledProcessError, match="gs"), Image.open(tmp_path / "a.png") as picture:
        picture.load()
    assert ghostscript.exists()


@pytest.mark.parametrize(
    ("start", "name"), [(POSTSCRIPT, "EPS"), (b"%PDF-1.7\n", "PDF"), (b"8BPS\0\1" + bytes(20), "PSD")]
)
def test_an_image_of_another_format_is_refused_by_name(
    tmp_path: Path, ghostscript: Path, start: bytes, name: str
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    path = folder / "a.png"
    path.write_bytes(start)
    for read in (read_image, load_dataset, lambda path: query_of(str(path), Pictures.of("digits"))):
        with pytest.raises(
            DatasetError,
            match=rf"a\.png is {name}, which is not read: convert it to JPEG, PNG, .* or GIF|expected a folder",
        ):
            read(path)
    with pytest.raises(BadImageError, match=name):
        load_dataset(folder, strict=True)
    assert not ghostscript.exists()


def test_no_command_starts_ghostscript(
    tmp_path: Path, ghostscript: Path, finished_run: Path, call: Callable[..., str]
) -> None:
    folder, run = folder_of_images(tmp_path / "images", count=30), tmp_path / "run"
    (folder / "a" / "bad.png").write_bytes(POSTSCRIPT)
    quick = ("--epochs", 1, "--size", 8, "--width", 0.1, "--batch-size", 8, "--held-out", 0, "--views", 2)
    alone = tmp_path / "bad.jpg"
    alone.write_bytes(POSTSCRIPT)
    for words in (
        ("data", folder),
        ("views", "--data", folder, "-o", tmp_path / "views.png"),
        ("embed", finished_run, folder, "-o", tmp_path / "a.npz", "--workers", 0),
        ("embed", finished_run, alone, "-o", tmp_path / "b.npz", "--workers", 0),
        ("neighbours", finished_run, folder, "--query", alone, "-o", tmp_path / "c.png", "--workers", 0),
        ("neighbours", finished_run, folder, "--query", "a/bad.png", "-o", tmp_path / "d.png", "--workers", 0),
        ("train", "--data", folder, *quick, "--workers", 0, "-o", run),
        ("evaluate", run, "--workers", 0, "--few", 0.5),
        ("report", run, "-o", tmp_path / "report.html", "--workers", 0, "--instances", 20),
    ):
        said = call(*words)
        assert "bad." in said, (words, said)
        assert "EPS" in said or words[0] == "report", (words, said)
        assert not ghostscript.exists(), words
    encoder = load_encoder(finished_run)
    assert isinstance(encoder, ImageEncoder)
    with pytest.raises(BadImageError, match="EPS"):
        encoder([alone])
    assert not ghostscript.exists()


def test_images_are_opened_in_one_place() -> None:
    """With a list of formats: other calls could start programs."""
    calls = []
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Image.open"):
                calls.append((file.name, [keyword.arg for keyword in node.keywords]))
            assert not (isinstance(node, ast.ImportFrom) and node.module == "PIL.Image"), file
    assert calls == [("files.py", ["formats"])]
    assert "EPS" not in FORMATS


def test_a_looping_link_drops_itself_alone(tmp_path: Path, finished_run: Path, capsys: pytest.CaptureFixture) -> None:
    folder = folder_of_images(tmp_path / "images", count=6)
    (folder / "a" / "loop.png").symlink_to(folder / "a" / "loop.png")
    (folder / "a" / "loop").symlink_to(folder / "a" / "loop")
    embed(finished_run, str(folder), tmp_path / "out.npz", Reading(workers=0))
    said = capsys.readouterr()
    assert said.out.startswith(f"{tmp_path / 'out.npz'}: 6 vectors")
    assert "loop.png is a link that leads nowhere" in said.err
    with pytest.warns(UserWarning, match="leads nowhere"):
        assert len(load_dataset(folder)["train"]) == 6


def test_folders_may_be_nested_deeper_than_calls(tmp_path: Path) -> None:
    inside = str(tmp_path / "images")
    os.mkdir(inside)  # noqa: PTH102
    for _ in range(1500):
        inside += "/a"
        os.mkdir(inside)  # noqa: PTH102
    folder_of_images(tmp_path / "other", count=1, labelled=False)
    os.link(tmp_path / "other" / "000.png", f"{inside}/a.png")  # noqa: PTH
    left_out: list[str] = []
    assert list(walk_images(tmp_path / "images", left_out.append)) == [f"{inside}/a.png"]
    assert not left_out
    while inside != str(tmp_path):
        shutil.rmtree(inside)
        inside = os.path.dirname(inside)  # noqa: PTH120


# Pipes, sockets and devices


@pytest.fixture
def in_time() -> Iterator[None]:
    """Ends a test that waits for a pipe."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def cifar_with(path: Path) -> Path:
    for name in ("batches.meta", "test_batch"):
        (path / name).write_bytes(pickle.dumps({b"label_names": [b"a"]}))
    pipe(path / "data_batch_1")
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize(
    "read",
    [
        lambda path: load_dataset(pipe(path / "a.npz")),
        lambda path: load_dataset(pipe(path / "a.npy")),
        lambda path: load_dataset(pipe(path / "a.pkl")),
        lambda path: load_dataset(pipe(path / "a.mat")),
        lambda path: load_dataset(pipe(path / "cifar-10-python.tar.gz")),
        lambda path: load_dataset(cifar_with(path)),
        lambda path: load_dataset(pipe(path / "a-UTT" / "b.npy").parents[1] if pipe(path / "label.npz") else path),
        lambda path: load_dataset(folder_of_images(path / "images", 3), classes=pipe(path / "list.txt")),
        lambda path: load_dataset(pipe(path / "a.png").parent, strict=True),
        lambda path: read_image(pipe(path / "a.png")),
        lambda path: get_recipe(pipe(path / "a.yaml")),
        lambda path: Run.open(pipe(path / "config.yaml").parent),
        lambda path: load_encoder(pipe(path / "a.safetensors")),
        lambda path: load_checkpoint(pipe(path / "step-00000001-00000000.pt").parent),
    ],
)
@pytest.mark.filterwarnings("ignore:the checkpoint")
@pytest.mark.usefixtures("in_time")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(
        (DatasetError, ConfigError, EncoderError, CheckpointError), match=r"named pipe|is no file|can be read"
    ):
        read(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.usefixtures("in_time")
def test_pipes_in_a_run_are_refused(tmp_path: Path, finished_run: Path) -> None:
    names = ["config.yaml", "metrics.csv", "evaluation.json", "log.txt", "encoder.safetensors", "head.safetensors"]
    for name in names:
        run = Path(shutil.copytree(finished_run, tmp_path / name))
        pipe(run / name)
        with pytest.raises(ConfigError, match="named pipe"):
            Run.open(run)
        with pytest.raises(ConfigError, match="named pipe"):
            write_report([run], tmp_path / "report.html")
    cell = Cell(Config())
    pipe(tmp_path / cell.name / cell.file)
    assert cell.found(tmp_path) is None


def test_what_is_no_regular_file_is_called_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("a")
    for path, kind in ((tmp_path / "a", "a socket"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        for read in (check_regular, open_regular, read_text):
            with pytest.raises(OSError, match=f"{path} is {kind}, not a regular file"):
                read(path)


# Memory


LAUGHS = "\n".join(
    ["a: &a [1, 1]", *(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise("abcdefghijk"))]
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, r"it has an alias \(\*a\)"),
        ("a: &a {views: 3}\n<<: *a", "alias"),
        (f"views: {'[' * 5000}", "nested more than 20 deep"),
        (f"views: 0x{'f' * 5000}", "a number of 20000 bits"),
        ("views: " + "1" * 200_000, "it has 200,007 characters"),
        ("views: 2001-99-99", "month must be in"),
    ],
)
def test_yaml_stays_small(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_yaml(text)


def doubled(kind: type) -> object:
    """2^24 numbers, in lists or tuples of which each holds the one before it twice."""
    return functools.reduce(lambda held, _: kind((held, held)), range(24), 1)


def header(shape: str, kind: str = "'<f4'") -> bytes:
    held = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(held).to_bytes(2, "little") + held


@pytest.mark.parametrize(
    ("shape", "kind"), [("(9000000000,)", "'<f4'"), ("(99999999999,)", "'|S0'"), ("(-1, 3)", "'<f4'")]
)
def test_a_header_takes_no_memory(tmp_path: Path, shape: str, kind: str) -> None:
    (tmp_path / "a.npy").write_bytes(header(shape, kind) + bytes(100))
    with pytest.raises(DatasetError, match="bytes and claims to hold"):
        load_dataset(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("text.npy", header(shape, kind) + bytes(100))
    with pytest.raises(DatasetError, match="bytes and claims to hold"):
        load_dataset(tmp_path / "a.npz")


def test_what_unpacks_to_much_more_is_refused(tmp_path: Path) -> None:
    zeros = bytes(MIN_BUDGET_BYTES + 1000)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("text.npy", zeros)
    packed = zlib.compress(zeros, 1)
    element = struct.pack("<II", 15, len(packed)) + packed
    (tmp_path / "a.mat").write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + element)
    for file in ("a.npz", "a.mat"):
        assert (tmp_path / file).stat().st_size < 2**22
        with pytest.raises(DatasetError, match="would take more than"):
            load_dataset(tmp_path / file)


@pytest.mark.parametrize(
    "part",
    [
        {"text": ["a"] * 20_000 + ["b" * 20_000]},  # 1.6 GB as an array of texts
        {
            "text": np.ones((2, 3, 4)),
            "id": ["a"] * 2,
            "labels": doubled(list),
        },
    ],
)
def test_lists_are_counted_as_numpy_makes_them(tmp_path: Path, part: dict) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": part}))
    with pytest.raises(DatasetError, match="would take more than"):
        load_dataset(tmp_path / "a.pkl")


def test_tuples_are_no_names_in_a_pickle(tmp_path: Path) -> None:
    """The hash of this one takes 2^24 steps; of a longer one, years."""
    key = doubled(tuple)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": {key: 1}}))
    with pytest.raises(DatasetError, match="a tuple as a name"):
        load_dataset(tmp_path / "a.pkl")


def test_an_encoder_for_large_images_takes_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [batch_size(size) for size in (8, 224, 448, 4096)] == [256, 256, 64, 1]
    about = Description("resnet-small", {"width": 0.125}, 4096)
    (tmp_path / "a.safetensors").write_bytes(file_of(get_encoder("resnet-small", width=0.125), about))
    monkeypatch.setattr(saved, "memory_share", lambda: 2**28)
    with pytest.raises(EncoderError, match="one image of 4096 x 4096 would take more memory than there is"):
        load_encoder(tmp_path / "a.safetensors")


def test_models_of_another_package_have_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header may name any model of timm: it is built within the file's budget, and for images that fit."""
    small, pooled = torch.nn.Conv2d(3, 4, 1), (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

    def create_model(name: str, num_classes: int) -> torch.nn.Module:
        assert num_classes == 0
        return torch.nn.Sequential(torch.nn.Linear(2**14, 2**14) if name == "large" else small, *pooled)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    path = tmp_path / "a.safetensors"
    for name, size, message in (
        ("large", 16, "would take more than 268,435,456 bytes of memory"),
        ("small", 4096, "one image of 4096 x 4096 would take more memory than there is"),
        ("small", 16, None),
    ):
        path.write_bytes(file_of(torch.nn.Sequential(small, *pooled), Description(f"timm:{name}", {}, size)))
        monkeypatch.setattr(saved, "memory_share", lambda: 2**28)
        if message is None:
            assert load_encoder(path).dim == 4
        else:
            with pytest.raises(EncoderError, match=message):
                load_encoder(path)


def test_a_config_alone_takes_no_memory(tmp_path: Path, finished_run: Path) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("projection: 16", "projection: 99999999999"))
    with pytest.raises(EncoderError, match="another architecture"):
        assert Run.open(run).embedder


def test_a_tensor_in_a_checkpoint_is_no_larger_than_its_bytes(tmp_path: Path) -> None:
    out = io.BytesIO()
    torch.save({"step": 1, "moment": torch.zeros(1).expand(10**12)}, out)
    digest = hashlib.sha256(out.getvalue()).hexdigest()[:8]
    (tmp_path / f"step-00000001-{digest}.pt").write_bytes(out.getvalue())
    said = r"cannot be used: a tensor \(1000000000000,\) of 4 bytes"
    with pytest.warns(UserWarning, match=said), pytest.raises(CheckpointError, match="none of 1"):
        load_checkpoint(tmp_path)


# Odd files in runs


@pytest.mark.parametrize(
    "content", ["[]", '{"scores": 5}', '{"scores": {"trained encoder": {"linear": "x"}}}', "[" * 10**5, "{}"]
)
def test_an_odd_evaluation_is_one_line(
    tmp_path: Path, finished_run: Path, call: Callable[..., str], content: str
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("probe: false", "probe: true"))
    (run / "evaluation.json").write_text(content)
    said = call("train", "--resume", run).splitlines()[-1]
    assert said.startswith("manyviews: ")
    assert "evaluation.json is " in said


def test_an_odd_cell_is_made_again(tmp_path: Path) -> None:
    cell = Cell(Config())
    path = tmp_path / cell.name / cell.file
    path.parent.mkdir()
    whole = {"scores": {"trained encoder": {"linear": 0.5, "knn": 0.4}}, "geometry": None}
    path.write_text(json.dumps(whole))
    assert cell.found(tmp_path) == whole
    for odd in (
        [],
        {"scores": []},
        {**whole, "scores": {"trained encoder": {"linear": "x"}}},
        {**whole, "subsets": [3]},
    ):
        path.write_text(json.dumps(odd))
        assert cell.found(tmp_path) is None
    path.write_text("[" * 10**5)
    assert cell.found(tmp_path) is None


def test_a_large_cell_of_metrics_is_an_error(tmp_path: Path, finished_run: Path) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    for row in ("1" * 200_000, "1,0,x", "1,2,3,4,5,6,7,8,9,10,11,12", "²,0,1"):
        with (run / "metrics.csv").open("a") as file:
            file.write(row + "\n")
        with pytest.raises(ConfigError, match=r"metrics\.csv is damaged"):
            assert Run.open(run).metrics
