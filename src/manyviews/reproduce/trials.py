"""A trial: one training of a table and its evaluation, in a run directory whose name identifies its config.

A finished trial is in the store and never run again, also without its run directory; a killed one is resumed. Results
do not depend on where a trial runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from manyviews.api import train
from manyviews.data import as_path
from manyviews.evaluation import EvaluationConfig, EvaluationResult, evaluate
from manyviews.reproduce.store import FinishedTrial, TrialStore
from manyviews.runs import Run
from manyviews.training import Config, resolve_precision, with_absolute_paths
from manyviews.utils import escape_control_characters, exclusive_lock, exit_with_parent, resolve_device

Level = str | int | float


class Coordinates(dict[str, Level]):
    """Row and column of a table, such as loss and number of views; hashable, so do not change them.

    Examples:
        >>> {Coordinates(loss="mv-dhel", views=2): 0.5}[Coordinates(loss="mv-dhel", views=2)]
        0.5
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __str__(self) -> str:
        return ", ".join(f"{name} {level}" for name, level in self.items())


@dataclass(frozen=True)
class Candidate:
    """Changes of a config that a search tries.

    Examples:
        >>> str(Candidate.make(temperature=0.2, learning_rate=1e-3)), str(Candidate.make(learning_rate=1e-5))
        ('temperature 0.2, learning rate 0.001', '1e-05')
    """

    changes: tuple[tuple[str, Any], ...]
    """Pairs of a field and its value."""

    @classmethod
    def make(cls, **changes: Any) -> Candidate:
        return cls(tuple(changes.items()))

    def apply(self, config: Config) -> Config:
        return dataclasses.replace(config, **dict(self.changes))

    def __str__(self) -> str:
        if len(self.changes) == 1:
            return f"{self.changes[0][1]:g}"
        return ", ".join(
            " ".join(value).replace("=", " ") if name == "loss_options" else f"{name.replace('_', ' ')} {value:g}"
            for name, value in self.changes
        )


@dataclass(frozen=True)
class Trial:
    """A training config, an evaluation config, and their coordinates in a table.

    Examples:
        >>> Trial(Config(views=2), coordinates=Coordinates(loss="mv-dhel", views=2)).name[:-8]
        'photos-mv-dhel-2-'
    """

    config: Config
    eval_config: EvaluationConfig = field(default_factory=EvaluationConfig)
    coordinates: Coordinates = field(default_factory=Coordinates)
    """The same for all seeds."""
    candidates: tuple[Candidate, ...] = ()
    """Changes of the config, one of which is chosen on the validation split. Default: no search."""
    eval_data: str = ""
    """Name of other data that the run is evaluated on. Default: its own."""

    @property
    def resolved_config(self) -> Config:
        """The config with absolute paths, and the precision of this machine if that is auto."""
        config = with_absolute_paths(self.config)
        return resolve_precision(config, resolve_device(config.device)) if config.precision == "auto" else config

    @property
    def name(self) -> str:
        """The name of the run directory: readable, with a hash of every field that affects the result."""
        path = Path(self.resolved_config.data)
        is_file = as_path(self.resolved_config.data) is not None and path.is_file()
        config, defaults = self.resolved_config.with_loss_defaults(), Config(precision="32").with_loss_defaults()
        # A temperature equal to the loss's default gives the same name as no temperature, except for files, whose
        # default may be another one: that of small sets of sequences.
        if is_file:
            config = dataclasses.replace(config, temperature=self.config.temperature)
            defaults = dataclasses.replace(defaults, temperature=None)
        # Fields with default values are left out, so that a new field does not rename old runs.
        default_fields = defaults.get_result_fields()
        fields = {name: value for name, value in config.get_result_fields().items() if value != default_fields[name]}
        # A file is identified by its content; folders and named datasets, which may be large, by their names.
        fields["data"] = _hash_file(path, path.stat().st_mtime_ns) if is_file else config.data
        kind = "supervised" if config.supervised else config.loss
        stem = re.sub(r"[^\w.-]+", "-", path.stem)
        return f"{stem}-{kind}-{'-'.join(config.views) or 'all'}-{_compute_digest(fields)}"

    @property
    def result_filename(self) -> str:
        """The file of this evaluation's result in the run directory."""
        fields, defaults = dataclasses.asdict(self.eval_config), dataclasses.asdict(EvaluationConfig())
        changed = {name: value for name, value in fields.items() if value != defaults[name] and name != "num_workers"}
        changed |= {"data": self.eval_data} if self.eval_data else {}
        return f"trial-{_compute_digest(changed)}.json"

    @property
    def label(self) -> str:
        """A readable description: coordinates and seed."""
        return str(Coordinates(**self.coordinates, seed=self.config.seed))

    def load(self, store: TrialStore) -> FinishedTrial | None:
        """Load the finished trial, or None if it is not finished."""
        return store.load(self.name, self.result_filename)

    def load_result(self, store: TrialStore) -> EvaluationResult | None:
        """Load the result of the evaluation, or None if it is not finished."""
        finished = self.load(store)
        return None if finished is None else finished.result

    def get_state(self, store: TrialStore) -> str:
        if self.load(store) is not None:
            return "done"
        return "started" if (store.runs / self.name).exists() else "to do"

    def lock(self, store: TrialStore) -> AbstractContextManager[int | None]:
        """Lock the trial while it runs; raises BlockingIOError if another process runs it."""
        return _lock(store.runs / self.name)

    def to_spec(self, store: TrialStore, keep_run: bool = True) -> dict[str, Any]:
        """Return JSON-serializable arguments of `run_trial`."""
        return {
            "config": self.resolved_config.to_yaml(),
            "eval_config": dataclasses.asdict(self.eval_config),
            "eval_data": self.eval_data,
            "runs": str(store.runs.resolve()),
            "store": str(store.path.resolve()),
            "name": self.name,
            "file": self.result_filename,
            "label": self.label,
            "keep_run": keep_run,
        }


def _compute_digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:8]


@lru_cache
def _hash_file(path: Path, _mtime_ns: int) -> str:
    """Hash a file; the modification time is part of the cache key."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _lock(path: Path, wait: bool = False) -> AbstractContextManager[int | None]:
    """Lock the run directory of a trial; see `exclusive_lock`."""
    lock = path.parent / ".locks" / path.name
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    return exclusive_lock(lock.parent, lock.name, wait)


def run_trial(spec: Mapping[str, Any]) -> None:
    """Train (or resume) and evaluate a trial, once no other process holds its lock."""
    with _lock(Path(spec["runs"], spec["name"]), wait=True):
        _run_locked(spec)


def _run_locked(spec: Mapping[str, Any]) -> None:
    config, eval_config = Config.from_yaml(spec["config"]), EvaluationConfig(**spec["eval_config"])
    store, name, file = TrialStore(Path(spec["runs"]), Path(spec["store"])), spec["name"], spec["file"]
    path = store.runs / name
    if store.load(name, file) is None:
        # Resuming raises if the existing run has another config.
        run = train(config, resume=path, quiet=True) if path.exists() else train(config, output=path, quiet=True)
        data = spec["eval_data"] or None
        result = evaluate(Run.open(run.path), data=data, config=eval_config, device=config.device)
        run.save_evaluation(result.to_json(), file)
    store.add(name, file, spec["label"])
    if not spec["keep_run"]:
        store.remove_run(name)


def main() -> None:
    """Run the trial given by the JSON argument, whose lock is inherited; print one line if it fails."""
    import sys

    from manyviews.utils import hide_progress

    exit_with_parent()
    try:
        with hide_progress():
            _run_locked(json.loads(sys.argv[1]))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        print(f"{type(error).__name__}: {escape_control_characters(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "interrupted", file=sys.stderr)
        sys.exit(getattr(interrupt, "exit_code", 130))


if __name__ == "__main__":
    main()
