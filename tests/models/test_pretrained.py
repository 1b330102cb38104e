"""Pretrained encoders give what their own library gives, from folders alone, and execute nothing of them."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
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
from tests.helpers.pretrained import save_models

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


@torch.no_grad()
@pytest.mark.parametrize("uses_mask", [False, True])
def test_waveforms_are_encoded_one_by_one_as_by_transformers(uses_mask: bool, models: Path) -> None:
    """Padding and other waveforms of the batch do not matter."""
    encoder, spec = load("audio", models / "hubert")
    encoder.uses_mask = uses_mask
    waves = [torch.randn(count) * 3 + 1 for count in (400, 300, 400)]
    batch = nn.utils.rnn.pad_sequence(waves, batch_first=True)
    h = encoder(batch, torch.tensor([400, 300, 400]))
    extractor = transformers.AutoFeatureExtractor.from_pretrained(models / "hubert")
    model = transformers.AutoModel.from_pretrained(models / "hubert").eval()
    for i, wave in enumerate(waves):
        if uses_mask and i == 1:
            continue  # group normalization over padded frames, as in transformers itself
        inputs = extractor(wave.numpy(), sampling_rate=16_000, return_tensors="pt")
        expected = model(inputs["input_values"]).last_hidden_state[0].mean(0)
        torch.testing.assert_close(h[i], expected, atol=1e-4, rtol=1e-4)
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
    load_weights_file(encoder, tmp_path / "a.safetensors")
    assert all(torch.equal(tensor, encoder.state_dict()[name]) for name, tensor in other.state_dict().items())
    save_file({"conv.weight": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"has no \S+ and \d+ more of the encoder, it has conv.weight"):
        load_weights_file(encoder, tmp_path / "b.safetensors")


def test_unused_parameters_need_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    module.mask_token = nn.Parameter(torch.zeros(3))
    freeze_unused_parameters(module, torch.rand(2, 3))
    assert [name for name, part in module.named_parameters() if not part.requires_grad] == ["mask_token"]
    assert module[1].training
    assert module[0].weight.grad is None
