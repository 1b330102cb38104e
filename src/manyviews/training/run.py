"""A run: a directory that explains itself.

- config.yaml: every field, versions, git commit
- metrics.csv: a row for each step
- log.txt: what was said, and when
- checkpoints/: to go on from
- encoder.safetensors, head.safetensors: what was learned, when it is finished
- evaluation.json: kNN and linear probe, where there are labels; geometry
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from manyviews import __version__
from manyviews.models import (
    Embedder,
    FusedHead,
    ImageEncoder,
    ModalityEmbedder,
    ModalityEncoder,
    ModalityHeads,
    ProjectionHead,
    representation_dim,
)
from manyviews.models.modalities import ModalityDescription
from manyviews.models.saved import (
    Description,
    file_of,
    fill,
    holds_modalities,
    read_encoder,
    read_modality_encoder,
    rows_in,
)
from manyviews.training.config import EXTENDED, MADE_WITH, Config, ConfigError, accept
from manyviews.training.files import claimed, sync_folder, take_turns, write_atomically
from manyviews.training.images import encoder_options
from manyviews.training.metrics import read_metrics
from manyviews.utils.untrusted import check_regular, parse_json, parse_yaml, read_text

CONFIG, EVALUATION = "config.yaml", "evaluation.json"
ENCODER, HEAD = "encoder.safetensors", "head.safetensors"
RESULTS = (
    ENCODER,
    HEAD,
    "encoder-torchvision.pth",
    "encoder.onnx",
    "evaluation*.json",
    "validation*.json",
    "cell-*.json",
)
"""Files about a finished run's encoder."""
HEADER = "# How this was trained; `manyviews train --recipe` takes it as it is.\n"


@dataclass(frozen=True)
class Extension:
    """From the step after `step` on, the schedule is that of `epochs`, no longer that of `epochs_before`."""

    step: int
    epochs_before: int
    epochs: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            accept(Extension, name, value)


@dataclass(frozen=True)
class Run:
    """A directory with everything about one training.

    Examples:
        >>> import manyviews as mv
        >>> mv.train(mv.Config(epochs=1), output="runs/mine").encoder(["a.jpg"]).shape  # doctest: +SKIP
        torch.Size([1, 192])
    """

    path: Path
    config: Config
    identity: str
    """A word that no other run has."""
    extended: tuple[Extension, ...] = ()
    """Changes of the number of epochs, in the order of their steps."""

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """A run that is there.

        Raises:
            ConfigError: the path is no run.
        """
        path = Path(path).expanduser()
        try:
            if not path.exists():
                remove_leftovers(path)
            text = read_text(path / CONFIG)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is no run: it has no {CONFIG} that can be read ({error})") from error
        config = Config.from_yaml(text, str(path / CONFIG))
        try:
            # Also those that are only written: a pipe waits for who reads it.
            for name in (EVALUATION, ENCODER, HEAD, "metrics.csv", "log.txt"):
                if (path / name).exists():
                    check_regular(path / name)
            extended = tuple(Extension(**one) for one in parse_yaml(text).get(EXTENDED) or ())
            return cls(path, config, made_with_in(text).get("identity", ""), extended)
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is no run: {error}") from error

    @classmethod
    def create(cls, path: Path, config: Config, overwrite: bool, **about: str) -> Run:
        """A new run; its directory appears with its config, and what else is known `about` it, or not at all."""
        check_output(path, overwrite)
        if path.exists():
            with claimed(path, CONFIG) if (path / CONFIG).exists() else nullcontext():
                return cls._create(path, config, about)
        return cls._create(path, config, about)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the run, so that no other process trains it, and remove what killed processes left of it."""
        with claimed(self.path, CONFIG):
            remove_leftovers(self.path)
            yield

    @classmethod
    def _create(cls, path: Path, config: Config, about: dict[str, str]) -> Run:
        identity = secrets.token_hex(4)
        new, old = (path.with_name(f".{path.name}.manyviews-{part}-{identity}") for part in ("new", "old"))
        text = HEADER + config.to_yaml() + yaml.safe_dump({MADE_WITH: made_with(identity) | about})
        with take_turns(path.parent):
            (new / "checkpoints").mkdir(parents=True)
            write_atomically(new / CONFIG, text)
            replaces = path.exists()
            if replaces:
                path.rename(old)
            new.rename(path)
            sync_folder(path.parent)
            if replaces:
                old.rename(new)  # whoever finds an old one knows that it was not replaced
                shutil.rmtree(new, ignore_errors=True)
        return cls(path, config, identity)

    def write_extension(self) -> None:
        """Put the config and its extensions on the disk; what the run had come to before moves to `epochs-BEFORE`."""
        fields = parse_yaml(read_text(self.path / CONFIG))
        before = self.path / f"epochs-{self.extended[-1].epochs_before}"
        # The encoder first: without it the run is not finished, and goes on wherever this is cut off.
        for file in [path for pattern in RESULTS for path in sorted(self.path.glob(pattern))]:
            before.mkdir(exist_ok=True)
            file.replace(before / file.name)
        beside = {MADE_WITH: fields.get(MADE_WITH), EXTENDED: [asdict(one) for one in self.extended]}
        write_atomically(self.path / CONFIG, HEADER + self.config.to_yaml() + yaml.safe_dump(beside))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        return (self.path / ENCODER).exists()

    @property
    def metrics(self) -> list[dict[str, float]]:
        """A dictionary for each step."""
        return read_metrics(self.path / "metrics.csv")

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """What the test set says, if it was asked."""
        path = self.path / EVALUATION
        return _read_json(path) if path.exists() else None

    @property
    def encoder(self) -> ImageEncoder | ModalityEncoder:
        """What was learned, in evaluation mode: images of any size, or modalities, -> representations."""
        return _encoder_in(self.encoder_file)

    @property
    def embedder(self) -> Embedder | ModalityEmbedder:
        """What was learned, with its head, in evaluation mode: views -> representations and embeddings."""
        if self.config.policy == "modalities":
            return self._modality_embedder()
        encoder, about = read_encoder(self.encoder_file)
        dim = representation_dim(encoder, torch.zeros(1, 3, about.size, about.size))
        with torch.device("meta"):  # no memory for what the config alone asks for
            head = ProjectionHead(dim, out=self.config.projection)
        fill(head, self.path / HEAD, f"a projection from {dim} to {self.config.projection} dimensions")
        return Embedder(encoder, head, each_view=self.config.each_view).eval().requires_grad_(False)

    def _modality_embedder(self) -> ModalityEmbedder:
        encoder, projection = read_modality_encoder(self.encoder_file), self.config.projection
        count = len(encoder.names)
        with torch.device("meta"):
            head: nn.Module = ModalityHeads(count, encoder.dim, projection)
            if self.config.supervised:
                head = FusedHead(count, encoder.dim, rows_in(self.path / HEAD, "linear.weight"))
        fill(head, self.path / HEAD, f"heads of {count} modalities")
        return ModalityEmbedder(encoder, head).eval().requires_grad_(False)

    @property
    def encoder_file(self) -> Path:
        """With the encoder's weights and description, as `load_encoder` takes it."""
        if not self.finished:
            raise ConfigError(f"{self.path} has no encoder yet: finish it with `manyviews train --resume {self.path}`")
        return self.path / ENCODER

    def write_model(self, embedder: Embedder | ModalityEmbedder) -> None:
        """The run is then finished."""
        if isinstance(embedder, ModalityEmbedder):
            about: Description | ModalityDescription | None = embedder.encoder.about
        else:
            about = Description(self.config.encoder, encoder_options(self.config), self.config.size or 0)
        write_atomically(self.path / HEAD, file_of(embedder.head))
        write_atomically(self.path / ENCODER, file_of(embedder.encoder, about))

    def write_evaluation(self, found: dict[str, Any], file: str = EVALUATION) -> None:
        write_atomically(self.path / file, json.dumps(found, indent=2, allow_nan=False) + "\n")


def load_encoder(path: str | Path) -> ImageEncoder | ModalityEncoder:
    """The encoder of a run, or of a file that `manyviews export --to safetensors` wrote.

    Args:
        path: a run's directory, or a .safetensors file.

    Returns:
        an encoder in evaluation mode: images (B, C, H, W) of any size, or a list of files -> representations (B, dim);
        or, of modalities, batches of `ModalityBatches` -> representations (B, N, dim).

    Raises:
        ValueError: there is no encoder, or the weights are of another architecture.

    Examples:
        >>> encoder = load_encoder("runs/demo")             # doctest: +SKIP
        >>> encoder(["a.jpg", "b.jpg"]).shape               # doctest: +SKIP
        torch.Size([2, 192])
    """
    path = Path(path).expanduser()
    if path.suffix == ".safetensors" and not path.is_dir():
        return _encoder_in(path)
    return Run.open(path).encoder


def load_weights(model: Embedder | ModalityEmbedder, path: Path) -> str:
    """Give a model the weights of a finished run, or of an encoder's file; returns where they are from.

    Raises:
        ConfigError: there are none, or they are of another architecture.
    """
    is_file = path.suffix == ".safetensors" and not path.is_dir()
    file, whose = path, str(path)
    if not is_file:
        run = Run.open(path)
        file, whose = run.encoder_file, f"{path}, run {run.identity}"
    try:
        if isinstance(model, ModalityEmbedder):
            names = read_modality_encoder(file).names
            if names != model.encoder.names:
                raise ConfigError(f"it is of {', '.join(names)}, and here are {', '.join(model.encoder.names)}")
        elif holds_modalities(file):
            raise ConfigError("it is of modalities, and here are images")
        fill(model.encoder, file, "this config's encoder")
        if not is_file:
            fill(model.head, path / HEAD, f"this config's head ({file} is the encoder alone)")
    except ValueError as error:
        raise ConfigError(f"cannot begin with {path}: {error}") from error
    return f"{whose}, encoder sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def _encoder_in(path: Path) -> ImageEncoder | ModalityEncoder:
    if holds_modalities(path):
        return read_modality_encoder(path)
    encoder, about = read_encoder(path)
    return ImageEncoder(encoder, about.size)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_text(path))
        if not isinstance(found, dict):
            raise ValueError("it holds no names")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    return found


def _is_run(path: Path) -> bool:
    try:
        return bool(Run.open(path).identity)
    except ConfigError:
        return False


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left beside a run's directory; a run that was only half replaced comes back."""
    if not path.parent.is_dir():
        return
    name = re.compile(rf"\.{re.escape(path.name)}\.manyviews-(new|old)-[0-9a-f]{{8}}")
    with take_turns(path.parent) as alone:
        for leftover in [one for one in path.parent.iterdir() if alone and name.fullmatch(one.name)]:
            if "-old-" in leftover.name[len(path.name) :] and not path.exists():
                leftover.rename(path)
            else:
                shutil.rmtree(leftover, ignore_errors=True)


def check_output(path: Path, overwrite: bool) -> None:
    """Raise unless a run can be written there, before any work is done for it."""
    if not path.name:
        raise ConfigError(f"a run needs a directory of its own, which {path} is not: name an --output")
    remove_leftovers(path)
    if path.exists() or path.is_symlink():
        if not overwrite:
            raise ConfigError(
                f"{path} exists: go on with --resume {path}, replace it with --overwrite, or name another --output"
            )
        if not path.is_dir() or path.is_symlink() or (any(path.iterdir()) and not _is_run(path)):
            raise ConfigError(f"{path} is no run, so --overwrite leaves it alone: name another --output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error}") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to {path}: no permission in {path.parent}")


def made_with_in(text: str) -> dict[str, str]:
    """What a run's config says of how it was made."""
    found = parse_yaml(text).get(MADE_WITH)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def made_with(identity: str) -> dict[str, str]:
    """Versions and the git commit, so that a run can be made again."""
    packages = ("lightning-fabric", "numpy", "pillow")
    versions = {"python": platform.python_version(), **{package: version(package) for package in packages}}
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {
        "identity": identity,
        "started": now,
        "commit": _commit(),
        "manyviews": __version__,
        "torch": str(torch.__version__),
        **versions,
    }


def _commit() -> str:
    """The git commit of this package's checkout, or "none" where it was installed from a wheel."""
    git = shutil.which("git")
    here = Path(__file__).parent
    if git is None:
        return "none"
    call = [git, "-C", str(here)]
    try:
        head = subprocess.run([*call, "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
        if head.returncode:
            return "none"
        status = [*call, "status", "--porcelain", "--untracked-files=no"]
        dirty = subprocess.run(status, capture_output=True, text=True, check=False, timeout=10).stdout.strip()  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return head.stdout.strip() + (" with changes" if dirty else "")
