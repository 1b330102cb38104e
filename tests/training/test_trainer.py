"""Training runs of a second: their files, their errors, and how they stop and resume."""

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
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import manyviews as mv
from manyviews.api import train
from manyviews.evaluation import load_evaluation
from manyviews.loading import EpochBatches, ViewLoader
from manyviews.models import ViewBatch
from manyviews.runs import Run
from manyviews.training import (
    Config,
    ConfigError,
    DivergedError,
    Trainer,
    TrainingInterrupted,
    TrainingTask,
    build_loss,
    create_fabric,
    load_data,
    resolve_task,
)
from manyviews.training import task as task_module
from manyviews.training.checkpoints import save_checkpoint
from manyviews.training.task import get_collapse_warning, split_monitored
from manyviews.transforms import SimCLRTransform, center_crop_batch
from manyviews.utils import exclusive_lock, warmup_cosine_lr
from tests.helpers.tiny_run import assert_same_run, folder_of_images, last_checkpoint, tensors, tiny_config


def test_finished_run_has_all_files_and_its_encoder_loads(tmp_path: Path) -> None:
    run = mv.train(tiny_config(evaluate_at_end=True), output=tmp_path / "run", quiet=True)
    names = {path.name for path in run.path.iterdir()}
    files = {"config.yaml", "metrics.csv", "log.txt", "encoder.safetensors", "head.safetensors", "evaluation.json"}
    assert names == {*files, "checkpoints"}
    assert [row["step"] for row in run.read_metrics()] == list(range(1, 16))
    assert [row["epoch"] for row in run.read_metrics()] == [0] * 5 + [1] * 5 + [2] * 5
    assert [row["learning_rate"] for row in run.read_metrics()] == [
        warmup_cosine_lr(s, 15, 2, 0.5 * 16 / 256) for s in range(15)
    ]
    assert [row["step"] for row in run.read_metrics() if "knn" in row] == [4, 8, 12, 15]
    assert {row["knn_k"] for row in run.read_metrics() if "knn" in row} == {1}  # a tenth of 8 in a class
    assert run.read_metrics()[-1]["loss"] < run.read_metrics()[0]["loss"]

    encoder, model = Run.open(run.path).load_encoder(), Run.open(run.path).load_model()
    size = encoder.config.get_spec("image").size
    assert (encoder.dim, size, encoder.training, model.training) == (64, 16, False, False)
    saved = last_checkpoint(run.path)["model"]
    assert model.state_dict().keys() == saved.keys()
    for name, value in {**model.state_dict(), **encoder.state_dict()}.items():
        assert torch.equal(value, saved[name])
    assert encoder.state_dict().keys() <= saved.keys()

    scores = load_evaluation(run).scores
    assert list(scores) == ["majority", "raw_features", "untrained", "trained"]
    assert scores["majority"].linear == 0.1
    rest = [score for name, score in scores.items() if name != "majority"]
    assert all(0.12 < value < 0.5 for score in rest for value in (score.knn, score.linear))  # chance: 0.1
    assert load_evaluation(run).test_instances == 1000
    assert (load_evaluation(run).dataset_path, load_evaluation(run).version) == ("photos", mv.__version__)
    log = (run.path / "log.txt").read_text()
    assert "step 15/15" in log
    assert log.count("  knn_k 1  ") == 4
    assert "instances/s" in log


def test_trainer_equals_a_plain_torch_loop(tmp_path: Path) -> None:
    config = tiny_config(learn_temperature=True, loss="mv-infonce")
    run = train(config, output=tmp_path / "run", quiet=True)

    config = run.config
    photos = load_data(config)
    images = photos["train"].images
    trained, _, _ = split_monitored(len(images), config.seed, config.monitor_size)
    model, loss_fn = run.make_task(photos).build_model(), build_loss(config)
    transform = SimCLRTransform(16, jitter_strength=0.5, blur_prob=0.0, crop_scale=(0.2, 1.0))
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1 and p.requires_grad]
    groups = [{"params": weights, "weight_decay": 1e-6}, {"params": others}, {"params": list(loss_fn.parameters())}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    step, losses = 0, []
    for epoch in range(3):
        for batch in EpochBatches(80, 16, config.seed, epoch):
            index = trained[batch]
            views = transform(images[index], views=3, seed=config.seed, epoch=epoch, index=index)
            loss = loss_fn(model(views).z)
            for group, lr_mult in zip(optimizer.param_groups, (1.0, 1.0, 0.01), strict=True):
                group["lr"] = warmup_cosine_lr(step, 15, 2, 0.5 * 16 / 256) * lr_mult
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
    assert [row["loss"] for row in run.read_metrics()] == losses
    assert run.read_metrics()[0]["temperature"] != run.read_metrics()[-1]["temperature"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, last_checkpoint(run.path)["model"][name]), name


@pytest.mark.parametrize(("loss", "temperature"), [("mv-dhel", 0.5), ("kcl", 0.25), ("siglip", 0.1)])
def test_loss_trains_with_its_default_temperature(loss: str, temperature: float, tmp_path: Path) -> None:
    config = tiny_config(loss=loss, epochs=1)
    run = train(config, output=tmp_path / "run", quiet=True)
    learned = loss == "siglip"
    assert (run.config.temperature, run.config.learn_temperature) == (temperature, learned)
    assert run.read_metrics()[0]["temperature"] == pytest.approx(temperature, rel=0.01)
    assert (run.read_metrics()[-1]["temperature"] != temperature) == learned
    if learned:
        assert last_checkpoint(run.path)["loss"]["bias"] != -10
    named = dataclasses.replace(config, temperature=temperature, learn_temperature=learned)
    assert_same_run(run.path, train(named, output=tmp_path / "named", quiet=True).path)
    train(config, resume=run.path, quiet=True)
    with pytest.raises(ConfigError, match="changed fields: learn_temperature"):
        train(dataclasses.replace(config, learn_temperature=not learned), resume=run.path, quiet=True)


def test_monitored_instances_are_not_trained_on_and_not_in_the_knn_bank() -> None:
    for monitor_size in (10, 0):
        train_set, monitored, bank = (set(part.tolist()) for part in split_monitored(50, 0, monitor_size))
        assert not monitored & bank
        assert bank <= train_set
        assert len(train_set) == 50 - monitor_size
        assert (monitored <= train_set) == (monitor_size == 0)
    assert len(monitored) == 25


def test_monitoring_does_not_affect_training(tmp_path: Path) -> None:
    often = train(tiny_config(monitor_every=1), output=tmp_path / "often", quiet=True)
    rarely = train(tiny_config(monitor_every=15), output=tmp_path / "rarely", quiet=True)
    assert [row["loss"] for row in often.read_metrics()] == [row["loss"] for row in rarely.read_metrics()]
    assert often.read_metrics()[-1] == rarely.read_metrics()[-1]


def test_monitoring_uses_the_workers_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_workers = []

    def record(name: str) -> Callable[..., Any]:
        original = getattr(task_module, name)

        def recorded(model: Any, loader: ViewLoader, index: Tensor) -> Any:
            num_workers.append(loader.num_workers)
            return original(model, loader, index)

        return recorded

    for name in ("encode_instances", "embed_instances"):
        monkeypatch.setattr(task_module, name, record(name))
    folder = folder_of_images(tmp_path / "images", count=24)
    config = tiny_config(
        data=str(folder), max_instances=None, monitor_size=4, batch_size=8, epochs=1, monitor_every=9, num_workers=1
    )
    train(config, output=tmp_path / "run", quiet=True)
    assert num_workers == [1, 1, 1]


@pytest.mark.parametrize(
    ("planned", "steps_per_monitoring", "ranks", "interval"),
    [
        (1700, 0.5, 1, 170),
        (1705, 0.5, 1, 171),
        (170, 1.37, 1, 57),
        (1700, 1.37, 4, 189),
        (170, 20.0, 1, 170),
        (9, 0.0, 1, 1),
    ],
)
def test_monitoring_takes_a_small_part_of_a_run(
    planned: int, steps_per_monitoring: float, ranks: int, interval: int
) -> None:
    task = SimpleNamespace(estimate_monitor_steps=lambda: steps_per_monitoring)
    stub: Any = SimpleNamespace(config=Config(), task=task, fabric=SimpleNamespace(world_size=ranks))
    assert Trainer.choose_monitor_interval(stub, planned) == interval
    count = math.ceil(planned / interval)
    assert count == 1 or (count <= 10 and count * steps_per_monitoring * ranks <= 0.03 * planned)
    stub.config = Config(monitor_every=3)
    assert Trainer.choose_monitor_interval(stub, planned) == 3


def test_cost_of_monitoring_counts_the_views_that_are_encoded() -> None:
    task = resolve_task(Config(), mv.load_dataset("photos"), 1)
    assert task.estimate_monitor_steps() == (250 * 4 + 250 + 500) / (2.5 * 128 * 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "lars"},
        {"optimizer": "adamw", "learning_rate": 0.01},
        {"precision": "bf16-mixed"},
        {"precision": "64"},
        {"grad_cache_chunk": 5},
        {"per_view_batch_norm": True},
        {"loss": "supcon"},
        {"batch_counts_views": True, "batch_size": 48},
        {"monitor_size": 0},
    ],
    ids=str,
)
def test_stopped_training_resumes_bit_for_bit(changes: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(**changes)
    whole = train(config, output=tmp_path / "whole", quiet=True)
    assert all(math.isfinite(row["loss"]) for row in whole.read_metrics())
    stop_after(monkeypatch, 7)
    with pytest.raises(
        TrainingInterrupted,
        match=r"stopped at step 7 of \d+; the last checkpoint is from step 7\. Resume with: many",
    ):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(whole.path, tmp_path / "stopped")


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int, signum: int = signal.SIGTERM) -> None:
    original = Trainer.step

    def step(self: Trainer, batch: ViewBatch) -> dict:
        if self.step_number == steps - 1:
            signal.raise_signal(signum)
        return original(self, batch)

    monkeypatch.setattr(Trainer, "step", step)


def test_sighup_stops_a_run_but_not_under_nohup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 3, signal.SIGHUP)
    with pytest.raises(
        TrainingInterrupted, match="stopped at step 3 of 5; the last checkpoint is from step 3"
    ) as stopped:
        train(tiny_config(epochs=1), output=tmp_path / "run", quiet=True)
    assert stopped.value.exit_code == 129
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train(tiny_config(epochs=1), output=tmp_path / "other", quiet=True).is_finished
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_at_the_last_step_saves_the_encoder_without_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 5)
    with pytest.raises(TrainingInterrupted, match="the encoder is saved, but the evaluation was interrupted"):
        train(tiny_config(epochs=1, evaluate_at_end=True), output=tmp_path / "run", quiet=True)
    assert Run.open(tmp_path / "run").is_finished


def test_second_signal_stops_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.training.signals.ECHO_SECONDS", -1.0)
    original = Trainer.step

    def step(self: Trainer, batch: ViewBatch) -> dict:
        if self.step_number == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return original(self, batch)

    monkeypatch.setattr(Trainer, "step", step)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(TrainingInterrupted, match="stopped immediately") as stopped:
        train(tiny_config(), output=tmp_path / "run", quiet=True)
    assert stopped.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_forwarded_signal_does_not_count_as_a_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Trainer.step

    def step(self: Trainer, batch: ViewBatch) -> dict:
        if self.step_number == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)  # forwarded by torchrun
        return original(self, batch)

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(TrainingInterrupted, match="stopped at step 5 of 15"):
        train(tiny_config(), output=tmp_path / "run", quiet=True)


def test_training_in_another_thread(tmp_path: Path) -> None:
    thread = threading.Thread(
        target=train, args=(tiny_config(epochs=1),), kwargs={"output": tmp_path / "run", "quiet": True}
    )
    thread.start()
    thread.join()
    assert Run.open(tmp_path / "run").is_finished


def test_nan_loss_stops_the_run_and_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Trainer.step

    def step(self: Trainer, batch: ViewBatch) -> dict:
        row = original(self, batch)
        return row | {"loss": torch.tensor(math.nan)} if self.step_number == 6 else row

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", step)
        with pytest.raises(
            DivergedError, match=r"the loss became nan, at step 7 of 15 with learning rate 0\.0\d+.*Try a"
        ):
            train(tiny_config(log_every=4), output=tmp_path / "run", quiet=True)
    assert last_checkpoint(tmp_path / "run")["step"] == 6
    assert "DivergedError" in (tmp_path / "run" / "log.txt").read_text()
    train(resume=tmp_path / "run", quiet=True)  # and it can be resumed


@pytest.mark.parametrize("monitor_every", [1, 15])
def test_non_finite_embeddings_stop_the_run(monitor_every: int, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"embeddings .*(NaN|inf|not finite).* at step \d+ of 15"):
        train(
            tiny_config(learning_rate=1e30, monitor_every=monitor_every, log_every=10),
            output=tmp_path / "run",
            quiet=True,
        )


def test_only_non_finite_inputs_are_reported_as_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: mv.MVDHELLoss, z: Tensor) -> Tensor:
        raise ValueError("no instance has the views")

    with monkeypatch.context() as patch:
        patch.setattr(mv.MVDHELLoss, "forward", forward)
        with pytest.raises(ValueError, match=r"^no instance has the views \(at step 1 of 15\)$") as raised:
            train(tiny_config(), output=tmp_path / "run", quiet=True)
    assert not isinstance(raised.value, DivergedError)

    # A learned temperature can diverge, too.
    original = Trainer.step

    def step(self: Trainer, batch: ViewBatch) -> dict:
        self.loss.log_temperature.data.fill_(math.nan)
        return original(self, batch)

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(DivergedError, match=r"temperature must be a finite number .*got nan, at step 1 of 15"):
        train(tiny_config(learn_temperature=True), output=tmp_path / "other", quiet=True)


def test_detect_anomaly_names_the_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            train(tiny_config(detect_anomaly=True), output=tmp_path / "run", quiet=True)
    assert not torch.is_anomaly_enabled()


@pytest.mark.slow
def test_full_disk_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    whole = train(tiny_config(), output=tmp_path / "whole", quiet=True)
    original_fsync, full = os.fsync, [False]

    def fsync(handle: int) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        original_fsync(handle)

    original = Trainer.step

    def step(self: Trainer, batch: ViewBatch) -> dict:
        full[0] = 5 <= self.step_number < 9
        if self.step_number == 8:
            assert last_checkpoint(self.run.path)["step"] == 4
        return original(self, batch)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Trainer, "step", step)
    run = train(tiny_config(), output=tmp_path / "run")
    assert_same_run(whole.path, run.path)
    stderr = capsys.readouterr().err
    assert "cannot save a checkpoint at step 6: [Errno 28] No space left on device" in stderr
    assert "[Errno 28] No space left on device" in stderr
    assert "rows wait until the disk has space" in stderr


@pytest.mark.slow
def test_last_checkpoint_is_written_when_the_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tiny_config(), output=tmp_path / "whole", quiet=True)
    failures = [OSError(28, "No space left on device")] * 2

    def save(folder: Path, step: int, state: dict, keep: int) -> None:
        if step == 15 and failures:
            raise failures.pop()
        save_checkpoint(folder, step, state, keep)

    monkeypatch.setattr("manyviews.training.trainer.save_checkpoint", save)
    run = train(tiny_config(), output=tmp_path / "run", quiet=True)
    assert not failures
    assert_same_run(whole.path, run.path)


def limit_file_size(size: int) -> None:
    """Limit the size of files of this process in bytes; -1 for no limit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def fill_disk_at_the_end(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Limit files to 4 KB from the last step on; `meanwhile` replaces the sleep between attempts to write."""
    original = Trainer.step

    def step(self: Trainer, batch: ViewBatch) -> dict:
        if self.step_number == self.total_steps - 1:
            limit_file_size(4096)
        return original(self, batch)

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr("manyviews.training.full_disk.sleep", lambda _: meanwhile())


@pytest.mark.slow
def test_full_disk_at_the_end_does_not_lose_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    whole = train(tiny_config(), output=tmp_path / "whole", quiet=True)
    waits = []

    def free_space() -> None:
        assert [path.name[:13] for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000014"]
        waits.append(1)
        if len(waits) == 3:
            limit_file_size(-1)

    fill_disk_at_the_end(monkeypatch, free_space)
    try:
        run = train(tiny_config(), output=tmp_path / "run")
    finally:
        limit_file_size(-1)
    assert len(waits) == 3
    assert_same_run(whole.path, run.path)
    stderr = capsys.readouterr().err
    assert stderr.count("is written as soon as the disk has space") == 1
    assert f"File too large: '{run.path}/head.safetensors'" in stderr
    assert f"manyviews train --resume {run.path}" in stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_wait_for_disk_space(
    signum: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        fill_disk_at_the_end(patch, lambda: signal.raise_signal(signum))
        try:
            with pytest.raises(
                TrainingInterrupted, match=r"disk was full: .*; the last checkpoint is from step 14\. Resume with"
            ) as stopped:
                train(tiny_config(), output=tmp_path / "run", quiet=True)
        finally:
            limit_file_size(-1)
    assert stopped.value.exit_code == 128 + signum
    assert "The result stays in memory" in capsys.readouterr().err
    assert train(resume=tmp_path / "run", quiet=True).is_finished


@pytest.mark.slow
def test_deleted_metrics_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tiny_config(), output=tmp_path / "whole", quiet=True)
    original = Trainer.step

    def step(self: Trainer, batch: ViewBatch) -> dict:
        if self.step_number == 5:
            (self.run.path / "metrics.csv").unlink()
        if self.step_number == 9:
            (self.run.path / "metrics.csv").write_text("")
        return original(self, batch)

    monkeypatch.setattr(Trainer, "step", step)
    run = train(tiny_config(), output=tmp_path / "run", quiet=True)
    assert_same_run(whole.path, run.path)
    assert "cannot" not in (run.path / "log.txt").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("stream", ["full", "closed", "none"])
def test_broken_stderr_does_not_stop_a_run(stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path("/dev/full").open("w")  # noqa: SIM115 (closed below)
    if stream == "closed":
        file.close()
    monkeypatch.setattr(sys, "stderr", None if stream == "none" else file)
    monkeypatch.setattr("manyviews.training.step_progress.LOG_EVERY_SECONDS", 0)
    run = train(tiny_config(epochs=1), output=tmp_path / "run")
    monkeypatch.undo()
    assert "step 5/5" in (run.path / "log.txt").read_text()
    with suppress(OSError):  # its buffer cannot be written
        file.close()


def test_resume_with_fields_that_affect_the_result_raises(tmp_path: Path) -> None:
    run = train(tiny_config(epochs=1), output=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=r"changed fields: views image:3 -> 4, temperature 0\.5 -> 0\.1"):
        train(tiny_config(epochs=1, views=4, temperature=0.1), resume=run.path, quiet=True)
    with pytest.raises(ConfigError, match="--resume cannot be combined with --output or --overwrite"):
        train(resume=run.path, output=tmp_path / "other")
    before = run.read_metrics()
    train(
        tiny_config(epochs=1, checkpoint_every_steps=1, num_workers=1), resume=run.path, quiet=True
    )  # already finished
    assert run.read_metrics() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed: 0", "seed: 1", "checkpoint has different seed"),
        ("epochs: 3", "epochs: 1", "checkpoint has different epochs"),
        ("width_mult: 0.125", "width_mult: 0.25", "checkpoint has different width_mult"),
        ("data: photos", "data: digits", "checkpoint has different instances"),
        ("num_workers: 0", "num_workers: 1", None),
    ],
)
def test_edited_config_is_detected_on_resume(
    old: str, new: str, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 3)
    with pytest.raises(TrainingInterrupted):
        train(tiny_config(), output=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    if message is None:
        assert train(resume=tmp_path / "run", quiet=True).is_finished
        return
    with pytest.raises(ConfigError, match=message):
        train(resume=tmp_path / "run", quiet=True)


def test_changed_images_are_detected_and_corrupt_ones_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.data.image_folder.MAX_IN_MEMORY_BYTES", 5)
    folder = folder_of_images(tmp_path / "images", count=60)
    for number in range(0, 60, 4):
        file = next(folder.rglob(f"{number:03}.png"))
        file.write_bytes(file.read_bytes()[:-200])
    config = tiny_config(data=str(folder), max_instances=None, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        run = train(config, output=tmp_path / "run", quiet=True)
    assert "replaced by the next instance" in (run.path / "log.txt").read_text()
    assert len(run.read_metrics()) == 2
    (run.path / "encoder.safetensors").unlink()
    next(folder.rglob("001.png")).unlink()
    with pytest.raises(ConfigError, match="checkpoint has different instances"):
        train(resume=run.path, quiet=True)


def test_fingerprint_contains_labels_that_the_loss_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.data.image_folder.MAX_IN_MEMORY_BYTES", 0)

    def get_fingerprint(path: Path, loss: str) -> str:
        data = mv.load_dataset(path)
        config = tiny_config(data=str(path), max_instances=None, monitor_size=2, batch_size=4, loss=loss)
        return resolve_task(config, data, 1).compute_fingerprint()

    folder = folder_of_images(tmp_path / "images" / "a", count=12, labelled=False).parent
    (folder / "b").mkdir()
    (folder / "a" / "011.png").rename(folder / "b" / "011.png")
    before = get_fingerprint(folder, "supcon")
    moved = folder.rename(tmp_path / "moved")
    assert get_fingerprint(moved, "supcon") == before
    (moved / "a" / "010.png").rename(moved / "b" / "010.png")  # same position, other class
    assert get_fingerprint(moved, "supcon") != before

    photos = mv.load_dataset("photos")["train"]
    arrays = {"x": photos.images[:12].movedim(1, -1).numpy(), "y": np.arange(12) % 3}
    np.savez(tmp_path / "one.npz", **arrays)
    np.savez(tmp_path / "other.npz", **arrays | {"y": np.arange(12) % 2})
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    assert get_fingerprint(one, "supcon") != get_fingerprint(other, "supcon")
    assert get_fingerprint(one, "mv-dhel") == get_fingerprint(other, "mv-dhel")


def test_fingerprint_does_not_depend_on_the_device() -> None:
    data = mv.load_dataset("photos")
    on_cpu, on_meta = (resolve_task(tiny_config(), data, 1, torch.device(device)) for device in ("cpu", "meta"))
    (reader,) = on_meta.view_loader.readers.values()
    assert reader.pixels.is_meta
    assert on_meta.compute_fingerprint() == on_cpu.compute_fingerprint()


@pytest.mark.slow
def test_run_without_checkpoints_starts_again_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tiny_config(), output=tmp_path / "whole", quiet=True)
    stop_after(monkeypatch, 3)
    with pytest.raises(TrainingInterrupted):
        train(tiny_config(), output=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    train(resume=tmp_path / "run", quiet=True)
    assert "has no checkpoint: training starts again" in (tmp_path / "run" / "log.txt").read_text()
    assert_same_run(whole.path, tmp_path / "run")


def test_interruption_reports_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("manyviews.training.trainer.save_checkpoint", full)
    stop_after(monkeypatch, 3)
    with pytest.raises(TrainingInterrupted, match="stopped at step 3 of 15; the last checkpoint is from step 0"):
        train(tiny_config(), output=tmp_path / "run", quiet=True)


def test_failed_evaluation_keeps_the_encoder_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("manyviews.api.evaluate_model", broken)
        run = train(tiny_config(evaluate_at_end=True, epochs=1), output=tmp_path / "run", quiet=True)
    assert run.is_finished
    assert "evaluation failed: no memory" in (run.path / "log.txt").read_text()
    assert load_evaluation(train(resume=run.path, quiet=True)) is not None
    (run.path / "evaluation.json").unlink()

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")

    def terminated(*_: object, **__: object) -> None:
        stop = KeyboardInterrupt()
        stop.exit_code = 143
        raise stop

    for evaluation, kind in ((lost, ChildProcessError), (terminated, TrainingInterrupted)):
        monkeypatch.setattr("manyviews.api.evaluate_model", evaluation)
        with pytest.raises(kind, match=f"Resume with: manyviews train --resume {run.path}") as stopped:
            train(resume=run.path, quiet=True)
    assert stopped.value.exit_code == 143
    (run.path / "evaluation.json").write_text("{")
    with pytest.raises(
        ConfigError, match=r"cannot read .*evaluation\.json: it is not JSON.* Run `manyviews evaluate` to"
    ):
        load_evaluation(run)


def test_two_processes_cannot_write_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 2)
    with pytest.raises(TrainingInterrupted):
        train(tiny_config(epochs=1), output=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    with exclusive_lock(run.path, "config.yaml"):
        for options in ({"resume": run.path}, {"output": run.path, "overwrite": True}):
            with pytest.raises(BlockingIOError, match="another process is writing to"):
                train(tiny_config(epochs=1), **options, quiet=True)
    train(resume=run.path, quiet=True)


def test_run_resumes_with_moved_data_and_does_not_change_the_rng_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of_images(tmp_path / "here" / "images", count=40)
    config = tiny_config(data="images", max_instances=None, monitor_size=8, epochs=2)
    monkeypatch.chdir(tmp_path / "here")
    stop_after(monkeypatch, 3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(TrainingInterrupted):
        train(config, output=tmp_path / "run", quiet=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    monkeypatch.undo()
    assert Run.open(tmp_path / "run").config.data == str(tmp_path / "here" / "images")
    (tmp_path / "here").rename(tmp_path / "there")
    moved = dataclasses.replace(Run.open(tmp_path / "run").config, data=str(tmp_path / "there" / "images"))
    assert train(moved, resume=tmp_path / "run", quiet=True).is_finished


def test_invalid_training_raises_before_the_run_is_created(tmp_path: Path) -> None:
    unlabeled = folder_of_images(tmp_path / "images", count=20, labelled=False)
    file = tmp_path / "file"
    file.write_text("x")
    for changes, options, message in (
        ({"batch_size": 96}, {}, "a batch of 96 is larger than the 80 training instances of photos .16 of 96"),
        ({"views": 1}, {}, "at least two views are required, got 1"),
        ({"data": "photo"}, {}, "no dataset or path 'photo': did you mean photos"),
        ({"encoder": "resnet19", "width_mult": None}, {}, "no encoder 'resnet19'"),
        ({"encoder": "timm:x"}, {}, "stem and width_mult require a built-in ResNet"),
        (
            {"data": str(unlabeled), "loss": "supcon", "batch_size": 4, "monitor_size": 2},
            {},
            "supcon requires class labels",
        ),
        ({}, {"output": file / "run"}, "cannot write to"),
        ({}, {"output": file}, "exists: use --resume"),
        ({}, {"resume": tmp_path / "nothing"}, "is not a run directory"),
    ):
        with pytest.raises(ValueError, match=message):
            train(
                tiny_config(**changes),
                **{"quiet": True, "output": tmp_path / "run", **options}
                | ({"output": None} if "resume" in options else {}),
            )
    assert not (tmp_path / "run").exists()


def test_unlabeled_folder_trains_without_knn(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = folder_of_images(tmp_path / "images", count=40, labelled=False)
    config = tiny_config(
        data=str(folder), max_instances=None, monitor_size=8, epochs=1, evaluate_at_end=True, image_size=None
    )
    run = train(config, output=tmp_path / "run")
    assert run.config.image_size == 22  # heights from 20 to 24
    assert "knn" not in run.read_metrics()[-1]
    assert run.read_metrics()[-1]["rank"] == 16
    assert load_evaluation(run).scores == {}
    assert load_evaluation(run).get_geometry("z").rank == 16
    assert "images has no labels: no kNN and no linear probe" in capsys.readouterr().err


def test_sizes_and_stems_follow_the_images() -> None:
    photos = mv.load_dataset("photos")
    config = resolve_task(Config(), photos, 1).config
    assert (config.image_size, config.blur_prob) == (32, 0.0)
    assert resolve_task(Config(encoder="resnet18"), photos, 1).config.stem == "small"
    large = resolve_task(Config(encoder="resnet18", image_size=128), photos, 1).config
    assert (large.stem, large.jitter_strength, large.blur_prob) == ("imagenet", 1.0, 0.5)
    with pytest.raises(ConfigError, match="128 instances cannot be split evenly over 3 ranks"):
        resolve_task(Config(batch_size=128), photos, 3)


def test_collapse_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    one_point = {"alignment": 0.0, "uniformity": -0.01, "rank": 1, "rankme": 1.0}
    monkeypatch.setattr(TrainingTask, "monitor", lambda *_: dict(one_point))
    train(tiny_config(epochs=1), output=tmp_path / "run")
    assert "warning: COLLAPSE: all instances have nearly the same embedding" in capsys.readouterr().err
    assert "COLLAPSE" in (tmp_path / "run" / "log.txt").read_text()
    assert get_collapse_warning({"uniformity": -3.5, "rankme": 60.0}) is None
    assert "one dimension" in get_collapse_warning({"uniformity": -1.0, "rankme": 1.2})


def test_monitored_metrics_detect_a_collapsed_model() -> None:
    photos = mv.load_dataset("photos")
    task = resolve_task(tiny_config(max_instances=None, monitor_size=100), photos, 1)
    model = task.build_model()
    with torch.no_grad():
        model.train()(center_crop_batch(photos["train"].images[:200], 16)[:, None])
    assert get_collapse_warning(task.monitor(model)) is None
    with torch.no_grad():
        model.head.heads[0][-1].bias.fill_(100.0)
    assert "same embedding" in get_collapse_warning(task.monitor(model))
    assert model.training


@pytest.mark.slow
def test_no_tensor_of_a_step_is_larger_than_the_views(tmp_path: Path) -> None:
    """The similarity matrix of 1024 x 4 embeddings would have 17 million elements, more than all pixels."""
    config = tiny_config(max_instances=1024, monitor_size=0, batch_size=1024, views=4, image_size=32, loss="mv-infonce")
    photos = load_data(config)
    task = resolve_task(config, photos, 1)
    config = task.config
    run = Run.create(tmp_path / "run", config, overwrite=False)
    trainer = Trainer(
        run,
        task,
        task.build_model(),
        build_loss(config),
        create_fabric(config),
    )
    largest = [0]

    class SizeRecorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
        ) -> object:
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, Tensor):
                    largest[0] = max(largest[0], tensor.numel())
            return out

    batch = task.view_loader.load(torch.arange(1024), epoch=0)
    with SizeRecorder():
        trainer.step(batch)
    assert largest[0] == 1024 * 4 * 3 * 32 * 32 == batch.groups[0].values.numel() < (1024 * 4) ** 2


def test_center_crop_is_the_middle() -> None:
    images = torch.arange(2 * 3 * 16 * 16).remainder(256).to(torch.uint8).view(2, 3, 16, 16)
    torch.testing.assert_close(center_crop_batch(images, 16), images / 255)
    wide = torch.zeros(3, 40, 80, dtype=torch.uint8)
    wide[:, :, 20:60] = 200
    torch.testing.assert_close(center_crop_batch([wide, images[0]], 16)[0], torch.full((3, 16, 16), 200 / 255))


def test_tensorboard_receives_every_row(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tiny_config(loggers=("tensorboard",), epochs=1), output=tmp_path / "run", quiet=True)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("loss")]
    assert scalars == [(row["step"], pytest.approx(row["loss"])) for row in run.read_metrics()]


def test_missing_logger_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"the logger wandb-offline requires: pip install 'manyviews\[wandb\]'"):
        train(tiny_config(loggers=("wandb-offline",)), output=tmp_path / "run")


def test_checkpoints_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr("manyviews.training.trainer.monotonic", lambda: now.__setitem__(0, now[0] + 13) or now[0])
    config = tiny_config(checkpoint_every_steps=0, checkpoint_every_minutes=1.0, keep_checkpoints=100, epochs=3)
    run = train(config, output=tmp_path / "run", quiet=True)
    steps = sorted(int(path.name.split("-")[1]) for path in run.checkpoint_dir.iterdir())
    assert 3 <= len(steps) < 10
    assert steps[-1] == 15


def test_checkpoint_has_only_plain_values(tmp_path: Path) -> None:
    run = train(tiny_config(epochs=1), output=tmp_path / "run", quiet=True)
    kinds = {type(value) for value in tensors(last_checkpoint(run.path)).values()}
    assert kinds <= {torch.Tensor, int, float, bool, type(None), str}
