"""Pretrained encoders give what their own library gives, from folders alone, and execute nothing of them."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from manyviews.data import Texts
from manyviews.models import (
    EncoderConfig,
    EncoderError,
    EncoderSpec,
    MultiViewEncoder,
    build_encoder,
    describe_pretrained,
    freeze_unused_parameters,
    get_encoder,
    load_encoder_file,
    load_pretrained,
    load_weights_file,
    serialize_module,
)
from tests.helpers.pretrained import WAVE_SIZES, make_tokenizer, save_models

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

TEXTS = ("the red cat", "a big blue unknown bee", "dog")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


def load(kind: str, folder: Path) -> tuple[nn.Module, EncoderSpec]:
    spec = describe_pretrained(kind, f"hf:{folder}")
    encoder = build_encoder(spec)
    load_pretrained(encoder, kind, f"hf:{folder}")
    return encoder.eval(), spec


@torch.no_grad()
def test_texts_are_encoded_as_by_transformers(models: Path) -> None:
    encoder, spec = load("text", models / "bert")
    tokens, lengths = Texts(TEXTS).prepare(spec.preprocessing).load(torch.arange(3))
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "bert")
    model = transformers.AutoModel.from_pretrained(models / "bert").eval()
    for i, text in enumerate(TEXTS):
        steps = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(encoder(tokens, lengths)[i], steps[0].mean(0), atol=1e-5, rtol=1e-5)
    assert Texts(TEXTS).prepare(spec.preprocessing).show_view(tokens[0][: lengths[0]]) == "the red cat"


@torch.no_grad()
def test_images_are_encoded_as_by_transformers(models: Path) -> None:
    encoder, spec = load("image", models / "vit")
    pixels = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    processor = transformers.AutoImageProcessor.from_pretrained(models / "vit")
    inputs = processor([image.permute(1, 2, 0).numpy() for image in pixels], return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(models / "vit").eval()
    expected = model(**inputs).last_hidden_state[:, 0]
    assert spec.size == 32
    torch.testing.assert_close(encoder(pixels / 255), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_towers_of_clip_give_its_features(models: Path) -> None:
    model = transformers.AutoModel.from_pretrained(models / "clip").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "clip")
    encoder, spec = load("text", models / "clip")
    tokens, lengths = Texts(TEXTS).prepare(spec.preprocessing).load(torch.arange(3))
    inputs = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    expected = model.get_text_features(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    torch.testing.assert_close(encoder(tokens, lengths), expected.pooler_output, atol=1e-5, rtol=1e-5)
    assert not any("vision" in name for name, _ in encoder.named_parameters())
    images, _ = load("image", models / "clip")
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(values)[:, None, None] for values in _read_mean_std(models / "clip"))
    expected = model.get_image_features(pixel_values=(pixels - mean) / std)
    torch.testing.assert_close(images(pixels), expected.pooler_output, atol=1e-5, rtol=1e-5)
    assert not any("text" in name for name, _ in images.named_parameters())


def _read_mean_std(folder: Path) -> tuple[list[float], list[float]]:
    plain = json.loads((folder / "preprocessor_config.json").read_text())
    return plain["image_mean"], plain["image_std"]


LAYER = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "num_feat_extract_layers": 2}


@torch.no_grad()
@pytest.mark.parametrize(
    ("model_type", "options", "uses_mask"),
    [
        ("hubert", {}, False),
        ("wav2vec2", LAYER, True),
        ("wavlm", LAYER, True),
        ("wavlm", {}, False),  # group normalization over padded frames
        ("data2vec-audio", {"num_conv_pos_embeddings": 3}, False),  # its positions are convolutions in several layers
    ],
)
def test_waveforms_are_encoded_one_by_one_as_by_transformers(
    model_type: str, options: dict, uses_mask: bool, tmp_path: Path
) -> None:
    """Padding and other waveforms of the batch do not matter, also if the model was trained with a mask."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **{**WAVE_SIZES, **options})
    model = transformers.AutoModel.from_config(config).eval()
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=model_type != "hubert")
    model.save_pretrained(tmp_path)
    extractor.save_pretrained(tmp_path)
    encoder, spec = load("audio", tmp_path)
    waves = [torch.randn(count) * 3 + 1 for count in (400, 300, 400)]
    batch = nn.utils.rnn.pad_sequence(waves, batch_first=True)
    h = encoder(batch, torch.tensor([400, 300, 400]))
    for i, wave in enumerate(waves):
        inputs = extractor(wave.numpy(), sampling_rate=16_000, return_tensors="pt")
        expected = model(inputs["input_values"]).last_hidden_state[0].mean(0)
        torch.testing.assert_close(h[i], expected, atol=1e-4, rtol=1e-4)
    for short in (1, encoder.min_length - 1):  # as if silence followed
        lengths = torch.tensor([400, short, 400])
        h = encoder(batch, lengths)
        torch.testing.assert_close(h[1], encoder(batch[1:2, :short], lengths[1:2])[0], atol=1e-4, rtol=1e-4)
        assert h[1].isfinite().all()
    assert encoder.uses_mask == uses_mask
    assert spec.preprocessing == {"sampling_rate": 16_000}


@torch.no_grad()
def test_encoder_file_needs_no_folder(models: Path, tmp_path: Path) -> None:
    copies = tmp_path / "models"
    shutil.copytree(models, copies)
    specs = {"p": describe_pretrained("image", f"hf:{copies / 'vit'}")}
    specs["t"] = describe_pretrained("text", f"hf:{copies / 'bert'}")
    config = EncoderConfig(specs, {"picture": "p", "caption": "t"})
    encoder = MultiViewEncoder.from_config(config).eval()
    assert encoder.dim == 32
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(serialize_module(encoder, encoder.config))
    shutil.rmtree(copies)
    loaded = load_encoder_file(path)
    assert loaded.config == encoder.config
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded.get_encoder("p")(images), encoder.get_encoder("p")(images))
    tokens, lengths = Texts(TEXTS).prepare(specs["t"].preprocessing).load(torch.arange(3))
    assert torch.equal(loaded.get_encoder("t")(tokens, lengths), encoder.get_encoder("t")(tokens, lengths))


def write_header(path: Path, **options: object) -> None:
    spec = EncoderSpec("text", "hf:x", options)
    metadata = {"manyviews": json.dumps(dataclasses.asdict(EncoderConfig({"t": spec}, {"t": "t"})))}
    save_file({"weight": torch.zeros(3)}, path, metadata)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "no-such-model"}, "has no model of the type 'no-such-model'"),
        ({}, "has no model of the type None"),
        ({"model_type": "bert", "vocab_size": 10**12}, "the maximum is 10,000,000"),
        ({"model_type": "bert", "hidden_size": 10**6, "intermediate_size": 10**6}, "memory"),
        (
            {"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
            "takes pixel_values, expected a model of input_ids, for texts",
        ),
    ],
)
def test_hostile_config_in_a_file_is_refused(config: dict, message: str, tmp_path: Path) -> None:
    write_header(tmp_path / "a.safetensors", config=config)
    with pytest.raises(EncoderError, match=message):
        load_encoder_file(tmp_path / "a.safetensors")


def test_config_cannot_name_code_or_kernels(models: Path) -> None:
    plain = describe_pretrained("text", f"hf:{models / 'bert'}").options["config"]
    hostile = {
        **plain,
        "auto_map": {"AutoModel": "a--b.C"},
        "_attn_implementation": "a/b",
        "attn_implementation": "a/b",
    }
    encoder = build_encoder(EncoderSpec("text", "hf:x", {"config": hostile}))
    assert encoder.model.config._attn_implementation in ("sdpa", "eager")
    assert not hasattr(encoder.model.config, "auto_map")


def test_missing_parts_of_a_model_are_named(models: Path, tmp_path: Path) -> None:
    for part, kind, message in (
        ("tokenizer.json", "text", "has no tokenizer: it needs tokenizer.json"),
        ("config.json", "text", "the folder needs config.json and model.safetensors"),
        ("model.safetensors", "text", "the folder needs config.json and model.safetensors"),
    ):
        folder = tmp_path / part
        shutil.copytree(models / "bert", folder)
        (folder / part).unlink()
        with pytest.raises(ValueError, match=message):
            load(kind, folder)
    with pytest.raises(ValueError, match=r"there is no folder './nothing', and it is not a name on the Hub"):
        describe_pretrained("text", "hf:./nothing")
    with pytest.raises(
        ValueError, match=r"fetch it elsewhere \(hf download org/name --revision v1\) and pass its folder"
    ):
        describe_pretrained("text", "hf:org/name@v1")
    with pytest.raises(ValueError, match="takes input_ids, expected a model of pixel_values, for images"):
        load("image", models / "bert")


def test_pickled_weights_are_not_read(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "bert", tmp_path / "bert")
    (tmp_path / "bert/model.safetensors").unlink()
    model = transformers.AutoModel.from_pretrained(models / "bert")
    torch.save(model.state_dict(), tmp_path / "bert/pytorch_model.bin")
    with pytest.raises(ValueError, match=r"safetensors"):
        load("text", tmp_path / "bert")


def test_weights_of_a_file_are_loaded_without_the_classifier(tmp_path: Path) -> None:
    other, encoder = get_encoder("resnet18", stem="small"), get_encoder("resnet18", stem="small")
    weights = {f"backbone.{name}": tensor.contiguous() for name, tensor in other.state_dict().items()}
    save_file({**weights, "fc.weight": torch.zeros(10, 512)}, tmp_path / "a.safetensors")
    load_weights_file(encoder, "image", tmp_path / "a.safetensors")
    assert all(torch.equal(tensor, encoder.state_dict()[name]) for name, tensor in other.state_dict().items())
    save_file({"conv.weight": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"has no \S+ and \d+ more of the encoder, it has conv.weight"):
        load_weights_file(encoder, "image", tmp_path / "b.safetensors")


def test_unused_parameters_need_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    module.mask_token = nn.Parameter(torch.zeros(3))
    freeze_unused_parameters(module, torch.rand(2, 3))
    assert [name for name, part in module.named_parameters() if not part.requires_grad] == ["mask_token"]
    assert module[1].training
    assert module[0].weight.grad is None


@pytest.mark.parametrize(
    ("kind", "name", "prefix", "start"),
    [
        ("image", "vit", "", "encoder"),
        ("image", "vit", "vit.", "encoder"),
        ("text", "t5", "", "encoder"),
        ("text", "clip", "", "text_model.encoder"),
    ],
)
def test_weights_of_a_file_have_the_names_that_transformers_writes(
    kind: str, name: str, prefix: str, start: str, models: Path, tmp_path: Path
) -> None:
    """They are others than those of the modules in memory."""
    if name == "t5":
        sizes = {"vocab_size": 14, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
        (models / "t5").mkdir()
        make_tokenizer().save_pretrained(models / "t5")
        transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).save_pretrained(models / "t5")
    expected, spec = load(kind, models / name)
    weights, encoder = load_file(models / name / "model.safetensors"), build_encoder(spec)
    save_file({prefix + key: tensor for key, tensor in weights.items()}, tmp_path / "a.safetensors")
    load_weights_file(encoder, kind, tmp_path / "a.safetensors")
    for key, tensor in expected.state_dict().items():
        assert torch.equal(tensor, encoder.state_dict()[key]), key
    first = next(key for key in weights if key.endswith("weight") and key.startswith(start))
    save_file({key: tensor for key, tensor in weights.items() if key != first}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"b.safetensors has no \S+ of the encoder, it has"):
        load_weights_file(encoder, kind, tmp_path / "b.safetensors")
    save_file({**weights, first: torch.zeros(3)}, tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"c.safetensors: \S+ is \(3,\), the encoder has"):
        load_weights_file(encoder, kind, tmp_path / "c.safetensors")


def test_shards_are_read_and_a_truncated_one_is_an_error(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(models / "bert", folder)
    (folder / "model.safetensors").unlink()
    transformers.AutoModel.from_pretrained(models / "bert").save_pretrained(folder, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    expected = load("text", models / "bert")[0].state_dict()
    for key, tensor in load("text", folder)[0].state_dict().items():
        assert torch.equal(tensor, expected[key])
    shards[0].write_bytes(shards[0].read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cannot load hf:.*: the folder needs config.json and model.safetensors"):
        load("text", folder)


class Torchvision:
    """Stands in for torchvision.models, which does not import with every build of torch."""

    trained = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    calls: ClassVar[list[dict]] = []

    @staticmethod
    def get_model(_: str) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    @classmethod
    def get_model_weights(cls, _: str) -> SimpleNamespace:
        def get_state_dict(**options: object) -> dict:
            cls.calls.append(options)
            return cls.trained.state_dict()

        preset = SimpleNamespace(mean=[0.4, 0.5, 0.6], std=[0.2, 0.2, 0.2], crop_size=[224])
        return SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: preset, get_state_dict=get_state_dict))


def test_weights_of_torchvision_are_normalized_for_and_not_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("encoders", "pretrained"):
        monkeypatch.setattr(f"manyviews.models.{module}.import_external", lambda *_: Torchvision)
    spec = describe_pretrained("image", "torchvision:any")
    encoder = build_encoder(spec)
    load_pretrained(encoder, "image", "torchvision:any")
    assert spec.size == 224
    assert Torchvision.calls == [{"progress": False, "check_hash": True, "weights_only": True}]
    images = torch.rand(2, 3, 8, 8)
    normalized = (images - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / 0.2
    torch.testing.assert_close(encoder(images), Torchvision.trained[:3](normalized))
