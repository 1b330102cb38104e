"""`train` with data, encoders, losses, transforms and callbacks of the user."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import manyviews as mv
from manyviews.training import ConfigError
from manyviews.training.custom_objects import describe_object

PHOTOS = mv.load_dataset("photos")


class Photos(torch.utils.data.Dataset[Any]):
    """Every 40th photo, as a PIL image with its label."""

    def __init__(self, split: str) -> None:
        self.images, labels = PHOTOS[split].images[::40], PHOTOS[split].labels
        assert labels is not None
        self.targets = labels[::40].tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index].permute(1, 2, 0).numpy()), self.targets[index]


class Flat(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, width), nn.Dropout(0.2))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class SquaredDistance(nn.Module):
    """A loss without a mask: pulls views together and keeps their norm."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, z: Tensor) -> Tensor:
        return (z - z.mean(1, keepdim=True)).square().mean() + (z.norm(dim=-1) - self.scale).square().mean()


class PerInstance(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.square().mean((1, 2))


def crop_at_random(image: Image.Image) -> Image.Image:
    left = int(torch.randint(20, (1,)))
    return image.crop((left, 4, left + 12, 16))


class Counter(mv.Callback):
    """Counts steps, and stops, or fails, after some of them."""

    def __init__(self, stop_at: int = 10**6, fail_at: int = 10**6) -> None:
        self.steps, self.stop_at, self.fail_at, self.calls = 0, stop_at, fail_at, []

    def on_train_start(self, trainer: Any, model: mv.MultiViewModel) -> None:
        self.calls.append(f"start {trainer.global_step}")

    def on_train_batch_end(
        self, trainer: Any, model: mv.MultiViewModel, outputs: dict[str, Any], batch: Any, batch_idx: int
    ) -> None:
        assert outputs["loss"].isfinite()
        assert batch.num_instances == 16
        assert (trainer.current_epoch, batch_idx) == (trainer.global_step // 3, (trainer.global_step - 1) % 3)
        self.steps += 1
        trainer.should_stop = self.steps == self.stop_at
        if self.steps == self.fail_at:
            raise InterruptedError

    def on_validation_end(self, trainer: Any, model: mv.MultiViewModel) -> None:
        self.calls.append(f"validation {trainer.global_step} {'knn' in trainer.callback_metrics}")

    def on_train_end(self, trainer: Any, model: mv.MultiViewModel) -> None:
        self.calls.append(f"end {trainer.global_step}")

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]


def train(output: Path, *callbacks: mv.Callback, resume: bool = False, **changes: Any) -> mv.Run:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "encoder": Flat(), "loss": mv.PVCLoss(0.2), "transform": crop_at_random, "views": 3, "epochs": 2,
        "batch_size": 16, "embed_dim": 8, "monitor_size": 8, "monitor_every": 3, "checkpoint_every_steps": 1,
        "num_workers": 0, "cpu_threads": 1,
    }  # fmt: skip
    place: dict[str, Any] = {"resume": output} if resume else {"output": output}
    data = changes.pop("data", None) or {"train": Photos("train"), "test": Photos("test")}
    return mv.train(data, callbacks=callbacks, quiet=True, **place, **{**options, **changes})


def read_weights(run: mv.Run, encoder: nn.Module) -> dict[str, Tensor]:
    return dict(run.load_model(encoder).state_dict())


@pytest.mark.slow
def test_objects_train_evaluate_and_load(tmp_path: Path) -> None:
    encoder, counter = Flat(), Counter()
    before = encoder.layers[1].weight.detach().clone()
    run = train(tmp_path / "run", counter, encoder=encoder)
    assert counter.calls == ["start 0", "validation 3 True", "validation 6 True", "end 6"]
    assert run.config.views == ("image:3",)
    assert run.config.image_size == 12
    assert not torch.equal(encoder.layers[1].weight, before)
    loaded = run.load_encoder(Flat())
    assert torch.equal(loaded.encoder.get_encoder("image").layers[1].weight, encoder.layers[1].weight)
    pixels = torch.rand(4, 3, 12, 12)
    assert torch.allclose(loaded(pixels), encoder.eval()(pixels))
    data = {"train": Photos("train"), "test": Photos("test")}
    config = mv.EvaluationConfig(label_fractions=())
    before_evaluation = mv.evaluation.load_evaluation(run)
    result = mv.evaluate(run, data=data, encoder=Flat(), transform=crop_at_random, config=config)
    assert result.scores["trained"] == before_evaluation.scores["trained"]
    assert result.geometry == before_evaluation.geometry
    assert {"untrained", "trained", "raw_features"} <= result.scores.keys()
    trained = mv.evaluate(run, data=data, encoder=encoder, transform=crop_at_random, config=config)
    assert trained.scores == {name: score for name, score in result.scores.items() if name != "untrained"}
    with pytest.raises(ConfigError, match="the transform of the run is an object of yours: pass it"):
        mv.evaluate(run, data=data, encoder=Flat())
    other = mv.evaluate(run, data="photos", encoder=Flat(), transform=crop_at_random, config=config)
    assert other.dataset == "photos"
    assert (run.path / "evaluation-photos.json").exists()
    with pytest.raises(ValueError, match="is a module of yours: pass it"):
        run.load_encoder()
    with pytest.raises(ConfigError, match="the data is an object of yours"):
        mv.evaluate(run, encoder=Flat(), transform=crop_at_random)


class RecordedIds(mv.MVDHELLoss):
    """Records the ids that it is called with, on the copy that is trained too."""

    calls: ClassVar[list[torch.Tensor | None]] = []

    def forward(self, z: torch.Tensor, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        self.calls.append(options.get("ids"))
        return super().forward(z, mask, **options)


@pytest.mark.parametrize("memory_bank", [0, 20])
def test_instances_in_the_memory_bank_have_ids(memory_bank: int, tmp_path: Path) -> None:
    RecordedIds.calls.clear()
    train(tmp_path / "run", loss=RecordedIds(memory_bank=memory_bank), epochs=1, evaluate_at_end=False)
    assert RecordedIds.calls
    if memory_bank:
        ids = torch.cat([ids for ids in RecordedIds.calls if ids is not None])
        assert len(ids) == len(ids.unique())  # each instance once in an epoch
    else:
        assert RecordedIds.calls == [None] * len(RecordedIds.calls)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        mv.PVCLoss(0.2),
        SquaredDistance(),
        mv.get_loss("mv-dhel+0.5*siglip", memory_bank=20),
        mv.SymileLoss(),
        mv.LeJEPALoss(),
    ],
    ids=["ours", "own", "memory bank", "random permutations", "random directions"],
)
def test_resumed_training_with_the_same_objects_is_bit_identical(loss: nn.Module, tmp_path: Path) -> None:
    import copy

    whole = train(tmp_path / "whole", Counter(), loss=copy.deepcopy(loss), evaluate_at_end=False)
    with pytest.raises(InterruptedError):
        train(tmp_path / "run", Counter(fail_at=4), loss=copy.deepcopy(loss), evaluate_at_end=False)
    counter = Counter()
    run = train(tmp_path / "run", counter, mv.Callback(), resume=True, loss=copy.deepcopy(loss), evaluate_at_end=False)
    assert counter.calls[0] == "start 3"
    assert counter.steps == 6
    expected = read_weights(whole, Flat())
    for name, value in read_weights(run, Flat()).items():
        assert torch.equal(value, expected[name]), name
    assert [row["loss"] for row in run.read_metrics()] == [row["loss"] for row in whole.read_metrics()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": Flat(16)}, "different encoder"),
        ({"loss": mv.PVCLoss(0.3)}, "different loss"),
        ({"transform": lambda image: image.resize((12, 12))}, "different transform"),
        ({"data": {"train": Photos("test")}}, "different instances"),
        ({"encoder": None}, "the encoder is a module of yours: pass it again"),
        ({"loss": None}, "the loss is an object of yours: pass it again"),
    ],
)
def test_resuming_with_other_objects_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        train(tmp_path / "run", Counter(fail_at=2), evaluate_at_end=False)
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", resume=True, evaluate_at_end=False, **changes)
    with pytest.raises(ConfigError, match="the data is an object of yours: pass it again"):
        mv.train(resume=tmp_path / "run", quiet=True)


def test_an_encoder_gets_gray_images_with_one_channel(tmp_path: Path) -> None:
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    pixels = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8)
    run = mv.train(pixels, encoder=encoder, epochs=1, batch_size=16, output=tmp_path / "run", quiet=True)
    assert run.load_encoder(encoder)(pixels[:3]).shape == (3, 4)


def make_crop(size: int, *offsets: int) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.crop((offsets[0], 0, offsets[0] + size, size))


def make_recursion() -> Callable[[int], int]:
    def count(n: int) -> int:
        return 0 if n in {"a", "b", 0} else count(n - 1)

    return count


@pytest.mark.slow
def test_functions_are_compared_by_their_code_and_variables() -> None:
    same = [make_crop(8, 1), make_crop(8, 1)]
    assert describe_object(same[0]) == describe_object(same[1])
    assert describe_object(make_recursion()) == describe_object(make_recursion())
    different = [
        lambda image: image.crop((0, 0, 8, 8)),
        lambda image: image.crop((0, 0, 9, 9)),
        lambda image: image.resize((8, 8)),
        lambda image, size=8: image.resize((size, size)),
        lambda image, size=9: image.resize((size, size)),
        lambda image, *, size=9: image.resize((size, size)),
        lambda image: next(image.crop((0, 0, i, i)) for i in (8,)),
        lambda image: next(image.crop((0, 0, i, i)) for i in (9,)),
        make_crop(8, 1),
        make_crop(8, 2),
        partial(crop_at_random, 1),
        partial(crop_at_random, 2),
        partial(make_crop, 2),
        Counter(1).state_dict,
        Counter(1).on_train_end,
        crop_at_random,
    ]
    assert len({describe_object(function) for function in different}) == len(different)
    code = "from tests.training.test_custom_objects import *; print(describe_object(make_recursion()))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1  # sets are in another order


@pytest.mark.filterwarnings("ignore:.*cannot be decoded")
def test_a_loss_without_a_mask_needs_files_that_can_be_read(tmp_path: Path) -> None:
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        for i in range(24):
            Image.new("RGB", (16, 12 + i % 2), (9 * i, 0, 0)).save(tmp_path / side / f"{i}.png")
    rows = [f"left/{i}.png,right/{i}.png,train" for i in range(24)]
    (tmp_path / "sides.csv").write_text("\n".join(["left,right,split", *rows]))
    options: dict[str, Any] = {
        "loss": SquaredDistance(), "batch_size": 8, "monitor_size": 0, "width_mult": 0.125, "epochs": 1,
        "num_workers": 0, "image_size": 8, "evaluate_at_end": False, "quiet": True,
    }  # fmt: skip
    run = mv.train(tmp_path / "sides.csv", output=tmp_path / "run", **options)
    assert len(run.read_metrics()) == 3
    complete = (tmp_path / "left" / "5.png").read_bytes()
    (tmp_path / "left" / "5.png").write_bytes(complete[:-30])  # its header is intact
    message = (
        r"some views are missing, because files cannot be read, so the loss must take them as loss\(z, mask=mask\)"
    )
    with pytest.raises(ConfigError, match=message):
        mv.train(tmp_path / "sides.csv", output=tmp_path / "other", **options)


def test_a_callback_stops_the_training_and_the_model_is_saved(tmp_path: Path) -> None:
    counter = Counter(stop_at=4)
    run = train(tmp_path / "run", counter)
    assert counter.calls[-1] == "end 4"
    assert run.is_finished
    assert len(run.read_metrics()) == 4
    assert mv.evaluation.load_evaluation(run) is not None


@pytest.mark.slow
def test_a_run_with_a_name_is_evaluated_on_an_object(finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    data = {"train": Photos("train"), "test": Photos("test")}
    result = mv.evaluate(tmp_path / "run", data=data, config=mv.EvaluationConfig(label_fractions=(), baselines=False))
    assert result.test_instances == len(Photos("test"))
    assert (tmp_path / "run" / "evaluation-dataset.json").exists()


def test_encoders_by_modality_and_kind(tmp_path: Path) -> None:
    data = {
        "a": torch.randn(60, 5),
        "b": torch.randn(60, 7),
        "c": torch.randn(60, 4, 3),
        "name": [f"n{i}" for i in range(60)],
    }
    encoders = {"a": nn.Linear(5, 6), "vector": nn.Linear(7, 6)}
    run = mv.train(data, encoder=encoders, epochs=1, batch_size=16, output=tmp_path / "run", quiet=True)
    assert run.config.encoder == ("a=custom", "vector=custom")
    encoder = run.load_encoder({"a": nn.Linear(5, 6), "vector": nn.Linear(7, 6)})
    assert [type(encoder.encoder.get_encoder(name)).__name__ for name in encoder.modalities] == [
        "Linear", "Linear", "SequenceEncoder", "TextEncoder",
    ]  # fmt: skip
    assert torch.equal(encoder.encoder.get_encoder("b").weight, encoders["vector"].weight)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mv.train("photos", encoder=3), "encoder must be a name, a Module or a dict of them, got an int"),
        (lambda: mv.train("photos", epoch=3), "unknown field 'epoch' in the arguments of train: did you mean epochs"),
        (lambda: mv.train(mv.Config(), config=mv.Config()), "give one Config"),
        (
            lambda: mv.train({"a": torch.randn(30, 4), "name": ["", "b", "c"] * 10}, loss=SquaredDistance()),
            r"some views are missing, so the loss must take them as loss\(z, mask=mask\)",
        ),
        (
            lambda: mv.train("photos", transform=crop_at_random, image_size=32, max_instances=40),
            "your transforms make views of one size, which must be that of the config, got 12, 32",
        ),
        (
            lambda: mv.train({"a": torch.randn(30, 4), "b": torch.randn(30, 4)}, transform={"a": crop_at_random}),
            "the transform of a must be a FeatureTransform, got a function",
        ),
        (lambda: mv.train("photos", loss=mv.NTXentLoss(), views=1), "at least two views are required, got 1"),
        (
            lambda: mv.train("photos", transform={"imag": crop_at_random}),
            "transform: there are no views of a modality 'imag': did you mean image",
        ),
        (
            lambda: mv.train({"a": torch.randn(30, 4), "b": torch.randn(30, 4)}, transform=crop_at_random),
            "transform: one transform is for images, and no view is one: use a dict by modality",
        ),
        (lambda: mv.train("photos", transform="simclr"), "transform must be a transform, a function .* got a str"),
        (
            lambda: mv.train("photos", transform=mv.MultiCrop([(mv.SimCLRTransform(32), 2)])),
            "views of several sizes are given as views, such as views=",
        ),
        (
            lambda: mv.train("photos", loss=lambda z: z.mean()),
            "loss must be a name or a torch.nn.Module, got a function: put it into the forward of a module",
        ),
        (lambda: mv.train("photos", callbacks=mv.Callback()), "callbacks must be a list, such as .*, got a manyviews"),
        (lambda: mv.train("photos", callbacks=[mv.Callback]), r"got the class Callback: use Callback\(\)"),
        (
            lambda: mv.train("photos", callbacks=[object()]),
            "callbacks must have all methods of mv.Callback, got an object without on_train_start: extend mv.Callback",
        ),
        (
            lambda: mv.train(
                "photos", loss=PerInstance(), max_instances=64, batch_size=16, width_mult=0.125, quiet=True
            ),
            r"the loss must return a scalar tensor, PerInstance returned a tensor \(16,\): try its mean",
        ),
    ],
)
def test_objects_that_do_not_fit_are_refused(
    call: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        call()
