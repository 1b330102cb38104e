"""Mutated files for every reader: each file is read, or refused with an error of this package.

    python -m tests.fuzz --count 500 --seed 1

makes 500 mutations of valid files for each format, in a separate process with limited memory, and prints for each
format how many files were read and how many were refused. Any other exception, more than `SECONDS` of CPU time for one
file, or more memory than the budget is printed with the path of the file, and the command fails.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
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

from manyviews.api import train
from manyviews.cli.train_command import show_run
from manyviews.data import Audio, CorruptImageError, DatasetError, FileBlobs, Video, load_dataset, read_image
from manyviews.data.cifar import CIFAR_SPECS
from manyviews.data.tar_index import load_index
from manyviews.models import Encoder, EncoderConfig, EncoderError, EncoderSpec, MultiViewEncoder, serialize_module
from manyviews.report.comparison import make_comparison_table
from manyviews.report.section import make_evaluation_tables
from manyviews.report.summary import load_summaries
from manyviews.reproduce.store import read_finished_run
from manyviews.runs import Run, load_encoder
from manyviews.training import ConfigError, DivergedError, get_recipe
from manyviews.training.checkpoints import CheckpointError, load_checkpoint
from manyviews.utils.untrusted import MIN_BUDGET_BYTES, get_machine_memory
from tests.helpers.media import make_frames, make_tone, write_audio, write_video
from tests.helpers.pretrained import make_tokenizer
from tests.helpers.tiny_run import tiny_config

EXPECTED_ERRORS = (DatasetError, ConfigError, CheckpointError, EncoderError, DivergedError)
SECONDS = 10
"""Maximum CPU time for one file."""
STUCK_SECONDS = 120
"""Maximum wall time for one file, on a busy machine."""
EXTRA_BYTES = 4 * 2**30
"""Address space that a process may add after its start; beyond it, allocations raise MemoryError."""

Mutate = Callable[[bytes, random.Random], bytes]
ODD_NUMBERS = (0, 1, 7, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)


# Mutations. Each takes a valid file and returns a corrupt, odd or large one.


def flip(content: bytes, rng: random.Random) -> bytes:
    """Flip bits, or overwrite an integer of one to eight bytes."""
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8, 64))):
        offset = rng.randrange(max(1, len(out)))
        if rng.random() < 0.5:
            out[offset : offset + 1] = bytes([out[offset] ^ 1 << rng.randrange(8)]) if out else b""
        else:
            width = rng.choice(["<B", "<H", "<I", ">I", "<Q", ">Q"])
            number = rng.choice(ODD_NUMBERS) % 256 ** struct.calcsize(width)
            out[offset : offset + struct.calcsize(width)] = struct.pack(width, number)
    return bytes(out)


def cut(content: bytes, rng: random.Random) -> bytes:
    """Truncate the file, or remove, repeat, move or insert a part."""
    first, last = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    part = content[first:last]
    offset = rng.randrange(len(content) + 1)
    return rng.choice((
        content[:last],
        content[:first] + content[last:],
        content[:last] + part + content[last:],
        content[:offset] + part + content[offset:],
        content[:offset] + rng.randbytes(rng.choice((1, 4, 100))) + content[offset:],
    ))  # fmt: skip


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    return rng.choice((flip, flip, cut))(content, rng)


def mutate_zip_member(inside: Mutate) -> Mutate:
    """Mutate a member, its name or its compression; the checksums of the archive are correct."""

    def mutate(content: bytes, rng: random.Random) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(member.filename, archive.read(member)) for member in archive.infolist()]
        i = rng.randrange(len(members))
        name, data = members[i]
        compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        kind = rng.randrange(8)
        if kind == 0:
            members.append(members[i])
        elif kind == 1:
            members[i] = (name + rng.choice(("x", "\n", "/../a", "_test", "é")), data)
        elif kind == 2:
            members[i] = (
                name,
                bytes(rng.choice((0, 10**6, 10**6 if compression == zipfile.ZIP_STORED else 3 * 10**8))),
            )
        else:
            members[i] = (name, inside(data, rng))
        out = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(out, "w", compression, compresslevel=1) as archive:
            warnings.simplefilter("ignore")
            for name, data in members:
                archive.writestr(name, data)
        return out.getvalue()

    return mutate


def mutate_npy_header(content: bytes, rng: random.Random) -> bytes:
    """Replace the header of an array: shape, dtype, order."""
    end = content.find(b"\n") + 1
    shape = rng.choice(("(100000000000,)", "(4, 9223372036854775807)", "()", "(-1, 3)", "(0, 99999999999)", "(" * 90))
    kind = rng.choice(("'O'", "'|S0'", "'<U1000000'", "'|V8'", "'<M8[s]'", "'<c16'", "[('a', '<f4')]", "'i1'", "5"))
    header = rng.choice((
        f"{{'descr': {kind}, 'fortran_order': False, 'shape': (6, 4), }}",
        f"{{'descr': '<f4', 'fortran_order': True, 'shape': {shape}, }}",
        f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}",
    ))  # fmt: skip
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + content[end:]


def make_nested_lists(depth: int) -> object:
    """Make nested lists that each hold the previous one twice."""
    nested: object = 1
    for _ in range(depth):
        nested = [nested, nested]
    return nested


def mutate_opcodes(content: bytes, rng: random.Random) -> bytes:
    """Change opcodes of a pickle, or return one with huge memo indices, nested lists or tuples as keys."""
    bombs = (
        b"\x80\x04]r\xff\xff\xff\xff.",
        b"]p99999999999999\n.",
        b"(" * 10_000 + b"t" * 10_000 + b".",
        b"]" + b"]a" * 10 + b"." * rng.randrange(3),
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**45) + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 2**50) + b"N.",
        b"\x80\x04\x8b" + struct.pack("<I", 2**31 - 1) + b"\1.",
        pickle.dumps({"train": {"text": make_nested_lists(rng.randrange(5, 60)), "audio": 1}}),
        pickle.dumps({"train": {"text": ["a"] * 40_000 + ["b" * 40_000]}}),
        b"}" + b"(K\x01K\x01t" + b"2\x86" * rng.randrange(5, 60) + b"K\x01s.",
        b"(" + b"}" * 50_000 + b"l.",
        b"K\x01" + b"\x85" * 100_000 + b".",
    )
    if rng.random() < 0.3:
        return rng.choice(bombs)
    out = bytearray(content)
    for _ in range(rng.choice((1, 2, 5))):
        offset = rng.randrange(len(out))
        code = rng.choice(
            b"(.0122FIJKLMNPQRSTUVXabcdeghijlopqrstu]})\x80\x81\x82\x85\x86\x87\x88\x8c\x8f\x90\x91\x92\x93\x94\x95"
        )
        if rng.random() < 0.5:
            out[offset] = code
        else:
            out.insert(offset, code)
    return bytes(out)


ODD_VALUES: tuple[object, ...] = (
    None, True, -1, 0, 1e308, -0.0, 10**30, 10**4000, float("nan"), float("inf"), "", "x" * 1000, "\ud800", "1e5", [],
    {}, [1, [2]], {"a": {"b": None}}, [[[[[[[[[[]]]]]]]]]], {"": 0}, "2001-99-99", "/dev/zero",
)  # fmt: skip


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    """Replace values, or nest deeply."""
    if rng.random() < 0.1:
        depth = rng.choice((100, 1000, 200_000))
        return rng.choice((b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth, b"1" * depth))
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 3))):
        _replace_value(tree, rng)
    return json.dumps(tree).encode(errors="surrogatepass")


def _replace_value(tree: object, rng: random.Random) -> None:
    while isinstance(tree, (dict, list)) and tree:
        key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        child = tree[key]
        if not isinstance(child, (dict, list)) or not child or rng.random() < 0.3:
            if isinstance(tree, dict) and rng.random() < 0.2:
                del tree[key]
            else:
                tree[key] = copy.deepcopy(rng.choice(ODD_VALUES))
            return
        tree = child


def mutate_yaml(content: bytes, rng: random.Random) -> bytes:
    """Replace a value, add an alias, a merge key or a tag, or nest deeply."""
    lines = content.decode().splitlines()
    offset = rng.randrange(len(lines))
    name = lines[offset].partition(":")[0]
    value = yaml.safe_dump(rng.choice(ODD_VALUES), default_flow_style=True, allow_unicode=True).splitlines()[0]
    laughs = ["a0: &a0 [1, 1]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    lines[offset : offset + 1] = rng.choice((
        [f"{name}: {value}"],
        [f"{name}: {value}"],
        [f"{name}: &x {value}", "other: *x"],
        [f"{name}: {'[' * (depth := rng.choice((10, 100, 10_000)))}{']' * depth}"],
        [f"<<: {{<<: {{{name}: 3}}}}"],
        [f"{name}: !!python/name:os.system"],
        [f"{name}: !!binary {value}", f"? [{name}]", ": 3"],
        [f"{name}: {'1:' * 1000}1", f"{name}: 0x{'f' * 5000}"],
        laughs,
    ))  # fmt: skip
    return "\n".join(lines).encode(errors="surrogatepass")


def mutate_csv(content: bytes, rng: random.Random) -> bytes:
    """Replace a cell by a large, quoted, invalid or additional one."""
    lines = content.split(b"\n")
    offset = rng.randrange(len(lines))
    cells = lines[offset].split(b",")
    odd = (b"9" * 200_000, b'"', b'"a\n', b"\0", b"x", b"1e999", b"-1", "²".encode(), b"9" * 5000, b"1,2", b"nan", b"")
    cells[rng.randrange(len(cells))] = rng.choice(odd)
    lines[offset] = b",".join(cells)
    return b"\n".join(lines)


def mutate_safetensors_header(content: bytes, rng: random.Random) -> bytes:
    """Replace values of the header; its length is correct."""
    (length,) = struct.unpack("<Q", content[:8])
    tree = json.loads(content[8 : 8 + length])
    if rng.random() < 0.6 and "__metadata__" in tree:
        metadata = json.loads(tree["__metadata__"]["manyviews"])
        for _ in range(rng.choice((1, 1, 3))):
            _replace_value(metadata, rng)
        if rng.random() < 0.3 and isinstance(metadata, dict):
            large = {
                "width": 100.0,
                "stem": "small",
                "features": 10_000,
                "dim": 10_000,
                "layers": 10_000,
                "heads": 10_000,
            }
            encoders = metadata.get("encoders")
            for spec in encoders.values() if isinstance(encoders, dict) else ():
                if isinstance(spec, dict) and rng.random() < 0.5:
                    key = rng.choice(list(large))
                    name = rng.choice(("resnet50", "transformer", "mlp"))
                    size = rng.choice((4096, 4097, 10**9))
                    spec.update(rng.choice(({"size": size}, {"options": {key: large[key]}}, {"name": name})))
            metadata |= rng.choice(({}, {"dim": 10_000}))
        tree["__metadata__"]["manyviews"] = json.dumps(metadata)
    else:
        _replace_value(tree, rng)
    header = json.dumps(tree).encode(errors="replace")
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def mutate_mat(content: bytes, rng: random.Random) -> bytes:
    """Mutate the compressed elements of a .mat file, or their lengths."""
    offset, out = 128, content[:128]
    while offset + 8 <= len(content):
        kind, length = struct.unpack_from("<II", content, offset)
        body = content[offset + 8 : offset + 8 + length]
        if kind == 15:
            inside = zlib.decompress(body)
            inside = bytes(rng.choice((10**6, 3 * 10**8))) if rng.random() < 0.05 else mutate_bytes(inside, rng)
            body = zlib.compress(inside, 1)
        else:
            body = mutate_bytes(body, rng)
        length = rng.choice(ODD_NUMBERS) % 2**32 if rng.random() < 0.1 else len(body)
        out += struct.pack("<II", kind, length) + body
        offset += 8 + len(content[offset + 8 : offset + 8 + struct.unpack_from("<I", content, offset + 4)[0]])
    return out


def mutate_gzip(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return gzip.compress(bytes(3 * 10**8), 1)
    return gzip.compress(rng.choice((mutate_bytes, mutate_opcodes))(gzip.decompress(content), rng), 1)


def mutate_tar_header(content: bytes, rng: random.Random) -> bytes:
    """Replace a field of a member's header, with a correct checksum."""
    headers = [i for i in range(0, len(content), 512) if content[i + 257 : i + 262] == b"ustar"]
    if not headers:  # the index
        return mutate_bytes(content, rng)
    start = rng.choice(headers)
    header = bytearray(content[start : start + 512])
    name, size, kind = (0, 100), (124, 12), (156, 1)
    values = (
        (name, rng.choice((b"../a.png", b"/a.png", b"a\\..\\b.png", b"\xff.txt", b"0.png", b".", b"", b"a.txt/"))),
        (size, rng.choice((b"77777777777", b"0", b"-1", b"\x80" + rng.randbytes(11), b"\xff" * 12, b"99999"))),
        (kind, bytes([rng.choice(b"\x000123456789xgLKSVDX")])),
        ((345, 155), b"../" * 20),
    )
    (offset, length), value = rng.choice(values)
    header[offset : offset + length] = value.ljust(length, b"\0")
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    return content[:start] + bytes(header) + content[start + 512 :]


# Formats: valid files, their mutations, and their readers.


@dataclass(frozen=True)
class Format:
    """Files to mutate, by their paths in a folder, and the function that reads the folder."""

    seeds: dict[str, bytes]
    read: Callable[[Path, str], object]
    mutations: tuple[Mutate, ...] = (mutate_bytes,)
    max_bytes: int = 4 * MIN_BUDGET_BYTES
    """Maximum growth of the process over all files, because little memory is returned."""


def make_features(count: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "text": rng.normal(size=(count, 5, 3)).astype(np.float32),
        "audio": rng.normal(size=(count, 4)).astype(np.float32),
        "label": np.arange(count) % 2,
        "id": np.array([f"name{i}" for i in range(count)]),
    }


def write_bytes(write: Callable[[io.BytesIO], object]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def make_npz_format() -> Format:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    seeds = {
        "a.npz": write_bytes(lambda out: np.savez(out, **make_features())),
        "b.npz": write_bytes(lambda out: np.savez_compressed(out, images=images, labels=np.arange(6) % 3)),
    }
    return Format(
        seeds,
        lambda folder, name: load_dataset(folder / name),
        (mutate_bytes, mutate_zip_member(mutate_bytes), mutate_zip_member(mutate_npy_header)),
    )


def make_npy_format() -> Format:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    seeds = {"a.npy": write_bytes(lambda out: np.save(out, images))}
    return Format(seeds, lambda folder, name: load_dataset(folder / name), (mutate_bytes, mutate_npy_header))


def make_pickle_format() -> Format:
    features = make_features()
    part = {
        "text": features["text"],
        "audio": features["text"],
        "vision": features["text"].tolist(),
        "id": [f"video${i}" for i in range(6)],
        "text_bert": np.ones((6, 3, 5), np.float32),
        "regression_labels": np.linspace(-1, 1, 6),
        "audio_lengths": [5, 2, 1, 4, 3, 5],
    }
    seeds = {f"{n}.pkl": pickle.dumps({"train": part, "valid": part, "test": part}, n) for n in (0, 2, 4, 5)}
    return Format(
        seeds, lambda folder, name: load_dataset(folder / name), (mutate_bytes, mutate_opcodes, mutate_opcodes)
    )


def make_mat_format() -> Format:
    cell = np.empty((1, 2), object)
    cell[0, 0], cell[0, 1] = np.random.default_rng(0).normal(size=(20, 3)), np.ones((20, 2), np.int8)
    variables = {"X": cell, "Y": np.arange(20)[:, None] % 4 + 1.0}
    seeds = {
        "a.mat": write_bytes(lambda out: scipy.io.savemat(out, variables)),
        "b.mat": write_bytes(lambda out: scipy.io.savemat(out, variables, do_compression=True)),
    }
    return Format(seeds, lambda folder, name: load_dataset(folder / name), (mutate_bytes, mutate_mat))


def make_merbench_format() -> Format:
    features = make_features()
    corpora = {
        f"{split}_corpus": np.array({f"{split}{n}": {"emo": "happy", "val": float(n)} for n in range(3)}, object)
        for split in ("train", "val", "test")
    }
    seeds = {"label.npz": write_bytes(lambda out: np.savez(out, **corpora))}
    for split in ("train", "val", "test"):
        for n in range(3):
            seeds[f"features/a-FRA/{split}{n}.npy"] = write_bytes(lambda out, n=n: np.save(out, features["text"][n]))
            seeds[f"features/b-UTT/{split}{n}.npy"] = write_bytes(lambda out, n=n: np.save(out, features["audio"][n]))

    def mutate(content: bytes, rng: random.Random) -> bytes:
        return (
            mutate_zip_member(rng.choice((mutate_bytes, mutate_npy_header, mutate_opcodes)))(content, rng)
            if content[:2] == b"PK"
            else mutate_npy_header(content, rng)
        )

    return Format(seeds, lambda folder, _: load_dataset(folder), (mutate_bytes, mutate))


def make_cifar_files() -> dict[str, bytes]:
    spec, rng = CIFAR_SPECS["cifar10"], np.random.default_rng(0)
    data = {b"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), b"labels": [0, 1, 2, 3]}
    files = {name: pickle.dumps(data, 2) for name in (*spec.train, spec.test)}
    return files | {spec.meta: pickle.dumps({b"label_names": [b"%d" % n for n in range(10)]}, 2)}


def make_cifar_folder_format() -> Format:
    return Format(make_cifar_files(), lambda folder, _: load_dataset(folder), (mutate_bytes, mutate_opcodes))


def make_cifar_archive_format() -> Format:
    spec = CIFAR_SPECS["cifar10"]

    def write(out: io.BytesIO) -> None:
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, content in make_cifar_files().items():
                member = tarfile.TarInfo(f"{spec.folder}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

    def read(folder: Path, name: str) -> object:
        md5 = hashlib.md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest()
        CIFAR_SPECS["cifar10"] = dataclasses.replace(spec, md5=md5)  # a correct checksum
        return load_dataset(folder / name)

    return Format({spec.archive: write_bytes(write)}, read, (mutate_bytes, mutate_gzip))


def make_image_format() -> Format:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8))
    kinds = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "bmp": "BMP", "ppm": "PPM", "tif": "TIFF", "gif": "GIF"}
    seeds = {f"a.{suffix}": write_bytes(lambda out, kind=kind: image.save(out, kind)) for suffix, kind in kinds.items()}
    seeds["b.jpg"] = write_bytes(
        lambda out: image.save(out, "JPEG", progressive=True, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0")
    )
    seeds["b.tif"] = write_bytes(lambda out: image.save(out, "TIFF", compression="tiff_lzw"))
    seeds["b.png"] = write_bytes(lambda out: image.convert("P").save(out, "PNG", transparency=3))
    return Format(seeds, lambda folder, name: read_image(folder / name), max_bytes=2 * 2**30)


def make_media_format() -> Format:
    sound, frames, seeds = make_tone(0.4, 300), make_frames(6, size=(16, 16)), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.wav", "a.flac", "a.mp3", "a.m4a"):
            seeds[name] = write_audio(Path(folder) / name, sound).read_bytes()
        for name, codec in (("a.mp4", "mpeg4"), ("b.mp4", "libx264"), ("a.webm", "libvpx"), ("a.avi", "mpeg4")):
            seeds[name] = write_video(Path(folder) / name, frames, codec, g="3").read_bytes()

    def read(folder: Path, name: str) -> object:
        blobs = FileBlobs((folder / name,))
        if name.endswith((".mp4", ".webm", ".avi")):
            return list(Video(blobs).iterate_frames(0, [0.1, 0.8]))
        return Audio(blobs, max_seconds=0.1).read_clips(0, [0.0, 0.9])

    return Format(seeds, read)


def make_class_list_format() -> Format:
    png = write_bytes(lambda out: Image.new("RGB", (4, 4)).save(out, "PNG"))
    seeds = {"list.txt": b"cat\ndog\n", "images/cat/a.png": png, "images/dog/a.png": png}
    return Format(seeds, lambda folder, _: load_dataset(folder / "images", class_list=folder / "list.txt"))


def make_recipe_format() -> Format:
    seeds = {"a.yaml": tiny_config().to_yaml().encode()}
    return Format(
        seeds, lambda folder, name: get_recipe(folder / name).check(), (mutate_bytes, mutate_yaml, mutate_yaml)
    )


def make_finished_run() -> dict[str, bytes]:
    """Train and evaluate a small run, and return its files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        train(tiny_config(epochs=1, evaluate_at_end=True), output=path, quiet=True)
        return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def make_encoder_format() -> Format:
    image = EncoderSpec("image", "resnet-small", {"width": 0.125}, 16)
    transformer = {"dim": 8, "layers": 2, "heads": 2, "dropout": 0.1}
    others = {
        "pixels": EncoderSpec("vector", "mlp", {"features": 64, "dim": 8}),
        "speech": EncoderSpec("sequence", "transformer", {"features": 5, **transformer}),
        "caption": EncoderSpec("text", "transformer", transformer),
        "image": image,
    }
    configs = {
        "a.safetensors": EncoderConfig({"image": image}, {"image": "image"}),
        "b.safetensors": EncoderConfig(others, {**{name: name for name in others}, "side": "image"}, 8),
    }
    seeds = {name: serialize_module(MultiViewEncoder.from_config(config), config) for name, config in configs.items()}
    return Format(seeds, lambda folder, name: load_encoder(folder / name), (mutate_bytes, mutate_safetensors_header))


def make_folder_format() -> Format:
    """Folders of `save_pretrained`; a text is encoded, so that the tokenizer is used."""
    text = {"tokenizer": make_tokenizer().backend_tokenizer.to_str(), "max_tokens": 8, "pad_id": 0}
    specs = {
        "caption": EncoderSpec("text", "transformer", {"dim": 8, "layers": 1, "heads": 2}, preprocessing=text),
        "image": EncoderSpec("image", "resnet-small", {"width": 0.125}, 16),
    }
    config = EncoderConfig(specs, {name: name for name in specs}, 8)
    with tempfile.TemporaryDirectory() as folder:
        Encoder(MultiViewEncoder.from_config(config)).save_pretrained(folder)
        seeds = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != "README.md"}

    def read(folder: Path, _: str) -> object:
        return load_encoder(folder)({"caption": ["the red cat", "unknown words"]})

    return Format(seeds, read, (mutate_bytes, mutate_json_file, mutate_json_file))


def mutate_json_file(content: bytes, rng: random.Random) -> bytes:
    return (mutate_json if content[:1] == b"{" else mutate_bytes)(content, rng)


def make_run_format(kind: str, read: Callable[[Path, str], object], *mutations: Mutate) -> Format:
    files = {name: content for name, content in FINISHED.items() if "/" not in name or kind == "checkpoint"}
    seeds = {name: files.pop(name) for name in list(files) if kind in name}
    if kind == "checkpoint":
        for name in ("encoder.safetensors", "head.safetensors", "evaluation.json"):  # so that training resumes
            del files[name]

    def read_with_other_files(folder: Path, name: str) -> object:
        for other, content in files.items():
            (folder / other).parent.mkdir(exist_ok=True)
            (folder / other).write_bytes(content)
        return read(folder, name)

    return Format(seeds, read_with_other_files, (mutate_bytes, *mutations))


def resume_finished(folder: Path, _: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            show_run(train(resume=folder, quiet=True))
        except ValueError as error:
            raise ConfigError(str(error)) from error


def resume_checkpoint(folder: Path, name: str) -> None:
    """Resume from a mutated checkpoint with a correct digest; some reach the training loop."""
    content = (folder / name).read_bytes()
    path = folder / "checkpoints" / f"step-00000004-{hashlib.sha256(content).hexdigest()[:8]}.pt"
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").mkdir()
    path.write_bytes(content)
    load_checkpoint(folder / "checkpoints")
    train(resume=folder, quiet=True)


def make_report(folder: Path, _: str) -> None:
    (summary,) = load_summaries([folder])
    make_evaluation_tables(summary.evaluation)
    make_comparison_table([summary])


def read_run_metrics(folder: Path, name: str) -> None:
    make_report(folder, name)
    assert isinstance(Run.open(folder).read_metrics(), list)


def mutate_tensors(content: bytes, rng: random.Random) -> bytes:
    return mutate_zip_member(rng.choice((mutate_bytes, mutate_opcodes)))(content, rng)


FINISHED: dict[str, bytes] = {}


def make_tar_format() -> Format:
    """Tar files with every group of members, long names and extended headers, and their index."""
    contents = {"txt": b"a cat", "cls": b"1", "json": b'{"caption": "a", "box": [1, 2]}', "wav": b"RIFF" * 300}
    contents["png"] = write_bytes(lambda out: Image.new("RGB", (4, 4)).save(out, "PNG"))
    contents["npy"] = write_bytes(lambda out: np.save(out, np.arange(3.0)))
    seeds: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for tar_format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
            path = Path(folder) / f"train-{tar_format}.tar"
            with tarfile.open(path, "w", format=tar_format) as tar:
                for i in range(3):
                    for extension, content in contents.items():
                        member = tarfile.TarInfo(f"a{'x' * 60 * i}/{i}.{extension}")
                        member.size, member.mtime = len(content), 1.5
                        tar.addfile(member, io.BytesIO(content))
            seeds[path.name] = path.read_bytes()
            load_index(path)
            index = path.with_name(f"{path.name}.index.npz")
            seeds[index.name] = index.read_bytes()
    return Format(seeds, read_shards, (mutate_bytes, mutate_tar_header, mutate_tar_header))


def read_shards(folder: Path, _: str) -> None:
    """Read all members of tar files; corrupt images are skipped."""
    for split in load_dataset(f"{folder}/*.tar").splits.values():
        for column in split.modalities.values():
            for i in column.get_mask().nonzero().squeeze(1).tolist():
                with contextlib.suppress(CorruptImageError):
                    column.show(i)


FORMATS: dict[str, Callable[[], Format]] = {
    "npy": make_npy_format,
    "npz": make_npz_format,
    "pickle": make_pickle_format,
    "mat": make_mat_format,
    "merbench": make_merbench_format,
    "cifar folder": make_cifar_folder_format,
    "cifar archive": make_cifar_archive_format,
    "images": make_image_format,
    "media": make_media_format,
    "class list": make_class_list_format,
    "tar shards": make_tar_format,
    "recipe": make_recipe_format,
    "safetensors": make_encoder_format,
    "encoder folder": make_folder_format,
    "run config": lambda: make_run_format("config.yaml", lambda folder, _: Run.open(folder), mutate_yaml),
    "run metrics": lambda: make_run_format("metrics.csv", read_run_metrics, mutate_csv),
    "run evaluation": lambda: make_run_format("evaluation.json", resume_finished, mutate_json, mutate_json),
    "run log": lambda: make_run_format("log.txt", make_report),
    "report": lambda: make_run_format("evaluation.json", make_report, mutate_json, mutate_json),
    "trial": lambda: make_run_format("evaluation.json", read_finished_run, mutate_json, mutate_json),
    "checkpoint": lambda: make_run_format("checkpoint", resume_checkpoint, mutate_tensors, mutate_tensors),
}


class HangError(BaseException):
    """A file took more than `SECONDS` of CPU time."""


def _raise_hang(*_: object) -> None:
    raise HangError(f"more than {SECONDS} s of CPU time")


@dataclass
class Outcome:
    """The results of one format."""

    read: int = 0
    refused: int = 0
    bad: list[str] = dataclasses.field(default_factory=list)


def fuzz(kind: str, count: int, seed: int, write_line: Callable[[str], None]) -> None:
    """Read mutated files and write a line for each; it limits the memory of its process."""
    file_format = FORMATS[kind]()
    with Path("/proc/self/statm").open() as file:
        pages = int(file.read().split()[0])
    get_machine_memory.cache_clear()
    limit = pages * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, _raise_hang)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            rng = random.Random(f"{kind} {seed} {i}")
            name = rng.choice(list(file_format.seeds))
            mutated = rng.choice(file_format.mutations)(file_format.seeds[name], rng)
            root = Path(folder) / str(i)
            for other, content in file_format.seeds.items():
                (root / other).parent.mkdir(parents=True, exist_ok=True)
                (root / other).write_bytes(mutated if other == name else content)
            write_line(_read_mutated(file_format, root, name))
            shutil.rmtree(root)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    write_line(
        f"grown {grown}"
        if grown <= file_format.max_bytes
        else f"bad: it took {grown:,} bytes, more than {file_format.max_bytes:,}"
    )


def _read_mutated(file_format: Format, root: Path, name: str) -> str:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file_format.read(root, name)
    except EXPECTED_ERRORS:
        return "refused"
    except BaseException as error:  # noqa: BLE001 (any other exception is a failure)
        kept = Path(tempfile.gettempdir()) / f"manyviews-fuzz-{os.getpid()}-{root.name}"
        shutil.copytree(root, kept)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"bad: {type(error).__name__}: {str(error)[:200]!r} at {frame.filename}:{frame.lineno}; {kept}/{name}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "read"


def run_in_process(kind: str, count: int, seed: int) -> Iterator[str]:
    """Run `fuzz` in a child process and yield its lines; the child is killed if it hangs."""
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
            chunk = os.read(reader, 2**16)
            if not chunk:
                break
            text, last = text + chunk, time.monotonic()
        except BlockingIOError:
            time.sleep(0.05)
            if time.monotonic() - last > STUCK_SECONDS:
                os.kill(child, signal.SIGKILL)
                text += f"bad: a file took more than {STUCK_SECONDS} s\n".encode()
                break
        *lines, text = text.split(b"\n")
        yield from (line.decode() for line in lines)
    yield from text.decode().splitlines()
    os.close(reader)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        yield f"bad: the process ended with {status}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="number of mutations of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--format", action="append", choices=list(FORMATS), help="format to test; repeatable (default: all)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    FINISHED.update(make_finished_run())
    failed = False
    for kind in args.format or FORMATS:
        outcome = Outcome()
        for line in run_in_process(kind, args.count, args.seed):
            outcome.read += line == "read"
            outcome.refused += line == "refused"
            if line.startswith("bad: "):
                outcome.bad.append(line)
        print(f"{kind:15} {args.count:6,} mutations {outcome.read:6,} read {outcome.refused:6,} refused", flush=True)
        for line in outcome.bad:
            print(f"  {line}")
        failed = failed or bool(outcome.bad) or outcome.read + outcome.refused != args.count
    sys.exit(failed)


if __name__ == "__main__":
    main()
