"""Runs that are extended to more epochs, or initialized from another run, resume bit for bit."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import manyviews as mv
from manyviews.api import train
from manyviews.evaluation import load_evaluation
from manyviews.report.rerun import describe_run
from manyviews.report.summary import load_summaries
from manyviews.runs import Run
from manyviews.training import (
    Config,
    ConfigError,
    TrainingInterrupted,
    list_checkpoints,
)
from manyviews.training.run_directory import Extension
from manyviews.utils import warmup_cosine_lr
from tests.helpers.command_line import manyviews
from tests.helpers.tiny_multimodal import MODAL, bundle
from tests.helpers.tiny_run import assert_same_run, tiny_config
from tests.training.test_trainer import stop_after

PEAK = 0.5 * 16 / 256


def train_and_stop(
    monkeypatch: pytest.MonkeyPatch, steps: int, config: Config | None = None, **options: object
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(TrainingInterrupted):
            train(config, quiet=True, **options)


def rates(run: Run) -> list[float]:
    return [row["learning_rate"] for row in run.read_metrics()]


def schedule(steps: int) -> list[float]:
    return [warmup_cosine_lr(step, steps, round(0.1 * steps), PEAK) for step in range(steps)]


@pytest.mark.slow
def test_extended_run_follows_the_schedule_of_the_new_total(tmp_path: Path) -> None:
    first = train(tiny_config(epochs=2, evaluate_at_end=True), output=tmp_path / "run", quiet=True)
    encoder, evaluation = first.encoder_path.read_bytes(), load_evaluation(first)
    plain = train(tiny_config(epochs=4), output=tmp_path / "plain", quiet=True)
    output = manyviews("train", "--resume", str(first.path), "--epochs", "4").stderr
    assert "changing from 2 to 4 epochs: from step 10 on" in output
    assert "resuming at step 10" in output
    run = Run.open(first.path)
    assert run.extensions == (Extension(step=10, epochs_before=2, epochs=4),)
    assert yaml.safe_load((run.path / "config.yaml").read_text())["extensions"] == [
        {"step": 10, "epochs_before": 2, "epochs": 4}
    ]
    assert (run.config.epochs, run.run_id) == (4, first.run_id)
    assert [row["step"] for row in run.read_metrics()] == list(range(1, 21))
    assert rates(run) == schedule(10)[:10] + schedule(20)[10:] != rates(plain)
    # There is a new evaluation, and the old encoder is kept.
    assert load_evaluation(run) != evaluation
    assert run.encoder_path.read_bytes() != encoder
    assert (run.path / "epochs-2" / "encoder.safetensors").read_bytes() == encoder
    assert (run.path / "epochs-2" / "evaluation.json").exists()
    assert "2 epochs until step 10, then extended to 4" in describe_run(load_summaries([run.path])[0])["training"]
    before = (run.path / "metrics.csv").read_bytes()
    assert train(resume=run.path, quiet=True) == run  # it is finished
    assert (run.path / "metrics.csv").read_bytes() == before


@pytest.mark.slow
def test_killed_extended_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(monitor_every=0, epochs=2)
    train_and_stop(monkeypatch, 7, config, output=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    longer, longest = (replace(config, epochs=epochs) for epochs in (3, 5))
    train(longer, resume=tmp_path / "whole", quiet=True)
    train(longest, resume=tmp_path / "whole", quiet=True)

    train_and_stop(monkeypatch, 8, longer, resume=tmp_path / "killed")
    train_and_stop(monkeypatch, 11, resume=tmp_path / "killed")
    train(resume=tmp_path / "killed", quiet=True)
    train_and_stop(monkeypatch, 16, longest, resume=tmp_path / "killed")
    train(resume=tmp_path / "killed", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert Run.open(tmp_path / "killed").extensions == (Extension(7, 2, 3), Extension(15, 3, 5))
    assert rates(Run.open(tmp_path / "whole")) == schedule(10)[:7] + schedule(15)[7:] + schedule(25)[15:]

    # Killed right after the extension, and the newest checkpoint is lost: earlier steps follow the old schedule.
    train_and_stop(monkeypatch, 8, longer, resume=tmp_path / "damaged")
    newest, *older = list_checkpoints(tmp_path / "damaged" / "checkpoints")
    for path in (newest, *older[:-1]):
        path.unlink()
    assert older[-1].name < "step-00000008"
    train(resume=tmp_path / "damaged", quiet=True)
    train(longest, resume=tmp_path / "damaged", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "damaged")


def test_epochs_can_be_reduced_to_those_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_and_stop(monkeypatch, 7, tiny_config(epochs=9), output=tmp_path / "run")
    text = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(ConfigError, match="has been trained for 2 epochs: --epochs must not be less, got 1"):
        train(tiny_config(epochs=1), resume=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match="changed fields: views image:3 -> 2"):
        train(tiny_config(epochs=12, views=2), resume=tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "config.yaml").read_text() == text
    run = train(tiny_config(epochs=2), resume=tmp_path / "run", quiet=True)
    assert rates(run) == schedule(45)[:7] + schedule(10)[7:]
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("step: 7", "step: soon"))
    with pytest.raises(ConfigError, match="must be an integer, got 'soon'"):
        Run.open(run.path)


@pytest.mark.slow
def test_init_loads_the_weights_of_another_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(tiny_config(epochs=1, seed=5), output=tmp_path / "first", quiet=True)
    config = tiny_config(epochs=2, init=tmp_path / "first", keep_checkpoints=100)
    whole = train(config, output=tmp_path / "whole", quiet=True)
    first_state = torch.load(list_checkpoints(whole.checkpoint_dir)[-1], weights_only=True)
    assert first_state["step"] == 0
    assert_same_tensors(first_state["model"], first.load_model().state_dict())
    content = yaml.safe_load((whole.path / "config.yaml").read_text())
    assert content["init"] == str(tmp_path / "first")
    assert f"{tmp_path / 'first'}, run {first.run_id}, encoder sha256 " in content["provenance"]["init"]
    assert describe_run(load_summaries([whole.path])[0])["initialized from"] == content["provenance"]["init"]

    train_and_stop(monkeypatch, 1, replace(config, checkpoint_every_steps=0), output=tmp_path / "stopped")
    for path in list_checkpoints(tmp_path / "stopped" / "checkpoints")[:-1]:
        path.unlink()  # all but that of step 0
    encoder = (tmp_path / "first" / "encoder.safetensors").rename(tmp_path / "alone.safetensors")
    shutil.rmtree(tmp_path / "first")
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(whole.path, tmp_path / "stopped")

    alone = train(tiny_config(epochs=1, init=encoder, keep_checkpoints=100), output=tmp_path / "alone", quiet=True)
    weights = torch.load(list_checkpoints(alone.checkpoint_dir)[-1], weights_only=True)["model"]
    untrained = alone.make_task(mv.load_dataset("photos")).build_model().state_dict()
    assert_same_tensors(weights, {f"encoder.{name}": value for name, value in load_file(encoder).items()})
    assert_same_tensors(weights, {name: value for name, value in untrained.items() if name.startswith("head.")})


def assert_same_tensors(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected
    for name, value in expected.items():
        assert torch.equal(state[name], value), name


@pytest.mark.slow
def test_unsuitable_initial_weights_raise_before_the_run_is_created(finished_run: Path, tmp_path: Path) -> None:
    names, others = ("text", "audio", "video"), ("video", "audio", "text")
    modal = replace(MODAL, data=bundle(tmp_path / "bundle.npz"), epochs=1)
    modal_run = train(modal, output=tmp_path / "modal", quiet=True).path
    train(replace(modal, init=modal_run), output=tmp_path / "more", quiet=True)
    train(
        replace(modal, init=modal_run / "encoder.safetensors", supervised=True),
        output=tmp_path / "supervised",
        quiet=True,
    )
    unfinished = Run.create(tmp_path / "unfinished", tiny_config(), overwrite=False).path
    for config, init, message in (
        (
            tiny_config(width_mult=0.25),
            finished_run,
            "this config's encoder",
        ),
        (
            tiny_config(embed_dim=8),
            finished_run,
            r"this config's head \(to load only the encoder, use .*encoder.safetensors",
        ),
        (tiny_config(), modal_run, "it encodes the modalities text, audio, video, expected image$"),
        (modal, finished_run, "it encodes the modalities image, expected text, audio, video$"),
        (
            replace(modal, views=others),
            modal_run,
            f"it encodes the modalities {', '.join(names)}, expected {', '.join(others)}",
        ),
        (tiny_config(), unfinished, "has no encoder yet: finish the run"),
        (tiny_config(), tmp_path / "nowhere", "nowhere is not a run directory"),
        (tiny_config(), tmp_path / "nowhere.safetensors", "cannot initialize from .*nowhere.safetensors"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(replace(config, init=init), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="changed fields: init"):
        train(tiny_config(epochs=1, init=modal_run), resume=finished_run, quiet=True)
