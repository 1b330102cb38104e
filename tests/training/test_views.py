"""Trainings on every form of `--views`: crops of several sizes, several image modalities, images with other kinds."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import manyviews as mv
from manyviews.api import train
from manyviews.data import Images, Texts, Vectors
from manyviews.evaluation import load_evaluation
from manyviews.loading import encode_instances
from manyviews.models import MultiViewModel
from manyviews.report.page import write_report
from manyviews.training import Config, ConfigError, TrainingInterrupted, TrainingTask, resolve_task
from tests.helpers.tiny_run import ENVIRONMENT, assert_same_run, flags, last_checkpoint, tensors
from tests.training.test_trainer import stop_after

WORDS = ("red", "green", "blue")
BASE = Config(
    data="made",
    monitor_size=0,
    embed_dim=8,
    hidden_dim=16,
    epochs=2,
    batch_size=16,
    optimizer="adamw",
    learning_rate=0.02,
    monitor_every=4,
    log_every=1,
    checkpoint_every_steps=2,
    cpu_threads=1,
    num_workers=0,
    evaluate_at_end=False,
)
"""Five steps per epoch, ten in total, if all instances are used."""
IMAGES = {"width_mult": 0.125, "image_size": 16}
TEXTS = {"transformer_layers": 1, "transformer_heads": 4}
CASES = {
    "crops": dataclasses.replace(BASE, views="left:2@16 left:4@8", width_mult=0.125),
    "mixed": dataclasses.replace(BASE, views="left:2 vector caption", **IMAGES, **TEXTS),
    "shared": dataclasses.replace(BASE, views="left:2 right@8", **IMAGES),
    "separate": dataclasses.replace(BASE, views="left:2 right@8", separate_encoders=True, **IMAGES),
    "no images": dataclasses.replace(BASE, views="caption:2 vector", **TEXTS),
}


def make_data() -> mv.DatasetDict:
    """Two cameras, a vector and a caption of each instance; some of the vectors and captions are missing."""
    generator = torch.Generator().manual_seed(0)
    splits = {}
    for name, count in (("train", 80), ("test", 40)):
        labels = torch.randint(3, (count,), generator=generator)
        cameras = {}
        for camera in ("left", "right"):
            pixels = torch.randint(0, 120, (count, 3, 18, 16), generator=generator)
            pixels[torch.arange(count), labels] += 100
            cameras[camera] = Images(pixels.to(torch.uint8))
        values = torch.randn(count, 5, generator=generator) + labels[:, None]
        vectors = Vectors(values, mask=torch.rand(count, generator=generator) > 0.2)
        numbers = torch.randint(100, (count,), generator=generator).tolist()
        texts = tuple(f"{WORDS[label]} no. {i}" for label, i in zip(labels.tolist(), numbers, strict=True))
        captions = Texts(texts, mask=torch.rand(count, generator=generator) > 0.2)
        splits[name] = mv.Dataset({**cameras, "vector": vectors, "caption": captions}, labels)
    return mv.DatasetDict("made", splits, WORDS)


@pytest.fixture(autouse=True)
def made_data(monkeypatch: pytest.MonkeyPatch) -> mv.DatasetDict:
    """Texts are in no file format, so the data replace those of every config."""
    data = make_data()
    for module in ("api", "runs"):
        monkeypatch.setattr(f"manyviews.{module}.load_data", lambda *_: data)
    return data


def without_batch_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build models without batch norm, so that an embedding does not depend on other instances."""
    build = TrainingTask.build_model

    def build_model(self: TrainingTask) -> MultiViewModel:
        model = build(self)
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, _BatchNorm):
                    setattr(module, name, nn.Identity())
        return model

    monkeypatch.setattr(TrainingTask, "build_model", build_model)


def make_task(config: Config, data: mv.DatasetDict) -> TrainingTask:
    return resolve_task(config, data, 1)


def test_small_crops_are_of_views_below_the_largest_of_their_modality() -> None:
    data, config = make_data(), dataclasses.replace(BASE, crop_scale=(0.5, 1.0), small_crop_scale=(0.1, 0.4))
    spec = ("left:2@16", "left:2@8", "right:2@8")
    task = make_task(dataclasses.replace(config, views=spec, width_mult=0.125), data)
    assert [transform.crop_scale for transform in task.transforms] == [(0.5, 1.0), (0.1, 0.4), (0.5, 1.0)]


def test_images_in_memory_are_not_copied_to_build_a_task_and_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    config, data = dataclasses.replace(CASES["mixed"], monitor_size=20), make_data()
    monkeypatch.setattr(Images, "select", None)
    vectors = make_task(config, data).build_model().encoder.get_encoder("vector").standardize
    train, index = data["train"]["vector"], make_task(config, data).unmonitored
    assert len(index) == 60
    values = train.values[index][train.mask[index]]
    torch.testing.assert_close(vectors.mean, values.mean(0))


def test_texts_named_image_have_the_encoder_of_texts() -> None:
    split = mv.Dataset({"image": ["a cat", "two dogs", "a cow", "no bird"], "vector": torch.randn(4, 3)})
    data = mv.DatasetDict("named", {"train": split})
    task = make_task(dataclasses.replace(BASE, batch_size=2, **TEXTS), data)
    assert {name: spec.name for name, spec in task.encoder_config.encoders.items()} == {
        "image": "transformer", "vector": "mlp"
    }  # fmt: skip


def test_mean_representation_is_computed_by_the_workers_of_monitoring(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(CASES["mixed"], make_data())
    model, (_, loader) = task.build_model(), task.monitor_loaders
    h, mask = encode_instances(model.encoder, loader, task.train_indices)
    monkeypatch.setattr("manyviews.training.task.make_eval_loader", None)  # no other loader is made
    task.finish_model(model)
    expected = [h[mask[:, i], i].double().mean(0).float() for i in range(3)]
    torch.testing.assert_close(model.encoder.mean_representation, torch.stack(expected))


@pytest.mark.slow
def test_several_modalities_with_large_images_have_raw_features(tmp_path: Path) -> None:
    config = dataclasses.replace(CASES["mixed"], image_size=72, epochs=1, evaluate_at_end=True)
    result = load_evaluation(train(config, output=tmp_path / "run", quiet=True))
    assert "raw_features" in result.scores
    assert all("raw" in subset.scores for subset in result.subsets)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_run_has_scores_subsets_and_a_report(case: str, tmp_path: Path) -> None:
    config = dataclasses.replace(CASES[case], evaluate_at_end=True)
    run = train(config, output=tmp_path / "run", quiet=True)
    assert all(math.isfinite(row["loss"]) for row in run.read_metrics())
    assert run.config.views == config.views
    result, names = load_evaluation(run), {item.partition(":")[0].partition("@")[0] for item in config.views}
    assert set(result.modalities) == names
    scores = ["majority", "raw_features", "untrained", "trained"]
    assert list(result.scores) == [*scores, *["mean_embedding", "fused_prediction"] * (len(names) > 1)]
    assert result.scores["trained"].linear > result.scores["majority"].linear
    assert len(result.subsets) == (2 ** len(names) - 1 if len(names) > 1 else 0)
    one_to_one = len(names) * (len(names) - 1)
    assert len(result.retrieval) == one_to_one + (len(names) if len(names) > 2 else 0)  # and all others to one
    assert result.geometry.views == config.num_views
    write_report([run.path], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for name in run.make_task(make_data()).spec.view_names:
        assert name in page
    assert ("Cross-modal retrieval" in page) == (len(names) > 1)
    assert "Cannot" not in page
    h = run.load_encoder()({name: make_data()["test"][name].values[:3] for name in result.modalities})
    assert h.shape == (3, run.load_model().encoder.dim * len(names))
    assert h.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("changes", [{}, {"missing_rate": 0.3}, {"grad_cache_chunk": 5}], ids=str)
def test_stopped_training_resumes_bit_for_bit(
    case: str, changes: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(CASES[case], **changes)
    whole = train(config, output=tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(TrainingInterrupted, match="stopped at step 3"):
            train(config, output=tmp_path / "stopped", quiet=True)
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(whole.path, tmp_path / "stopped")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_chunks_of_a_batch_train_like_the_full_batch(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_batch_norm(monkeypatch)
    config = dataclasses.replace(CASES[case], dropout=Config.dropout, precision="64", epochs=1, learning_rate=1e-3)
    if case in ("mixed", "no images"):
        config = dataclasses.replace(config, dropout=0.0)
    full = train(config, output=tmp_path / "full", quiet=True)
    chunked = train(dataclasses.replace(config, grad_cache_chunk=3), output=tmp_path / "chunked", quiet=True)
    expected, actual = (last_checkpoint(run.path)["model"] for run in (full, chunked))
    for name, value in expected.items():
        torch.testing.assert_close(value, actual[name], atol=1e-8, rtol=1e-8, msg=name)


TRAIN_ON_MADE_DATA = """
from manyviews import api
from manyviews.cli import main
from tests.training.test_views import make_data

api.load_data = lambda *_: make_data()
main()
"""


@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_like_one(case: str, tmp_path: Path) -> None:
    config = dataclasses.replace(CASES[case], precision="64", epochs=1, monitor_every=100, device="cpu")
    if case in ("mixed", "no images"):
        config = dataclasses.replace(config, dropout=0.0)
    train(config, output=tmp_path / "one", quiet=True)
    script = tmp_path / "train.py"
    script.write_text(TRAIN_ON_MADE_DATA)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    root = Path(__file__).parents[2]
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{root}:{root / 'src'}"}
    call = [*launcher, str(script), "train", *flags(config), "--output", str(tmp_path / "two")]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    one, two = (tensors(last_checkpoint(tmp_path / name)["model"]) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=1e-6, rtol=1e-6, msg=name)


def test_crops_of_each_size_have_their_transform_and_form_one_batch_of_an_encoder(
    made_data: mv.DatasetDict,
) -> None:
    task = resolve_task(CASES["crops"], made_data, 1)
    assert [(item.size, item.count) for item in task.spec.items] == [(16, 2), (8, 4)]
    assert [transform.crop_scale for transform in task.transforms] == [(0.2, 1.0), (0.05, 0.2)]
    assert task.config.image_size == 16
    batch = next(iter(task.view_loader(0, [torch.arange(5)])))
    shapes = [(group.encoder, group.views, tuple(group.values.shape)) for group in batch.groups]
    assert shapes == [("left", (0, 1), (10, 3, 16, 16)), ("left", (2, 3, 4, 5), (20, 3, 8, 8))]
    assert task.build_model()(batch).z.shape == (5, 6, 8)


def test_image_modalities_share_an_encoder_unless_it_is_separate(made_data: mv.DatasetDict) -> None:
    shared, separate = (resolve_task(CASES[case], made_data, 1) for case in ("shared", "separate"))
    assert shared.spec.encoders == {"left": "image", "right": "image"}
    assert separate.spec.encoders == {"left": "left", "right": "right"}
    one, two = (task.build_model() for task in (shared, separate))
    assert one.encoder.names == ("image",)
    assert two.encoder.names == ("left", "right")
    parameters = [sum(p.numel() for p in model.encoder.parameters()) for model in (one, two)]
    assert parameters[1] > 2 * parameters[0]
    assert two.encoder.get_encoder("left") is not two.encoder.get_encoder("right")


def test_views_of_one_size_of_a_shared_encoder_are_one_group_instance_by_instance(made_data: mv.DatasetDict) -> None:
    config = dataclasses.replace(BASE, views="left:2 right", **IMAGES)
    task = resolve_task(config, made_data, 1)
    (group,) = task.view_loader.load(torch.arange(4), epoch=0).groups
    assert (group.encoder, group.views, len(group.values)) == ("image", (0, 1, 2), 12)
    for i, (name, views) in enumerate((("left", [0, 1]), ("right", [2]))):
        alone = dataclasses.replace(task.spec, items=tuple(it for it in task.spec.items if it.modality == name))
        transform, pixels = task.transforms[i], made_data["train"][name].values[:4]
        expected = transform(pixels, views=alone.num_views, seed=0, epoch=0, index=torch.arange(4), first_view=views[0])
        assert torch.equal(group.values.unflatten(0, (4, 3))[:, views], expected)


def test_absent_views_are_not_loaded(made_data: mv.DatasetDict) -> None:
    task = resolve_task(CASES["mixed"], made_data, 1)
    index = torch.arange(80)
    batch = task.view_loader.load(index, epoch=0)
    mask = made_data["train"].get_mask(["left", "left", "vector", "caption"])
    assert torch.equal(batch.mask, mask)
    assert [group.encoder for group in batch.groups] == ["left", "vector", "caption"]
    present = [160, int(mask[:, 2].sum()), int(mask[:, 3].sum())]
    assert [len(group.values) for group in batch.groups] == present
    assert present[1] < 80 > present[2]


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("crops", {"dropout": 0.3}, "dropout is for sequence or text or vector or audio views, got left:2@16 left:4@8"),
        (
            "crops",
            {"transformer_heads": 4},
            "transformer_heads is for sequence or text or audio views, got left:2@16 left:4@8",
        ),
        ("no images", {"image_size": 16}, "image_size is for image or video views, got caption:2 vector"),
        (
            "no images",
            {"small_crop_scale": (0.1, 0.3)},
            "small_crop_scale is for image or video views, got caption:2 vector",
        ),
        ("no images", {"stem": "small"}, "stem is for image or video views, got caption:2 vector"),
        ("no images", {"separate_encoders": True}, "separate_encoders is for image views, got caption:2 vector"),
        ("no images", {"views": "vector:2", "transformer_layers": 1}, "transformer_layers is for sequence or text"),
        ("no images", {"encoder": ("resnet18",)}, "--encoder resnet18 is for image views, and there are none"),
        ("mixed", {"encoder": ("caption=mlp",)}, "no encoder 'mlp' for text. There are hf:NAME, transformer"),
        ("mixed", {"encoder": ("text=resnet18",)}, "no encoder 'resnet18' for text"),
        ("mixed", {"encoder": ("vector=transformer",)}, "no encoder 'transformer' for vector"),
        ("mixed", {"encoder": ("left=mlp",)}, "no encoder 'mlp' for image"),
        (
            "mixed",
            {"encoder": ("right=resnet18",)},
            "--encoder right=resnet18: there is no modality or kind 'right', only caption, image, left, text, vector",
        ),
        ("shared", {"views": "left@0 right"}, "invalid view 'left@0'"),
        (
            "shared",
            {"views": "left:2 vector@8"},
            "vector@8: only views of images and videos have a size, vector has neither",
        ),
        ("shared", {"views": 4}, "made has left, right, vector, caption: name them, such as --views left:2 right"),
        ("shared", {"views": "lefft right"}, "made has no modality 'lefft': did you mean left"),
    ],
)
def test_options_that_no_view_can_use_raise(case: str, changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(dataclasses.replace(CASES[case], **changes), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_encoders_are_chosen_by_kind_or_modality(made_data: mv.DatasetDict) -> None:
    def get_names(*encoder: str, **changes: object) -> dict[str, str]:
        config = dataclasses.replace(CASES["separate"], encoder=encoder, width_mult=None, **changes)
        encoders = resolve_task(config, made_data, 1).build_model().encoder.config.encoders
        return {name: spec.name for name, spec in encoders.items()}

    assert get_names("resnet18") == get_names("image=resnet18") == {"left": "resnet18", "right": "resnet18"}
    assert get_names("right=resnet18") == {"left": "resnet-small", "right": "resnet18"}
    assert get_names("resnet18", "left=resnet-small") == {"left": "resnet-small", "right": "resnet18"}


def test_shared_encoder_has_one_architecture(made_data: mv.DatasetDict) -> None:
    config = dataclasses.replace(CASES["shared"], encoder=("right=resnet18",), width_mult=None)
    message = "left and right share an encoder, which cannot be both resnet-small and resnet18: use --separate-encoders"
    with pytest.raises(ConfigError, match=message):
        resolve_task(config, made_data, 1).build_model()


def test_every_image_of_a_batch_may_be_missing(made_data: mv.DatasetDict, tmp_path: Path) -> None:
    """Also if the modality shares its encoder with one that is there."""
    train_split = made_data["train"]
    missing = torch.arange(80) % 27 != 0
    split = train_split.drop_modalities({"right": missing})
    made_data.splits["train"] = split
    for views in ("left:2 right", "vector caption right"):
        config = dataclasses.replace(BASE, views=views, batch_size=4, epochs=1, **IMAGES)
        run = train(config, output=tmp_path / views.replace(" ", "-"), quiet=True)
        assert all(math.isfinite(row["loss"]) for row in run.read_metrics())
