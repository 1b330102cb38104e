"""The directory of a run.

- config.yaml: all fields, versions, git commit
- metrics.csv: one row per step
- log.txt: the console output, with timestamps
- checkpoints/: the newest checkpoints
- encoder.safetensors, head.safetensors: the trained model, once the run is finished
- evaluation.json: kNN and linear probe if there are labels; geometry
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any

import torch
import yaml

from manyviews import __version__
from manyviews.models import MultiViewModel, serialize_module
from manyviews.training.config import EXTENSIONS_KEY, PROVENANCE_KEY, Config, ConfigError, coerce_field
from manyviews.utils import (
    check_regular,
    describe_machine,
    exclusive_lock,
    fsync_directory,
    lock_directory,
    parse_yaml,
    read_text,
    write_atomic,
)

if TYPE_CHECKING:
    from typing_extensions import Self

CONFIG_FILE, EVALUATION_FILE, METRICS_FILE, LOG_FILE = "config.yaml", "evaluation.json", "metrics.csv", "log.txt"
ENCODER_FILE, HEAD_FILE = "encoder.safetensors", "head.safetensors"
RESULT_PATTERNS = (
    ENCODER_FILE, HEAD_FILE, "encoder-timm.safetensors", "encoder-torchvision.pth", "encoder.onnx", "hub",
    "evaluation*.json", "validation*.json", "trial-*.json",
)  # fmt: skip
"""Files of a finished run's encoder and its results."""
CONFIG_HEADER = "# The config of this run; `manyviews train --recipe` accepts this file.\n"


@dataclass(frozen=True)
class Extension:
    """After `step`, the schedule changes from that of `epochs_before` to that of `epochs`."""

    step: int
    epochs_before: int
    epochs: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            coerce_field(Extension, name, value)


@dataclass(frozen=True)
class RunDirectory:
    """Creates, locks, replaces and writes the files of one run."""

    path: Path
    config: Config
    provenance: dict[str, str]
    """Versions, git commit and date; `run_id` is unique, `init` describes the initial weights."""
    extensions: tuple[Extension, ...] = ()
    """Changes of the number of epochs, ordered by step."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing run.

        Raises:
            ConfigError: the path is not a run directory.
        """
        path = Path(path).expanduser()
        try:
            if not path.exists():
                remove_leftovers(path)
            text = read_text(path / CONFIG_FILE)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is not a run directory (cannot read {CONFIG_FILE}: {error})") from error
        try:
            fields = parse_yaml(text)
            provenance, extensions = fields.pop(PROVENANCE_KEY, None), fields.pop(EXTENSIONS_KEY, None) or ()
            config = Config().with_fields(fields, str(path / CONFIG_FILE))
        except ConfigError:
            raise
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"cannot parse {path / CONFIG_FILE}: {error}") from error
        try:
            # Also check files that are only written: opening a named pipe would block.
            for name in (EVALUATION_FILE, ENCODER_FILE, HEAD_FILE, METRICS_FILE, LOG_FILE):
                if (path / name).exists():
                    check_regular(path / name)
            provenance = {str(k): str(v) for k, v in provenance.items()} if isinstance(provenance, dict) else {}
            return cls(path, config, provenance, tuple(Extension(**extension) for extension in extensions))
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is not a run directory: {error}") from error

    @classmethod
    def create(cls, path: Path, config: Config, overwrite: bool, **provenance: str) -> Self:
        """Create a run; its directory appears atomically, with its config and additional `provenance`."""
        check_output(path, overwrite)
        run = cls(path, config, collect_provenance() | provenance)
        new, old = (path.with_name(f".{path.name}.manyviews-{part}-{run.run_id}") for part in ("new", "old"))
        with (
            exclusive_lock(path, CONFIG_FILE) if (path / CONFIG_FILE).exists() else nullcontext(),
            lock_directory(path.parent),
        ):
            (new / "checkpoints").mkdir(parents=True)
            run._write_config(new)
            replaces = path.exists()
            if replaces:
                path.rename(old)
            new.rename(path)
            fsync_directory(path.parent)
            if replaces:
                old.rename(new)  # a remaining "old" directory means that the run was not replaced
                shutil.rmtree(new, ignore_errors=True)
        return run

    def _write_config(self, folder: Path) -> None:
        extra: dict[str, Any] = {PROVENANCE_KEY: self.provenance}
        if self.extensions:
            extra[EXTENSIONS_KEY] = [asdict(extension) for extension in self.extensions]
        write_atomic(folder / CONFIG_FILE, CONFIG_HEADER + self.config.to_yaml() + yaml.safe_dump(extra))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run against other processes, and remove temporary files of killed processes."""
        with exclusive_lock(self.path, CONFIG_FILE):
            remove_leftovers(self.path)
            yield

    def save_extension(self) -> None:
        """Write the config and its extensions; move earlier results to `epochs-BEFORE`."""
        before = self.path / f"epochs-{self.extensions[-1].epochs_before}"
        # The encoder is moved first: without it the run counts as unfinished, so an interruption here is harmless.
        for file in [path for pattern in RESULT_PATTERNS for path in sorted(self.path.glob(pattern))]:
            before.mkdir(exist_ok=True)
            file.replace(before / file.name)
        self._write_config(self.path)

    @property
    def run_id(self) -> str:
        """Unique identifier."""
        return self.provenance.get("run_id", "")

    @property
    def checkpoint_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def is_finished(self) -> bool:
        return (self.path / ENCODER_FILE).exists()

    @property
    def encoder_path(self) -> Path:
        """File with the encoder's weights and config, for `load_encoder`."""
        if not self.is_finished:
            raise ConfigError(
                f"{self.path} has no encoder yet: finish the run with `manyviews train --resume {self.path}`"
            )
        return self.path / ENCODER_FILE

    def save_model(self, model: MultiViewModel) -> None:
        """Save the encoder and the head; the run is then finished."""
        write_atomic(self.path / HEAD_FILE, serialize_module(model.head))
        write_atomic(self.path / ENCODER_FILE, serialize_module(model.encoder, model.encoder.config))

    def save_evaluation(self, text: str, file: str = EVALUATION_FILE) -> None:
        write_atomic(self.path / file, text)


def _is_run(path: Path) -> bool:
    try:
        return bool(RunDirectory.open(path).run_id)
    except ConfigError:
        return False


def remove_leftovers(path: Path) -> None:
    """Remove temporary directories of killed processes; restore a run whose replacement was interrupted."""
    if not path.parent.is_dir():
        return
    name = re.compile(rf"\.{re.escape(path.name)}\.manyviews-(new|old)-[0-9a-f]{{8}}")
    with lock_directory(path.parent) as is_locked:
        for leftover in [entry for entry in path.parent.iterdir() if is_locked and name.fullmatch(entry.name)]:
            if "-old-" in leftover.name[len(path.name) :] and not path.exists():
                leftover.rename(path)
            else:
                shutil.rmtree(leftover, ignore_errors=True)


def check_output(path: Path, overwrite: bool) -> None:
    """Raise a ConfigError if a run cannot be created at this path."""
    if not path.name:
        raise ConfigError(f"{path} cannot be the directory of a run: choose another --output")
    remove_leftovers(path)
    if path.exists() or path.is_symlink():
        if not overwrite:
            raise ConfigError(
                f"{path} exists: use --resume {path} to continue it, --overwrite to replace it, or another --output"
            )
        if not path.is_dir() or path.is_symlink() or (any(path.iterdir()) and not _is_run(path)):
            raise ConfigError(
                f"{path} is not a run directory, so --overwrite does not replace it: choose another --output"
            )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error}") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to {path}: no permission in {path.parent}")


def collect_provenance() -> dict[str, str]:
    """Make a run id, and collect date, machine, git commit and versions, so that a run can be reproduced."""
    return {
        "run_id": secrets.token_hex(4),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": get_git_commit(Path(__file__).parents[1]),
        "manyviews": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": describe_machine(),
        **{package: version(package) for package in ("lightning-fabric", "numpy", "pillow")},
    }


def get_git_commit(package: Path) -> str:
    """Return the last git commit that changed a package's folder, or "none" if it was installed from a wheel.

    Other commits and changes of the checkout, such as results that are written into it, make no difference.
    """
    git = [shutil.which("git") or "git", "-C", str(package)]
    commands = (["log", "-1", "--format=%H", "--", "."], ["status", "--porcelain", "--untracked-files=no", "."])
    try:
        head, status = (
            subprocess.run([*git, *command], capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
            for command in commands
        )
    except (OSError, subprocess.SubprocessError):
        return "none"
    return f"{head or 'none'} with changes" if status else head or "none"
