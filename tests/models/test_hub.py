"""Folders of encoders: round trip, model card, hostile content; the Hub through its cache and a recording API."""

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch
import yaml
from safetensors import safe_open
from torch import nn

import manyviews as mv
from manyviews.models import (
    CUSTOM,
    Encoder,
    EncoderConfig,
    EncoderError,
    EncoderSpec,
    MultiViewEncoder,
    describe_pretrained,
)
from manyviews.runs import Run
from tests.helpers.command_line import manyviews
from tests.helpers.pretrained import make_tokenizer, save_models
from tests.helpers.tiny_run import folder_of_images, tiny_config
from tests.models.test_serialization import IMAGES, MIXED, TRANSFORMER

RECORDINGS = EncoderConfig(
    {
        "audio": EncoderSpec(
            "audio",
            "spectrogram",
            {"sampling_rate": 16_000, **TRANSFORMER},
            preprocessing={"sampling_rate": 16_000, "max_seconds": 2.5},
        ),
        "video": EncoderSpec("video", "resnet-small", {"width": 0.125}, 16, {"num_frames": 4}),
        "image": EncoderSpec("image", "resnet-small", {"width": 0.125}, 16),
    },
    {"speech": "audio", "clip": "video", "photo": "image"},
    16,
)
FILES = ["README.md", "config.json", "model.safetensors"]
PHOTOS = torch.randint(256, (3, 3, 30, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make_encoder(config: EncoderConfig, **modules: nn.Module) -> Encoder:
    torch.manual_seed(0)
    encoder = MultiViewEncoder.from_config(config, modules=modules)
    encoder.mean_representation.normal_()
    return Encoder(encoder)


def make_text_encoder(name: str = "caption") -> Encoder:
    """An encoder whose texts have a tokenizer."""
    preprocessing = {"tokenizer": make_tokenizer().backend_tokenizer.to_str(), "max_tokens": 8, "pad_id": 0}
    spec = EncoderSpec("text", "transformer", TRANSFORMER, preprocessing=preprocessing)
    return make_encoder(EncoderConfig({name: spec}, {name: name}))


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_metadata(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with an encoder of images."""
    make_encoder(IMAGES).save_pretrained(tmp_path / "images")
    return tmp_path / "images"


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads((folder / "config.json").read_text())
    change(fields)
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("config", [IMAGES, MIXED, RECORDINGS], ids=["images", "mixed", "recordings"])
def test_round_trip_has_the_same_bits(tmp_path: Path, config: EncoderConfig) -> None:
    encoder = make_encoder(config)
    encoder.save_pretrained(tmp_path / "new" / "folder")
    assert list_names(tmp_path / "new" / "folder") == FILES
    loaded = mv.load_encoder(tmp_path / "new" / "folder")
    assert loaded.config == encoder.config
    assert not loaded.training
    values = dict.fromkeys(encoder.config.list_modalities("image"), PHOTOS[:2])
    assert torch.equal(loaded(values), encoder(values))
    state, expected = loaded.state_dict(), encoder.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_weights_have_no_second_config(images: Path) -> None:
    with safe_open(images / "model.safetensors", "pt") as file:
        assert not file.metadata()
    with pytest.raises(EncoderError, match="pass the folder"):
        mv.load_encoder(images / "model.safetensors")


def test_config_states_how_images_are_prepared(tmp_path: Path) -> None:
    make_encoder(MIXED).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert (fields["format"], fields["manyviews"], fields["dim"]) == (1, mv.__version__, 16)
    assert fields["modalities"]["side"] == "image"
    spec = fields["encoders"]["image"]
    assert (spec["name"], spec["size"]) == ("resnet-small", 16)
    assert spec["preprocessing"] == {
        "crop": "center",
        "crop_ratio": 0.875,
        "interpolation": "bicubic",
        "antialias": True,
        "mean": [0.0, 0.0, 0.0],
        "std": [1.0, 1.0, 1.0],
    }


def test_normalization_of_a_pretrained_encoder_is_in_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_model(name: str, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    options = {"mean": [0.5, 0.25, 0.5], "std": [0.5, 0.5, 0.25]}
    encoder = make_encoder(EncoderConfig({"image": EncoderSpec("image", "timm:tiny", options, 16)}, {"image": "image"}))
    encoder.save_pretrained(tmp_path)
    preprocessing = json.loads((tmp_path / "config.json").read_text())["encoders"]["image"]["preprocessing"]
    assert {name: preprocessing[name] for name in options} == options
    loaded = mv.load_encoder(tmp_path)
    assert loaded.config == encoder.config
    assert torch.equal(loaded(PHOTOS), encoder(PHOTOS))


@pytest.mark.parametrize(
    ("name", "file"), [("caption", "tokenizer-caption.json"), ("../Über/Text", "tokenizer-_0.json")]
)
def test_tokenizer_has_its_own_file(tmp_path: Path, name: str, file: str) -> None:
    encoder = make_text_encoder(name)
    encoder.save_pretrained(tmp_path / "x")
    assert list_names(tmp_path / "x") == [*FILES, file]
    assert list_names(tmp_path) == ["x"]
    fields = json.loads((tmp_path / "x" / "config.json").read_text())
    assert fields["encoders"][name]["preprocessing"]["tokenizer"] == file
    assert (tmp_path / "x" / file).read_text() == encoder.config.encoders[name].preprocessing["tokenizer"]
    loaded = mv.load_encoder(tmp_path / "x")
    assert loaded.config == encoder.config
    assert torch.equal(loaded(["the red cat", "a bee"]), encoder(["the red cat", "a bee"]))


def test_pretrained_encoders_need_neither_their_folder_nor_a_network(tmp_path: Path) -> None:
    save_models(tmp_path)
    specs = {
        "caption": describe_pretrained("text", f"hf:{tmp_path / 'bert'}"),
        "photo": describe_pretrained("image", f"hf:{tmp_path / 'vit'}"),
    }
    encoder = make_encoder(EncoderConfig(specs, {name: name for name in specs}))
    encoder.save_pretrained(tmp_path / "shared")
    for name in ("bert", "vit"):
        shutil.rmtree(tmp_path / name)
    loaded = mv.load_encoder(tmp_path / "shared")
    assert loaded.config == encoder.config
    values = {"photo": PHOTOS[:2], "caption": ["the red cat", ""]}
    assert torch.equal(loaded(values), encoder(values))
    assert str(tmp_path) not in (tmp_path / "shared" / "config.json").read_text()


def test_module_of_a_user_is_saved_and_must_be_passed_to_load_it(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))

    config = EncoderConfig({"image": EncoderSpec("image", CUSTOM, {}, 16)}, {"image": "image"})
    encoder = make_encoder(config, image=build())
    encoder.save_pretrained(tmp_path)
    assert 'mv.load_encoder("FOLDER", encoder=MODULE)' in (tmp_path / "README.md").read_text()
    with pytest.raises(EncoderError, match=r"is a module of yours: pass it.*encoder=MODULE"):
        mv.load_encoder(tmp_path)
    assert torch.equal(mv.load_encoder(tmp_path, encoder=build())(PHOTOS), encoder(PHOTOS))


def test_card_without_a_run_has_no_training(images: Path) -> None:
    card = (images / "README.md").read_text()
    assert read_metadata(card) == {
        "library_name": "manyviews",
        "license": "unknown",
        "tags": ["manyviews", "contrastive-learning", "feature-extraction", "image"],
    }
    assert re.findall("^## (.*)", card, re.MULTILINE) == ["Use", "Encoder", "License", "Citation"]
    assert "sets `license:` in the first lines" in card
    assert "arXiv:2507.06979" in card
    (code,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(
        code.replace('"FOLDER"', repr(str(images))).replace('["a.jpg", "b.jpg"]', "PHOTOS[:2]"),
        {"PHOTOS": PHOTOS},
        scope,
    )
    assert f"representations {tuple(scope['h'].shape)}" in code


def test_names_in_a_card_are_not_markup(tmp_path: Path) -> None:
    name = 'a|b<img src=x>`\n"\udcff'
    config = EncoderConfig({name: EncoderSpec("vector", "mlp", {"features": 4, "dim": 16})}, {name: name, "c": name})
    encoder = make_encoder(config)
    encoder.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "<img" not in card.split("## Encoder")[1]
    assert "<img" not in card.split("## Use")[0]
    (code,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    compile(code, "card", "exec")
    assert mv.load_encoder(tmp_path).modalities == (name, "c")


def test_existing_card_is_kept_and_other_files_are_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = make_text_encoder()
    encoder.save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    other = make_encoder(IMAGES)
    with caplog.at_level(logging.INFO, "manyviews"):
        other.save_pretrained(tmp_path)
    assert f"{tmp_path / 'README.md'} exists and is kept" in caplog.text
    assert (tmp_path / "README.md").read_text() == "mine"
    assert torch.equal(mv.load_encoder(tmp_path)(PHOTOS), other(PHOTOS))


def test_model_of_another_library_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(EncoderError, match="has another model, which is not replaced: choose another folder"):
        make_encoder(IMAGES).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"
    with pytest.raises(EncoderError, match=r"config\.json: .*no field 'format'"):
        mv.load_encoder(tmp_path)


def test_failed_write_changes_no_file(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in images.iterdir()}

    def fail(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("manyviews.models.encoder_folder.serialize_module", fail)
    with pytest.raises(EncoderError, match=r"cannot write .*No space left"):
        make_text_encoder().save_pretrained(images)
    assert {path.name: path.read_bytes() for path in images.iterdir()} == before
    (images.parent / "file").write_text("")
    with pytest.raises(EncoderError, match="cannot write"):
        make_encoder(IMAGES).save_pretrained(images.parent / "file")


SPEC = ("encoders", "image")
CHANGES: list[tuple[tuple[str, ...], object, str]] = [
    (("format",), 2, "its format is 2, expected 1: manyviews '.*' wrote it"),
    (("format",), True, "its format is True"),
    (("encoders",), [], "its encoders are a list"),
    (("encoders",), {}, "needs at least one encoder"),
    (("modalities",), {"image": "photo"}, "every encoder needs a modality"),
    (("dim",), "16", "invalid encoder config: TypeError"),
    (("dim",), ..., "it has no 'dim'"),
    (("auto_map",), "code.py", "it has the unknown field 'auto_map'"),
    (SPEC, 3, "its encoder 'image' is an int"),
    ((*SPEC, "size"), ..., "its encoder 'image' has no 'size'"),
    ((*SPEC, "size"), 10**9, "invalid image size"),
    ((*SPEC, "name"), "../../etc/passwd", "invalid encoder '../../etc/passwd'"),
    ((*SPEC, "kind"), "socket", "for 'socket'"),
    ((*SPEC, "options"), {"pretrained": True}, "pretrained"),
    ((*SPEC, "options"), ["stem"], "invalid encoder config"),
    ((*SPEC, "options"), {"width": 4.0}, "do not fit encoders of image"),
    ((*SPEC, "preprocessing"), None, "preprocessing of its encoder 'image' is a NoneType"),
    ((*SPEC, "preprocessing", "interpolation"), "nearest", "interpolation in .* is 'nearest', expected 'bicubic'"),
    ((*SPEC, "preprocessing", "std"), [0.5, 0.5, 0.5], r"std in .*\[0.5, 0.5, 0.5\], expected \[1.0, 1.0, 1.0\]"),
    ((*SPEC, "preprocessing", "crop"), ..., "crop in .* is None, expected 'center'"),
    ((*SPEC, "preprocessing", "resize"), 256, "resize"),
    ((*SPEC, "preprocessing", "tokenizer"), "../secret.json", r"its tokenizer '\.\./secret\.json' is not the name"),
    ((*SPEC, "preprocessing", "tokenizer"), "/etc/passwd", "is not the name of a file tokenizer-NAME.json"),
    ((*SPEC, "preprocessing", "tokenizer"), ["a"], "is not the name of a file"),
    ((*SPEC, "preprocessing", "tokenizer"), "tokenizer-none.json", "has no file tokenizer-none.json"),
]


@pytest.mark.parametrize(("keys", "value", "message"), CHANGES, ids=lambda part: str(part)[:40])
def test_invalid_configs_raise(images: Path, keys: tuple[str, ...], value: object, message: str) -> None:
    def change(fields: dict[str, Any]) -> None:
        for key in keys[:-1]:
            fields = fields[key]
        if value is ...:
            del fields[keys[-1]]
        else:
            fields[keys[-1]] = value

    change_config(images, change)
    with pytest.raises(EncoderError, match=message):
        mv.load_encoder(images)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}'])
def test_texts_that_are_no_config_raise(images: Path, content: bytes) -> None:
    (images / "config.json").write_bytes(content)
    with pytest.raises(EncoderError, match=r"config\.json: invalid encoder config"):
        mv.load_encoder(images)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files_links_and_pipes_are_refused(images: Path, name: str) -> None:
    outside = images.parent / "outside"
    (images / name).rename(outside)
    with pytest.raises(EncoderError, match=f"has no file {name}"):
        mv.load_encoder(images)
    (images / name).symlink_to(outside)
    with pytest.raises(EncoderError, match=r"is a link to .*outside, out of the folder"):
        mv.load_encoder(images)
    (images / name).unlink()
    os.mkfifo(images / name)
    with pytest.raises(EncoderError, match="a named pipe"):
        mv.load_encoder(images)


def test_weights_with_a_forged_header_are_refused(images: Path) -> None:
    (images / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(EncoderError, match="cannot read"):
        mv.load_encoder(images)


def test_tokenizers_that_are_not_json_are_refused(tmp_path: Path) -> None:
    make_text_encoder().save_pretrained(tmp_path)
    (tmp_path / "tokenizer-caption.json").write_bytes(b"\x80\x04pickle")
    with pytest.raises(EncoderError, match=r"cannot read the tokenizer .*tokenizer-caption\.json"):
        mv.load_encoder(tmp_path)


def test_card_of_a_run_describes_and_repeats_the_training(finished_run: Path, tmp_path: Path) -> None:
    run = Run.open(finished_run)
    run.load_encoder().save_pretrained(tmp_path / "shared")
    card = (tmp_path / "shared" / "README.md").read_text()
    for row in ("| data | photos |", "| views | image:3 |", "| loss | mv-dhel |", "| epochs | 1 |"):
        assert row in card
    assert "The run was not evaluated." in card
    assert str(finished_run) not in card
    (recipe,) = re.findall("```yaml\n(.*?)```", card, re.DOTALL)
    (tmp_path / "recipe.yaml").write_text(recipe)
    config = mv.Config.from_yaml(recipe)
    assert config.list_changed_fields(run.config) == []
    x = PHOTOS
    assert torch.equal(mv.load_encoder(tmp_path / "shared")(x), run.load_encoder()(x))


def test_card_has_the_metrics_and_the_command_that_repeats_them(
    tmp_path: Path,
) -> None:
    data = folder_of_images(tmp_path / "data")
    run = mv.train(tiny_config(epochs=1, data=str(data)), output=tmp_path / "run", quiet=True)
    options = {"probe_solver": "sgd", "probe_epochs": 2, "probe_lr": 0.1, "label_fractions": (0.5,), "knn_k": 3}
    result = mv.evaluate(run, config=mv.EvaluationConfig(**options, num_workers=0))
    run.load_encoder().save_pretrained(tmp_path / "shared")
    card = (tmp_path / "shared" / "README.md").read_text()
    for table in mv.evaluation.list_tables(result):
        assert table.to_markdown() in card
    (command,) = re.findall("Computed by `(.*?)`", card)
    assert manyviews(*command.replace("RUN", str(run.path)).split()[1:], "--num-workers", "0").returncode == 0
    assert mv.evaluation.load_evaluation(run) == result


def test_paths_of_a_machine_are_not_in_the_card(finished_run: Path) -> None:
    run = Run.open(finished_run)
    path = Path("/home/somebody/photos")
    changes = {"data": str(path), "init": path, "class_list": path, "weights": (f"image={path}.safetensors",)}
    config = run.config.with_fields(changes, "the test")
    record = Run(run.path, config, run.provenance).describe_training()
    assert "somebody" not in record.recipe + str(record.rows)
    assert "init: photos" in record.recipe


def test_training_starts_from_a_shared_encoder(finished_run: Path, tmp_path: Path) -> None:
    Run.open(finished_run).load_encoder().save_pretrained(tmp_path / "shared")
    config = tiny_config(epochs=1, init=tmp_path / "shared", learning_rate=1e-30, weight_decay=0.0)
    run = mv.train(config, output=tmp_path / "run", quiet=True)
    assert "shared, encoder sha256" in run.provenance["init"]
    weights = dict(run.load_encoder().encoder.named_parameters())
    assert all(
        torch.equal(p, weights[name]) for name, p in mv.load_encoder(tmp_path / "shared").encoder.named_parameters()
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub, offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill_cache(cache: Path, encoder: Encoder, revision: str = "main", commit: str = "0" * 40) -> Path:
    """Write the repository me/birds into the cache, as the Hub's package does: links to blobs."""
    repository = cache / "models--me--birds"
    snapshot, blobs = repository / "snapshots" / commit, repository / "blobs"
    encoder.save_pretrained(snapshot)
    blobs.mkdir(exist_ok=True)
    for path in snapshot.iterdir():
        blob = blobs / f"{commit[:8]}{path.name.encode().hex()}"
        path.rename(blob)
        path.symlink_to(Path("..", "..", "blobs", blob.name))
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    return snapshot


def test_hub_names_load_the_revision_in_the_cache(cache: Path) -> None:
    encoder, text = make_encoder(IMAGES), make_text_encoder()
    fill_cache(cache, encoder)
    snapshot = fill_cache(cache, text, "v1", "1" * 40)
    assert torch.equal(mv.load_encoder("hf-hub:me/birds")(PHOTOS), encoder(PHOTOS))
    for name in ("hf-hub:me/birds@v1", f"hf-hub:me/birds@{'1' * 40}", snapshot):
        assert torch.equal(mv.load_encoder(name)(["a red cat"]), text(["a red cat"]))


def test_only_the_files_that_are_read_are_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, calls = fill_cache(cache, make_text_encoder()), []

    def download(repo: str, file: str, revision: str | None, **options: object) -> str:
        calls.append((repo, file, revision))
        assert options["library_name"] == "manyviews"
        return str(snapshot / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    mv.load_encoder("hf-hub:me/birds")
    commit = "0" * 40
    assert calls == [
        ("me/birds", "config.json", None),
        ("me/birds", "model.safetensors", commit),
        ("me/birds", "tokenizer-caption.json", commit),
    ]
    change_config(snapshot, lambda fields: fields.pop("format"))
    calls.clear()
    with pytest.raises(EncoderError, match="no field 'format'"):
        mv.load_encoder("hf-hub:me/birds")
    assert len(calls) == 1  # no weights of what is not an encoder


def test_without_a_network_the_error_says_what_to_fetch_and_where_to_put_it(cache: Path) -> None:
    with pytest.raises(EncoderError) as caught:
        mv.load_encoder("hf-hub:me/birds@v2")
    message = str(caught.value)
    assert message.startswith("cannot download config.json of me/birds: ")
    assert "`hf download me/birds --revision v2 --local-dir FOLDER`" in message
    assert "mv.load_encoder(FOLDER)" in message
    assert f"copy the cache to {cache}" in message
    with pytest.raises(EncoderError, match="check the name"):
        mv.load_encoder("hf-hub:a/b/c")


class RecordingApi:
    """Stands in for `HfApi`: records its calls, and the files of an upload."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
    files: dict[str, str]
    has_card: bool

    def __init__(self, token: str | None, **_: object) -> None:
        type(self).calls, type(self).files = [("token", (token,), {})], {}

    def create_repo(self, *args: Any, **options: Any) -> object:
        self.calls.append(("create_repo", args, options))
        return SimpleNamespace(repo_id="me/birds")

    def file_exists(self, *args: Any) -> bool:
        self.calls.append(("file_exists", args, {}))
        return self.has_card

    def upload_folder(self, folder_path: str, **options: Any) -> object:
        self.calls.append(("upload_folder", (), options))
        self.files.update({path.name: path.read_bytes().decode("latin-1") for path in Path(folder_path).iterdir()})
        return SimpleNamespace(commit_url="https://hub/me/birds/commit/1")


@pytest.mark.parametrize("has_card", [False, True])
def test_push_creates_the_repository_and_uploads_the_folder(
    has_card: bool, images: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RecordingApi, "has_card", has_card, raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", RecordingApi)
    with caplog.at_level(logging.INFO, "manyviews"):
        url = make_encoder(IMAGES).push_to_hub("birds", private=True, token="hf_x", commit_message="first")
    assert url == "https://hub/me/birds/commit/1"
    kept = {"ignore_patterns": ["README.md"] if has_card else None}
    assert RecordingApi.calls == [
        ("token", ("hf_x",), {}),
        ("create_repo", ("birds",), {"private": True, "exist_ok": True}),
        ("file_exists", ("me/birds", "README.md"), {}),
        ("upload_folder", (), {"repo_id": "me/birds", "commit_message": "first", **kept}),
    ]
    assert ("README.md of me/birds exists and is kept" in caplog.text) == has_card
    assert sorted(RecordingApi.files) == FILES
    assert 'mv.load_encoder("hf-hub:me/birds")' in RecordingApi.files["README.md"]
    assert RecordingApi.files["model.safetensors"] == (images / "model.safetensors").read_bytes().decode("latin-1")


def test_push_without_a_network_says_what_to_do(cache: Path) -> None:
    with pytest.raises(
        EncoderError, match=r"cannot create the repository me/birds: .*offline.*hf upload me/birds FOLDER"
    ):
        make_encoder(IMAGES).push_to_hub("me/birds")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", None)
    for call in (lambda: mv.load_encoder("hf-hub:me/birds"), lambda: make_encoder(IMAGES).push_to_hub("me/birds")):
        with pytest.raises(ValueError, match=r"pip install 'manyviews\[hf\]'"):
            call()
