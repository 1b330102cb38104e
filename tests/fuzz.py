"""Mutated files for every reader: each is read, or refused by an error of ours.

    python -m tests.fuzz --count 500 --seed 1

makes so many mutations of whole files for each format, in a process of its own whose memory is limited, and prints a
line for each: how many were read and how many refused. Any other exception, more than `SECONDS` of computing for one
file, or more memory than its budget, is printed with the file's place and fails.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io
import torch
import yaml
from PIL import Image

from manyviews.cli.train import show_run
from manyviews.data import DatasetError, load_dataset, read_image
from manyviews.data.cifar import LAYOUTS
from manyviews.experiments.cells import _found
from manyviews.models import ModalityEncoder, get_encoder
from manyviews.models.saved import Description, EncoderError, file_of
from manyviews.report.account import accounts
from manyviews.report.chapter import evaluated, sound
from manyviews.training import ConfigError, Run, get_recipe, load_encoder, train
from manyviews.training.checkpoints import CheckpointError, load_checkpoint
from manyviews.training.loop import DivergedError
from manyviews.utils.budget import MIN_BUDGET_BYTES, memory_bytes
from tests.training.small import small

OURS = (DatasetError, ConfigError, CheckpointError, EncoderError, DivergedError)
SECONDS = 10
"""Of computing, for one file."""
STUCK_SECONDS = 120
"""In which a process must finish a file, however busy the machine is."""
EXTRA_BYTES = 4 * 2**30
"""That a process may ask for beyond what it has when it begins; a reader that asks for more meets a MemoryError."""

Mutate = Callable[[bytes, random.Random], bytes]
ODD_NUMBERS = (0, 1, 7, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)


# Mutations. Each takes a whole file and gives a broken, odd or large one.


def flip(content: bytes, chance: random.Random) -> bytes:
    """Some bits, or a number of four or eight bytes."""
    out = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 8, 64))):
        place = chance.randrange(max(1, len(out)))
        if chance.random() < 0.5:
            out[place : place + 1] = bytes([out[place] ^ 1 << chance.randrange(8)]) if out else b""
        else:
            width = chance.choice(["<B", "<H", "<I", ">I", "<Q", ">Q"])
            number = chance.choice(ODD_NUMBERS) % 256 ** struct.calcsize(width)
            out[place : place + struct.calcsize(width)] = struct.pack(width, number)
    return bytes(out)


def cut(content: bytes, chance: random.Random) -> bytes:
    """The beginning, or the file without a part, or with a part twice or somewhere else."""
    first, last = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    part = content[first:last]
    place = chance.randrange(len(content) + 1)
    return chance.choice((
        content[:last],
        content[:first] + content[last:],
        content[:last] + part + content[last:],
        content[:place] + part + content[place:],
        content[:place] + chance.randbytes(chance.choice((1, 4, 100))) + content[place:],
    ))  # fmt: skip


def plain(content: bytes, chance: random.Random) -> bytes:
    return chance.choice((flip, flip, cut))(content, chance)


def in_zip(inside: Mutate) -> Mutate:
    """A member, its name or how it is packed; sums of the archive are right again."""

    def mutate(content: bytes, chance: random.Random) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(one.filename, archive.read(one)) for one in archive.infolist()]
        place = chance.randrange(len(members))
        name, held = members[place]
        packing = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        kind = chance.randrange(8)
        if kind == 0:
            members.append(members[place])
        elif kind == 1:
            members[place] = (name + chance.choice(("x", "\n", "/../a", "_test", "é")), held)
        elif kind == 2:
            members[place] = (
                name,
                bytes(chance.choice((0, 10**6, 10**6 if packing == zipfile.ZIP_STORED else 3 * 10**8))),
            )
        else:
            members[place] = (name, inside(held, chance))
        out = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(out, "w", packing, compresslevel=1) as archive:
            warnings.simplefilter("ignore")
            for one, held in members:
                archive.writestr(one, held)
        return out.getvalue()

    return mutate


def npy(content: bytes, chance: random.Random) -> bytes:
    """The header of an array: its shape, its type, its order."""
    end = content.find(b"\n") + 1
    shape = chance.choice(
        ("(100000000000,)", "(4, 9223372036854775807)", "()", "(-1, 3)", "(0, 99999999999)", "(" * 90)
    )
    kind = chance.choice(("'O'", "'|S0'", "'<U1000000'", "'|V8'", "'<M8[s]'", "'<c16'", "[('a', '<f4')]", "'i1'", "5"))
    header = chance.choice((
        f"{{'descr': {kind}, 'fortran_order': False, 'shape': (6, 4), }}",
        f"{{'descr': '<f4', 'fortran_order': True, 'shape': {shape}, }}",
        f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}",
    ))  # fmt: skip
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + content[end:]


def nested(depth: int, kind: type) -> object:
    held: object = 1
    for _ in range(depth):
        held = kind((held, held))
    return held


def opcodes(content: bytes, chance: random.Random) -> bytes:
    """A pickle with other opcodes, references far away, lists of lists of lists, tuples for names."""
    bombs = (
        b"\x80\x04]r\xff\xff\xff\xff.",
        b"]p99999999999999\n.",
        b"(" * 10_000 + b"t" * 10_000 + b".",
        b"]" + b"]a" * 10 + b"." * chance.randrange(3),
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**45) + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 2**50) + b"N.",
        b"\x80\x04\x8b" + struct.pack("<I", 2**31 - 1) + b"\1.",
        pickle.dumps({"train": {"text": nested(chance.randrange(5, 60), list), "audio": 1}}),
        pickle.dumps({"train": {"text": ["a"] * 40_000 + ["b" * 40_000]}}),
        b"}" + b"(K\x01K\x01t" + b"2\x86" * chance.randrange(5, 60) + b"K\x01s.",
        b"(" + b"}" * 50_000 + b"l.",
        b"K\x01" + b"\x85" * 100_000 + b".",
    )
    if chance.random() < 0.3:
        return chance.choice(bombs)
    out = bytearray(content)
    for _ in range(chance.choice((1, 2, 5))):
        place = chance.randrange(len(out))
        code = chance.choice(
            b"(.0122FIJKLMNPQRSTUVXabcdeghijlopqrstu]})\x80\x81\x82\x85\x86\x87\x88\x8c\x8f\x90\x91\x92\x93\x94\x95"
        )
        if chance.random() < 0.5:
            out[place] = code
        else:
            out.insert(place, code)
    return bytes(out)


ODD_VALUES: tuple[object, ...] = (
    None, True, -1, 0, 1e308, -0.0, 10**30, 10**4000, float("nan"), float("inf"), "", "x" * 1000, "\ud800", "1e5", [],
    {}, [1, [2]], {"a": {"b": None}}, [[[[[[[[[[]]]]]]]]]], {"": 0}, "2001-99-99", "/dev/zero",
)  # fmt: skip


def odd_json(content: bytes, chance: random.Random) -> bytes:
    """A value somewhere in it, or its depth."""
    if chance.random() < 0.1:
        depth = chance.choice((100, 1000, 200_000))
        return chance.choice((b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth, b"1" * depth))
    held = json.loads(content)
    for _ in range(chance.choice((1, 1, 3))):
        _replace(held, chance)
    return json.dumps(held).encode(errors="surrogatepass")


def _replace(held: object, chance: random.Random) -> None:
    while isinstance(held, (dict, list)) and held:
        key = chance.choice(list(held) if isinstance(held, dict) else range(len(held)))
        inside = held[key]
        if not isinstance(inside, (dict, list)) or not inside or chance.random() < 0.3:
            if isinstance(held, dict) and chance.random() < 0.2:
                del held[key]
            else:
                held[key] = chance.choice(ODD_VALUES)
            return
        held = inside


def odd_yaml(content: bytes, chance: random.Random) -> bytes:
    """A value, an alias, a merge, a tag, or its depth."""
    lines = content.decode().splitlines()
    place = chance.randrange(len(lines))
    name = lines[place].partition(":")[0]
    value = yaml.safe_dump(chance.choice(ODD_VALUES), default_flow_style=True, allow_unicode=True).splitlines()[0]
    laughs = ["a0: &a0 [1, 1]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    lines[place : place + 1] = chance.choice((
        [f"{name}: {value}"],
        [f"{name}: {value}"],
        [f"{name}: &x {value}", "other: *x"],
        [f"{name}: {'[' * (depth := chance.choice((10, 100, 10_000)))}{']' * depth}"],
        [f"<<: {{<<: {{{name}: 3}}}}"],
        [f"{name}: !!python/name:os.system"],
        [f"{name}: !!binary {value}", f"? [{name}]", ": 3"],
        [f"{name}: {'1:' * 1000}1", f"{name}: 0x{'f' * 5000}"],
        laughs,
    ))  # fmt: skip
    return "\n".join(lines).encode(errors="surrogatepass")


def odd_csv(content: bytes, chance: random.Random) -> bytes:
    """A cell: large, quoted, of another kind, or one too many."""
    lines = content.split(b"\n")
    place = chance.randrange(len(lines))
    cells = lines[place].split(b",")
    odd = (b"9" * 200_000, b'"', b'"a\n', b"\0", b"x", b"1e999", b"-1", "²".encode(), b"9" * 5000, b"1,2", b"nan", b"")
    cells[chance.randrange(len(cells))] = chance.choice(odd)
    lines[place] = b",".join(cells)
    return b"\n".join(lines)


def safetensors_header(content: bytes, chance: random.Random) -> bytes:
    """The header, whose length is right again."""
    (length,) = struct.unpack("<Q", content[:8])
    held = json.loads(content[8 : 8 + length])
    if chance.random() < 0.6 and "__metadata__" in held:
        about = json.loads(held["__metadata__"]["manyviews"])
        for _ in range(chance.choice((1, 1, 3))):
            _replace(about, chance)
        if chance.random() < 0.3:
            about |= {
                "size": chance.choice((4096, 4097, 10**9)),
                "dim": 10_000,
                "layers": 10_000,
                "encoder": "resnet50",
            }
        held["__metadata__"]["manyviews"] = json.dumps(about)
    else:
        _replace(held, chance)
    header = json.dumps(held).encode(errors="replace")
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def in_mat(content: bytes, chance: random.Random) -> bytes:
    """What is packed in a .mat file, or its lengths."""
    place, out = 128, content[:128]
    while place + 8 <= len(content):
        kind, length = struct.unpack_from("<II", content, place)
        body = content[place + 8 : place + 8 + length]
        if kind == 15:
            inside = zlib.decompress(body)
            inside = bytes(chance.choice((10**6, 3 * 10**8))) if chance.random() < 0.05 else plain(inside, chance)
            body = zlib.compress(inside, 1)
        else:
            body = plain(body, chance)
        length = chance.choice(ODD_NUMBERS) % 2**32 if chance.random() < 0.1 else len(body)
        out += struct.pack("<II", kind, length) + body
        place += 8 + len(content[place + 8 : place + 8 + struct.unpack_from("<I", content, place + 4)[0]])
    return out


def in_gzip(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return gzip.compress(bytes(3 * 10**8), 1)
    return gzip.compress(chance.choice((plain, opcodes))(gzip.decompress(content), chance), 1)


# Formats: whole files, what is done to them, and what reads them.


@dataclass(frozen=True)
class Format:
    """Files to mutate by their paths in a folder, and how the folder is read."""

    seeds: dict[str, bytes]
    read: Callable[[Path, str], object]
    mutations: tuple[Mutate, ...] = (plain,)
    max_bytes: int = 4 * MIN_BUDGET_BYTES
    """That the process may grow by, of all files together: it gives little back."""


def features(count: int = 6) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(0)
    return {
        "text": chance.normal(size=(count, 5, 3)).astype(np.float32),
        "audio": chance.normal(size=(count, 4)).astype(np.float32),
        "label": np.arange(count) % 2,
        "id": np.array([f"name{number}" for number in range(count)]),
    }


def saved(write: Callable[[io.BytesIO], object]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def arrays() -> Format:
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    seeds = {
        "a.npz": saved(lambda out: np.savez(out, **features())),
        "b.npz": saved(lambda out: np.savez_compressed(out, images=images, labels=np.arange(6) % 3)),
    }
    return Format(seeds, lambda folder, name: load_dataset(folder / name), (plain, in_zip(plain), in_zip(npy)))


def array() -> Format:
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    seeds = {"a.npy": saved(lambda out: np.save(out, images))}
    return Format(seeds, lambda folder, name: load_dataset(folder / name), (plain, npy))


def pickles() -> Format:
    rows = features()
    part = {
        "text": rows["text"],
        "audio": rows["text"],
        "vision": rows["text"].tolist(),
        "id": [f"video${number}" for number in range(6)],
        "text_bert": np.ones((6, 3, 5), np.float32),
        "regression_labels": np.linspace(-1, 1, 6),
        "audio_lengths": [5, 2, 1, 4, 3, 5],
    }
    seeds = {f"{n}.pkl": pickle.dumps({"train": part, "valid": part, "test": part}, n) for n in (0, 2, 4, 5)}
    return Format(seeds, lambda folder, name: load_dataset(folder / name), (plain, opcodes, opcodes))


def mat() -> Format:
    cell = np.empty((1, 2), object)
    cell[0, 0], cell[0, 1] = np.random.default_rng(0).normal(size=(20, 3)), np.ones((20, 2), np.int8)
    held = {"X": cell, "Y": np.arange(20)[:, None] % 4 + 1.0}
    seeds = {
        "a.mat": saved(lambda out: scipy.io.savemat(out, held)),
        "b.mat": saved(lambda out: scipy.io.savemat(out, held, do_compression=True)),
    }
    return Format(seeds, lambda folder, name: load_dataset(folder / name), (plain, in_mat))


def merbench() -> Format:
    rows = features()
    corpora = {
        f"{split}_corpus": np.array({f"{split}{n}": {"emo": "happy", "val": float(n)} for n in range(3)}, object)
        for split in ("train", "val", "test")
    }
    seeds = {"label.npz": saved(lambda out: np.savez(out, **corpora))}
    for split in ("train", "val", "test"):
        for n in range(3):
            seeds[f"features/a-FRA/{split}{n}.npy"] = saved(lambda out, n=n: np.save(out, rows["text"][n]))
            seeds[f"features/b-UTT/{split}{n}.npy"] = saved(lambda out, n=n: np.save(out, rows["audio"][n]))

    def mutate(content: bytes, chance: random.Random) -> bytes:
        return (
            in_zip(chance.choice((plain, npy, opcodes)))(content, chance)
            if content[:2] == b"PK"
            else npy(content, chance)
        )

    return Format(seeds, lambda folder, _: load_dataset(folder), (plain, mutate))


def cifar(batch: str = "test_batch") -> dict[str, bytes]:
    layout, chance = LAYOUTS["cifar10"], np.random.default_rng(0)
    data = {b"data": chance.integers(0, 256, (4, 3072), dtype=np.uint8), b"labels": [0, 1, 2, 3]}
    held = {name: pickle.dumps(data, 2) for name in (*layout.train, layout.test)}
    return held | {layout.meta: pickle.dumps({b"label_names": [b"%d" % n for n in range(10)]}, 2)}


def cifar_folder() -> Format:
    return Format(cifar(), lambda folder, _: load_dataset(folder), (plain, opcodes))


def cifar_archive() -> Format:
    layout = LAYOUTS["cifar10"]

    def write(out: io.BytesIO) -> None:
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, content in cifar().items():
                one = tarfile.TarInfo(f"{layout.folder}/{name}")
                one.size = len(content)
                archive.addfile(one, io.BytesIO(content))

    def read(folder: Path, name: str) -> object:
        md5 = hashlib.md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest()
        LAYOUTS["cifar10"] = dataclasses.replace(layout, md5=md5)  # right again
        return load_dataset(folder / name)

    return Format({layout.archive: saved(write)}, read, (plain, in_gzip))


def images() -> Format:
    chance = np.random.default_rng(0)
    picture = Image.fromarray(chance.integers(0, 256, (20, 24, 3), dtype=np.uint8))
    kinds = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "bmp": "BMP", "ppm": "PPM", "tif": "TIFF", "gif": "GIF"}
    seeds = {f"a.{end}": saved(lambda out, kind=kind: picture.save(out, kind)) for end, kind in kinds.items()}
    seeds["b.jpg"] = saved(lambda out: picture.save(out, "JPEG", progressive=True, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"))
    seeds["b.tif"] = saved(lambda out: picture.save(out, "TIFF", compression="tiff_lzw"))
    seeds["b.png"] = saved(lambda out: picture.convert("P").save(out, "PNG", transparency=3))
    return Format(seeds, lambda folder, name: read_image(folder / name), max_bytes=2 * 2**30)


def class_list() -> Format:
    picture = saved(lambda out: Image.new("RGB", (4, 4)).save(out, "PNG"))
    seeds = {"list.txt": b"cat\ndog\n", "images/cat/a.png": picture, "images/dog/a.png": picture}
    return Format(seeds, lambda folder, _: load_dataset(folder / "images", classes=folder / "list.txt"))


def recipe() -> Format:
    seeds = {"a.yaml": small().to_yaml().encode()}
    return Format(seeds, lambda folder, name: get_recipe(folder / name).check(), (plain, odd_yaml, odd_yaml))


def finished_run() -> dict[str, bytes]:
    """The files of a small run that is finished and evaluated."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        train(small(epochs=1, probe=True), output=path, quiet=True)
        return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def encoder() -> Format:
    split = load_dataset("digits")["train"]
    modalities = ModalityEncoder.for_split(split, ("pixels", "fourier"), dim=8)
    sizes = {"encoder": "resnet-small", "options": {"width": 0.125}, "size": 16}
    seeds = {
        "a.safetensors": file_of(get_encoder("resnet-small", width=0.125), Description(**sizes)),
        "b.safetensors": file_of(modalities, modalities.about),
    }
    return Format(seeds, lambda folder, name: load_encoder(folder / name), (plain, safetensors_header))


def run_files(kind: str, read: Callable[[Path, str], object], *mutations: Mutate) -> Format:
    files = {name: content for name, content in FINISHED.items() if "/" not in name or kind == "checkpoint"}
    seeds = {name: files.pop(name) for name in list(files) if kind in name}
    if kind == "checkpoint":
        for name in ("encoder.safetensors", "head.safetensors", "evaluation.json"):  # it goes on
            del files[name]

    def read_among(folder: Path, name: str) -> object:
        for other, content in files.items():
            (folder / other).parent.mkdir(exist_ok=True)
            (folder / other).write_bytes(content)
        return read(folder, name)

    return Format(seeds, read_among, (plain, *mutations))


def resume_finished(folder: Path, _: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            show_run(train(resume=folder, quiet=True))
        except ValueError as error:
            raise ConfigError(str(error)) from error


def resume_checkpoint(folder: Path, name: str) -> None:
    """With its digest right again, and now and then all the way into training."""
    content = (folder / name).read_bytes()
    path = folder / "checkpoints" / f"step-00000004-{hashlib.sha256(content).hexdigest()[:8]}.pt"
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").mkdir()
    path.write_bytes(content)
    load_checkpoint(folder / "checkpoints")
    train(resume=folder, quiet=True)


def report_on(folder: Path, _: str) -> None:
    for account in accounts([folder]):
        evaluated(sound(account))


def read_metrics_of(folder: Path, name: str) -> None:
    report_on(folder, name)
    assert isinstance(Run.open(folder).metrics, list)


def tensors(content: bytes, chance: random.Random) -> bytes:
    return in_zip(chance.choice((plain, opcodes)))(content, chance)


FINISHED: dict[str, bytes] = {}
FORMATS: dict[str, Callable[[], Format]] = {
    "npy": array,
    "npz": arrays,
    "pickle": pickles,
    "mat": mat,
    "merbench": merbench,
    "cifar folder": cifar_folder,
    "cifar archive": cifar_archive,
    "images": images,
    "class list": class_list,
    "recipe": recipe,
    "safetensors": encoder,
    "run config": lambda: run_files("config.yaml", lambda folder, _: Run.open(folder), odd_yaml),
    "run metrics": lambda: run_files("metrics.csv", read_metrics_of, odd_csv),
    "run evaluation": lambda: run_files("evaluation.json", resume_finished, odd_json, odd_json),
    "run log": lambda: run_files("log.txt", report_on),
    "report": lambda: run_files("evaluation.json", report_on, odd_json, odd_json),
    "cell": lambda: run_files("evaluation.json", lambda folder, name: _found(folder / name), odd_json, odd_json),
    "checkpoint": lambda: run_files("checkpoint", resume_checkpoint, tensors, tensors),
}


class HangError(BaseException):
    """A file took more than `SECONDS` of computing."""


def _hang(*_: object) -> None:
    raise HangError(f"more than {SECONDS} s of computing")


@dataclass
class Outcome:
    """Of one format."""

    read: int = 0
    refused: int = 0
    bad: list[str] = dataclasses.field(default_factory=list)


def fuzz(kind: str, count: int, seed: int, put: Callable[[str], None]) -> None:
    """Read mutated files, and put a line for each; memory is limited, so it is for a process of its own."""
    held = FORMATS[kind]()
    with Path("/proc/self/statm").open() as file:
        pages = int(file.read().split()[0])
    memory_bytes.cache_clear()
    limit = pages * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, _hang)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            chance = random.Random(f"{kind} {seed} {number}")
            name = chance.choice(list(held.seeds))
            mutated = chance.choice(held.mutations)(held.seeds[name], chance)
            root = Path(folder) / str(number)
            for other, content in held.seeds.items():
                (root / other).parent.mkdir(parents=True, exist_ok=True)
                (root / other).write_bytes(mutated if other == name else content)
            put(_outcome(held, root, name))
            shutil.rmtree(root)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    put(f"grown {grown}" if grown <= held.max_bytes else f"bad: it took {grown:,} bytes, more than {held.max_bytes:,}")


def _outcome(held: Format, root: Path, name: str) -> str:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held.read(root, name)
    except OURS:
        return "refused"
    except BaseException as error:  # noqa: BLE001 (that is what is looked for)
        kept = Path(tempfile.gettempdir()) / f"manyviews-fuzz-{os.getpid()}-{root.name}"
        shutil.copytree(root, kept)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"bad: {type(error).__name__}: {str(error)[:200]!r} at {where.filename}:{where.lineno}; {kept}/{name}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "read"


def lines_of(kind: str, count: int, seed: int) -> Iterator[str]:
    """What a process of its own says of each file; it is stopped if it says nothing for long."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            fuzz(
                kind,
                count,
                seed,
                lambda line: os.write(writer, line.replace("\n", " ").encode(errors="replace") + b"\n"),
            )
        except BaseException:  # noqa: BLE001
            os.write(writer, f"bad: {traceback.format_exc()[-2000:]!r}\n".encode())
        os._exit(0)
    os.close(writer)
    os.set_blocking(reader, False)
    text, last = b"", time.monotonic()
    while True:
        try:
            part = os.read(reader, 2**16)
            if not part:
                break
            text, last = text + part, time.monotonic()
        except BlockingIOError:
            time.sleep(0.05)
            if time.monotonic() - last > STUCK_SECONDS:
                os.kill(child, signal.SIGKILL)
                text += f"bad: a file took more than {STUCK_SECONDS} s\n".encode()
                break
        *whole, text = text.split(b"\n")
        yield from (line.decode() for line in whole)
    yield from text.decode().splitlines()
    os.close(reader)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        yield f"bad: the process ended with {status}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="mutations of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", action="append", choices=list(FORMATS), help="only this one; may be given again")
    given = parser.parse_args()
    torch.set_num_threads(1)
    FINISHED.update(finished_run())
    failed = False
    for kind in given.format or FORMATS:
        outcome = Outcome()
        for line in lines_of(kind, given.count, given.seed):
            outcome.read += line == "read"
            outcome.refused += line == "refused"
            if line.startswith("bad: "):
                outcome.bad.append(line)
        print(f"{kind:15} {given.count:6,} mutations {outcome.read:6,} read {outcome.refused:6,} refused", flush=True)
        for line in outcome.bad:
            print(f"  {line}")
        failed = failed or bool(outcome.bad) or outcome.read + outcome.refused != given.count
    sys.exit(failed)


if __name__ == "__main__":
    main()
