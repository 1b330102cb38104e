"""Frozen encoders and their cached outputs, learning rates of trained encoders, gradient clipping, average weights."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import manyviews as mv
from manyviews.api import train
from manyviews.data import Dataset, DatasetDict, LazyImages
from manyviews.loading import EpochBatches
from manyviews.models import ViewBatch, ViewGroup, eval_mode
from manyviews.runs import Run
from manyviews.training import (
    Callback,
    Config,
    ConfigError,
    CustomObjects,
    Trainer,
    TrainingInterrupted,
    build_loss,
    resolve_task,
)
from manyviews.transforms import CenterCrop
from manyviews.utils import hash_key, warmup_cosine_lr
from tests.helpers.pretrained import save_models, write_captions
from tests.helpers.tiny_multimodal import MODAL, NAMES, bundle
from tests.helpers.tiny_run import (
    assert_same_run,
    flags,
    folder_of_images,
    last_checkpoint,
    run_to_end,
    tensors,
    tiny_config,
)
from tests.training.test_trainer import stop_after

ALL_ON = {"freeze": ("text", "audio"), "freeze_until": ("video=layers.layers",), "clip_grad": 0.5, "ema": 0.9}


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bundle(tmp_path_factory.mktemp("data") / "gaps.npz")


def modal(path: str, **changes: object) -> Config:
    """Return a config whose modalities are not augmented, so that frozen encoders run once."""
    return dataclasses.replace(MODAL, **{"data": path, "epochs": 2, "augment_features": "none", **changes})


class Recorder(Callback):
    """Keeps the weights and buffers before training and after each step."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []
        self.batches: list[ViewBatch] = []
        self.calls = 0

    def on_train_start(self, trainer: Trainer, model: nn.Module) -> None:
        self.states.append(copy.deepcopy(model.state_dict()))
        module = trainer.model.encoder.get_encoder("text") if "text" in trainer.model.encoder.names else None
        if module is not None:
            module.register_forward_hook(self.count)

    def on_train_batch_end(self, trainer: Trainer, model: nn.Module, row: dict, batch: ViewBatch, index: int) -> None:
        self.states.append(copy.deepcopy(model.state_dict()))
        self.batches.append(batch)

    def count(self, *_: object) -> None:
        self.calls += 1


def list_changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def read_log(run: Run) -> str:
    return (run.path / "log.txt").read_text()


def disable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.training.frozen_outputs.get_available_memory", lambda: 0)


def test_frozen_weights_and_statistics_keep_their_bits_and_all_others_change(tmp_path: Path) -> None:
    recorder, config = Recorder(), tiny_config(epochs=1, freeze_until=("layer3",), weight_decay=0.1)
    run = train(config, output=tmp_path / "run", callbacks=[recorder], quiet=True)
    first, last = recorder.states[0], recorder.states[-1]
    model = run.make_task(mv.load_dataset("photos")).build_model()
    names = [name for name, _ in model.encoder.named_parameters(prefix="encoder")]
    start = next(i for i, name in enumerate(names) if ".layer3." in name)
    changed = list_changed(first, last)
    assert start > 0
    assert not changed & set(names[:start])
    assert set(names[start:]) <= changed
    frozen_prefixes = {name.rpartition(".")[0] for name in names[:start]}
    norms = [name for name in first if name.endswith("running_mean")]
    assert {name.rpartition(".")[0] in frozen_prefixes for name in norms} == {True, False}
    for name in norms:
        assert (name in changed) == (name.rpartition(".")[0] not in frozen_prefixes)
    state = last_checkpoint(run.path)["optimizer"]
    count = sum(len(group["params"]) for group in state["param_groups"])
    assert count == sum(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("callback_trains", [False, True])
def test_everything_frozen_trains_heads_alone_without_dropout(
    callback_trains: bool, gaps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the outputs are not cached, and a callback switches the model to training mode."""

    class Switch(Callback):
        def on_train_batch_end(self, trainer: Trainer, model: nn.Module, *_: object) -> None:
            model.train()

    if callback_trains:
        disable_cache(monkeypatch)
    recorder, config = Recorder(), modal(gaps, freeze=("all",), dropout=0.5)
    callbacks = [recorder, Switch()] if callback_trains else [recorder]
    run = train(config, output=tmp_path / "run", callbacks=callbacks, quiet=True)
    changed = list_changed(recorder.states[0], recorder.states[-1])
    assert changed == {name for name in recorder.states[0] if name.startswith("head.")}
    assert (recorder.calls > 10) == callback_trains
    reference = train(dataclasses.replace(config, dropout=0.0), output=tmp_path / "reference", quiet=True)
    losses, expected = ([row["loss"] for row in r.read_metrics()] for r in (run, reference))
    assert losses == pytest.approx(expected, rel=1e-5)


def test_cached_outputs_equal_those_of_the_encoder_and_train_alike(
    gaps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, config = Recorder(), modal(gaps, freeze=("text", "audio"), missing_rate=0.2, precision="64", ema=0.9)
    run = train(config, output=tmp_path / "cached", callbacks=[recorder], quiet=True)
    for name in ("text", "audio"):
        assert f"the frozen encoder of {name} runs once, its outputs stay in memory (0.0 MB)" in read_log(run)
    assert recorder.calls == 0
    task = run.make_task(mv.load_dataset(gaps))
    encoder = task.build_model().encoder.double()  # frozen weights are the initial ones
    for batch in recorder.batches[:2]:
        groups = {group.encoder: group for group in batch.groups}
        assert [groups[name].is_encoded for name in NAMES] == [True, True, False]
        for name in ("text", "audio"):
            raw = {
                group.encoder: group
                for group in task.view_loader.load(batch.indices).to(torch.zeros(1).double()).groups
            }
            with eval_mode(encoder):
                expected = encoder.get_adapted_encoder(name).encode(raw[name].values, raw[name].lengths)
            torch.testing.assert_close(groups[name].values, expected, atol=1e-6, rtol=1e-5)  # positions in 32 bits
    disable_cache(monkeypatch)
    other = train(config, output=tmp_path / "repeated", quiet=True)
    assert "frozen encoder of text runs at each step, without gradient: its outputs, 0.0 MB, would" in read_log(other)
    one, two = run.read_metrics(), other.read_metrics()
    assert any("alignment" in row for row in one)
    for row, expected_row in zip(one, two, strict=True):
        assert row == pytest.approx(expected_row, abs=1e-9)
    saved, expected_state = (r.load_encoder().state_dict() for r in (run, other))
    for name, value in expected_state.items():  # with the real encoder and the mean representations
        torch.testing.assert_close(saved[name], value, atol=1e-6, rtol=1e-5, msg=name)


def test_random_views_are_encoded_at_each_step(tmp_path: Path) -> None:
    config = tiny_config(epochs=1, freeze=("image",))
    log = read_log(train(config, output=tmp_path / "run", quiet=True))
    assert "the frozen encoder of image runs at each step, without gradient: its views are random" in log
    assert "frozen encoders: image; " in log
    assert "frozen weights of the encoder of image are random" in log
    config = dataclasses.replace(config, init=tmp_path / "run")
    assert "are random: " not in read_log(train(config, output=tmp_path / "initialized", quiet=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("default:.*it counts as missing")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_center_crops_of_image_files_are_encoded_once(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be read is missing, as at each step; files of other modalities are still read by workers."""
    images = mv.load_dataset(folder_of_images(tmp_path / "images", count=40))["train"].images
    assert isinstance(images, LazyImages)
    images.paths[3].write_bytes(b"broken")
    texts = [f"number {i}" for i in range(len(images))]
    data = DatasetDict("pairs", {"train": Dataset({"photo": images, "side": images, "title": texts})})
    options = {
        "config": tiny_config(
            max_instances=None, views=("photo", "side", "title"), hidden_dim=16, transformer_heads=4,
            freeze=("photo",), separate_encoders=True, num_workers=num_workers, monitor_size=0, epochs=1, batch_size=8,
        ),
        "transform": {"photo": CenterCrop(16)},
    }  # fmt: skip
    cached = train(data, output=tmp_path / "cached", quiet=True, **options)
    assert "the frozen encoder of photo runs once" in read_log(cached)
    disable_cache(monkeypatch)
    repeated = train(data, output=tmp_path / "repeated", quiet=True, **options)
    assert "it counts as missing" in read_log(cached)
    assert "it counts as missing" in read_log(repeated)
    one, two = ([row["loss"] for row in run.read_metrics()] for run in (cached, repeated))
    assert one == pytest.approx(two, rel=1e-5)


class Flat(nn.Module):
    dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def make_vectors() -> tuple[DatasetDict, Config]:
    generator = torch.Generator().manual_seed(0)
    split = Dataset({name: torch.randn(64, 6, generator=generator) for name in ("a", "b")})
    config = dataclasses.replace(
        MODAL, epochs=2, augment_features="none", transformer_layers=None, transformer_heads=Config().transformer_heads
    )
    return DatasetDict("vectors", {"train": split}), config


def test_lr_scale_and_clipping_equal_a_plain_loop(tmp_path: Path) -> None:
    torch.manual_seed(1)
    encoder, (data, config) = Flat(), make_vectors()
    options = {
        "encoder_lr_scale": 0.1,
        "clip_grad": 0.1,
        "loss": "mv-infonce",
        "learn_temperature": True,
        "hidden_dim": 16,
    }
    initial = {"a": copy.deepcopy(encoder)}
    run = train(data, encoder=initial, config=config, output=tmp_path / "run", quiet=True, **options)

    task = resolve_task(run.config, data, 1, objects=CustomObjects({"a": copy.deepcopy(encoder)}))
    model, loss_fn, split = task.build_model(), build_loss(run.config), data["train"]
    trained = {id(weight) for weight in model.encoder.get_encoder("a").parameters()}
    everything = [*model.parameters(), *loss_fn.parameters()]
    groups = [
        {"params": [p], "weight_decay": 1e-2 if p.dim() > 1 else 0.0, "scale": 0.1 if id(p) in trained else 1.0}
        for p in everything
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0)
    losses, norms = [], []
    for step in range(8):
        batch = list(EpochBatches(64, 16, config.seed, step // 4))[step % 4]
        torch.manual_seed(int(hash_key(config.seed, step, 0)))
        views = (ViewGroup(name, (i,), split[name].values[batch]) for i, name in enumerate("ab"))
        loss = loss_fn(model(ViewBatch(tuple(views), batch)).z)
        for group in optimizer.param_groups:
            group["lr"] = warmup_cosine_lr(step, 8, round(0.8), 0.05 * 16 / 256) * group["scale"]
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(everything, 0.1)))
        optimizer.step()
        losses.append(loss.item())
    rows = run.read_metrics()
    assert min(norms) < 0.15 < max(norms)
    assert [row["grad_norm"] for row in rows] == pytest.approx(norms, rel=1e-4)
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)


def test_lr_scale_is_for_encoders_that_start_from_trained_weights(gaps: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="encoder_lr_scale is for encoders that start from trained weights"):
        train(modal(gaps, encoder_lr_scale=0.1), output=tmp_path / "run", quiet=True)


def test_average_equals_the_average_of_the_recorded_weights(tmp_path: Path) -> None:
    recorder, config = Recorder(), tiny_config(epochs=1, ema=0.6)
    run = train(config, output=tmp_path / "run", callbacks=[recorder], quiet=True)
    expected = {name: value.double() for name, value in recorder.states[0].items()}
    for step, state in enumerate(recorder.states[1:]):
        decay = min(0.6, (1 + step) / (10 + step))
        for name, value in state.items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value.double()
            else:
                expected[name] = value.double()
    checkpoint = last_checkpoint(run.path)
    saved = run.load_encoder().encoder.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(checkpoint["average"][name].double(), value, atol=1e-6, rtol=1e-5, msg=name)
        if name.startswith("encoder."):
            assert torch.equal(saved[name.removeprefix("encoder.")], checkpoint["average"][name])
    assert not torch.equal(checkpoint["average"]["head.heads.0.0.weight"], checkpoint["model"]["head.heads.0.0.weight"])


def test_monitoring_and_evaluation_use_the_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[nn.Module] = []

    class Keep(Callback):
        def on_train_start(self, trainer: Trainer, model: nn.Module) -> None:
            assert trainer.average is not None
            models.append(trainer.average.model)
            monitor = trainer.task.monitor
            monkeypatch.setattr(trainer.task, "monitor", lambda model: models.append(model) or monitor(model))

    run = train(tiny_config(epochs=1, ema=0.9), output=tmp_path / "run", callbacks=[Keep()], quiet=True)
    assert len(models) > 1
    assert all(model is models[0] for model in models)
    assert run.is_finished


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"grad_cache_chunk": 5}, {"precision": "bf16-mixed"}], ids=str)
def test_stopped_training_resumes_exactly(
    changes: dict, gaps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = modal(gaps, **ALL_ON, **changes)
    full = train(config, output=tmp_path / "full", quiet=True)
    stop_after(monkeypatch, 7)
    with pytest.raises(TrainingInterrupted):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(full.path, tmp_path / "stopped")


def assert_close_runs(one: Path, two: Path, tolerance: float = 1e-8) -> None:
    for part in ("model", "average"):
        expected, actual = (tensors(last_checkpoint(path)[part]) for path in (one, two))
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, atol=tolerance, rtol=tolerance, msg=name)
    norms = [[row["grad_norm"] for row in mv.Run.open(path).read_metrics()] for path in (one, two)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_chunks_of_a_batch_train_like_the_full_batch(gaps: str, tmp_path: Path) -> None:
    config = modal(gaps, dropout=0.0, precision="64", missing_rate=0.2, **ALL_ON)
    full = train(config, output=tmp_path / "full", quiet=True)
    chunked = train(dataclasses.replace(config, grad_cache_chunk=3), output=tmp_path / "chunked", quiet=True)
    assert_close_runs(full.path, chunked.path)


@pytest.mark.distributed
def test_two_ranks_train_as_one(gaps: str, tmp_path: Path) -> None:
    config = modal(gaps, dropout=0.0, precision="64", missing_rate=0.2, epochs=1, **ALL_ON)
    config = dataclasses.replace(config, loss="mv-infonce", learn_temperature=True)
    one = train(config, output=tmp_path / "one", quiet=True)
    output = run_to_end(*flags(config), "--output", tmp_path / "two", ranks=2)
    assert "the frozen encoder of text runs once" in output
    assert "deprecated" not in output
    assert_close_runs(one.path, tmp_path / "two")


@pytest.mark.slow
def test_pretrained_encoders_are_frozen_or_trained_at_a_smaller_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text and an image encoder of transformers, the first layers of one are frozen, and those of a ResNet not."""
    pytest.importorskip("transformers")
    save_models(tmp_path / "models")
    write_captions(tmp_path)
    config = tiny_config(
        data=str(tmp_path / "pairs.csv"), max_instances=None, views=("picture", "caption"), epochs=2, hidden_dim=16,
        transformer_heads=4, encoder=(f"text=hf:{tmp_path}/models/bert",), freeze_until=("text=encoder.layer.1",),
        encoder_lr_scale=0.1, width_mult=None, optimizer="adamw", ema=0.9,
    )  # fmt: skip
    full = train(config, output=tmp_path / "full", quiet=True)
    assert "are random: " not in read_log(full)
    model = full.make_task(mv.load_dataset(config.data)).build_model()
    initial, trained = (
        encoder.get_encoder("caption").state_dict() for encoder in (model.encoder, full.load_encoder().encoder)
    )
    changed = list_changed(initial, trained)
    assert changed
    assert all(name.startswith("model.encoder.layer.1.") for name in changed)
    groups = last_checkpoint(full.path)["optimizer"]["param_groups"]
    scaled = sum(len(group["params"]) for group in groups if group["lr_mult"] == 0.1)
    assert scaled == sum(weight.requires_grad for weight in model.encoder.get_encoder("caption").parameters())
    stop_after(monkeypatch, 3)
    with pytest.raises(TrainingInterrupted):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(full.path, tmp_path / "stopped")
    frozen = dataclasses.replace(config, freeze=("text",), freeze_until=(), encoder_lr_scale=1.0)
    run = train(frozen, output=tmp_path / "frozen", quiet=True)
    assert "the frozen encoder of caption runs once" in read_log(run)
    assert not list_changed(initial, run.load_encoder().encoder.get_encoder("caption").state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": ("txt",)}, "freeze: there is no modality or kind 'txt': did you mean text"),
        ({"freeze_until": ("text=",)}, "freeze_until must be NAME, MODALITY=NAME or KIND=NAME, got 'text='"),
        ({"freeze_until": ("layers",)}, "freeze_until: there is no modality or kind 'image'"),
        (
            {"freeze_until": ("text=layers.layerz",)},
            "of text has no submodule 'layers.layerz': did you mean layers.layers",
        ),
        ({"freeze_until": ("text=0123",)}, "no submodule '0123', only project, layers, dropout.* and their parts"),
        ({"freeze_until": ("text=project",)}, "no weights of the encoder of text are before project"),
        ({"freeze": ("all",), "freeze_until": ("text=layers",)}, "the encoder of text is frozen twice"),
        ({"clip_grad": 0.0}, "clip_grad must be > 0, got 0.0"),
        ({"ema": 1.0}, r"ema must be in \[0, 1\), got 1.0"),
        ({"encoder_lr_scale": 0.0}, "encoder_lr_scale must be > 0, got 0.0"),
    ],
    ids=str,
)
def test_invalid_settings_raise(changes: dict, message: str, gaps: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(modal(gaps, **changes), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_shared_encoder_is_frozen_for_all_of_its_modalities(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    data = DatasetDict("sides", {"train": Dataset({"front": images, "side": images})})
    config = tiny_config(max_instances=None, views=("front", "side"), epochs=1, batch_size=8, monitor_size=0)
    with pytest.raises(
        ConfigError, match="freeze front: side has the same encoder; add it, or use --separate-encoders"
    ):
        train(data, config=config, freeze="front", output=tmp_path / "run", quiet=True)
    train(data, config=config, freeze="front side", output=tmp_path / "run", quiet=True)
