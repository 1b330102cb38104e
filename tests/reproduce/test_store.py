"""The file of finished trials: torn lines, concurrent appends, and tables without any run directory."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manyviews.evaluation import EvaluationResult, Score
from manyviews.metrics import Geometry, GeometryResult
from manyviews.reproduce import ReproduceOptions, TrialRunner, TrialStore, reproduce_table
from manyviews.reproduce.store import FinishedTrial, compact_result
from manyviews.reproduce.trials import run_trial
from manyviews.utils import append_line
from tests.helpers.tiny_run import ENVIRONMENT
from tests.reproduce.test_experiments import SCORES, make_grid, make_small_trials, write_results

RESULT = EvaluationResult(
    "0.2", "/home/me/photos", "photos", "test", modalities=("image",), scores={"trained": Score(knn=1 / 3, linear=0.5)},
    geometry=GeometryResult(9, 2, (Geometry(rank=3),), (Geometry(rank=4, spectrum=(0.5,) * 500), Geometry(rank=5))),
    caveats=("long text",),
)  # fmt: skip
FINISHED = FinishedTrial(
    "photos-mv-dhel-2-12345678", "trial-1.json", "seed 0", compact_result(RESULT), 12.0, "32", torch="2.9"
)


def test_a_stored_trial_is_read_back_without_what_no_table_shows(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "runs", tmp_path / "kept" / "trials.jsonl")
    assert store.load(FINISHED.name, FINISHED.file) is None
    append_line(store.path, FINISHED.to_json())
    text = store.path.read_text()
    assert (len(text) < 700, "/home" in text, "spectrum" in text, "caveats" in text) == (True, False, False, False)
    stored = store.load(FINISHED.name, FINISHED.file)
    assert stored == FINISHED
    assert stored.result.scores["trained"] == Score(knn=0.33333333, linear=0.5)
    assert stored.result.get_geometry("z") == Geometry(rank=4)
    assert store.load(FINISHED.name, "trial-2.json") is None


def test_torn_and_foreign_lines_are_ignored(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    line = FINISHED.to_json()
    store.path.write_text(f"[]\n{{}}\nno json\n{line.replace('linear', 'liner')}\n" + line[: len(line) // 2])
    assert store.load(FINISHED.name, FINISHED.file) is None
    append_line(store.path, line)  # a new line, though the last one is torn
    assert store.load(FINISHED.name, FINISHED.file) is not None
    assert store.path.read_text().endswith(f"{line[: len(line) // 2]}\n{line}\n")


@pytest.mark.parametrize(
    "fields",
    [{"seconds": "abc"}, {"seconds": -1}, {"seconds": True}, {"commit": 5}, {"machine": ["x"]}, {"precision": 3}],
    ids=str,
)
def test_lines_with_fields_of_wrong_types_are_ignored(fields: dict[str, object], tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    append_line(store.path, json.dumps(json.loads(FINISHED.to_json()) | fields))
    assert store.load(FINISHED.name, FINISHED.file) is None


def test_texts_of_lines_are_escaped_and_unknown_fields_ignored(tmp_path: Path) -> None:
    store, fields = TrialStore(tmp_path), {"machine": "a\n\\input{b}\x1b[31m", "seconds": 12, "added_later": 1}
    append_line(store.path, json.dumps(json.loads(FINISHED.to_json()) | fields))
    expected = dataclasses.replace(FINISHED, machine="a\\n\\input{b}\\x1b[31m")
    assert store.load(FINISHED.name, FINISHED.file) == expected


def test_a_line_is_read_once_it_is_complete_and_other_files_are_read_anew(tmp_path: Path) -> None:
    store, line = TrialStore(tmp_path), FINISHED.to_json()
    store.path.write_text(line)
    assert store.load(FINISHED.name, FINISHED.file) is None
    with store.path.open("a") as file:
        file.write("\n")
    assert store.load(FINISHED.name, FINISHED.file) == FINISHED
    (tmp_path / "other").write_text(line.replace("seed 0", "seed 1") + "\n" * 9)
    (tmp_path / "other").replace(store.path)  # as git does
    assert store.load(FINISHED.name, FINISHED.file) == dataclasses.replace(FINISHED, label="seed 1")
    store.path.unlink()
    assert store.load(FINISHED.name, FINISHED.file) is None


def test_processes_append_whole_lines_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from manyviews.utils import append_line\n"
        "for i in range(200): append_line(Path(sys.argv[1]), sys.argv[2] * 3000)"
    )
    path = tmp_path / "trials.jsonl"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), name], env=ENVIRONMENT) for name in "ab"]
    assert [process.wait(300) for process in processes] == [0, 0]
    assert sorted(path.read_text().splitlines()) == ["a" * 3000] * 200 + ["b" * 3000] * 200


def test_tables_are_remade_from_the_store_alone(tmp_path: Path) -> None:
    options = ReproduceOptions(views=(2, 4), losses=("pwe", "mv-dhel"), seeds=2)
    kept, runs, out = tmp_path / "kept.jsonl", tmp_path / "runs", tmp_path / "out"
    trials = make_grid("fixed-batch", options)
    write_results(runs, trials, SCORES)
    reproduce_table("fixed-batch", options, TrialRunner(runs, store_path=kept, log=lambda _: None), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(kept.read_text().splitlines()) == len(trials)
    shutil.rmtree(runs)
    for launcher in ("local", "none"):
        shutil.rmtree(out)
        runner = TrialRunner(tmp_path / "elsewhere", launcher, store_path=kept, log=lambda _: None)
        assert {trial.get_state(runner.store) for trial in trials} == {"done"}
        reproduce_table("fixed-batch", options, runner, out)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert len(kept.read_text().splitlines()) == len(trials)  # nothing is stored twice


@pytest.mark.parametrize("keep_run", [True, False])
def test_a_finished_trial_states_how_and_where_it_was_trained(keep_run: bool, tmp_path: Path) -> None:
    (trial,) = make_small_trials(1)
    store = TrialStore(tmp_path)
    run_trial(trial.to_spec(store, keep_run))
    assert (tmp_path / trial.name).exists() == keep_run
    (line,) = store.path.read_text().splitlines()
    assert len(line) < 1500
    assert str(tmp_path) not in line
    fields = json.loads(line)
    assert fields["label"] == trial.label
    assert fields["precision"] == "32"
    assert fields["seconds"] >= 0
    for name in ("torch", "manyviews", "machine"):
        assert fields[name]
    run_trial(trial.to_spec(store, keep_run))  # nothing is left to do
    assert store.path.read_text().splitlines() == [line]
    assert (tmp_path / trial.name).exists() == keep_run
