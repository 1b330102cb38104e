"""Untrusted files: nothing in them is executed, no reader blocks, and none takes all memory."""

import ast
import functools
import hashlib
import io
import itertools
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import warnings
import zipfile
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
from manyviews.cli.app import run_command
from manyviews.cli.common import LoaderOptions
from manyviews.cli.embed_command import embed_command
from manyviews.data import CorruptImageError, DatasetError, load_dataset, read_image, walk_images
from manyviews.data.image_files import IMAGE_FORMATS
from manyviews.export import Collection, make_query
from manyviews.loading import choose_eval_batch_size
from manyviews.models import Encoder, EncoderConfig, EncoderError, EncoderSpec, MultiViewEncoder, serialize_module
from manyviews.models import serialization as saved
from manyviews.report import write_report
from manyviews.reproduce import Trial, TrialStore
from manyviews.reproduce.store import compact_result
from manyviews.runs import Run, load_encoder
from manyviews.training import Config, ConfigError, get_recipe
from manyviews.training.checkpoints import CheckpointError, load_checkpoint
from manyviews.utils import check_regular, open_regular, read_text
from manyviews.utils.untrusted import MIN_BUDGET_BYTES
from tests.helpers.evaluations import DAMAGED, MODALITIES
from tests.helpers.tiny_run import flags, folder_of_images

SOURCE = Path(manyviews.__file__).parent
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 24 24\n%%EndComments\nshowpage\n%%EOF\n"


def make_image_config(name: str, size: int, **options: object) -> EncoderConfig:
    return EncoderConfig({"image": EncoderSpec("image", name, options, size)}, {"image": "image"})


IMAGE_ENCODER = Encoder(MultiViewEncoder.from_config(make_image_config("resnet-small", 16, width=0.125)))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """Run a command and return its output and errors; a traceback fails the test."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["manyviews", *map(str, arguments)])
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("always")
            patch.setattr("signal.signal", lambda *_: None)
            with suppress(SystemExit):
                run_command()
        captured = capsys.readouterr()
        return captured.out + captured.err

    return run


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a fake `gs` creates when it is started."""
    mark, folder = tmp_path / "started", tmp_path / "bin"
    folder.mkdir()
    (folder / "gs").write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return mark


def test_pillow_alone_would_start_ghostscript(tmp_path: Path, ghostscript: Path) -> None:
    (tmp_path / "a.png").write_bytes(POSTSCRIPT)
    with pytest.raises(CalledProcessError, match="gs"), Image.open(tmp_path / "a.png") as image:
        image.load()
    assert ghostscript.exists()


@pytest.mark.parametrize(
    ("start", "name"), [(POSTSCRIPT, "EPS"), (b"%PDF-1.7\n", "PDF"), (b"8BPS\0\1" + bytes(20), "PSD")]
)
def test_unsupported_image_formats_are_refused_by_name(
    tmp_path: Path, ghostscript: Path, start: bytes, name: str
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    path = folder / "a.png"
    path.write_bytes(start)
    for read in (
        read_image,
        load_dataset,
        lambda path: make_query(str(path), Collection.open("digits"), IMAGE_ENCODER),
    ):
        with pytest.raises(
            DatasetError,
            match=rf"a\.png has the unsupported format {name}: convert it to JPEG, PNG, .* or GIF|expected a folder",
        ):
            read(path)
    with pytest.raises(CorruptImageError, match=name):
        load_dataset(folder, raise_on_corrupt=True)
    assert not ghostscript.exists()


@pytest.mark.slow
def test_no_command_starts_ghostscript(
    tmp_path: Path, ghostscript: Path, finished_run: Path, call: Callable[..., str]
) -> None:
    folder, run = folder_of_images(tmp_path / "images", count=30), tmp_path / "run"
    (folder / "a" / "bad.png").write_bytes(POSTSCRIPT)
    quick = flags(Config(epochs=1, image_size=8, width_mult=0.1, batch_size=8, monitor_size=0, views=2))
    alone = tmp_path / "bad.jpg"
    alone.write_bytes(POSTSCRIPT)
    for arguments in (
        ("inspect", folder),
        ("preview", "--data", folder, "-o", tmp_path / "views.png"),
        ("embed", finished_run, folder, "-o", tmp_path / "a.npz", "--num-workers", 0),
        ("embed", finished_run, alone, "-o", tmp_path / "b.npz", "--num-workers", 0),
        ("search", finished_run, folder, "--query", alone, "-o", tmp_path / "c.png", "--num-workers", 0),
        ("search", finished_run, folder, "--query", "a/bad.png", "-o", tmp_path / "d.png", "--num-workers", 0),
        ("train", "--data", folder, *quick, "--num-workers", 0, "-o", run),
        ("evaluate", run, "--num-workers", 0, "--label-fractions", 0.5),
        ("report", run, "-o", tmp_path / "report.html", "--num-workers", 0, "--instances", 20),
    ):
        output = call(*arguments)
        assert "bad." in output, (arguments, output)
        assert "EPS" in output or arguments[0] == "report", (arguments, output)
        assert not ghostscript.exists(), arguments
    encoder = load_encoder(finished_run)
    assert isinstance(encoder, Encoder)
    with pytest.raises(CorruptImageError, match="EPS"):
        encoder([alone])
    assert not ghostscript.exists()


def test_images_are_opened_in_one_place() -> None:
    """The call has a list of formats: other calls could start programs."""
    calls = []
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Image.open"):
                calls.append((file.name, [keyword.arg for keyword in node.keywords]))
            assert not (isinstance(node, ast.ImportFrom) and node.module == "PIL.Image"), file
    assert calls == [("image_files.py", ["formats"])]
    assert "EPS" not in IMAGE_FORMATS


def test_a_looping_link_is_skipped_alone(tmp_path: Path, finished_run: Path, capsys: pytest.CaptureFixture) -> None:
    folder = folder_of_images(tmp_path / "images", count=6)
    (folder / "a" / "loop.png").symlink_to(folder / "a" / "loop.png")
    (folder / "a" / "loop").symlink_to(folder / "a" / "loop")
    embed_command(finished_run, str(folder), tmp_path / "out.npz", LoaderOptions(num_workers=0))
    output = capsys.readouterr()
    assert output.out.startswith(f"{tmp_path / 'out.npz'}: 6 vectors")
    assert "loop.png is a broken link" in output.err
    with pytest.warns(UserWarning, match="is a broken link"):
        assert len(load_dataset(folder)["train"]) == 6


def test_folders_may_be_nested_deeper_than_the_recursion_limit(tmp_path: Path) -> None:
    inside = str(tmp_path / "images")
    os.mkdir(inside)  # noqa: PTH102
    for _ in range(1500):
        inside += "/a"
        os.mkdir(inside)  # noqa: PTH102
    folder_of_images(tmp_path / "other", count=1, labelled=False)
    os.link(tmp_path / "other" / "000.png", f"{inside}/a.png")
    skipped: list[str] = []
    assert list(walk_images(tmp_path / "images", skipped.append)) == [f"{inside}/a.png"]
    assert not skipped
    while inside != str(tmp_path):
        shutil.rmtree(inside)
        inside = os.path.dirname(inside)  # noqa: PTH120


# Pipes, sockets and devices


@pytest.fixture
def in_time() -> Iterator[None]:
    """Fail a test that blocks on a pipe."""

    def stop(*_: object) -> None:
        raise AssertionError("the reader blocks")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def make_pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def make_cifar_with_pipe(path: Path) -> Path:
    for name in ("batches.meta", "test_batch"):
        (path / name).write_bytes(pickle.dumps({b"label_names": [b"a"]}))
    make_pipe(path / "data_batch_1")
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize(
    "read",
    [
        lambda path: load_dataset(make_pipe(path / "a.npz")),
        lambda path: load_dataset(make_pipe(path / "a.npy")),
        lambda path: load_dataset(make_pipe(path / "a.pkl")),
        lambda path: load_dataset(make_pipe(path / "a.mat")),
        lambda path: load_dataset(make_pipe(path / "cifar-10-python.tar.gz")),
        lambda path: load_dataset(make_cifar_with_pipe(path)),
        lambda path: load_dataset(
            make_pipe(path / "a-UTT" / "b.npy").parents[1] if make_pipe(path / "label.npz") else path
        ),
        lambda path: load_dataset(folder_of_images(path / "images", 3), class_list=make_pipe(path / "list.txt")),
        lambda path: load_dataset(make_pipe(path / "a.png").parent, raise_on_corrupt=True),
        lambda path: read_image(make_pipe(path / "a.png")),
        lambda path: get_recipe(make_pipe(path / "a.yaml")),
        lambda path: Run.open(make_pipe(path / "config.yaml").parent),
        lambda path: load_encoder(make_pipe(path / "a.safetensors")),
        lambda path: load_checkpoint(make_pipe(path / "step-00000001-00000000.pt").parent),
    ],
)
@pytest.mark.usefixtures("in_time")
def test_a_pipe_is_refused_without_blocking(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(
        (DatasetError, ConfigError, EncoderError, CheckpointError), match=r"named pipe|is not a file|can be loaded"
    ):
        read(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.usefixtures("in_time")
def test_pipes_in_a_run_are_refused(tmp_path: Path, finished_run: Path) -> None:
    names = ["config.yaml", "metrics.csv", "evaluation.json", "log.txt", "encoder.safetensors", "head.safetensors"]
    for name in names:
        run = Path(shutil.copytree(finished_run, tmp_path / name))
        make_pipe(run / name)
        with pytest.raises(ConfigError, match="named pipe"):
            Run.open(run)
        with pytest.raises(ConfigError, match="named pipe"):
            write_report([run], tmp_path / "report.html")
    trial = Trial(Config())
    make_pipe(tmp_path / trial.name / trial.result_filename)
    assert trial.load_result(TrialStore(tmp_path)) is None


def test_errors_name_the_kind_of_irregular_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("a")
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
        (f"views: 0x{'f' * 5000}", "an integer of 20000 bits"),
        ("views: " + "1" * 200_000, "it has 200,007 characters"),
        ("views: 2001-99-99", "month must be in"),
    ],
)
def test_yaml_has_bounded_size(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_yaml(text)


def make_doubled(kind: type) -> object:
    """Make 2^24 numbers of nested lists or tuples that each hold the previous one twice."""
    return functools.reduce(lambda inner, _: kind((inner, inner)), range(24), 1)


def make_npy_header(shape: str, dtype: str = "'<f4'") -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("shape", "dtype"), [("(9000000000,)", "'<f4'"), ("(99999999999,)", "'|S0'"), ("(-1, 3)", "'<f4'")]
)
def test_a_header_alone_allocates_no_memory(tmp_path: Path, shape: str, dtype: str) -> None:
    (tmp_path / "a.npy").write_bytes(make_npy_header(shape, dtype) + bytes(100))
    with pytest.raises(DatasetError, match=r"the header claims .*, but the file has \d+ bytes"):
        load_dataset(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("text.npy", make_npy_header(shape, dtype) + bytes(100))
    with pytest.raises(DatasetError, match=r"the header claims .*, but the file has \d+ bytes"):
        load_dataset(tmp_path / "a.npz")


def test_highly_compressed_files_are_refused(tmp_path: Path) -> None:
    zeros = bytes(MIN_BUDGET_BYTES + 1000)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("text.npy", zeros)
    assert (tmp_path / "a.npz").stat().st_size < 2**22
    with pytest.raises(DatasetError, match="would take more than"):
        load_dataset(tmp_path / "a.npz")


def make_mat_element(kind: int, body: bytes) -> bytes:
    return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)


def make_mat_array(array_class: int, shape: tuple[int, ...], name: bytes, content: bytes) -> bytes:
    header = ((6, struct.pack("<II", array_class, 0)), (5, struct.pack(f"<{len(shape)}i", *shape)), (1, name))
    return make_mat_element(14, b"".join(make_mat_element(*part) for part in header) + content)


MAT_NUMBERS = make_mat_element(9, struct.pack("<d", 1))
MAT_Y = make_mat_array(6, (1, 1), b"Y", MAT_NUMBERS)


def nest_cells(depth: int) -> bytes:
    header = make_mat_array(1, (1, 1), b"", b"")[8:]
    array, start = make_mat_array(6, (1, 1), b"", MAT_NUMBERS), b""
    for i in range(depth):
        start = struct.pack("<II", 14, len(array) + (i + 1) * len(header) + i * 8) + header + start
    return make_mat_array(1, (1, 1), b"X", start + array)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [
        make_mat_array(6, (1, 1), b"X", make_mat_element(8, bytes(8))) + MAT_Y,
        make_mat_array(1, (1, 1), b"X", make_mat_array(6, (1, 1), b"", make_mat_element(1000, bytes(8)))) + MAT_Y,
        make_mat_array(1, (1, 1), b"X", make_mat_array(4, (1, 2**29), b"", make_mat_element(16, b""))) + MAT_Y,
        make_mat_array(1, (2**15, 2**14), b"X", make_mat_array(6, (1, 1), b"", MAT_NUMBERS)) + MAT_Y,
        make_mat_array(1, (1, 1), b"X", make_mat_array(2, (2**15, 2**14), b"", b"")) + MAT_Y,
        nest_cells(2) + MAT_Y,
        nest_cells(2000) + MAT_Y,
    ],
    ids=["type", "type in a cell", "text", "shape of a cell", "structure", "cells", "nested cells"],
)
def test_a_mat_file_that_could_crash_its_reader_is_refused(tmp_path: Path, variables: bytes) -> None:
    """Scipy ends its process on some of these, and allocates gigabytes on others."""
    (tmp_path / "a.mat").write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + variables)
    with pytest.raises(DatasetError, match=r"cannot read .*a\.mat: "):
        load_dataset(tmp_path / "a.mat")


@pytest.mark.parametrize(
    "part",
    [
        {"text": ["a"] * 20_000 + ["b" * 20_000]},  # 1.6 GB as an array of texts
        {
            "text": np.ones((2, 3, 4)),
            "id": ["a"] * 2,
            "labels": make_doubled(list),
        },
    ],
)
def test_lists_are_counted_with_the_memory_of_their_array(tmp_path: Path, part: dict) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": part}))
    with pytest.raises(DatasetError, match="would take more than"):
        load_dataset(tmp_path / "a.pkl")


def test_tuples_as_keys_of_a_pickle_are_refused(tmp_path: Path) -> None:
    """Hashing this tuple takes 2^24 steps; hashing a longer one takes years."""
    key = make_doubled(tuple)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": {key: 1}}))
    with pytest.raises(DatasetError, match="a dictionary key is a tuple"):
        load_dataset(tmp_path / "a.pkl")


def test_evaluation_batch_shrinks_with_image_size_and_must_fit_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [choose_eval_batch_size(size) for size in (8, 224, 448, 4096)] == [256, 256, 64, 1]
    about = make_image_config("resnet-small", 4096, width=0.125)
    (tmp_path / "a.safetensors").write_bytes(serialize_module(MultiViewEncoder.from_config(about), about))
    monkeypatch.setattr(saved, "get_memory_limit", lambda: 2**28)
    with pytest.raises(EncoderError, match="one image of 4096 x 4096 needs more than the available memory"):
        load_encoder(tmp_path / "a.safetensors")


def test_models_of_another_package_have_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header may have any model of timm: it is built within the memory budget, for images that fit."""
    conv, pooled = torch.nn.Conv2d(3, 4, 1), (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

    def create_model(name: str, num_classes: int) -> torch.nn.Module:
        assert num_classes == 0
        return torch.nn.Sequential(torch.nn.Linear(2**14, 2**14) if name == "large" else conv, *pooled)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    path = tmp_path / "a.safetensors"
    for name, size, message in (
        ("large", 16, "would take more than 268,435,456 bytes of memory"),
        ("small", 4096, "one image of 4096 x 4096 needs more than the available memory"),
        ("small", 16, None),
    ):
        encoder = MultiViewEncoder({"image": torch.nn.Sequential(conv, *pooled)})
        path.write_bytes(serialize_module(encoder, make_image_config(f"timm:{name}", size)))
        monkeypatch.setattr(saved, "get_memory_limit", lambda: 2**28)
        if message is None:
            assert load_encoder(path).dim == 4
        else:
            with pytest.raises(EncoderError, match=message):
                load_encoder(path)


def test_a_config_alone_allocates_no_memory(tmp_path: Path, finished_run: Path) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("embed_dim: 16", "embed_dim: 99999999999"))
    with pytest.raises(EncoderError, match="do not fit"):
        assert Run.open(run).load_model()


def test_a_checkpoint_tensor_larger_than_its_bytes_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = io.BytesIO()
    torch.save({"step": 1, "moment": torch.zeros(1).expand(10**12)}, out)
    digest = hashlib.sha256(out.getvalue()).hexdigest()[:8]
    (tmp_path / f"step-00000001-{digest}.pt").write_bytes(out.getvalue())
    with pytest.raises(CheckpointError, match="none of the 1"):
        load_checkpoint(tmp_path)
    assert "a tensor (1000000000000,) has only 4 bytes" in caplog.text


# Invalid files in runs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "the result must be EvaluationResult, got []"),
        ("{}", "the result has no 'version'"),
        ('{"scores": 5}', "the result has no 'version'"),
        ("[" * 10**5, "it is not JSON: maximum recursion depth exceeded"),
        *DAMAGED,
    ],
)
def test_an_invalid_evaluation_is_a_one_line_error(
    tmp_path: Path, finished_run: Path, call: Callable[..., str], content: str, message: str
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (run / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace("evaluate_at_end: false", "evaluate_at_end: true")
    )
    (run / "evaluation.json").write_text(content)
    output = call("train", "--resume", run).splitlines()[-1]
    assert output.startswith(f"manyviews: cannot read {run}/evaluation.json: {message}")
    assert output.endswith(". Run `manyviews evaluate` to rewrite it")


def test_an_invalid_trial_result_is_ignored(tmp_path: Path) -> None:
    trial = Trial(Config())
    path = tmp_path / trial.name / trial.result_filename
    path.parent.mkdir()
    path.write_text(MODALITIES.to_json())
    assert trial.load_result(TrialStore(tmp_path)) == compact_result(MODALITIES)
    for invalid in ("[]", "{}", "[" * 10**5, *(text for text, _ in DAMAGED)):
        path.write_text(invalid)
        assert trial.load_result(TrialStore(tmp_path)) is None


def test_damaged_metrics_are_an_error(tmp_path: Path, finished_run: Path) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    for row in ("1" * 200_000, "1,0,x", "1,2,3,4,5,6,7,8,9,10,11,12", "²,0,1"):
        with (run / "metrics.csv").open("a") as file:
            file.write(row + "\n")
        with pytest.raises(ConfigError, match=r"cannot parse .*metrics\.csv"):
            assert Run.open(run).read_metrics()
