"""Grids of cells: what they hold, that a cell is run once whoever runs it, and what is made of the results."""

import csv
import dataclasses
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from manyviews.experiments import EXPERIMENTS, Cell, Options, paper, reproduce
from manyviews.experiments.cells import run_spec
from manyviews.experiments.claims import T95, best, does_not_grow, grows, steadier, steady
from manyviews.experiments.estimate import seconds_of
from manyviews.experiments.grids import RATES
from manyviews.experiments.launch import Launch
from manyviews.experiments.results import METRICS, Results
from manyviews.experiments.start import cells_of as checked
from manyviews.experiments.start import with_best_rate
from manyviews.experiments.tables import Table, long_form, pivoted
from manyviews.training import RECIPES, ConfigError, EvaluationConfig, InterruptedTraining, train
from tests.training.bundle import bundle
from tests.training.small import folder_of_images
from tests.training.test_loop import stop_after

SMOKE = Options(scale="smoke")


def cells_of(name: str, options: Options = SMOKE) -> list[Cell]:
    return list(EXPERIMENTS[name].cells(options))


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_can_be_trained_and_stands_somewhere(name: str, scale: str) -> None:
    experiment = EXPERIMENTS[name]
    cells = cells_of(name, Options(scale=scale, seeds=2))
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        cell.config.check()
        assert set(experiment.rows) | set(experiment.columns) <= set(cell.place)
        assert not cell.config.probe
    places = {tuple(cell.place.items()) for cell in cells}
    assert 2 * len(places) == len(cells)


def test_the_papers_scale_is_the_papers_recipe() -> None:
    for cell in cells_of("table1", Options(scale="paper", released=True)):
        recipe = RECIPES[cell.place["data"]]
        same = dataclasses.replace(
            recipe, objective=cell.config.objective, views=cell.place["views"], released=True, probe=False
        )
        assert cell.config == same
    objectives = {cell.config.objective for cell in cells_of("table1")}
    assert objectives == {"pwe-infonce", "avg-infonce", "pvc", "mv-infonce", "mv-dhel"}
    released = {cell.config.objective for cell in cells_of("table1", Options(scale="smoke", released=True))}
    assert released == {"pwe-ntxent", "avg-ntxent", "pvc", "mv-infonce", "mv-dhel"}
    for name in ("table1", "multimodal"):
        for cell in cells_of(name, Options(limit=500)):
            assert (cell.config.limit, cell.config.limit_order, cell.config.held_out) == (500, "first", 0)
    fixed = cells_of("fixed-batch", Options(scale="paper"))
    assert {cell.config.views * cell.config.instances for cell in fixed if cell.config.views in (2, 4, 8)} == {256}


def test_tables_share_their_cells() -> None:
    names = [{cell.name for cell in cells_of(name, Options())} for name in ("table1", "knn", "views")]
    assert names[0] == names[1]
    assert len(names[0] & names[2]) == 15  # 2, 3 and 4 views


def test_a_cell_is_named_by_what_gives_another_result() -> None:
    cell = cells_of("table1")[0]
    for changes, same in (({"seed": 7}, False), ({"epochs": 9}, False), ({"threads": 3, "workers": 5}, True)):
        other = dataclasses.replace(cell, config=dataclasses.replace(cell.config, **changes))
        assert (other.name == cell.name) == same
    for objective, same in (("mv-dhel", True), ("siglip", False)):
        own = dataclasses.replace(cell.config, objective=objective)
        named = dataclasses.replace(own, temperature=0.5, learnable=False)
        assert (Cell(own).name == Cell(named).name) == same
    again = dataclasses.replace(cell, how=EvaluationConfig(few=()))
    assert again.name == cell.name  # the same run, evaluated in another way
    assert again.file != cell.file


def test_parts_of_a_table_can_be_chosen() -> None:
    cells = cells_of(
        "table1", Options(objectives=("mv-dhel",), views=(3,), limit=100, epochs=2, data=("x=/some/where",))
    )
    (cell,) = cells
    assert cell.place == {"data": "x", "objective": "mv-dhel", "views": 3}
    assert (cell.config.limit, cell.config.epochs, cell.config.data) == (100, 2, "/some/where")
    for name, options, message in (
        ("table1", Options(objectives=("mvdhel",)), "no objective 'mvdhel' in this table, only pwe"),
        ("table1", Options(objectives=("supervised",)), "no objective 'supervised' in this table"),
        ("table1", Options(views=(2, 9)), "no 9 views in this table, only 2, 3, 4"),
        ("other-losses", Options(views=(5,)), "no 5 views in this table, only 2, 3, 4"),
        ("table1", Options(missing=0.3), "missing and subsets are for the table of modalities"),
        ("multimodal", Options(views=(3,)), "views is for images, and the table is of modalities"),
        ("multimodal", Options(missing=3.0), "missing is a share, from 0 to less than 1, got 3.0"),
        ("multimodal", Options(data=("x=a.npz", "x=b.npz"), objectives=("pvc",)), "two data sets are called"),
    ):
        with pytest.raises(ConfigError, match=message):
            checked(name, options)


def test_a_file_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    one, other = (tmp_path / folder / "multimodal.npz" for folder in "ab")
    for path in (one, other):
        path.parent.mkdir()
        bundle(path)
    names = [cells_of("multimodal", Options(data=(str(path),)))[0].name for path in (one, other)]
    assert names[0] == names[1]
    assert names[0].startswith("multimodal-pwe")  # not the recipe of that name
    bundle(other, labels="quantities")
    assert cells_of("multimodal", Options(data=(str(other),)))[0].name != names[0]


def test_data_are_images_or_modalities_by_what_they_hold(tmp_path: Path) -> None:
    pictures, upper, pickled = tmp_path / "photos.npz", tmp_path / "THREE.NPZ", tmp_path / "two.pickle"
    np.savez(pictures, x=np.zeros((6, 8, 8, 3), np.uint8), y=np.arange(6) % 2)
    Path(bundle(tmp_path / "three.npz")).rename(upper)
    rows = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    pickled.write_bytes(pickle.dumps({"train": {"text": rows, "audio": rows}}))
    emotions = tmp_path / "emotions"
    (emotions / "bert-UTT").mkdir(parents=True)
    np.savez(emotions / "label-6way.npz", train_corpus=np.array({}, dtype=object))
    folder = folder_of_images(tmp_path / "folder", count=3)
    given = [str(path) for path in (pictures, upper, pickled, emotions, folder)]
    cells = cells_of("other-losses", Options(scale="smoke", data=(*given, "ch-sims=nowhere", "digits")))
    found = {cell.place["data"]: cell.config.policy for cell in cells}
    assert found == {
        "photos": "crops", "folder": "crops", "digits": "crops",
        "THREE": "modalities", "two": "modalities", "emotions": "modalities", "ch-sims": "modalities",
    }  # fmt: skip


def small_cells(count: int) -> list[Cell]:
    options = Options(scale="smoke", objectives=("mv-dhel",), views=(2,), limit=64, seeds=count)
    return cells_of("table1", options)


def test_cells_run_once_in_whatever_process_and_failures_stop_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, other, bad = small_cells(3)
    bad = dataclasses.replace(bad, config=dataclasses.replace(bad.config, batch_size=1000))
    said: list[str] = []
    here, cluster = Launch(tmp_path / "here", jobs=2, say=said.append), tmp_path / "cluster"

    # One was stopped before: it goes on.
    stop_after(monkeypatch, 1)
    (tmp_path / "here").mkdir()
    with pytest.raises(InterruptedTraining):
        train(other.config, output=here.folder / other.name, quiet=True)
    monkeypatch.undo()
    assert [cell.state(here.folder) for cell in (good, other)] == ["to do", "begun"]

    failed = here([good, bad, other, good])
    assert list(failed) == [bad.name]
    assert "ConfigError: a batch of 1000 is larger than the 64 instances" in failed[bad.name]
    assert said[0] == "0 of 3 cells are done, 3 to go"
    assert [cell.state(here.folder) for cell in (good, other, bad)] == ["done", "done", "to do"]
    assert "resuming at step 1" in (here.folder / other.name / "log.txt").read_text()

    before = {path: path.stat().st_mtime_ns for path in here.folder.rglob("*") if path.is_file()}
    assert here([good, other]) == {}
    assert said[-1] == "2 of 2 cells are done"
    assert before == {path: path.stat().st_mtime_ns for path in here.folder.rglob("*") if path.is_file()}

    submitted = Launch(cluster, "slurm", slurm={"cluster": "local", "timeout_min": 5}, say=said.append)
    assert submitted([good]) == {}
    run_spec(other.spec(tmp_path / "process"))
    for cell, folder in ((good, cluster), (other, tmp_path / "process")):
        one, two = (dict(cell.found(where), source="") for where in (here.folder, folder))
        assert one == two
        weights = [(where / cell.name / "encoder.safetensors").read_bytes() for where in (here.folder, folder)]
        assert weights[0] == weights[1]


def test_a_run_of_another_config_and_a_damaged_result_are_not_taken(tmp_path: Path) -> None:
    (cell,) = small_cells(1)
    other = dataclasses.replace(cell.config, temperature=0.1)
    train(other, output=tmp_path / cell.name, quiet=True)
    with pytest.raises(ConfigError, match=r"cannot go on with another temperature \(was 0.1, now 0.5\)"):
        run_spec(cell.spec(tmp_path))
    for damage in ("{", "{}", "[]"):
        (tmp_path / cell.name / cell.file).write_text(damage)
        assert cell.state(tmp_path) == "begun"


def test_a_launcher_that_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"the launcher slurm needs: pip install 'manyviews\[slurm\]'"):
        Launch(tmp_path, "slurm", say=lambda _: None)(small_cells(1))


def test_a_launcher_takes_its_own_options_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="jobs is for the launcher local"):
        Launch(tmp_path, "slurm", jobs=2)
    with pytest.raises(ConfigError, match="slurm holds parameters of the launcher slurm, and the launcher is local"):
        Launch(tmp_path, slurm={"slurm_partition": "gpu"})


def test_time_is_estimated_from_a_step() -> None:
    cells = small_cells(2)
    found = seconds_of(cells)
    assert found[cells[0].name] == found[cells[1].name] > 0
    longer = dataclasses.replace(cells[0], config=dataclasses.replace(cells[0].config, epochs=500))
    assert seconds_of([longer])[longer.name] > 20 * found[cells[0].name]


def test_time_is_estimated_of_the_images_that_training_would_read(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=40)
    (folder / "a" / "broken.png").write_bytes(b"no image")
    (cell,) = small_cells(1)
    careless = dataclasses.replace(cell, config=dataclasses.replace(cell.config, data=str(folder), limit=None))
    strict = dataclasses.replace(careless, config=dataclasses.replace(careless.config, strict=True))
    with pytest.warns(UserWarning, match="broken"):
        assert seconds_of([careless])[careless.name] > 0
    assert "broken.png" in str(seconds_of([strict])[strict.name])


def fake(folder: Path, cells: list[Cell], linear: dict[str, float]) -> None:
    """Evaluations as if they had been run."""
    for cell in cells:
        score = linear[cell.place["objective"]] + cell.config.seed / 100
        found = {"scores": {"trained encoder": {"linear": score, "knn": score}}, "geometry": None}
        (folder / cell.name).mkdir(parents=True, exist_ok=True)
        (folder / cell.name / cell.file).write_text(json.dumps(found))


SCORES = {"pwe": 0.5, "avg": 0.51, "pvc": 0.52, "mv-infonce": 0.53, "mv-dhel": 0.55}


def test_tables_hold_means_deviations_and_the_papers_figures(tmp_path: Path) -> None:
    options = Options(scale="paper", seeds=3, data=("cifar10",), released=True)
    cells = cells_of("table1", options)
    fake(tmp_path / "out" / "runs", cells, SCORES)
    outcome = reproduce("table1", options, Launch(tmp_path / "out" / "runs", say=lambda _: None), tmp_path / "out")
    (table,) = outcome.tables
    assert table.header == ("data", "objective", "2 views", "3 views", "4 views")
    assert table.rows[-1] == ("cifar10", "mv-dhel", *(f"56.0 ± 1.0 ({theirs})" for theirs in ("87.4", "89.1", "89.5")))
    with (tmp_path / "out" / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15
    assert rows[0] | {"values": ""} == {
        "data": "cifar10", "objective": "pwe", "views": "2", "metric": "linear", "mean": "51", "deviation": "1",
        "seeds": "3", "values": "", "paper": "86",
    }  # fmt: skip
    text = (tmp_path / "out" / "table1.md").read_text()
    assert "Scale paper; manyviews" in text
    assert "objectives as in the authors' released code" in text
    assert "| mv-dhel has a better linear probe than pwe, avg, pvc, mv-infonce (data cifar10, views 4) | held |" in text
    undecided = "undecided | difference +0.00, margin 0.10 (95% over 3 seeds) | 2: 51.0, 3: 51.0, 4: 51.0 |"
    assert f"| linear probe gets better with more views (cifar10, pwe) | {undecided}" in text
    latex = (tmp_path / "out" / "table1.tex").read_text()
    assert r"cifar10 & mv-dhel & 56.0 $\pm$ 1.0 (87.4) &" in latex
    assert latex.startswith("% Scale paper; manyviews")


def test_layers_of_quantities_are_pooled_over_seeds_under_their_real_names(tmp_path: Path) -> None:
    options = Options(data=("q=somewhere",), objectives=("mv-dhel",), seeds=2)
    cells = cells_of("multimodal", options)
    for cell in cells:
        heads = [{"Has0_acc_2": 0.7 + 0.1 * cell.config.seed, "MAE": 0.5 + number} for number in range(3)]
        (tmp_path / cell.name).mkdir()
        found = {"scores": {"trained encoder": {"heads": heads}}, "geometry": None}
        (tmp_path / cell.name / cell.file).write_text(json.dumps(found))
    results = Results.of(cells, tmp_path, EXPERIMENTS["multimodal"].metrics)
    tables = {table.title: table for table in pivoted(EXPERIMENTS["multimodal"], results, paper=False)}
    assert list(tables) == ["Has0_acc_2, %", "MAE"]
    assert tables["MAE"].header == ("objective", "q")
    assert tables["MAE"].rows == (("mv-dhel", "1.500 ± 0.894"),)  # of six layers
    assert tables["Has0_acc_2, %"].rows == (("mv-dhel", "75.0 ± 5.5"),)


def test_the_papers_figures_stand_only_beside_its_own_setting(tmp_path: Path) -> None:
    cells = cells_of("table1", Options())
    fake(tmp_path, cells, SCORES)
    results = Results.of(cells, tmp_path, ("linear",))
    (table,) = pivoted(EXPERIMENTS["table1"], results, paper=False)
    assert table.rows[0] == ("cifar10", "pwe", "50.0", "50.0", "50.0")
    assert long_form(EXPERIMENTS["table1"], results, paper=False).splitlines()[1].endswith("50,")


@pytest.mark.parametrize(
    ("changes", "withheld"), [({}, True), ({"released": True}, False), ({"released": True, "epochs": 5}, True)]
)
def test_figures_that_are_withheld_are_said_to_be(changes: dict, withheld: bool, tmp_path: Path) -> None:
    options = Options(scale="paper", data=("cifar10",), objectives=("mv-dhel",), views=(2,), **changes)
    fake(tmp_path / "runs", cells_of("table1", options), SCORES)
    outcome = reproduce("table1", options, Launch(tmp_path / "runs", say=lambda _: None), tmp_path)
    assert ("without the paper's figures, which are of --released" in outcome.setting) == withheld
    assert ("(87.4)" in outcome.tables[0].rows[0][-1]) != withheld
    assert outcome.setting in (tmp_path / "table1.md").read_text()


def results_of(**places: list[list[float]]) -> Results:
    """Linear probes of objectives at 2, 4, ... views: a list for each number of views, a value for each seed."""
    return Results(
        {
            (("objective", name), ("views", 2 * number)): {
                "linear": {seed: [value] for seed, value in enumerate(values)}
            }
            if values
            else {}
            for name, columns in places.items()
            for number, values in enumerate(columns, 1)
        }
    )


def test_one_seed_decides_only_beyond_the_stated_margin() -> None:
    results = results_of(a=[[50.0], [53.0], [49.0]], b=[[51.0], [50.0]], c=[[50.0], []])
    claim = best(results, "linear", "a", ["b"], views=4)
    assert (claim.verdict, claim.numbers) == ("held", "a 53.0, b 50.0")
    assert claim.basis == "difference to b +3.00, margin 2.00 (one seed: the metric's minimum)"
    assert best(results, "linear", "b", ["a"], views=4).verdict == "not held"
    assert best(results, "linear", "a", ["b"], views=2).verdict == "undecided"
    assert best(results, "linear", "b", ["a"], views=2).verdict == "undecided"
    for missing in (best(results, "linear", "c", ["a"], views=4), grows(results, "linear", "views", objective="c")):
        assert (missing.verdict, missing.basis) == ("not asked", "")
    claim = grows(results, "linear", "views", objective="a")
    assert (claim.verdict, claim.numbers) == ("undecided", "2: 50.0, 4: 53.0, 6: 49.0")
    assert "difference -1.00" in claim.basis
    assert "difference +1.00" in does_not_grow(results, "linear", "views", objective="a").basis
    two = results_of(a=[[50.0], [53.0]], b=[[51.0], [50.5]])
    assert grows(two, "linear", "views", objective="a").verdict == "held"
    assert does_not_grow(two, "linear", "views", objective="a").verdict == "not held"
    assert steadier(two, "linear", "views", "b", ["a"]).verdict == "held"
    assert steadier(two, "linear", "views", "a", ["b"]).verdict == "not held"
    assert steady(two, "linear", "views", 0.5, objective="a").verdict == "not held"
    assert steady(two, "linear", "views", 1.0, objective="b").verdict == "undecided"
    assert steady(two, "linear", "views", 3.0, objective="b").verdict == "held"


def test_seeds_are_compared_in_pairs_with_the_interval_of_their_differences() -> None:
    # Seeds differ by far more than the objectives, which differ alike on every seed.
    results = results_of(a=[[50.0, 60.0, 70.0]], b=[[49.0, 58.9, 69.1]], c=[[52.0, 57.0, 68.0]])
    claim = best(results, "linear", "a", ["b"], views=2)
    differences = np.array([1.0, 1.1, 0.9])
    margin = stats.t.ppf(0.975, 2) * stats.sem(differences)
    assert claim.verdict == "held"
    assert claim.basis == f"difference to b +1.00, margin {margin:.2f} (95% over 3 seeds)"
    claim = best(results, "linear", "a", ["b", "c"], views=2)  # the one that leaves it open is named
    assert (claim.verdict, claim.basis[:24]) == ("undecided", "difference to c +1.00, m")
    assert best(results, "linear", "b", ["a", "c"], views=2).verdict == "not held"
    # A seed that failed for one of them pairs with none.
    del results.values[("objective", "a"), ("views", 2)]["linear"][2]
    assert "95% over 2 seeds" in best(results, "linear", "a", ["b"], views=2).basis


@pytest.mark.parametrize("count", range(2, 15))
def test_the_margin_is_never_narrower_than_students_interval(count: int) -> None:
    exact = stats.t.ppf(0.975, count - 1)
    table = T95[min(count - 2, len(T95) - 1)]
    assert table >= exact - 6e-4
    assert table < 1.1 * exact


def test_equal_values_are_not_a_difference_whatever_rounding_says() -> None:
    results = results_of(a=[[0.1 + 0.2, 0.7]], b=[[0.3, 0.7]])
    assert best(results, "linear", "a", ["b"], views=2).verdict == "undecided"


def test_less_is_better_where_it_is() -> None:
    place = {name: (("objective", name), ("views", 2)) for name in "ab"}
    results = Results({place["a"]: {"mae": {0: [0.3, 0.5]}}, place["b"]: {"mae": {0: [0.5, 0.7]}}})
    assert best(results, "mae", "a", ["b"], views=2).verdict == "held"
    assert best(results, "mae", "b", ["a"], views=2).verdict == "not held"


def test_the_learning_rate_is_chosen_on_the_validation_split_alone(tmp_path: Path) -> None:
    data = bundle(tmp_path / "ch-sims.npz", "quantities", splits=("train", "test", "valid"))
    options = Options(scale="paper", data=(data,), objectives=("pvc", "mv-dhel"), seeds=2)
    cells = cells_of("multimodal", options)
    assert {cell.config.learning_rate for cell in cells} == {1e-4}
    asked: list[Cell] = []

    class Known(Launch):
        def __call__(self, tried: list[Cell]) -> dict[str, str]:
            asked.extend(tried)
            for cell in tried:
                # pvc is best at the middle rate, mv-dhel at the smallest.
                target = 5e-5 if cell.place["objective"] == "pvc" else 1e-5
                fake(
                    self.folder, [cell], dict.fromkeys(("pvc", "mv-dhel"), 1 - abs(cell.config.learning_rate - target))
                )
            return {}

    done, table, _ = with_best_rate(cells, Known(tmp_path / "runs"))
    assert len(asked) == 2 * len(RATES)
    assert {cell.how.split for cell in asked} == {"valid"}
    assert {cell.config.seed for cell in asked} == {0}
    rates = {(cell.place["objective"], cell.config.seed): cell.config.learning_rate for cell in done}
    assert rates == {("pvc", 0): 5e-5, ("pvc", 1): 5e-5, ("mv-dhel", 0): 1e-5, ("mv-dhel", 1): 1e-5}
    assert [row[-1] for row in table.rows] == ["5e-05", "1e-05"]


def test_modalities_have_a_table_and_one_of_subsets(tmp_path: Path) -> None:
    data = bundle(tmp_path / "three.npz")
    options = Options(
        scale="smoke", data=(data,), objectives=("mv-dhel", "supervised"), epochs=1, missing=0.2, subsets=True
    )
    folder = tmp_path / "results" / "runs"
    outcome = reproduce("multimodal", options, Launch(folder, jobs=2, say=lambda _: None), tmp_path / "results")
    assert outcome.failed == {}
    titles = [table.title for table in outcome.tables]
    assert titles == [
        "linear probe, %", "mean embedding, %", "own layer, %", "What it is compared with: linear probe in %, or MAE",
        "accuracy of every subset of modalities: three, mv-dhel",
        "accuracy of every subset of modalities: three, supervised",
    ]  # fmt: skip
    assert [row[0] for row in outcome.tables[-1].rows][:2] == ["text", "audio"]
    assert [len(table.rows) for table in outcome.tables[-2:]] == [7, 7]
    assert len(outcome.tables[-2].header) == 5
    assert len(outcome.tables[-1].header) == 3  # no raw features, and no common space of labels
    assert "20% of the modalities left out of training" in (tmp_path / "results" / "multimodal.md").read_text()


def test_a_figure_is_drawn_along_the_views(tmp_path: Path) -> None:
    options = Options(views=(2, 4), objectives=("pwe", "mv-dhel"))
    cells = cells_of("fixed-batch", options)
    fake(tmp_path / "runs", cells, SCORES)
    outcome = reproduce("fixed-batch", options, Launch(tmp_path / "runs", say=lambda _: None), tmp_path)
    names = {path.name for path in outcome.files}
    assert names == {f"fixed-batch.{ending}" for ending in ("csv", "md", "tex", "png", "pdf")}
    assert (tmp_path / "fixed-batch.png").read_bytes()[:4] == b"\x89PNG"
    again = (tmp_path / "fixed-batch.pdf").read_bytes()
    reproduce("fixed-batch", options, Launch(tmp_path / "runs", say=lambda _: None), tmp_path)
    assert (tmp_path / "fixed-batch.pdf").read_bytes() == again


def test_the_papers_figures() -> None:
    assert paper.linear({"data": "imagenet100", "objective": "mv-cl2", "views": 3}) == 76.7
    assert paper.linear({"data": "cifar10", "objective": "mv-cl2", "views": 3}) is None
    assert paper.knn({"data": "cifar100", "objective": "mv-dhel", "views": 4}) == 51.8
    assert paper.knn({"data": "cifar100", "objective": "mv-dhel", "views": 2}) is None
    assert paper.multimodal({"data": "ch-sims", "objective": "mv-cl1"}, "mae") == 0.434
    assert paper.multimodal({"data": "ch-sims", "objective": "supervised"}, "mult") is None  # it is of its own layer
    assert paper.multimodal({"data": "ch-sims", "objective": "supervised"}, "own-mult") == 83.2
    assert paper.memory({"data": "cifar10", "batch": 128}) == 89.52


def test_a_name_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no table or figure 'table2': did you mean table1"):
        reproduce("table2", SMOKE, Launch(tmp_path), tmp_path)
    assert METRICS["rank"].told([128.0]) == "128"
    assert Table("t", ("a|b\n<c>",), ()).markdown().splitlines()[2] == r"| a\|b &lt;c> |"
    assert r"\textbackslash{}input\{x\}\_\textasciicircum{}" in Table("t", (r"\input{x}_^",), ()).latex()
    with pytest.raises(ConfigError, match="theorem is measured, not trained: it takes a --scale and nothing else"):
        reproduce("theorem", Options(scale="smoke", seeds=3), Launch(tmp_path), tmp_path)


def test_objectives_are_chosen_by_the_names_of_the_table_or_by_ours() -> None:
    asked = (Options(scale="smoke", objectives=(name,)) for name in ("pwe", "pwe-infonce"))
    by_table, by_ours = ([cell.name for cell in cells_of("table1", options)] for options in asked)
    assert by_table == by_ours != []


def test_a_table_is_not_replaced_when_nothing_could_be_run(tmp_path: Path) -> None:
    options = Options(scale="smoke", data=("nowhere",), views=(2,), objectives=("mv-dhel",))
    precious = f"precious\nMade by `{options.format_command('table1')}`."
    (tmp_path / "table1.md").write_text(precious)
    with pytest.raises(ConfigError, match=r"no cell of table1 could be run, and nothing was written; .*nowhere"):
        reproduce("table1", options, Launch(tmp_path / "runs", say=lambda _: None), tmp_path)
    assert (tmp_path / "table1.md").read_text() == precious


def test_a_table_of_other_options_stays(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    options = Options(views=(2,), seeds=2, objectives=("pwe", "mv-dhel"))
    fake(runs, cells_of("fixed-batch", options), SCORES)

    def made(options: Options, **flags: bool) -> Path:
        outcome = reproduce("fixed-batch", options, Launch(runs, say=lambda _: None), out, **flags)
        return next(path for path in outcome.files if path.suffix == ".md")

    text = made(options).read_text()
    assert "Made by `manyviews reproduce fixed-batch --seeds 2 --objectives pwe mv-dhel --views 2`." in text
    assert "% Made by `manyviews reproduce fixed-batch --seeds 2" in (out / "fixed-batch.tex").read_text()
    made(options)  # the same once more
    before = {path: path.read_bytes() for path in out.iterdir()}
    for changes in ({"seeds": 1}, {"objectives": ("pwe",)}, {"views": ()}, {"limit": 100}, {"scale": "smoke"}):
        other = dataclasses.replace(options, **changes)
        with pytest.raises(ConfigError, match=r"stays\. Made by `manyviews reproduce fixed-batch --seeds 2 .*--overwr"):
            made(other)
    assert before == {path: path.read_bytes() for path in out.iterdir()}
    assert (
        "Made by `manyviews reproduce fixed-batch --objectives pwe mv-dhel --views 2`."
        in made(dataclasses.replace(options, seeds=1), overwrite=True).read_text()
    )
    for path in out.iterdir():
        path.unlink()
    (out / "principles.csv").write_text("precious")
    with pytest.raises(ConfigError, match=r"principles.csv is of other settings .* Its settings are not known"):
        reproduce("principles", Options(), Launch(runs), out)


def test_a_table_that_another_process_has_written_meanwhile_stays(tmp_path: Path) -> None:
    options = Options(views=(2,), objectives=("mv-dhel",))

    class Slow(Launch):
        def __call__(self, cells: list[Cell]) -> dict[str, str]:
            fake(self.folder, cells, SCORES)
            (tmp_path / "table1.md").write_text("Made by `manyviews reproduce table1 --seeds 5`.")
            return {}

    with pytest.raises(ConfigError, match=r"table1\.md is of other settings"):
        reproduce("table1", options, Slow(tmp_path / "runs"), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table1.md"]


def test_smoke_judges_nothing(tmp_path: Path) -> None:
    options = Options(scale="smoke", views=(2,))
    fake(tmp_path / "runs", cells_of("table1", options), SCORES)
    for name, given in (("table1", options), ("principles", SMOKE)):
        outcome = reproduce(name, given, Launch(tmp_path / "runs", say=lambda _: None), tmp_path)
        assert outcome.claims == ()
        text = (tmp_path / f"{name}.md").read_text()
        assert "Smoke runs decide nothing: no claim of the paper is judged." in text
        assert "held" not in text
