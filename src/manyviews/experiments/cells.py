"""A cell of a table: one training and its evaluation, in a run directory named by what it is.

A finished cell is never run again, a killed one goes on where it was, a failed one says why. Whoever runs it, in this
process, another one or on a cluster, the result is the same.
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

from manyviews.data import path_of
from manyviews.training import Config, EvaluationConfig, Run, evaluate, train
from manyviews.training.files import claimed
from manyviews.training.setup import located
from manyviews.utils.processes import exit_with_parent
from manyviews.utils.text import escape_control_characters
from manyviews.utils.untrusted import MALFORMED, parse_json, read_text

Place = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Cell:
    """What to train and how to evaluate it, and where it stands in a table.

    Examples:
        >>> Cell(Config(views=2), place={"objective": "mv-dhel", "views": 2}).name[:-8]
        'photos-mv-dhel-2-'
    """

    config: Config
    how: EvaluationConfig = field(default_factory=EvaluationConfig)
    place: Place = field(default_factory=dict)
    """Which row and column: the same for all seeds."""

    @property
    def name(self) -> str:
        """Of its run directory: readable, and different for whatever gives another run."""
        # A temperature that is the objective's own is the same run, whether it is named or not.
        config, usual = located(self.config).settled(), Config().settled().result()
        # What is as usual is left out: a new field of a later version names no old run anew.
        what: dict[str, Any] = {name: value for name, value in config.result().items() if value != usual[name]}
        path = Path(config.data)
        # A file is known by what is in it; folders and named sets, which may be large, by their names.
        what["data"] = (
            _content(path, path.stat().st_mtime_ns) if path_of(config.data) and path.is_file() else config.data
        )
        kind = "supervised" if config.supervised else config.objective
        plain = re.sub(r"[^\w.-]+", "-", path.stem)
        return f"{plain}-{kind}-{config.views or 'all'}-{_digest(what)}"

    @property
    def file(self) -> str:
        """In the run's directory: what this evaluation of it found."""
        asked, usual = dataclasses.asdict(self.how), dataclasses.asdict(EvaluationConfig())
        what = {name: value for name, value in asked.items() if value != usual[name] and name != "workers"}
        return f"cell-{_digest(what)}.json"

    @property
    def told(self) -> str:
        """For people."""
        return ", ".join([*(f"{name} {value}" for name, value in self.place.items()), f"seed {self.config.seed}"])

    def found(self, folder: Path) -> dict[str, Any] | None:
        """What its evaluation found, if it is done."""
        return _found(folder / self.name / self.file)

    def state(self, folder: Path) -> str:
        if self.found(folder) is not None:
            return "done"
        return "begun" if (folder / self.name).exists() else "to do"

    def lock(self, folder: Path) -> AbstractContextManager[int | None]:
        """Held while it is computed; BlockingIOError if another process does."""
        return _lock(folder / self.name)

    def spec(self, folder: Path) -> dict[str, Any]:
        """Plain values from which `run_spec` runs it, in whatever process."""
        return {
            "config": located(self.config).to_yaml(),
            "how": dataclasses.asdict(self.how),
            "path": str((folder / self.name).resolve()),
            "file": self.file,
        }


def _found(path: Path) -> dict[str, Any] | None:
    """An evaluation, if it is there and whole; else it is made again."""
    from manyviews.experiments.results import METRICS
    from manyviews.experiments.subsets import check_subsets

    try:
        found: dict[str, Any] = parse_json(read_text(path))
        check_subsets(found)
        values = [metric.of(found) for metric in METRICS.values()]
        return found if all(type(value) in (int, float) for some in values for value in some) else None
    except (OSError, *MALFORMED):
        return None


def _digest(what: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:8]


@lru_cache
def _content(path: Path, _changed: int) -> str:
    """The digest of a file as it is now."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _lock(path: Path, wait: bool = False) -> AbstractContextManager[int | None]:
    """Held by a process while it computes the cell of this run directory; `claimed` says what it raises and gives."""
    lock = path.parent / ".locks" / path.name
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    return claimed(lock.parent, lock.name, wait)


def run_spec(spec: Mapping[str, Any]) -> None:
    """Train and evaluate a cell, from wherever it is, as soon as no other process computes it."""
    with _lock(Path(spec["path"]), wait=True):
        _run_locked(spec)


def _run_locked(spec: Mapping[str, Any]) -> None:
    config, path = Config.from_yaml(spec["config"]), Path(spec["path"])
    how = EvaluationConfig(**spec["how"])
    # A run that is there must be of this config.
    run = train(config, resume=path, quiet=True) if path.exists() else train(config, output=path, quiet=True)
    if _found(path / spec["file"]) is None:
        run.write_evaluation(evaluate(Run.open(run.path), how=how, device=config.device), spec["file"])


def main() -> None:
    """Run the cell whose spec is the argument, and whose lock is inherited; one line if it fails."""
    import sys

    from manyviews.evaluation.progress import quiet

    exit_with_parent()
    try:
        with quiet():
            _run_locked(json.loads(sys.argv[1]))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        print(f"{type(error).__name__}: {escape_control_characters(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print(str(stop) or "interrupted", file=sys.stderr)
        sys.exit(getattr(stop, "exit_code", 130))


if __name__ == "__main__":
    main()
