"""The results of finished trials, which outlive their run directories: a file with one line of JSON for each.

Lines are only appended, each at once and under a lock, so several processes may write to one file, and two files can be
merged line by line. An incomplete line, which a killed process or a full disk leaves behind, is ignored.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from manyviews.evaluation import EvaluationResult, SubsetScore, get_compared_metrics
from manyviews.reproduce.origin import Origin
from manyviews.runs import Run
from manyviews.utils import append_line, escape_control_characters, open_regular, parse_json, read_text

STORE_FILE = "trials.jsonl"
"""The name of the file in a folder of runs."""
DIGITS = 8
"""Significant digits of stored scores; tables show at most 6."""

AnyClass = TypeVar("AnyClass")


@dataclass(frozen=True)
class FinishedTrial(Origin):
    """The evaluation of a trial, and how and where it was trained."""

    name: str
    """The name of its run directory."""
    file: str
    """The name of its evaluation's file, which identifies how it was evaluated."""
    label: str
    """Coordinates and seed, for readers."""
    result: EvaluationResult
    """Without what no table shows; see `compact_result`."""
    seconds: float | None = None
    """Time of training: from the first to the last line of its log, without interruptions. None: unknown."""
    precision: str = ""

    def to_json(self) -> str:
        """Return one line of JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["result"] = _encode(self.result)
        return json.dumps(fields, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> FinishedTrial:
        """Raise a KeyError, TypeError or ValueError for a line that is not a finished trial."""
        trial = make_checked(cls, fields, result=EvaluationResult.from_json(json.dumps(fields["result"])))
        if trial.seconds is not None and trial.seconds < 0:
            raise ValueError(f"seconds must be >= 0, got {trial.seconds}")
        return trial


def make_checked(cls: type[AnyClass], fields: Mapping[str, Any], **values: Any) -> AnyClass:
    """Make a dataclass from a line of a file, which may come from anywhere, and from values that are checked already.

    Texts are escaped and unknown fields ignored. Raises a TypeError for missing fields and wrong types.
    """
    hints = get_type_hints(cls)
    for name in hints.keys() & fields.keys() - values.keys():
        value = fields[name]
        if isinstance(value, int) and not isinstance(value, bool) and isinstance(0.0, hints[name]):
            value = float(value)
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, hints[name]) or isinstance(value, bool) or not is_finite:
            raise TypeError(f"{name} must be {hints[name]}, got {value!r}")
        values[name] = escape_control_characters(value) if isinstance(value, str) else value
    return cls(**values)


class TrialStore:
    """Where the results of trials are: a file with one line for each, and the directories of their runs.

    Examples:
        >>> TrialStore(Path("results/runs")).path.as_posix()
        'results/runs/trials.jsonl'
    """

    def __init__(self, runs: Path, path: Path | None = None) -> None:
        self.runs = runs
        self.path = path or runs / STORE_FILE
        self._lines = JsonLines(self.path)
        self._fields: dict[tuple[str, str], dict[str, Any]] = {}

    def load(self, name: str, file: str) -> FinishedTrial | None:
        """Load a finished trial from the file, or else from its run directory; None if it is in neither."""
        return self._load_stored(name, file) or read_finished_run(self.runs / name, file)

    def _load_stored(self, name: str, file: str) -> FinishedTrial | None:
        new, is_reset = self._lines.read_new()
        if is_reset:
            self._fields.clear()
        self._fields |= {(str(fields.get("name")), str(fields.get("file"))): fields for fields in new}
        with suppress(KeyError, ValueError, TypeError):
            return FinishedTrial.from_fields(self._fields[name, file])
        return None

    def add(self, name: str, file: str, label: str) -> None:
        """Append a trial that has finished in its run directory, unless the file has it already."""
        if self._load_stored(name, file) is None and (trial := read_finished_run(self.runs / name, file, label)):
            append_line(self.path, trial.to_json())

    def remove_run(self, name: str) -> None:
        """Remove a run directory. It is renamed first, so that a killed removal leaves no damaged run."""
        removed = self.runs / ".removed" / name
        removed.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(removed, ignore_errors=True)
        with suppress(FileNotFoundError):
            (self.runs / name).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


class JsonLines:
    """Reads the JSON objects that were appended to a file since the last time; other lines are ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = self._offset = 0

    def read_new(self) -> tuple[list[dict[str, Any]], bool]:
        """Read the new objects; also return whether the file is another one, so that earlier objects are void."""
        try:
            status = self.path.stat()
        except OSError:
            status = None
        is_reset = status is None or status.st_ino != self._inode or status.st_size < self._offset
        if is_reset:
            self._inode, self._offset = status.st_ino if status else 0, 0
        if status is None or status.st_size == self._offset:
            return [], is_reset
        with open_regular(self.path) as file:
            file.seek(self._offset)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return list(_parse_lines(complete)), is_reset


def _parse_lines(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        with suppress(ValueError):
            fields = parse_json(line.decode())
            if isinstance(fields, dict):
                yield fields


def read_finished_run(path: Path, file: str, label: str = "") -> FinishedTrial | None:
    """Read the evaluation in a run directory and how it was trained; None if it is missing or damaged."""
    try:
        result = EvaluationResult.from_json(read_text(path / file))
    except (OSError, ValueError):
        return None
    trial = FinishedTrial(path.name, file, label, compact_result(result))
    try:
        run = Run.open(path)
    except ValueError:
        return trial
    origin = dataclasses.asdict(Origin.from_provenance(run.provenance))
    return dataclasses.replace(trial, seconds=_measure_seconds(run), precision=run.config.precision, **origin)


def _measure_seconds(run: Run) -> float | None:
    """Measure the time of training by the log, whose times are whole seconds."""
    spans: list[list[datetime]] = []
    try:
        entries = run.read_log()
        for entry in entries:
            if entry.message.startswith(("training: ", "resuming at step ")):
                spans.append([])
            if spans:
                spans[-1].append(datetime.fromisoformat(entry.time))
    except (OSError, ValueError):
        return None
    return sum((span[-1] - span[0]).total_seconds() for span in spans) if spans else None


def compact_result(result: EvaluationResult) -> EvaluationResult:
    """Leave out what no table shows (spectra, geometry of single views, texts, paths), and round scores."""
    geometry = result.geometry
    if geometry is not None:
        z = tuple(dataclasses.replace(group, spectrum=()) for group in geometry.z[:1])
        geometry = dataclasses.replace(geometry, h=(), z=z)
    compact = dataclasses.replace(
        result, dataset_path=result.dataset, geometry=geometry, subsets=_compact_subsets(result), summaries={},
        caveats=(), better_baselines=(),
    )  # fmt: skip
    return EvaluationResult.from_json(json.dumps(_encode(compact)))


def _compact_subsets(result: EvaluationResult) -> tuple[SubsetScore, ...]:
    """Leave out the metrics by which subsets of modalities are not compared."""

    def select(metrics: Mapping[str, float]) -> dict[str, float]:
        return {name: metrics[name] for name in compared}

    compared = get_compared_metrics(result) if result.subsets else []
    return tuple(
        dataclasses.replace(
            subset,
            scores={probe: select(metrics) for probe, metrics in subset.scores.items()},
            fused=select(subset.fused),
        )
        for subset in result.subsets
    )


def _encode(value: Any) -> Any:
    """Convert to plain JSON values, without fields that have their default, and with rounded numbers."""
    if dataclasses.is_dataclass(value):
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: _encode(item) for field, item in fields if item != _get_default(field)}
    if isinstance(value, Mapping):
        return {name: _encode(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _get_default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
