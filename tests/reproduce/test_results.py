"""`make results`: tables of what is finished, what is missing in them, and one page with the claims of all."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.claims_page import format_claims_page, read_claims
from benchmarks.results import ENTRIES, list_tables, make_tables, parse_arguments

from manyviews.reproduce import (
    ANALYSES,
    EXPERIMENTS,
    ReproduceOptions,
    Trial,
    TrialRunner,
    make_trials,
    reproduce_table,
)
from manyviews.reproduce.results import Results
from manyviews.reproduce.search import make_search_trials
from manyviews.training import ConfigError, TrainingInterrupted
from tests.helpers.tiny_multimodal import bundle
from tests.helpers.tiny_run import ENVIRONMENT
from tests.reproduce.test_experiments import SCORES, make_grid, write_results

OPTIONS = ReproduceOptions(views=(2, 4), losses=("pwe", "mv-dhel"), seeds=2)
ROOT = Path(__file__).parents[2]


def make_idle_runner(folder: Path) -> TrialRunner:
    return TrialRunner(folder, "none", log=lambda _: None)


def test_a_partial_table_lists_the_trials_that_are_missing(tmp_path: Path) -> None:
    trials = make_grid("fixed-batch", OPTIONS)
    runner = make_idle_runner(tmp_path / "runs")
    with pytest.raises(ConfigError, match="no trial of fixed-batch is finished, nothing was written"):
        reproduce_table("fixed-batch", OPTIONS, runner, tmp_path)
    write_results(tmp_path / "runs", trials[:5], SCORES)
    outcome = reproduce_table("fixed-batch", OPTIONS, runner, tmp_path)
    assert list(outcome.missing) == trials[5:]
    text = (tmp_path / "fixed-batch.md").read_text()
    missing = "data cifar10, loss mv-dhel, views 2 (seed 1); data cifar10, loss mv-dhel, views 4 (seeds 0, 1)"
    assert f"Not finished: 3 of 8 trials: {missing}." in text
    assert "5 trials: commit unknown" in text


def test_an_interrupted_command_writes_the_table_of_what_is_finished(tmp_path: Path) -> None:
    class InterruptedRunner(TrialRunner):
        def run(self, trials: list[Trial], keep_runs: bool | None = None) -> dict[str, str]:
            if self.launcher == "none":
                return super().run(trials, keep_runs)
            assert [trial.config.seed for trial in trials] == [0] * 4 + [1] * 4
            write_results(self.folder, trials[:3], SCORES)
            raise TrainingInterrupted("stopped", 2)

    with pytest.raises(TrainingInterrupted):
        reproduce_table("fixed-batch", OPTIONS, InterruptedRunner(tmp_path / "runs", log=lambda _: None), tmp_path)
    assert "Not finished: 5 of 8 trials" in (tmp_path / "fixed-batch.md").read_text()


def test_nothing_is_selected_before_a_search_is_finished(tmp_path: Path) -> None:
    options = ReproduceOptions(scale="smoke", losses=("pwe", "mv-dhel"), seeds=2)
    runner, trials = make_idle_runner(tmp_path / "runs"), make_trials("temperature", options)
    search = make_search_trials(trials)
    assert {trial.config.views for trial in search.values()} == {("4",)}
    for (coords, candidate), trial in search.items():
        if coords["loss"] == "mv-dhel" or "0.2" in str(candidate):
            write_results(runner.folder, [trial], {"pwe": 0.4, "mv-dhel": 0.5 + candidate.changes[0][1]})
    selected = [trial for trial in trials if trial.coordinates["loss"] == "mv-dhel"]  # their default 0.5 is best
    write_results(runner.folder, selected, SCORES)
    # The default temperature of the other loss is finished, too, but its search is not.
    write_results(runner.folder, [trial for trial in trials if trial not in selected], SCORES)
    outcome = reproduce_table("temperature", options, runner, tmp_path)
    assert outcome.tables[0].list_texts()[1:] == [["digits", "mv-dhel", "55.5 ± 0.7"]]
    assert [trial.coordinates["loss"] for trial in outcome.missing] == ["pwe", "pwe"]
    assert outcome.tables[-1].list_texts()[1][-3:] == ["0.2: 40.000", "0.5: missing", ""]
    write_results(runner.folder, list(search.values()), SCORES)
    assert reproduce_table("temperature", options, runner, tmp_path).missing == ()


def test_temperature_compares_each_loss_with_mv_dhel() -> None:
    experiment = EXPERIMENTS["temperature"]
    trials = make_trials("temperature", ReproduceOptions(seeds=3))
    assert len(trials) == 15
    assert {len(trial.candidates) for trial in trials} == {6}
    values = {trial.coordinates: {metric: {0: [1.0], 1: [2.0]} for metric in ("linear", "knn")} for trial in trials}
    claims = experiment.check_claims(Results(values))
    assert [claim.text.split(" (")[0] for claim in claims] == [
        f"mv-dhel has a better {metric} than {other}"
        for metric in ("linear probe", "kNN")
        for other in ("pwe", "avg", "pvc", "mv-infonce")
    ]


def test_precision_compares_the_same_trials_in_two_precisions() -> None:
    experiment, trials = EXPERIMENTS["precision"], make_trials("precision", ReproduceOptions(seeds=2))
    by_precision = [[trial for trial in trials if trial.config.precision == name] for name in ("32", "bf16-mixed")]
    first, second = ([dataclasses.replace(trial.config, precision="32") for trial in half] for half in by_precision)
    assert first == second
    assert {trial.config.data for trial in trials} == {"cifar10", "photos"}
    with pytest.raises(ConfigError, match="--precision does not apply"):
        make_trials("precision", ReproduceOptions(precision="bf16-mixed"))

    def decide(loss_of_accuracy: float) -> set[str]:
        values = {
            trial.coordinates: {
                "linear": {s: [50.0 + s - loss_of_accuracy * (trial.config.precision != "32")] for s in range(3)}
            }
            for trial in trials
        }
        claims = experiment.check_claims(Results(values))
        # The difference itself, without the margin.
        assert {claim.difference.mean for claim in claims if claim.difference} == {-loss_of_accuracy}
        return {claim.verdict for claim in claims}

    assert (decide(0.5), decide(1.5), decide(-2.0)) == ({"held"}, {"not held"}, {"held"})


def test_the_page_of_claims_has_an_interval_in_every_row_of_its_table(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    options = ReproduceOptions(views=(2, 3), losses=("pwe", "mv-dhel"), seeds=3)
    write_results(runs, make_grid("table1", options), SCORES)
    write_results(runs, make_grid("fixed-batch", ReproduceOptions(views=(2, 4), losses=("pwe",))), SCORES)
    reproduce_table("table1", options, make_idle_runner(runs), tmp_path)
    one_seed = ReproduceOptions(views=(2, 4), losses=("pwe", "mv-dhel"))
    reproduce_table("fixed-batch", one_seed, make_idle_runner(runs), tmp_path)
    reproduce_table("principles", ReproduceOptions(), make_idle_runner(runs), tmp_path)
    old = "| claim | verdict | decided by | numbers |\n|---|---|---|---|\n| old | held | margin | 1 |\n"
    (tmp_path / "knn.md").write_text(f"**The paper's claims, and whether they held here**\n\n{old}")
    page = format_claims_page(tmp_path, ["table1", "fixed-batch", "principles", "knn", "views"])
    tested, measured, untested = page.split("\n## ")
    best = "| mv-dhel has a better linear probe than pwe (data cifar10, views 2) | held "
    assert f"{best}| +5.00 (to pwe) | +5.00 to +5.00 | 3 | [table1](table1.md) |" in tested
    rows = [line for line in tested.splitlines() if line.endswith("(table1.md) |")]
    assert len(rows) == len(read_claims(tmp_path, "table1")) == 4
    assert f"Of {len(rows)} claims with an interval: 2 held, 0 not held, 2 undecided." in tested
    assert "| mv-dhel: P1 yes, P2 yes, 1 terms | held | equal, without tolerance | [principles]" in measured
    assert "| linear probe gets better with more views (cifar10, mv-dhel) | its trials are not finished |" in untested
    assert "(cifar10, pwe) | one seed has no interval | [fixed-batch](fixed-batch.md) |" in untested
    assert "Tables that are not made yet: views." in untested
    assert "Tables of an older version, whose claims are not listed: knn." in untested
    assert "| old |" not in page


def test_every_entry_is_a_table_with_valid_options(tmp_path: Path) -> None:
    for entry in ENTRIES:
        for name in entry.files:
            bundle(tmp_path / f"{name}.npz")
            (tmp_path / f"{name}.npz").rename(tmp_path / name)
    for scale in ("laptop", "smoke"):
        tables = dict(list_tables(parse_arguments(["--files", str(tmp_path), "--scale", scale])))
        assert len({entry.name for entry in tables}) == len(tables) == len(ENTRIES)
        for entry, options in tables.items():
            table = entry.table
            if table in ANALYSES:
                assert options == ReproduceOptions(scale=scale)
            elif not entry.files:
                assert len({trial.config.seed for trial in make_trials(table, options)}) >= 3
    (command, *_) = (options.format_command(entry.table) for entry, options in tables.items() if entry.files)
    assert str(tmp_path) not in command
    assert "--datasets mosi_3modal.npz Mfeat.mat 100leaves.mat" in command


def test_tables_without_their_files_are_skipped_with_a_reason(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MANYVIEWS_FILES", raising=False)
    arguments = parse_arguments(["--only", "multimodal", "table1"])
    assert [entry.name for entry, _ in list_tables(arguments)] == ["table1"]
    assert "multimodal: skipped, it needs mosi_3modal.npz, Mfeat.mat, 100leaves.mat" in capsys.readouterr().out


@pytest.mark.slow
def test_results_are_made_and_remade_from_the_store_alone(tmp_path: Path) -> None:
    """On another machine there are no run directories; the trials are those of the store."""
    output, runs = tmp_path / "out", tmp_path / "runs"
    command = [sys.executable, "-m", "benchmarks.results", "--scale", "smoke", "--seeds", "1", "--jobs", "2"]
    command += ["--only", "principles", "memory", "--output", str(output), "--runs", str(runs)]
    done = subprocess.run(
        command, env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}, cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path for path in runs.iterdir() if path.is_dir() and not path.name.startswith(".")] == []
    assert len((output / "trials.jsonl").read_text().splitlines()) == 2
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    assert {"memory.md", "principles.md", "claims.md"} <= set(before)
    shutil.rmtree(runs)
    (output / "memory.md").unlink()
    words = ["--scale", "smoke", "--seeds", "1", "--only", "principles", "memory", "--tables-only"]
    assert make_tables(parse_arguments([*words, "--output", str(output), "--runs", str(tmp_path / "other")])) == 0
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
