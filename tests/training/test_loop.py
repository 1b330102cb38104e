"""Trainings that take a second: what they leave behind, what they refuse, how they stop."""

import dataclasses
import math
import os
import resource
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import manyviews as mv
from manyviews.evaluation import represent
from manyviews.training import Config, ConfigError, DivergedError, InterruptedTraining, Run, learning_rate, train
from manyviews.training.checkpoints import save_checkpoint
from manyviews.training.files import claimed
from manyviews.training.images import ImageSource, policy_of
from manyviews.training.journal import Journal
from manyviews.training.loop import Training
from manyviews.training.setup import built, fitted, launched
from manyviews.training.source import apart, collapsed, load_data
from manyviews.views import batches, plain_views
from tests.training.small import assert_same_run, folder_of_images, last_checkpoint, small, tensors


def test_a_run_leaves_everything_behind_and_its_encoder_loads(tmp_path: Path) -> None:
    run = mv.train(small(probe=True), output=tmp_path / "run", quiet=True)
    names = {path.name for path in run.path.iterdir()}
    files = {"config.yaml", "metrics.csv", "log.txt", "encoder.safetensors", "head.safetensors", "evaluation.json"}
    assert names == {*files, "checkpoints"}
    assert [row["step"] for row in run.metrics] == list(range(1, 16))
    assert [row["epoch"] for row in run.metrics] == [0] * 5 + [1] * 5 + [2] * 5
    assert [row["learning_rate"] for row in run.metrics] == [learning_rate(s, 15, 2, 0.5 * 16 / 256) for s in range(15)]
    assert [row["step"] for row in run.metrics if "knn" in row] == [4, 8, 12, 15]
    assert {row["knn_k"] for row in run.metrics if "knn" in row} == {1}  # a tenth of 8 in a class
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]

    encoder, embedder = Run.open(run.path).encoder, Run.open(run.path).embedder
    assert (encoder.dim, encoder.size, encoder.training, embedder.training) == (64, 16, False, False)
    held = last_checkpoint(run.path)["embedder"]
    assert embedder.state_dict().keys() == held.keys()
    for name, value in {**embedder.state_dict(), **encoder.state_dict()}.items():
        assert torch.equal(value, held[name])

    scores = run.evaluation["scores"]
    assert list(scores) == ["pixels", "untrained encoder", "trained encoder"]
    assert all(0 <= score[kind] <= 1 for score in scores.values() for kind in ("knn", "linear"))
    assert run.evaluation["test_instances"] == 1000
    assert (run.evaluation["source"], run.evaluation["manyviews"]) == ("photos", mv.__version__)
    log = (run.path / "log.txt").read_text()
    assert "step 15/15" in log
    assert log.count("  knn_k 1  ") == 4
    assert "instances/s" in log


def test_the_loop_is_the_plain_loop(tmp_path: Path) -> None:
    """The slow twin: no Fabric, no checkpoints, a page of torch."""
    config = small(learnable=True, objective="mv-infonce")
    run = train(config, output=tmp_path / "run", quiet=True)

    config = run.config
    photos = load_data(config)
    images = photos["train"].images
    trained, _, _ = apart(len(images), config.seed, config.held_out)
    embedder, objective = built(config, photos)
    weights = [p for p in embedder.parameters() if p.dim() > 1]
    others = [p for p in embedder.parameters() if p.dim() <= 1 and p.requires_grad]
    groups = [{"params": weights, "weight_decay": 1e-6}, {"params": others}, {"params": list(objective.parameters())}]
    optimiser = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    step, losses = 0, []
    for epoch in range(3):
        for batch in batches(80, 16, config.seed, epoch):
            index = trained[batch]
            views = policy_of(config)(images[index], views=3, seed=config.seed, epoch=epoch, index=index)
            loss = objective(embedder(views).z)
            for group, share in zip(optimiser.param_groups, (1.0, 1.0, 0.01), strict=True):
                group["lr"] = learning_rate(step, 15, 2, 0.5 * 16 / 256) * share
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            step += 1
    assert [row["loss"] for row in run.metrics] == losses
    assert run.metrics[0]["temperature"] != run.metrics[-1]["temperature"]
    for name, value in embedder.state_dict().items():
        assert torch.equal(value, last_checkpoint(run.path)["embedder"][name]), name


@pytest.mark.parametrize(("objective", "temperature"), [("mv-dhel", 0.5), ("kcl", 0.25), ("siglip", 0.1)])
def test_an_objective_trains_with_its_own_temperature(objective: str, temperature: float, tmp_path: Path) -> None:
    config = small(objective=objective, epochs=1)
    run = train(config, output=tmp_path / "run", quiet=True)
    learned = objective == "siglip"
    assert (run.config.temperature, run.config.learnable) == (temperature, learned)
    assert run.metrics[0]["temperature"] == pytest.approx(temperature, rel=0.01)
    assert (run.metrics[-1]["temperature"] != temperature) == learned
    if learned:
        assert last_checkpoint(run.path)["objective"]["bias"] != -10
    named = dataclasses.replace(config, temperature=temperature, learnable=learned)
    assert_same_run(run.path, train(named, output=tmp_path / "named", quiet=True).path)
    train(config, resume=run.path, quiet=True)
    with pytest.raises(ConfigError, match="another learnable"):
        train(dataclasses.replace(config, learnable=not learned), resume=run.path, quiet=True)


def test_held_out_instances_are_not_trained_on_and_watched_ones_are_not_in_the_bank() -> None:
    for held_out in (10, 0):
        trained, watched, bank = (set(part.tolist()) for part in apart(50, 0, held_out))
        assert not watched & bank
        assert bank <= trained
        assert len(trained) == 50 - held_out
        assert (watched <= trained) == (held_out == 0)
    assert len(watched) == 25


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    often = train(small(eval_every=1), output=tmp_path / "often", quiet=True)
    rarely = train(small(eval_every=15), output=tmp_path / "rarely", quiet=True)
    assert [row["loss"] for row in often.metrics] == [row["loss"] for row in rarely.metrics]
    assert often.metrics[-1] == rarely.metrics[-1]


def test_a_look_reads_with_the_workers_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def known(name: str) -> Callable[..., Any]:
        real = getattr(represent, name)

        def recorded(*arguments: Any) -> Any:
            asked.append(arguments[-1])
            return real(*arguments)

        return recorded

    for name in ("representations", "embedded_views"):
        monkeypatch.setattr(f"manyviews.training.images.{name}", known(name))
    folder = folder_of_images(tmp_path / "images", count=24)
    config = small(data=str(folder), limit=None, held_out=4, batch_size=8, epochs=1, eval_every=9, workers=1)
    train(config, output=tmp_path / "run", quiet=True)
    assert asked == [1, 1, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"optimiser": "lars"},
        {"optimiser": "adamw", "learning_rate": 0.01},
        {"precision": "bf16-mixed"},
        {"precision": "64"},
        {"micro_batch": 5},
        {"each_view": True},
        {"objective": "supcon"},
        {"fixed_batch": True, "batch_size": 48},
        {"held_out": 0},
    ],
    ids=str,
)
def test_ways_of_training_stop_and_go_on(changes: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(**changes)
    whole = train(config, output=tmp_path / "whole", quiet=True)
    assert all(math.isfinite(row["loss"]) for row in whole.metrics)
    stop_after(monkeypatch, 7)
    with pytest.raises(InterruptedTraining, match=r"stopped at step 7 of \d+, all saved. Go on with: manyviews train"):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(whole.path, tmp_path / "stopped")


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int, number: int = signal.SIGTERM) -> None:
    learn = Training.step

    def step(self: Training, views: Tensor, index: Tensor) -> dict:
        if self.step_number == steps - 1:
            signal.raise_signal(number)
        return learn(self, views, index)

    monkeypatch.setattr(Training, "step", step)


def test_a_terminal_that_closes_stops_a_run_in_good_order_but_not_under_nohup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 3, signal.SIGHUP)
    with pytest.raises(InterruptedTraining, match="stopped at step 3 of 5, all saved") as stopped:
        train(small(epochs=1), output=tmp_path / "run", quiet=True)
    assert stopped.value.exit_code == 129
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train(small(epochs=1), output=tmp_path / "other", quiet=True).finished
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stop_at_the_last_step_writes_the_encoder_and_evaluates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 5)
    with pytest.raises(InterruptedTraining, match="its encoder is written; stopped before it was evaluated"):
        train(small(epochs=1, probe=True), output=tmp_path / "run", quiet=True)
    assert Run.open(tmp_path / "run").finished


def test_a_second_signal_leaves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.training.signals._SAME", -1.0)
    learn = Training.step

    def step(self: Training, views: Tensor, index: Tensor) -> dict:
        if self.step_number == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return learn(self, views, index)

    monkeypatch.setattr(Training, "step", step)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(InterruptedTraining, match="stopped at once") as stopped:
        train(small(), output=tmp_path / "run", quiet=True)
    assert stopped.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_an_echo_of_the_signal_is_not_a_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = Training.step

    def step(self: Training, views: Tensor, index: Tensor) -> dict:
        if self.step_number == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)  # torchrun's
        return learn(self, views, index)

    monkeypatch.setattr(Training, "step", step)
    with pytest.raises(InterruptedTraining, match="stopped at step 5 of 15"):
        train(small(), output=tmp_path / "run", quiet=True)


def test_training_in_a_thread_of_its_own(tmp_path: Path) -> None:
    thread = threading.Thread(target=train, args=(small(epochs=1),), kwargs={"output": tmp_path / "run", "quiet": True})
    thread.start()
    thread.join()
    assert Run.open(tmp_path / "run").finished


def test_a_loss_that_is_no_number_stops_the_run_and_leaves_the_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Training.step

    def step(self: Training, views: Tensor, index: Tensor) -> dict:
        row = learn(self, views, index)
        return row | {"loss": torch.tensor(math.nan)} if self.step_number == 6 else row

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", step)
        with pytest.raises(
            DivergedError, match=r"the loss became nan, at step 7 of 15 with learning rate 0\.0\d+.*Try a"
        ):
            train(small(log_every=4), output=tmp_path / "run", quiet=True)
    assert last_checkpoint(tmp_path / "run")["step"] == 6
    assert "DivergedError" in (tmp_path / "run" / "log.txt").read_text()
    train(resume=tmp_path / "run", quiet=True)  # and it can go on


@pytest.mark.parametrize("eval_every", [1, 15])
def test_embeddings_that_are_no_numbers_stop_the_run(eval_every: int, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"embeddings .*(NaN|inf|not finite).* at step \d+ of 15"):
        train(small(learning_rate=1e30, eval_every=eval_every, log_every=10), output=tmp_path / "run", quiet=True)


def test_only_what_a_smaller_learning_rate_may_help_is_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: mv.MVDHEL, z: Tensor) -> Tensor:
        raise ValueError("no instance has the views")

    with monkeypatch.context() as patch:
        patch.setattr(mv.MVDHEL, "forward", forward)
        with pytest.raises(ValueError, match=r"^no instance has the views \(at step 1 of 15\)$") as found:
            train(small(), output=tmp_path / "run", quiet=True)
    assert not isinstance(found.value, DivergedError)

    # A learned temperature can leave its range as well as an embedding.
    learn = Training.step

    def step(self: Training, views: Tensor, index: Tensor) -> dict:
        self.objective.log_temperature.data.fill_(math.nan)
        return learn(self, views, index)

    monkeypatch.setattr(Training, "step", step)
    with pytest.raises(DivergedError, match=r"temperature must be a finite number .*got nan, at step 1 of 15"):
        train(small(learnable=True), output=tmp_path / "other", quiet=True)


def test_anomalies_are_found_where_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient * math.nan

    forward = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", lambda self, x: Broken.apply(forward(self, x)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"BrokenBackward.* returned nan"):
            train(small(detect_anomaly=True), output=tmp_path / "run", quiet=True)
    assert not torch.is_anomaly_enabled()


def test_a_full_disk_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    whole = train(small(), output=tmp_path / "whole", quiet=True)
    real, full = os.fsync, [False]

    def fsync(handle: int) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        real(handle)

    learn = Training.step

    def step(self: Training, views: Tensor, index: Tensor) -> dict:
        full[0] = 5 <= self.step_number < 9
        if self.step_number == 8:
            assert last_checkpoint(self.run.path)["step"] == 4
        return learn(self, views, index)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Training, "step", step)
    run = train(small(), output=tmp_path / "run")
    assert_same_run(whole.path, run.path)
    said = capsys.readouterr().err
    assert "cannot save a checkpoint at step 6: [Errno 28] No space left on device" in said
    assert "[Errno 28] No space left on device" in said
    assert "rows wait until there is room" in said


def test_the_last_checkpoint_is_written_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(small(), output=tmp_path / "whole", quiet=True)
    failures = [OSError(28, "No space left on device")] * 2

    def save(folder: Path, step: int, state: dict, keep: int) -> None:
        if step == 15 and failures:
            raise failures.pop()
        save_checkpoint(folder, step, state, keep)

    monkeypatch.setattr("manyviews.training.loop.save_checkpoint", save)
    run = train(small(), output=tmp_path / "run", quiet=True)
    assert not failures
    assert_same_run(whole.path, run.path)


def limit_file_size(size: int) -> None:
    """Let no file of this process grow beyond so many bytes; -1 for no limit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def full_at_the_end(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Let nothing larger than 4 KB be written from the last save on; `meanwhile` is called when that is waited for."""
    learn = Training.step

    def step(self: Training, views: Tensor, index: Tensor) -> dict:
        if self.step_number == self.steps - 1:
            limit_file_size(4096)
        return learn(self, views, index)

    monkeypatch.setattr(Training, "step", step)
    monkeypatch.setattr("manyviews.training.loop.sleep", lambda _: meanwhile())


def test_a_full_disk_at_the_end_loses_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    whole = train(small(), output=tmp_path / "whole", quiet=True)
    waits = []

    def make_room() -> None:
        assert [path.name[:13] for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000014"]
        waits.append(1)
        if len(waits) == 3:
            limit_file_size(-1)

    full_at_the_end(monkeypatch, make_room)
    try:
        run = train(small(), output=tmp_path / "run")
    finally:
        limit_file_size(-1)
    assert len(waits) == 3
    assert_same_run(whole.path, run.path)
    said = capsys.readouterr().err
    assert said.count("is written as soon as there is room") == 1
    assert f"File too large: '{run.path}/head.safetensors'" in said
    assert f"manyviews train --resume {run.path}" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_waiting_for_room_ends_when_told_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        full_at_the_end(patch, lambda: signal.raise_signal(number))
        try:
            with pytest.raises(InterruptedTraining, match=r"no room .* at step 14\. Go on with") as stopped:
                train(small(), output=tmp_path / "run", quiet=True)
        finally:
            limit_file_size(-1)
    assert stopped.value.exit_code == 128 + number
    assert "The result stays in memory" in capsys.readouterr().err
    assert train(resume=tmp_path / "run", quiet=True).finished


def test_metrics_that_are_deleted_are_written_again_and_checkpoints_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(small(), output=tmp_path / "whole", quiet=True)
    learn = Training.step

    def step(self: Training, views: Tensor, index: Tensor) -> dict:
        if self.step_number == 5:
            (self.run.path / "metrics.csv").unlink()
        if self.step_number == 9:
            (self.run.path / "metrics.csv").write_text("")
        return learn(self, views, index)

    monkeypatch.setattr(Training, "step", step)
    run = train(small(), output=tmp_path / "run", quiet=True)
    assert_same_run(whole.path, run.path)
    assert "cannot" not in (run.path / "log.txt").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("stream", ["full", "closed", "none"])
def test_progress_that_cannot_be_shown_does_not_end_a_run(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("/dev/full").open("w")  # noqa: SIM115 (closed below)
    if stream == "closed":
        file.close()
    monkeypatch.setattr(sys, "stderr", None if stream == "none" else file)
    monkeypatch.setattr("manyviews.training.journal.PLAIN_SECONDS", 0)
    run = train(small(epochs=1), output=tmp_path / "run")
    monkeypatch.undo()
    assert "step 5/5" in (run.path / "log.txt").read_text()
    with suppress(OSError):  # what it could not get rid of
        file.close()


def test_resuming_with_another_result_in_mind_is_refused(tmp_path: Path) -> None:
    run = train(small(epochs=1), output=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=r"another views \(was 3, now 4\), temperature \(was 0\.5, now 0\.1\)"):
        train(small(epochs=1, views=4, temperature=0.1), resume=run.path, quiet=True)
    with pytest.raises(ConfigError, match="leave output and overwrite out"):
        train(resume=run.path, output=tmp_path / "other")
    before = run.metrics
    train(small(epochs=1, save_every=1, workers=1), resume=run.path, quiet=True)  # finished, and another how
    assert run.metrics == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed: 0", "seed: 1", "made with another seed"),
        ("epochs: 3", "epochs: 1", "made with another epochs"),
        ("width: 0.125", "width: 0.25", "made with another width"),
        ("data: photos", "data: digits", "another set of instances"),
        ("workers: 0", "workers: 1", None),
    ],
)
def test_a_config_edited_by_hand_is_found_out(
    old: str, new: str, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 3)
    with pytest.raises(InterruptedTraining):
        train(small(), output=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    if message is None:
        assert train(resume=tmp_path / "run", quiet=True).finished
        return
    with pytest.raises(ConfigError, match=message):
        train(resume=tmp_path / "run", quiet=True)


def test_images_that_changed_are_found_out_and_broken_ones_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyviews.data.files.DECODED_WHEN_LOADED", 5)
    folder = folder_of_images(tmp_path / "images", count=60)
    for number in range(0, 60, 4):
        file = next(folder.rglob(f"{number:03}.png"))
        file.write_bytes(file.read_bytes()[:-200])
    config = small(data=str(folder), limit=None, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        run = train(config, output=tmp_path / "run", quiet=True)
    assert "the next image takes its place" in (run.path / "log.txt").read_text()
    assert len(run.metrics) == 2
    (run.path / "encoder.safetensors").unlink()
    next(folder.rglob("001.png")).unlink()
    with pytest.raises(ConfigError, match="another set of instances"):
        train(resume=run.path, quiet=True)


def test_labels_that_are_learned_from_are_part_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.data.files.DECODED_WHEN_LOADED", 0)

    def identity(path: Path, objective: str) -> str:
        data = mv.load_dataset(path)
        config = fitted(small(data=str(path), limit=None, held_out=2, batch_size=4, objective=objective), data, 1)
        return ImageSource(data, config, torch.device("cpu")).identity

    folder = folder_of_images(tmp_path / "images" / "a", count=12, labelled=False).parent
    (folder / "b").mkdir()
    (folder / "a" / "011.png").rename(folder / "b" / "011.png")
    before = identity(folder, "supcon")
    moved = folder.rename(tmp_path / "moved")
    assert identity(moved, "supcon") == before
    (moved / "a" / "010.png").rename(moved / "b" / "010.png")  # in the same place of the order, of another class
    assert identity(moved, "supcon") != before

    photos = mv.load_dataset("photos")["train"]
    arrays = {"x": photos.images[:12].movedim(1, -1).numpy(), "y": np.arange(12) % 3}
    np.savez(tmp_path / "one.npz", **arrays)
    np.savez(tmp_path / "other.npz", **arrays | {"y": np.arange(12) % 2})
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    assert identity(one, "supcon") != identity(other, "supcon")
    assert identity(one, "mv-dhel") == identity(other, "mv-dhel")


def test_images_are_known_before_they_leave_for_a_device() -> None:
    data = mv.load_dataset("photos")
    config = fitted(small(), data, 1)
    here, there = (ImageSource(data, config, torch.device(device)) for device in ("cpu", "meta"))
    assert there.images.is_meta
    assert there.identity == here.identity  # of pixels that cannot be brought back


def test_a_run_without_its_checkpoints_says_that_it_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(small(), output=tmp_path / "whole", quiet=True)
    stop_after(monkeypatch, 3)
    with pytest.raises(InterruptedTraining):
        train(small(), output=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    train(resume=tmp_path / "run", quiet=True)
    assert "has no checkpoint: it begins again" in (tmp_path / "run" / "log.txt").read_text()
    assert_same_run(whole.path, tmp_path / "run")


def test_a_stop_that_could_not_save_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("manyviews.training.loop.save_checkpoint", full)
    stop_after(monkeypatch, 3)
    with pytest.raises(InterruptedTraining, match="stopped at step 3 of 15, saved at step 0"):
        train(small(), output=tmp_path / "run", quiet=True)


def test_an_evaluation_that_fails_costs_no_encoder_and_can_be_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("manyviews.training.loop.evaluated", broken)
        run = train(small(probe=True, epochs=1), output=tmp_path / "run", quiet=True)
    assert run.finished
    assert "not evaluated: no memory" in (run.path / "log.txt").read_text()
    assert train(resume=run.path, quiet=True).evaluation is not None
    (run.path / "evaluation.json").unlink()

    def lost(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")

    def terminated(*_: object) -> None:
        stop = KeyboardInterrupt()
        stop.exit_code = 143
        raise stop

    for evaluation, kind in ((lost, ChildProcessError), (terminated, InterruptedTraining)):
        monkeypatch.setattr("manyviews.training.loop.evaluated", evaluation)
        with pytest.raises(kind, match=f"Go on with: manyviews train --resume {run.path}") as stopped:
            train(resume=run.path, quiet=True)
    assert stopped.value.exit_code == 143
    (run.path / "evaluation.json").write_text("{")
    with pytest.raises(ConfigError, match=r"evaluation\.json is damaged"):
        _ = run.evaluation


def test_two_processes_cannot_write_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 2)
    with pytest.raises(InterruptedTraining):
        train(small(epochs=1), output=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    with claimed(run.path, "config.yaml"):
        for options in ({"resume": run.path}, {"output": run.path, "overwrite": True}):
            with pytest.raises(BlockingIOError, match="another process is at work in"):
                train(small(epochs=1), **options, quiet=True)
    train(resume=run.path, quiet=True)


def test_a_run_goes_on_from_another_directory_with_data_that_moved_and_leaves_the_callers_randomness_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of_images(tmp_path / "here" / "images", count=40)
    config = small(data="images", limit=None, held_out=8, epochs=2)
    monkeypatch.chdir(tmp_path / "here")
    stop_after(monkeypatch, 3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(InterruptedTraining):
        train(config, output=tmp_path / "run", quiet=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    monkeypatch.undo()
    assert Run.open(tmp_path / "run").config.data == str(tmp_path / "here" / "images")
    (tmp_path / "here").rename(tmp_path / "there")
    moved = dataclasses.replace(Run.open(tmp_path / "run").config, data=str(tmp_path / "there" / "images"))
    assert train(moved, resume=tmp_path / "run", quiet=True).finished


def test_what_cannot_be_trained_is_said_before_anything_is_made(tmp_path: Path) -> None:
    unlabelled = folder_of_images(tmp_path / "images", count=20, labelled=False)
    file = tmp_path / "file"
    file.write_text("x")
    for changes, options, message in (
        ({"batch_size": 96}, {}, "a batch of 96 is larger than the 80 instances of photos to train on .16 of 96"),
        ({"views": 1}, {}, "views must be >= 2"),
        ({"data": "photo"}, {}, "no data set 'photo': did you mean photos"),
        ({"encoder": "resnet19", "width": None}, {}, "no encoder 'resnet19'"),
        ({"encoder": "timm:x"}, {}, "stem and width are for our ResNets"),
        ({"data": str(unlabelled), "objective": "supcon", "batch_size": 4, "held_out": 2}, {}, "supcon needs classes"),
        ({}, {"output": file / "run"}, "cannot write to"),
        ({}, {"output": file}, "exists: go on with --resume"),
        ({}, {"resume": tmp_path / "nothing"}, "is no run"),
    ):
        with pytest.raises(ValueError, match=message):
            train(
                small(**changes),
                **{"quiet": True, "output": tmp_path / "run", **options}
                | ({"output": None} if "resume" in options else {}),
            )
    assert not (tmp_path / "run").exists()


def test_an_unlabelled_folder_trains_without_knn(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = folder_of_images(tmp_path / "images", count=40, labelled=False)
    config = small(data=str(folder), limit=None, held_out=8, epochs=1, probe=True, size=None)
    run = train(config, output=tmp_path / "run")
    assert run.config.size == 22  # heights from 20 to 24
    assert "knn" not in run.metrics[-1]
    assert run.metrics[-1]["rank"] > 0
    assert run.evaluation["scores"] is None
    assert run.evaluation["geometry"]["z"]["rank"] > 0
    assert "images has no labels: no kNN and no linear probe" in capsys.readouterr().err


def test_sizes_and_stems_follow_the_images() -> None:
    photos = mv.load_dataset("photos")
    assert (fitted(Config(), photos, 1).size, fitted(Config(), photos, 1).blur) == (32, 0.0)
    assert fitted(Config(encoder="resnet18"), photos, 1).stem == "small"
    large = fitted(Config(encoder="resnet18", size=128), photos, 1)
    assert (large.stem, large.strength, large.blur) == ("imagenet", 1.0, 0.5)
    with pytest.raises(ConfigError, match="128 instances does not divide among 3 ranks"):
        fitted(Config(batch_size=128), photos, 3)


def test_collapse_is_said_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    one_point = {"alignment": 0.0, "uniformity": -0.01, "rank": 1, "rankme": 1.0}
    monkeypatch.setattr(ImageSource, "look", lambda *_: dict(one_point))
    train(small(epochs=1), output=tmp_path / "run")
    assert "warning: COLLAPSE: all instances have nearly the same embedding" in capsys.readouterr().err
    assert "COLLAPSE" in (tmp_path / "run" / "log.txt").read_text()
    assert collapsed({"uniformity": -3.5, "rankme": 60.0}) is None
    assert "one dimension" in collapsed({"uniformity": -1.0, "rankme": 1.2})


def test_what_is_watched_tells_a_collapsed_model_from_a_healthy_one() -> None:
    photos = mv.load_dataset("photos")
    config = fitted(small(limit=None, held_out=100), photos, 1)
    source = ImageSource(photos, config, torch.device("cpu"))
    embedder, _ = built(config, photos)
    with torch.no_grad():
        embedder.train()(plain_views(photos["train"].images[:200], 16)[:, None])
    assert collapsed(source.look(embedder)) is None
    with torch.no_grad():
        embedder.head[-1].bias.fill_(100.0)
    assert "same embedding" in collapsed(source.look(embedder))
    assert embedder.training


def test_no_step_makes_anything_larger_than_views_and_activations(tmp_path: Path) -> None:
    """1024 x 4 rows have an affinity matrix of 17 million numbers: more than all their pixels."""
    config = small(limit=1024, held_out=0, batch_size=1024, views=4, size=32, objective="mv-infonce")
    photos = load_data(config)
    config = fitted(config, photos, 1)
    run = Run.create(tmp_path / "run", config, overwrite=False)
    training = Training(
        run, photos, *built(config, photos), launched(config), Journal(run.path / "log", silent=True, quiet=True)
    )
    largest = [0]

    class Watcher(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
        ) -> object:
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, Tensor):
                    largest[0] = max(largest[0], tensor.numel())
            return out

    index = torch.arange(1024)
    views = policy_of(config)(photos["train"].images[index], views=4, seed=0, epoch=0, index=index)
    with Watcher():
        training.step(views, index)
    assert largest[0] == views.numel() < (1024 * 4) ** 2


def test_plain_views_are_the_middle() -> None:
    images = torch.arange(2 * 3 * 16 * 16).remainder(256).to(torch.uint8).view(2, 3, 16, 16)
    torch.testing.assert_close(plain_views(images, 16), images / 255)
    wide = torch.zeros(3, 40, 80, dtype=torch.uint8)
    wide[:, :, 20:60] = 200
    torch.testing.assert_close(plain_views([wide, images[0]], 16)[0], torch.full((3, 16, 16), 200 / 255))


def test_tensorboard_gets_every_row(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(small(loggers=("tensorboard",), epochs=1), output=tmp_path / "run", quiet=True)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert found == [(row["step"], pytest.approx(row["loss"])) for row in run.metrics]


def test_a_logger_that_is_missing_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"the logger wandb-offline needs: pip install 'manyviews\[wandb\]'"):
        train(small(loggers=("wandb-offline",)), output=tmp_path / "run")


def test_checkpoints_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr("manyviews.training.loop.monotonic", lambda: now.__setitem__(0, now[0] + 13) or now[0])
    config = small(save_every=0, save_minutes=1.0, keep=100, epochs=3)
    run = train(config, output=tmp_path / "run", quiet=True)
    steps = sorted(int(path.name.split("-")[1]) for path in run.checkpoints.iterdir())
    assert 3 <= len(steps) < 10
    assert steps[-1] == 15


def test_all_of_a_checkpoint_is_plain(tmp_path: Path) -> None:
    run = train(small(epochs=1), output=tmp_path / "run", quiet=True)
    kinds = {type(value) for value in tensors(last_checkpoint(run.path)).values()}
    assert kinds <= {torch.Tensor, int, float, bool, type(None), str}
