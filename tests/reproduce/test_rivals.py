"""The comparison with other losses: equal cost, an equal search for each, and losses that fit the views."""

from pathlib import Path

import pytest

from manyviews.reproduce import EXPERIMENTS, ReproduceOptions, TrialRunner, make_search_trials, reproduce_table
from manyviews.reproduce.rivals import RIVAL_LOSSES, WEIGHTS, make_candidates
from manyviews.reproduce.trials import Trial
from manyviews.training import ConfigError
from tests.helpers.tiny_multimodal import bundle


def make_grid(**options: object) -> list[Trial]:
    return list(EXPERIMENTS["rivals"].make_trials(ReproduceOptions(**options)))


def test_every_loss_has_the_same_cost_and_number_of_candidates() -> None:
    trials = make_grid(datasets=("cifar10",), seeds=2)
    assert {trial.config.loss for trial in trials} == set(RIVAL_LOSSES)
    assert len({(t.config.views, t.config.epochs, t.config.max_instances, t.config.optimizer) for t in trials}) == 1
    assert {len(set(trial.candidates)) for trial in trials} == {6}
    searched = make_search_trials(trials)
    assert len(searched) == 6 * len(RIVAL_LOSSES)
    for trial in searched.values():
        trial.config.check()
        assert (trial.config.temperature is None) == (trial.config.loss in WEIGHTS)
        assert trial.eval_config.split == "valid"


def test_the_first_candidate_has_the_defaults_of_the_loss() -> None:
    assert dict(make_candidates("symile", (1e-3,), 1)[0].changes) == {"temperature": 0.07, "learning_rate": 1e-3}
    (first, *_) = make_candidates("mmcr", (1e-3, 3e-3), 6)
    assert str(first) == "local_weight 0, learning rate 0.001"
    with pytest.raises(ConfigError, match="search_trials must be at most 6, got 7"):
        make_candidates("mmcr", (1e-3, 3e-3), 7)


def test_losses_that_do_not_take_the_number_of_modalities_are_left_out(tmp_path: Path) -> None:
    three = bundle(tmp_path / "three.npz")
    losses = {trial.config.loss for trial in make_grid(datasets=(three,))}
    assert losses == set(RIVAL_LOSSES)
    with pytest.raises(ConfigError, match="--search-trials applies only to the table rivals"):
        ReproduceOptions(search_trials=3).check(EXPERIMENTS["table1"])
    with pytest.raises(ConfigError, match="search_trials must be >= 1, got 0"):
        ReproduceOptions(search_trials=0).check(EXPERIMENTS["rivals"])


@pytest.mark.slow
def test_smoke_table_reports_the_search(tmp_path: Path) -> None:
    options = ReproduceOptions(scale="smoke", losses=("mv-dhel", "mmcr"))
    runner = TrialRunner(tmp_path / "runs", jobs=2, log=lambda _: None)
    outcome = reproduce_table("rivals", options, runner, tmp_path)
    assert outcome.failed == {}
    search = next(table for table in outcome.tables if table.title.startswith("Search"))
    assert [row.cells[0].text for row in search.rows] == ["mv-dhel", "mmcr"]
    assert search.rows[1].cells[1].text.startswith("local_weight 0, learning rate 0.001: ")
