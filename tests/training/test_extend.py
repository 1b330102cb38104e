"""A run goes on for more epochs than it was begun with, from another run's encoder, and both resume bit for bit."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import manyviews as mv
from manyviews.report.account import accounts
from manyviews.report.again import facts
from manyviews.training import Config, ConfigError, InterruptedTraining, Run, learning_rate, train
from manyviews.training.checkpoints import checkpoints
from manyviews.training.run import Extension
from manyviews.training.setup import built
from tests.training.bundle import MODAL, bundle
from tests.training.small import assert_same_run, finished, small
from tests.training.test_loop import stop_after

PEAK = 0.5 * 16 / 256


def stopped(monkeypatch: pytest.MonkeyPatch, steps: int, config: Config | None = None, **options: object) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(InterruptedTraining):
            train(config, quiet=True, **options)


def rates(run: Run) -> list[float]:
    return [row["learning_rate"] for row in run.metrics]


def schedule(steps: int) -> list[float]:
    return [learning_rate(step, steps, round(0.1 * steps), PEAK) for step in range(steps)]


def test_a_finished_run_is_extended_by_the_schedule_of_the_new_total(tmp_path: Path) -> None:
    first = train(small(epochs=2, probe=True), output=tmp_path / "run", quiet=True)
    encoder, evaluation = first.encoder_file.read_bytes(), first.evaluation
    plain = train(small(epochs=4), output=tmp_path / "plain", quiet=True)
    said = finished("--resume", first.path, "--epochs", 4)
    assert "2 epochs become 4: from step 10 on" in said
    assert "resuming at step 10" in said
    run = Run.open(first.path)
    assert run.extended == (Extension(step=10, epochs_before=2, epochs=4),)
    assert yaml.safe_load((run.path / "config.yaml").read_text())["extended"] == [
        {"step": 10, "epochs_before": 2, "epochs": 4}
    ]
    assert (run.config.epochs, run.identity) == (4, first.identity)
    assert [row["step"] for row in run.metrics] == list(range(1, 21))
    assert rates(run) == schedule(10)[:10] + schedule(20)[10:] != rates(plain)
    # The evaluation is made anew, and the old encoder is still there.
    assert run.evaluation != evaluation
    assert run.encoder_file.read_bytes() != encoder
    assert (run.path / "epochs-2" / "encoder.safetensors").read_bytes() == encoder
    assert (run.path / "epochs-2" / "evaluation.json").exists()
    assert "2 epochs until step 10, then planned for 4" in facts(accounts([run.path])[0])["training"]
    before = (run.path / "metrics.csv").read_bytes()
    assert train(resume=run.path, quiet=True) == run  # it is finished
    assert (run.path / "metrics.csv").read_bytes() == before


def test_an_extended_run_that_is_killed_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(eval_every=0, epochs=2)
    stopped(monkeypatch, 7, config, output=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    longer, longest = (replace(config, epochs=epochs) for epochs in (3, 5))
    train(longer, resume=tmp_path / "whole", quiet=True)
    train(longest, resume=tmp_path / "whole", quiet=True)

    stopped(monkeypatch, 8, longer, resume=tmp_path / "killed")
    stopped(monkeypatch, 11, resume=tmp_path / "killed")
    train(resume=tmp_path / "killed", quiet=True)
    stopped(monkeypatch, 16, longest, resume=tmp_path / "killed")
    train(resume=tmp_path / "killed", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert Run.open(tmp_path / "killed").extended == (Extension(7, 2, 3), Extension(15, 3, 5))
    assert rates(Run.open(tmp_path / "whole")) == schedule(10)[:7] + schedule(15)[7:] + schedule(25)[15:]

    # Cut off right after it was recorded, and the newest checkpoint is lost: steps of before follow the old schedule.
    stopped(monkeypatch, 8, longer, resume=tmp_path / "damaged")
    newest, *older = checkpoints(tmp_path / "damaged" / "checkpoints")
    for path in (newest, *older[:-1]):
        path.unlink()
    assert older[-1].name < "step-00000008"
    train(resume=tmp_path / "damaged", quiet=True)
    train(longest, resume=tmp_path / "damaged", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "damaged")


def test_epochs_may_become_fewer_but_not_fewer_than_were_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(monkeypatch, 7, small(epochs=9), output=tmp_path / "run")
    text = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(ConfigError, match="has been trained for 2 epochs: --epochs 1 would be fewer"):
        train(small(epochs=1), resume=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=r"another views \(was 3, now 2\)"):
        train(small(epochs=12, views=2), resume=tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "config.yaml").read_text() == text
    run = train(small(epochs=2), resume=tmp_path / "run", quiet=True)
    assert rates(run) == schedule(45)[:7] + schedule(10)[7:]
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("step: 7", "step: soon"))
    with pytest.raises(ConfigError, match="must be a whole number, got 'soon'"):
        Run.open(run.path)


def test_a_run_begins_with_the_weights_of_another_and_then_needs_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(small(epochs=1, seed=5), output=tmp_path / "first", quiet=True)
    config = small(epochs=2, init=tmp_path / "first", keep=100)
    whole = train(config, output=tmp_path / "whole", quiet=True)
    begun = torch.load(checkpoints(whole.checkpoints)[-1], weights_only=True)
    assert begun["step"] == 0
    assert_same_tensors(begun["embedder"], first.embedder.state_dict())
    held = yaml.safe_load((whole.path / "config.yaml").read_text())
    assert held["init"] == str(tmp_path / "first")
    assert f"{tmp_path / 'first'}, run {first.identity}, encoder sha256 " in held["made_with"]["init"]
    assert facts(accounts([whole.path])[0])["began with"] == held["made_with"]["init"]

    stopped(monkeypatch, 1, replace(config, save_every=0), output=tmp_path / "stopped")
    for path in checkpoints(tmp_path / "stopped" / "checkpoints")[:-1]:
        path.unlink()  # all but that of step 0
    encoder = (tmp_path / "first" / "encoder.safetensors").rename(tmp_path / "alone.safetensors")
    shutil.rmtree(tmp_path / "first")
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(whole.path, tmp_path / "stopped")

    alone = train(small(epochs=1, init=encoder, keep=100), output=tmp_path / "alone", quiet=True)
    begun = torch.load(checkpoints(alone.checkpoints)[-1], weights_only=True)["embedder"]
    untrained = built(alone.config, mv.load_dataset("photos"))[0].state_dict()
    assert_same_tensors(begun, {f"encoder.{name}": value for name, value in load_file(encoder).items()})
    assert_same_tensors(begun, {name: value for name, value in untrained.items() if name.startswith("head.")})


def assert_same_tensors(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected
    for name, value in expected.items():
        assert torch.equal(state[name], value), name


def test_weights_that_do_not_fit_are_refused_before_a_run_is_made(finished_run: Path, tmp_path: Path) -> None:
    names, others = ("text", "audio", "video"), ("video", "audio", "text")
    modal = replace(MODAL, data=bundle(tmp_path / "bundle.npz"), epochs=1)
    modal_run = train(modal, output=tmp_path / "modal", quiet=True).path
    train(replace(modal, init=modal_run), output=tmp_path / "more", quiet=True)
    train(replace(modal, init=modal_run / "encoder.safetensors", supervised=True), output=tmp_path / "told", quiet=True)
    unfinished = Run.create(tmp_path / "unfinished", small(), overwrite=False).path
    for config, init, message in (
        (small(width=0.25), finished_run, "holds the weights of another architecture than this config's encoder: its"),
        (small(projection=8), finished_run, r"architecture than this config's head \(.*encoder.safetensors is the enc"),
        (small(), modal_run, "it is of modalities, and here are images"),
        (modal, finished_run, "is of images, not of modalities"),
        (
            replace(modal, modalities=others),
            modal_run,
            f"it is of {', '.join(names)}, and here are {', '.join(others)}",
        ),
        (small(), unfinished, "has no encoder yet: finish it"),
        (small(), tmp_path / "nowhere", "nowhere is no run"),
        (small(), tmp_path / "nowhere.safetensors", "cannot begin with .*nowhere.safetensors"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(replace(config, init=init), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="another init"):
        train(small(epochs=1, init=modal_run), resume=finished_run, quiet=True)
