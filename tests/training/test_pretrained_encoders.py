"""Trainings that start from pretrained encoders: pairs of text and image end to end, resumed, on two ranks."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import manyviews as mv
from manyviews.api import train
from manyviews.evaluation import load_evaluation
from manyviews.training import Config, ConfigError, TrainingInterrupted
from tests.helpers.pretrained import save_models, write_captions
from tests.helpers.tiny_run import assert_same_run, flags, last_checkpoint, run_to_end, tensors
from tests.training.test_multimodal_training import stop_after

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models and pairs.csv."""
    place = tmp_path_factory.mktemp("pretrained")
    save_models(place / "models")
    write_captions(place)
    return place


def pairs(place: Path, **changes: object) -> Config:
    config = Config(
        data=str(place / "pairs.csv"),
        views=("picture:2", "caption"),
        encoder=(f"image=hf:{place}/models/vit", f"text=hf:{place}/models/bert"),
        monitor_size=16,
        batch_size=16,
        embed_dim=16,
        epochs=2,
        learning_rate=0.01,
        monitor_every=4,
        checkpoint_every_steps=2,
        cpu_threads=1,
        num_workers=0,
        evaluate_at_end=False,
    )
    return dataclasses.replace(config, **changes)


def test_text_and_image_are_fine_tuned_and_evaluated(place: Path, tmp_path: Path) -> None:
    config = pairs(place, epochs=6, evaluate_at_end=True)
    run = train(config, output=tmp_path / "run", quiet=True)
    losses = [row["loss"] for row in run.read_metrics()]
    assert sum(losses[-4:]) < sum(losses[:4])
    assert load_evaluation(run) is not None
    assert run.config.image_size == 32  # that of the model
    encoder = mv.load_encoder(run.path)
    h = encoder({"picture": [str(place / "pictures/0.png")] * 2, "caption": ["the big red cat", ""]})
    assert h.shape == (2, 64)  # no linear layer: both models have 32 dimensions
    initial = load_file(place / "models/bert/model.safetensors")
    trained = dict(encoder.encoder.get_encoder("caption").named_parameters())
    assert not torch.equal(
        trained["model.encoder.layer.0.output.dense.weight"], initial["encoder.layer.0.output.dense.weight"]
    )


def test_training_starts_from_the_weights_of_the_folder(place: Path, tmp_path: Path) -> None:
    config = pairs(place, epochs=1, learning_rate=1e-30, optimizer="sgd", momentum=0.0, warmup_fraction=0.0)
    encoder = train(config, output=tmp_path / "run", quiet=True).load_encoder().encoder
    for key, folder in (("picture", "vit"), ("caption", "bert")):
        weights = dict(encoder.get_encoder(key).named_parameters())
        for name, expected in transformers.AutoModel.from_pretrained(place / "models" / folder).named_parameters():
            if "pooler" not in name:
                torch.testing.assert_close(weights[f"model.{name}"], expected.detach(), rtol=1e-6, atol=1e-6)


def triples(place: Path, **changes: object) -> Config:
    config = pairs(place, views=("picture", "caption", "tone"), max_seconds=0.1)
    encoder = (f"image=hf:{place}/models/vit", f"text=hf:{place}/models/bert", f"audio=hf:{place}/models/hubert")
    return dataclasses.replace(config, encoder=encoder, **changes)


@pytest.mark.parametrize("make_config", [pairs, triples])
def test_stopped_training_resumes_exactly(
    make_config: Callable[..., Config], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(place)
    full = train(config, output=tmp_path / "full", quiet=True)
    stop_after(monkeypatch, 3)
    with pytest.raises(TrainingInterrupted):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(full.path, tmp_path / "stopped")


@pytest.mark.distributed
def test_two_ranks_train_like_one(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "models", tmp_path / "models")
    path = tmp_path / "models/bert/config.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}))
    path = tmp_path / "models/hubert/config.json"
    no_dropout = dict.fromkeys(["hidden_dropout", "activation_dropout", "attention_dropout", "feat_proj_dropout"], 0.0)
    path.write_text(json.dumps({**json.loads(path.read_text()), **no_dropout}))
    names = {"image": "vit", "text": "bert", "audio": "hubert"}
    encoder = tuple(f"{kind}=hf:{tmp_path}/models/{name}" for kind, name in names.items())
    config = triples(place, precision="64", epochs=1, monitor_every=100)
    config = dataclasses.replace(config, encoder=encoder)
    train(config, output=tmp_path / "one", quiet=True)
    run_to_end(*flags(config), "--output", tmp_path / "two", ranks=2)
    one, two = (tensors(last_checkpoint(tmp_path / name)["model"]) for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=1e-8, rtol=1e-8, msg=name)


def test_weights_file_is_the_start_of_a_built_in_encoder(tmp_path: Path) -> None:
    config = Config(max_instances=64, batch_size=32, views=2, epochs=1, width_mult=0.125, cpu_threads=1, monitor_size=0)
    config = dataclasses.replace(config, evaluate_at_end=False, learning_rate=1e-30)
    encoder = mv.get_encoder("resnet-small", width=0.125)
    weights = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
    save_file({**weights, "fc.weight": torch.zeros(2, 2)}, tmp_path / "a.safetensors")
    config = dataclasses.replace(config, weights=(str(tmp_path / "a.safetensors"),))
    run = train(config, output=tmp_path / "run", quiet=True)
    trained = run.load_encoder().encoder.get_encoder("image").state_dict()
    for name, expected in encoder.named_parameters():
        torch.testing.assert_close(trained[name], expected.detach())
    assert "not used: fc.weight" in (run.path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretrained": True}, "pretrained is for encoders timm:NAME and torchvision:NAME"),
        ({"weights": ("missing.safetensors",)}, "weights: there is no file missing.safetensors"),
        ({"encoder": ("text=hf:missing/folder/a",)}, "there is no folder 'missing/folder/a'"),
        ({"encoder": ("text=timm:resnet18",)}, "no encoder 'timm:resnet18' for text"),
    ],
)
def test_invalid_choice_raises(changes: dict, message: str, place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(pairs(place, **changes), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
