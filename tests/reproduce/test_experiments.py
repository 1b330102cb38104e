"""Grids of trials: their configs, that a trial runs once in any process, and the tables made of results."""

import csv
import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from manyviews.api import train
from manyviews.evaluation import EvaluationConfig, EvaluationResult, Representation, Score, SubsetScore, load_evaluation
from manyviews.reproduce import (
    EXPERIMENTS,
    ReproduceOptions,
    Trial,
    TrialRunner,
    TrialStore,
    estimate_seconds,
    make_trials,
    paper_values,
    reproduce_table,
)
from manyviews.reproduce.claims import (
    T95,
    PairedDifference,
    claim_best,
    claim_constant,
    claim_does_not_improve,
    claim_improves,
    claim_less_variable,
)
from manyviews.reproduce.experiments import LEARNING_RATES
from manyviews.reproduce.pivot_tables import format_long_csv, make_pivot_tables
from manyviews.reproduce.results import METRICS, Results
from manyviews.reproduce.search import select_candidates
from manyviews.reproduce.store import compact_result
from manyviews.reproduce.subset_tables import make_baseline_tables, make_subset_tables
from manyviews.reproduce.trials import Coordinates, run_trial
from manyviews.training import RECIPES, ConfigError, Trainer, TrainingInterrupted
from tests.helpers.evaluations import DAMAGED
from tests.helpers.tiny_multimodal import bundle
from tests.helpers.tiny_run import folder_of_images
from tests.training.test_trainer import stop_after

SMOKE = ReproduceOptions(scale="smoke")


def make_grid(name: str, options: ReproduceOptions = SMOKE) -> list[Trial]:
    return list(EXPERIMENTS[name].make_trials(options))


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_trial_has_a_valid_config_and_coordinates(name: str, scale: str) -> None:
    experiment = EXPERIMENTS[name]
    trials = make_grid(name, ReproduceOptions(scale=scale, seeds=2))
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in trials:
        trial.config.check()
        assert set(experiment.rows) | set(experiment.columns) <= set(trial.coordinates)
        assert not trial.config.evaluate_at_end
    coordinates = {trial.coordinates for trial in trials}
    assert 2 * len(coordinates) == len(trials)


def test_paper_scale_uses_the_papers_recipes() -> None:
    for trial in make_grid("table1", ReproduceOptions(scale="paper", released_variant=True)):
        recipe = RECIPES[trial.coordinates["data"]]
        expected = dataclasses.replace(
            recipe,
            loss=trial.config.loss,
            views=(str(trial.coordinates["views"]),),
            released_variant=True,
            evaluate_at_end=False,
            precision="32",
        )
        assert trial.config == expected
    losses = {trial.config.loss for trial in make_grid("table1")}
    assert losses == {"pwe-infonce", "avg-infonce", "pvc", "mv-infonce", "mv-dhel"}
    released = {
        trial.config.loss for trial in make_grid("table1", ReproduceOptions(scale="smoke", released_variant=True))
    }
    assert released == {"pwe-ntxent", "avg-ntxent", "pvc", "mv-infonce", "mv-dhel"}
    for name in ("table1", "multimodal"):
        for trial in make_grid(name, ReproduceOptions(max_instances=500)):
            assert (trial.config.max_instances, trial.config.subset, trial.config.monitor_size) == (500, "first", 0)
    fixed = make_grid("fixed-batch", ReproduceOptions(scale="paper"))
    assert {
        trial.config.num_views * trial.config.instances_per_batch
        for trial in fixed
        if trial.config.num_views in (2, 4, 8)
    } == {256}


def test_tables_share_trials() -> None:
    names = [{trial.name for trial in make_grid(name, ReproduceOptions())} for name in ("table1", "knn", "views")]
    assert names[0] == names[1]
    assert len(names[0] & names[2]) == 15  # 2, 3 and 4 views


def test_trial_names_depend_on_fields_that_affect_the_result() -> None:
    trial = make_grid("table1")[0]
    for changes, same in (({"seed": 7}, False), ({"epochs": 9}, False), ({"cpu_threads": 3, "num_workers": 5}, True)):
        other = dataclasses.replace(trial, config=dataclasses.replace(trial.config, **changes))
        assert (other.name == trial.name) == same
    for loss, same in (("mv-dhel", True), ("siglip", False)):
        implicit = dataclasses.replace(trial.config, loss=loss)
        explicit = dataclasses.replace(implicit, temperature=0.5, learn_temperature=False)
        assert (Trial(implicit).name == Trial(explicit).name) == same
    other = dataclasses.replace(trial, eval_config=EvaluationConfig(label_fractions=()))
    assert other.name == trial.name  # the same run, evaluated differently
    assert other.result_filename != trial.result_filename


def test_options_select_parts_of_a_table() -> None:
    trials = make_grid(
        "table1",
        ReproduceOptions(losses=("mv-dhel",), views=(3,), max_instances=100, epochs=2, datasets=("x=/some/where",)),
    )
    (trial,) = trials
    assert trial.coordinates == {"data": "x", "loss": "mv-dhel", "views": 3}
    assert (trial.config.max_instances, trial.config.epochs, trial.config.data) == (100, 2, "/some/where")
    for name, options, message in (
        ("table1", ReproduceOptions(losses=("mvdhel",)), "this table has no loss 'mvdhel', only pwe"),
        ("table1", ReproduceOptions(losses=("supervised",)), "this table has no loss 'supervised'"),
        ("table1", ReproduceOptions(views=(2, 9)), "this table does not have 9 views, only 2, 3, 4"),
        ("other-losses", ReproduceOptions(views=(5,)), "this table does not have 5 views, only 2, 3, 4"),
        (
            "table1",
            ReproduceOptions(missing_rate=0.3),
            "--missing-rate and --modality-subsets apply only to the multimodal table",
        ),
        (
            "multimodal",
            ReproduceOptions(views=(3,)),
            "--views applies only to image tables, and this table is multimodal",
        ),
        ("multimodal", ReproduceOptions(missing_rate=3.0), r"missing_rate must be in \[0, 1\), got 3.0"),
        ("multimodal", ReproduceOptions(datasets=("x=a.npz", "x=b.npz"), losses=("pvc",)), "two datasets are called"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_trials(name, options)


def test_data_files_are_identified_by_content(tmp_path: Path) -> None:
    first, second = (tmp_path / folder / "multimodal.npz" for folder in "ab")
    for path in (first, second):
        path.parent.mkdir()
        bundle(path)
    names = [make_grid("multimodal", ReproduceOptions(datasets=(str(path),)))[0].name for path in (first, second)]
    assert names[0] == names[1]
    assert names[0].startswith("multimodal-pwe")  # the path, not the recipe of that name
    bundle(second, labels="quantities")
    assert make_grid("multimodal", ReproduceOptions(datasets=(str(second),)))[0].name != names[0]


def test_data_of_several_modalities_are_detected(tmp_path: Path) -> None:
    pictures, upper, pickled = tmp_path / "photos.npz", tmp_path / "THREE.NPZ", tmp_path / "two.pickle"
    np.savez(pictures, x=np.zeros((6, 8, 8, 3), np.uint8), y=np.arange(6) % 2)
    Path(bundle(tmp_path / "three.npz")).rename(upper)
    features = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    pickled.write_bytes(pickle.dumps({"train": {"text": features, "audio": features}}))
    emotions = tmp_path / "emotions"
    (emotions / "bert-UTT").mkdir(parents=True)
    np.savez(emotions / "label-6way.npz", train_corpus=np.array({}, dtype=object))
    folder = folder_of_images(tmp_path / "folder", count=3)
    sources = [str(path) for path in (pictures, upper, pickled, emotions, folder)]
    trials = make_grid(
        "other-losses", ReproduceOptions(scale="smoke", datasets=(*sources, "ch-sims=nowhere", "digits"))
    )
    views = {trial.coordinates["data"]: trial.config.views for trial in trials}
    assert views == dict.fromkeys(("photos", "folder", "digits"), ("3",)) | dict.fromkeys(
        ("THREE", "two", "emotions", "ch-sims"), ()
    )
    modal = {trial.coordinates["data"] for trial in trials if trial.coordinates["views"] == "modalities"}
    assert modal == {"THREE", "two", "emotions", "ch-sims"}
    optimizers = {trial.coordinates["data"]: trial.config.optimizer for trial in trials}
    assert {optimizers[name] for name in modal} == {"adamw"}


def make_small_trials(count: int) -> list[Trial]:
    options = ReproduceOptions(scale="smoke", losses=("mv-dhel",), views=(2,), max_instances=64, seeds=count)
    return make_grid("table1", options)


@pytest.mark.slow
def test_trials_run_once_in_any_process_and_failures_do_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, other, bad = make_small_trials(3)
    bad = dataclasses.replace(bad, config=dataclasses.replace(bad.config, batch_size=1000))
    messages: list[str] = []
    here, cluster = TrialRunner(tmp_path / "here", jobs=2, log=messages.append), tmp_path / "cluster"

    # One was interrupted before: it is resumed.
    stop_after(monkeypatch, 1)
    (tmp_path / "here").mkdir()
    with pytest.raises(TrainingInterrupted):
        train(other.config, output=here.folder / other.name, quiet=True)
    monkeypatch.undo()
    assert [trial.get_state(here.store) for trial in (good, other)] == ["to do", "started"]

    failed = here.run([good, bad, other, good])
    assert list(failed) == [bad.name]
    assert "ConfigError: a batch of 1000 is larger than the 64 training instances" in failed[bad.name]
    assert messages[0] == "0 of 3 trials are done, 3 to run"
    assert [trial.get_state(here.store) for trial in (good, other, bad)] == ["done", "done", "to do"]
    assert "resuming at step 1" in (here.folder / other.name / "log.txt").read_text()

    before = {path: path.stat().st_mtime_ns for path in here.folder.rglob("*") if path.is_file()}
    assert here.run([good, other]) == {}
    assert messages[-1] == "2 of 2 trials are done"
    assert before == {path: path.stat().st_mtime_ns for path in here.folder.rglob("*") if path.is_file()}

    submitted = TrialRunner(cluster, "slurm", slurm={"cluster": "local", "timeout_min": 5}, log=messages.append)
    assert submitted.run([good]) == {}
    run_trial(other.to_spec(TrialStore(tmp_path / "process")))
    for trial, folder in ((good, cluster), (other, tmp_path / "process")):
        first, second = (trial.load_result(TrialStore(where)) for where in (here.folder, folder))
        assert first == second
        weights = [(where / trial.name / "encoder.safetensors").read_bytes() for where in (here.folder, folder)]
        assert weights[0] == weights[1]


def test_runs_of_another_config_and_damaged_results_are_rejected(tmp_path: Path) -> None:
    (trial,) = make_small_trials(1)
    other = dataclasses.replace(trial.config, embed_dim=8)
    train(other, output=tmp_path / trial.name, quiet=True)
    with pytest.raises(ConfigError, match=r"cannot resume .* with changed fields: embed_dim 8 -> 16"):
        run_trial(trial.to_spec(TrialStore(tmp_path)))
    for damage in ("{", "{}", "[]", *(text for text, _ in DAMAGED)):
        (tmp_path / trial.name / trial.result_filename).write_text(damage)
        assert trial.get_state(TrialStore(tmp_path)) == "started"


def test_trial_with_a_damaged_result_is_evaluated_again(tmp_path: Path) -> None:
    (trial,) = make_small_trials(1)
    store = TrialStore(tmp_path)
    run_trial(trial.to_spec(store))
    run = tmp_path / trial.name
    encoder, result = (run / "encoder.safetensors").stat().st_mtime_ns, trial.load_result(store)
    assert result is not None
    store.path.unlink()
    for file in (trial.result_filename, "evaluation.json"):
        (run / file).write_text(DAMAGED[0][0])
    assert trial.load_result(store) is None
    run_trial(trial.to_spec(store))
    evaluation = load_evaluation(run)
    assert evaluation is not None
    assert trial.load_result(store) == compact_result(evaluation) == result
    assert (run / "encoder.safetensors").stat().st_mtime_ns == encoder  # it was not trained again


def test_missing_submitit_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"the launcher slurm needs: pip install 'manyviews\[slurm\]'"):
        TrialRunner(tmp_path, "slurm", log=lambda _: None).run(make_small_trials(1))


def test_options_of_another_launcher_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="jobs applies only to the launcher local"):
        TrialRunner(tmp_path, "slurm", jobs=2)
    with pytest.raises(
        ConfigError, match="slurm parameters apply only to the launcher slurm, and the launcher is local"
    ):
        TrialRunner(tmp_path, slurm={"slurm_partition": "gpu"})


def test_time_estimate_is_the_time_of_a_step_times_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_passed, step, timed = [0.0], Trainer.step, []

    def take_half_a_second(self: Trainer, *batch: object) -> dict:
        seconds_passed[0] += 0.5
        timed.append(self.total_steps)
        return step(self, *batch)

    monkeypatch.setattr(Trainer, "step", take_half_a_second)
    monkeypatch.setattr("time.perf_counter", lambda: seconds_passed[0])
    trials = make_small_trials(2)
    longer = dataclasses.replace(trials[0], config=dataclasses.replace(trials[0].config, epochs=500))
    seconds, _ = estimate_seconds(trials)
    assert seconds == {trial.name: 0.5 * timed[0] for trial in trials}  # seeds take equally long
    assert len(timed) == 2
    assert estimate_seconds([longer])[0][longer.name] == 500 / trials[0].config.epochs * seconds[trials[0].name]


def test_time_estimate_reads_the_same_images_as_training(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=40)
    (folder / "a" / "broken.png").write_bytes(b"not an image")
    (trial,) = make_small_trials(1)
    lenient = dataclasses.replace(trial, config=dataclasses.replace(trial.config, data=str(folder), max_instances=None))
    strict = dataclasses.replace(lenient, config=dataclasses.replace(lenient.config, raise_on_corrupt=True))
    with pytest.warns(UserWarning, match="broken"):
        assert estimate_seconds([lenient])[0][lenient.name] > 0
    assert "broken.png" in estimate_seconds([strict])[1][strict.name]


def write_results(folder: Path, trials: list[Trial], linear: dict[str, float]) -> None:
    """Write evaluations without running them."""
    for trial in trials:
        score = linear[trial.coordinates["loss"]] + trial.config.seed / 100
        write_result(folder, trial, {"trained": Score(knn=score, linear=score)})


def write_result(folder: Path, trial: Trial, scores: dict[Representation, Score], **fields: object) -> None:
    result = EvaluationResult("0.2", "somewhere", "photos", "test", scores=scores, **fields)
    (folder / trial.name).mkdir(parents=True, exist_ok=True)
    (folder / trial.name / trial.result_filename).write_text(result.to_json())


SCORES = {"pwe": 0.5, "avg": 0.51, "pvc": 0.52, "mv-infonce": 0.53, "mv-dhel": 0.55}


def test_tables_have_means_deviations_and_the_papers_values(tmp_path: Path) -> None:
    options = ReproduceOptions(scale="paper", seeds=3, datasets=("cifar10",), released_variant=True)
    trials = make_grid("table1", options)
    write_results(tmp_path / "out" / "runs", trials, SCORES)
    outcome = reproduce_table(
        "table1", options, TrialRunner(tmp_path / "out" / "runs", log=lambda _: None), tmp_path / "out"
    )
    (table,) = outcome.tables
    assert table.header == ("data", "loss", "2 views", "3 views", "4 views")
    values = [f"56.0 ± 1.0 ({value})" for value in ("87.4", "89.1", "89.5")]
    assert table.list_texts()[-1] == ["cifar10", "mv-dhel", *values]
    with (tmp_path / "out" / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15
    assert rows[0] | {"values": ""} == {
        "data": "cifar10", "loss": "pwe", "views": "2", "metric": "linear", "mean": "51", "deviation": "1",
        "seeds": "3", "values": "", "paper": "86",
    }  # fmt: skip
    text = (tmp_path / "out" / "table1.md").read_text()
    assert "Scale paper; 3 seeds" in text
    assert "losses as in the authors' released code" in text
    assert "| mv-dhel has a better linear probe than pwe, avg, pvc, mv-infonce (data cifar10, views 4) | held |" in text
    undecided = "undecided | +0.00 | +0.00 to +0.00 | 3 | 2: 51.0, 3: 51.0, 4: 51.0 |"
    assert f"| linear probe gets better with more views (cifar10, pwe) | {undecided}" in text
    latex = (tmp_path / "out" / "table1.tex").read_text()
    assert r"cifar10 & mv-dhel & 56.0 $\pm$ 1.0 (87.4) &" in latex
    assert latex.startswith("% Scale paper; 3 seeds")


def test_regression_layers_are_pooled_over_seeds(tmp_path: Path) -> None:
    options = ReproduceOptions(datasets=("q=somewhere",), losses=("mv-dhel",), seeds=2)
    trials = make_grid("multimodal", options)
    for trial in trials:
        probes = tuple({"Has0_acc_2": 0.7 + 0.1 * trial.config.seed, "MAE": 0.5 + i} for i in range(3))
        write_result(tmp_path, trial, {"trained": Score(probes=probes)})
    results = Results.collect(trials, TrialStore(tmp_path), EXPERIMENTS["multimodal"].metrics)
    tables = {table.title: table for table in make_pivot_tables(EXPERIMENTS["multimodal"], results, paper=False)}
    assert list(tables) == ["Has0_acc_2, %", "MAE"]
    assert tables["MAE"].header == ("loss", "q")
    assert tables["MAE"].list_texts()[1:] == [["mv-dhel", "1.500 ± 0.894"]]  # over six layers
    assert tables["Has0_acc_2, %"].list_texts()[1:] == [["mv-dhel", "75.0 ± 5.5"]]


def test_subsets_and_baselines_are_averaged_over_seeds(tmp_path: Path) -> None:
    trials = make_grid("multimodal", ReproduceOptions(datasets=("q=somewhere",), losses=("mv-dhel",), seeds=2))
    for trial, accuracy in zip(trials, (0.5, 0.6), strict=True):
        metrics = {"accuracy": accuracy, "F1": 0.1}
        subset = SubsetScore(("text",), 30, {"raw": {"accuracy": 0.25, "F1": 0.1}, "per_subset": metrics}, metrics)
        scores = {"raw_features": Score(linear=accuracy / 2), "trained": Score(linear=0.9)}
        write_result(tmp_path, trial, scores, modalities=("text",), subsets=(subset,), test_instances=40)
    (table,) = make_subset_tables(trials, TrialStore(tmp_path))
    assert table.title == "Accuracy by subset of modalities: q, mv-dhel"
    assert table.list_texts() == [
        ["modalities", "raw features, probe per subset", "probe per subset"],
        ["text (30)", "25.0% ± 0.0", "55.0% ± 7.1"],
    ]
    (table,) = make_baseline_tables(trials, TrialStore(tmp_path))
    assert table.list_texts() == [
        ["data", "majority", "raw features", "untrained encoder"],
        ["q", "", "27.5% ± 3.5", ""],
    ]
    for trial in trials:
        probes = ({"MAE": 1.0 + trial.config.seed},)
        write_result(tmp_path, trial, dict.fromkeys(("majority", "raw_features", "trained"), Score(probes=probes)))
    (table,) = make_baseline_tables(trials, TrialStore(tmp_path))
    assert table.list_texts()[1] == ["q", "1.500 ± 0.707", "1.500 ± 0.707", ""]
    assert list(make_subset_tables(trials, TrialStore(tmp_path))) == []


def test_the_papers_values_appear_only_for_its_setting(tmp_path: Path) -> None:
    trials = make_grid("table1", ReproduceOptions())
    write_results(tmp_path, trials, SCORES)
    results = Results.collect(trials, TrialStore(tmp_path), ("linear",))
    (table,) = make_pivot_tables(EXPERIMENTS["table1"], results, paper=False)
    assert table.list_texts()[1] == ["cifar10", "pwe", "50.0", "50.0", "50.0"]
    assert format_long_csv(EXPERIMENTS["table1"], results, paper=False).splitlines()[1].endswith("50,")


@pytest.mark.parametrize(
    ("changes", "omitted"),
    [({}, True), ({"released_variant": True}, False), ({"released_variant": True, "epochs": 5}, True)],
)
def test_omitted_paper_values_are_noted(changes: dict, omitted: bool, tmp_path: Path) -> None:
    options = ReproduceOptions(scale="paper", datasets=("cifar10",), losses=("mv-dhel",), views=(2,), **changes)
    write_results(tmp_path / "runs", make_grid("table1", options), SCORES)
    outcome = reproduce_table("table1", options, TrialRunner(tmp_path / "runs", log=lambda _: None), tmp_path)
    assert ("without the paper's values, which need --released-variant" in outcome.setting) == omitted
    assert ("(87.4)" in outcome.tables[0].rows[0].cells[-1].text) != omitted
    assert outcome.setting in (tmp_path / "table1.md").read_text()


def make_results(**values_by_loss: list[list[float]]) -> Results:
    """Linear-probe scores of losses at 2, 4, ... views: a list for each number of views, a value for each seed."""
    return Results(
        {
            Coordinates(loss=name, views=2 * i): {"linear": {seed: [value] for seed, value in enumerate(values)}}
            if values
            else {}
            for name, columns in values_by_loss.items()
            for i, values in enumerate(columns, 1)
        }
    )


def test_one_seed_decides_nothing() -> None:
    results = make_results(a=[[50.0], [53.0], [49.0]], b=[[51.0], [50.0]], c=[[50.0], []])
    claim = claim_best(results, "linear", "a", ["b"], views=4)
    assert (claim.verdict, claim.evidence) == ("one seed", "a 53.0, b 50.0")
    assert claim.difference == PairedDifference(3.0, None, None, 1, 1, "b")
    assert (claim.difference.text, claim.difference.interval_text) == ("+3.00 (to b)", "")
    for missing in (
        claim_best(results, "linear", "c", ["a"], views=4),
        claim_improves(results, "linear", "views", loss="c"),
    ):
        assert (missing.verdict, missing.difference) == ("not tested", None)


def test_claims_about_trends_are_decided_by_the_difference_of_the_ends() -> None:
    results = make_results(a=[[50.0, 51.0], [53.0, 54.1]], b=[[51.0, 51.0], [50.5, 50.6]])
    claim = claim_improves(results, "linear", "views", loss="a")
    assert (claim.verdict, claim.evidence) == ("held", "2: 50.5, 4: 53.5")
    opposite = claim_does_not_improve(results, "linear", "views", loss="a")
    assert (opposite.verdict, opposite.difference.mean) == ("not held", -claim.difference.mean)
    assert claim_less_variable(results, "linear", "views", "b", ["a"]).verdict == "held"
    assert claim_less_variable(results, "linear", "views", "a", ["b"]).verdict == "not held"
    assert claim_constant(results, "linear", "views", 0.5, loss="a").verdict == "not held"
    assert claim_constant(results, "linear", "views", 0.5, loss="b").verdict == "undecided"
    assert claim_constant(results, "linear", "views", 3.0, loss="b").verdict == "held"


def test_seeds_are_compared_pairwise_with_the_interval_of_differences() -> None:
    # Seeds differ far more than losses, whose difference is similar for every seed.
    results = make_results(a=[[50.0, 60.0, 70.0]], b=[[49.0, 58.9, 69.1]], c=[[52.0, 57.0, 68.0]])
    claim = claim_best(results, "linear", "a", ["b"], views=2)
    differences = np.array([1.0, 1.1, 0.9])
    interval = stats.t.interval(0.95, 2, loc=1.0, scale=stats.sem(differences))
    assert claim.verdict == "held"
    assert claim.difference is not None
    assert (claim.difference.low, claim.difference.high) == pytest.approx(interval, abs=1e-3)
    assert (claim.difference.text, claim.difference.interval_text) == ("+1.00 (to b)", "+0.75 to +1.25")
    claim = claim_best(results, "linear", "a", ["b", "c"], views=2)  # the undecided comparison is named
    assert (claim.verdict, claim.difference.text) == ("undecided", "+1.00 (to c)")
    assert claim_best(results, "linear", "b", ["a", "c"], views=2).verdict == "not held"
    # A loss without a seed in common is neither compared nor named.
    results.values[Coordinates(loss="c", views=2)]["linear"] = {7: [99.0]}
    claim = claim_best(results, "linear", "a", ["b", "c"], views=2)
    assert (claim.verdict, claim.text) == ("held", "a has a better linear probe than b (views 2)")
    # A seed that failed for one loss is left out.
    del results.values[Coordinates(loss="a", views=2)]["linear"][2]
    assert claim_best(results, "linear", "a", ["b"], views=2).difference.seeds == 2


@pytest.mark.parametrize("count", range(2, 30))
def test_the_interval_is_never_narrower_than_students(count: int) -> None:
    exact = stats.t.ppf(0.975, count - 1)
    value = T95[min(count - 2, len(T95) - 1)]
    assert exact <= value < 1.03 * exact


def test_a_difference_that_the_table_does_not_show_decides_nothing() -> None:
    assert PairedDifference.compute([0.09, 0.091, 0.092], digits=1).decision is None
    assert PairedDifference.compute([0.19, 0.191, 0.192], digits=1).decision is True
    assert PairedDifference.compute([-0.19, -0.191, -0.192], digits=1).decision is False


def test_rounding_errors_are_not_a_difference() -> None:
    results = make_results(a=[[0.1 + 0.2, 0.7]], b=[[0.3, 0.7]])
    assert claim_best(results, "linear", "a", ["b"], views=2).verdict == "undecided"


def test_lower_is_better_for_mae() -> None:
    coords = {name: Coordinates(loss=name, views=2) for name in "ab"}
    lower, higher = ({seed: [low + seed / 10, high] for seed in (0, 1)} for low, high in ((0.3, 0.5), (0.5, 0.7)))
    results = Results({coords["a"]: {"mae": lower}, coords["b"]: {"mae": higher}})
    assert claim_best(results, "mae", "a", ["b"], views=2).verdict == "held"
    assert claim_best(results, "mae", "b", ["a"], views=2).verdict == "not held"


def test_learning_rate_is_selected_on_the_validation_split(tmp_path: Path) -> None:
    data = bundle(tmp_path / "ch-sims.npz", "quantities", splits=("train", "test", "valid"))
    options = ReproduceOptions(scale="paper", datasets=(data,), losses=("pvc", "mv-dhel"), seeds=2)
    trials = make_grid("multimodal", options)
    assert {trial.config.learning_rate for trial in trials} == {1e-4}
    searched: list[Trial] = []

    class FakeRunner(TrialRunner):
        def run(self, trials: list[Trial], keep_runs: bool | None = None) -> dict[str, str]:
            assert keep_runs  # the selected run is evaluated again
            searched.extend(trials)
            for trial in trials:
                # pvc is best at the middle rate, mv-dhel at the smallest.
                target = 5e-5 if trial.coordinates["loss"] == "pvc" else 1e-5
                write_results(
                    self.folder,
                    [trial],
                    dict.fromkeys(("pvc", "mv-dhel"), 1 - abs(trial.config.learning_rate - target)),
                )
            return {}

    selection = select_candidates(trials, FakeRunner(tmp_path / "runs"))
    selected, table = selection.trials, selection.table
    assert (selection.unselected, selection.failed) == ([], {})
    assert len(searched) == 2 * len(LEARNING_RATES)
    assert {trial.eval_config.split for trial in searched} == {"valid"}
    assert {trial.config.seed for trial in searched} == {0}
    rates = {(trial.coordinates["loss"], trial.config.seed): trial.config.learning_rate for trial in selected}
    assert rates == {("pvc", 0): 5e-5, ("pvc", 1): 5e-5, ("mv-dhel", 0): 1e-5, ("mv-dhel", 1): 1e-5}
    assert [row.cells[-1].text for row in table.rows] == ["5e-05", "1e-05"]


@pytest.mark.slow
def test_multimodal_table_has_baselines_and_subsets(tmp_path: Path) -> None:
    data = bundle(tmp_path / "three.npz")
    options = ReproduceOptions(
        scale="smoke",
        datasets=(data,),
        losses=("mv-dhel", "supervised"),
        epochs=1,
        missing_rate=0.2,
        modality_subsets=True,
    )
    folder = tmp_path / "results" / "runs"
    outcome = reproduce_table(
        "multimodal", options, TrialRunner(folder, jobs=2, log=lambda _: None), tmp_path / "results"
    )
    assert outcome.failed == {}
    titles = [table.title for table in outcome.tables]
    assert titles == [
        "linear probe, %", "mean embedding, %", "retrieval by one other modality, R@1, %",
        "retrieval by all other modalities, R@1, %", "supervised head, %", "Baselines: linear probe, or MAE",
        "Accuracy by subset of modalities: three, mv-dhel",
        "Accuracy by subset of modalities: three, supervised",
    ]  # fmt: skip
    assert [row.name for row in outcome.tables[-1].rows][:2] == ["text", "audio (31)"]
    assert [len(table.rows) for table in outcome.tables[-2:]] == [7, 7]
    assert len(outcome.tables[-2].header) == 5
    assert len(outcome.tables[-1].header) == 3  # no raw features, no common space
    assert "20% of the modalities removed from training" in (tmp_path / "results" / "multimodal.md").read_text()


def test_line_figure_is_deterministic(tmp_path: Path) -> None:
    options = ReproduceOptions(views=(2, 4), losses=("pwe", "mv-dhel"))
    trials = make_grid("fixed-batch", options)
    write_results(tmp_path / "runs", trials, SCORES)
    outcome = reproduce_table("fixed-batch", options, TrialRunner(tmp_path / "runs", log=lambda _: None), tmp_path)
    names = {path.name for path in outcome.files}
    assert names == {f"fixed-batch.{ending}" for ending in ("csv", "md", "tex", "png", "pdf")}
    assert (tmp_path / "fixed-batch.png").read_bytes()[:4] == b"\x89PNG"
    before = (tmp_path / "fixed-batch.pdf").read_bytes()
    reproduce_table("fixed-batch", options, TrialRunner(tmp_path / "runs", log=lambda _: None), tmp_path)
    assert (tmp_path / "fixed-batch.pdf").read_bytes() == before


def test_paper_values() -> None:
    assert paper_values.get_linear_value({"data": "imagenet100", "loss": "mv-cl2", "views": 3}) == 76.7
    assert paper_values.get_linear_value({"data": "cifar10", "loss": "mv-cl2", "views": 3}) is None
    assert paper_values.get_knn_value({"data": "cifar100", "loss": "mv-dhel", "views": 4}) == 51.8
    assert paper_values.get_knn_value({"data": "cifar100", "loss": "mv-dhel", "views": 2}) is None
    assert paper_values.get_multimodal_value({"data": "ch-sims", "loss": "mv-cl1"}, "mae") == 0.434
    assert paper_values.get_multimodal_value({"data": "ch-sims", "loss": "supervised"}, "mult") is None
    assert paper_values.get_multimodal_value({"data": "ch-sims", "loss": "supervised"}, "head-mult") == 83.2
    assert paper_values.get_memory_value({"data": "cifar10", "batch": 128}) == 89.52


def test_unknown_tables_and_options_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no table or figure 'table2': did you mean table1"):
        reproduce_table("table2", SMOKE, TrialRunner(tmp_path), tmp_path)
    assert METRICS["rank"].format([128.0]) == "128"
    with pytest.raises(ConfigError, match="theorem is measured, not trained: only --scale applies"):
        reproduce_table("theorem", ReproduceOptions(scale="smoke", seeds=3), TrialRunner(tmp_path), tmp_path)


def test_losses_are_selected_by_table_or_library_name() -> None:
    selections = (ReproduceOptions(scale="smoke", losses=(name,)) for name in ("pwe", "pwe-infonce"))
    by_table, by_library = ([trial.name for trial in make_grid("table1", options)] for options in selections)
    assert by_table == by_library != []


@pytest.mark.slow
def test_table_is_kept_if_every_trial_fails(tmp_path: Path) -> None:
    options = ReproduceOptions(scale="smoke", datasets=("nowhere",), views=(2,), losses=("mv-dhel",))
    precious = f"precious\nMade by `{options.format_command('table1')}`."
    (tmp_path / "table1.md").write_text(precious)
    with pytest.raises(ConfigError, match=r"every trial of table1 failed, nothing was written; .*nowhere"):
        reproduce_table("table1", options, TrialRunner(tmp_path / "runs", log=lambda _: None), tmp_path)
    assert (tmp_path / "table1.md").read_text() == precious


def test_table_of_other_options_is_kept(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    options = ReproduceOptions(views=(2,), seeds=2, losses=("pwe", "mv-dhel"))
    write_results(runs, make_grid("fixed-batch", options), SCORES)

    def make_table(options: ReproduceOptions, **flags: bool) -> Path:
        outcome = reproduce_table("fixed-batch", options, TrialRunner(runs, log=lambda _: None), out, **flags)
        return next(path for path in outcome.files if path.suffix == ".md")

    text = make_table(options).read_text()
    assert "Made by `manyviews reproduce fixed-batch --seeds 2 --losses pwe mv-dhel --views 2`." in text
    assert "% Made by `manyviews reproduce fixed-batch --seeds 2" in (out / "fixed-batch.tex").read_text()
    make_table(options)  # the same options replace it
    before = {path: path.read_bytes() for path in out.iterdir()}
    for changes in ({"seeds": 1}, {"losses": ("pwe",)}, {"views": ()}, {"max_instances": 100}, {"scale": "smoke"}):
        other = dataclasses.replace(options, **changes)
        with pytest.raises(
            ConfigError, match=r"was not made by .* Made by `manyviews reproduce fixed-batch --seeds 2 .*--overwr"
        ):
            make_table(other)
    assert before == {path: path.read_bytes() for path in out.iterdir()}
    assert (
        "Made by `manyviews reproduce fixed-batch --losses pwe mv-dhel --views 2`."
        in make_table(dataclasses.replace(options, seeds=1), overwrite=True).read_text()
    )
    for path in out.iterdir():
        path.unlink()
    (out / "principles.csv").write_text("precious")
    with pytest.raises(ConfigError, match=r"principles.csv was not made by .* Its options are unknown"):
        reproduce_table("principles", ReproduceOptions(), TrialRunner(runs), out)


def test_table_written_meanwhile_by_another_process_is_kept(tmp_path: Path) -> None:
    options = ReproduceOptions(views=(2,), losses=("mv-dhel",))

    class SlowRunner(TrialRunner):
        def run(self, trials: list[Trial], keep_runs: bool | None = None) -> dict[str, str]:
            write_results(self.folder, trials, SCORES)
            (tmp_path / "table1.md").write_text("Made by `manyviews reproduce table1 --seeds 5`.")
            return {}

    with pytest.raises(ConfigError, match=r"table1\.md was not made by"):
        reproduce_table("table1", options, SlowRunner(tmp_path / "runs"), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table1.md"]


@pytest.mark.slow
def test_smoke_tests_no_claims(tmp_path: Path) -> None:
    options = ReproduceOptions(scale="smoke", views=(2,))
    write_results(tmp_path / "runs", make_grid("table1", options), SCORES)
    for name, table_options in (("table1", options), ("principles", SMOKE)):
        outcome = reproduce_table(name, table_options, TrialRunner(tmp_path / "runs", log=lambda _: None), tmp_path)
        assert outcome.claims == ()
        text = (tmp_path / f"{name}.md").read_text()
        assert "Smoke runs are too short to test the paper's claims." in text
        assert "held" not in text
