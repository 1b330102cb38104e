"""Features of frozen models equal transformers called by hand, survive kills, and can be trained on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

import manyviews as mv
from manyviews.data import Dataset, DatasetDict, DatasetError, Texts, load_dataset
from manyviews.export import extract_features, extraction
from manyviews.models import FeatureOptions
from tests.helpers.command_line import manyviews
from tests.helpers.media import make_tone, write_audio, write_clips
from tests.helpers.pretrained import save_models, write_captions

hf = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    shutil.copytree(folder / "bert", folder / "mute", ignore=shutil.ignore_patterns("*token*", "vocab*"))
    return folder


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_captions(tmp_path_factory.mktemp("captions"), 20)


def encode_text(folder: Path, text: str, layers: tuple[int, ...] = (-2, -1)) -> torch.Tensor:
    """Average layers of a text by hand, without [CLS] and [SEP]."""
    tokenizer, model = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
    return torch.stack([hidden[layer] for layer in layers]).mean(0)[0, 1:-1]


def encode_images(folder: Path, images: list[Image.Image]) -> torch.Tensor:
    processor, model = hf.AutoImageProcessor.from_pretrained(folder), hf.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        features = model.get_image_features(**processor(images=images, return_tensors="pt"))
    return features if isinstance(features, torch.Tensor) else features.pooler_output


def check_extraction(captions: Path, models: Path, output: Path, level: str) -> None:
    data = load_dataset(captions)
    options = FeatureOptions(level=level, layers=(-2, -1))
    names = {"caption": f"hf:{models / 'bert'}", "picture": f"hf:{models / 'clip'}"}
    assert extract_features(data, names, output, options, batch_size=3, part_instances=4) == {
        "caption": 32, "picture": 16,
    }  # fmt: skip
    assert not output.with_name(f"{output.name}.parts").exists()
    bundle = load_dataset(output)
    assert bundle.class_names == data.class_names
    for split, dataset in data.splits.items():
        extracted = bundle[split]
        assert extracted.ids == dataset.ids
        assert torch.equal(extracted.labels, dataset.labels)
        assert torch.equal(extracted["caption"].get_mask(), dataset["caption"].get_mask())
        for i, name in enumerate(dataset.ids):
            picture = encode_images(models / "clip", [Image.open(captions.parent / f"pictures/{name}.png")])
            expected = {"picture": picture}
            if dataset["caption"].get_mask()[i]:
                expected["caption"] = encode_text(models / "bert", dataset["caption"].values[i])
            for modality, steps in expected.items():
                got = extracted[modality].get_item(i)
                torch.testing.assert_close(got, steps.mean(0) if level == "utterance" else steps, rtol=1e-4, atol=1e-5)


def test_vectors_equal_transformers_by_hand(captions: Path, models: Path, tmp_path: Path) -> None:
    check_extraction(captions, models, tmp_path / "bundle.npz", "utterance")


def test_sequences_equal_transformers_by_hand(captions: Path, models: Path, tmp_path: Path) -> None:
    check_extraction(captions, models, tmp_path / "bundle.npz", "frame")


def make_texts(count: int = 11) -> DatasetDict:
    texts = Texts([" ".join(["cat", "dog", "the", "red"][: 1 + i % 4]) for i in range(count)])
    dataset = Dataset({"text": texts}, labels=torch.linspace(-1, 1, count))
    return DatasetDict("texts", {"train": dataset, "valid": dataset, "test": dataset})


def extract_texts(models: Path, output: Path, **options: object) -> dict[str, int]:
    names = {"text": f"hf:{models / 'bert'}"}
    features = FeatureOptions(**{"level": "frame", "layers": (-2, -1), **options})
    return extract_features(make_texts(), names, output, features, part_instances=2, batch_size=2)


def test_killed_extraction_continues_with_the_first_missing_part(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract_texts(models, tmp_path / "expected.npz")
    output, folder = tmp_path / "bundle.npz", tmp_path / "bundle.npz.parts"
    extract_part, extracted = extraction._extract_part, []

    def extract_some(part: extraction._Part, *arguments: object) -> None:
        if len(extracted) == 7:
            raise KeyboardInterrupt
        extract_part(part, *arguments)
        extracted.append((part.split, part.index.start))

    monkeypatch.setattr(extraction, "_extract_part", extract_some)
    with pytest.raises(KeyboardInterrupt):
        extract_texts(models, output)
    assert len(list(folder.rglob("*.npz"))) == 7
    assert not output.exists()
    before = list(extracted)
    with pytest.raises(ValueError, match=r"bundle.npz.parts has parts of an extraction .* other models or options"):
        extract_texts(models, output, layers=(-1,))
    extracted.clear()
    monkeypatch.setattr(extraction, "_extract_part", lambda part, *a: extracted.append(part) or extract_part(part, *a))
    extract_texts(models, output)
    assert len(extracted) == 18 - 7
    assert not {(part.split, part.index.start) for part in extracted} & set(before)
    assert output.read_bytes() == (tmp_path / "expected.npz").read_bytes()
    assert not folder.exists()


def test_bundle_is_written_in_memory_of_one_part(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one part is read at a time."""
    sizes: list[int] = []
    read_steps = extraction._Part.read_steps
    monkeypatch.setattr(extraction._Part, "read_steps", lambda part: sizes.append(len(part.index)) or read_steps(part))
    extract_texts(models, tmp_path / "bundle.npz")
    assert max(sizes) == 2
    assert sum(sizes) == 33 + 2  # each instance once, and the first part for the dimension


def test_max_steps_averages_neighbors(models: Path, tmp_path: Path) -> None:
    extract_texts(models, tmp_path / "all.npz", layers=(-1,))
    extract_texts(models, tmp_path / "two.npz", layers=(-1,), max_steps=2)
    full, short = (load_dataset(tmp_path / name)["train"]["text"] for name in ("all.npz", "two.npz"))
    assert short.lengths.tolist() == [min(2, length) for length in full.lengths.tolist()]
    four = full.get_item(3)
    torch.testing.assert_close(short.get_item(3), torch.stack([four[:2].mean(0), four[2:].mean(0)]))
    assert torch.equal(short.get_item(1), full.get_item(1))


def test_half_precision_is_close(models: Path, tmp_path: Path) -> None:
    extract_texts(models, tmp_path / "full.npz")
    extract_texts(models, tmp_path / "half.npz", precision="bf16")
    full, half = (load_dataset(tmp_path / name)["test"]["text"].values for name in ("full.npz", "half.npz"))
    assert half.dtype == torch.float32
    assert not torch.equal(full, half)
    torch.testing.assert_close(full, half, rtol=0.1, atol=0.1)


def iterate_mistakes(models: Path) -> Iterator[tuple[dict[str, str], FeatureOptions, str]]:
    bert, frame = f"hf:{models / 'bert'}", FeatureOptions(level="frame")
    yield {}, frame, "no model is given: texts has the modalities text"
    yield {"txt": bert}, frame, "has no modality 'txt': did you mean text"
    yield {"text": "bert"}, frame, "a model must be hf:NAME_OR_FOLDER, got 'bert'"
    yield {"text": bert}, FeatureOptions(layers=(-9,)), r"has 3 hidden layers, from -3 to 2: there is no layer -9"
    yield {"text": f"hf:{models / 'clip'}"}, frame, "has one vector for a text: use --level utterance"
    yield (
        {"text": f"hf:{models / 'vit'}"},
        frame,
        "a vit model takes pixel_values, expected a model of input_ids, for te",
    )
    yield {"text": f"hf:{models / 'mute'}"}, frame, "has no tokenizer: it needs tokenizer.json"
    yield {"text": "hf:org/none"}, frame, r"cannot load hf:org/none: .* fetch it elsewhere \(hf download org/none\)"


@pytest.mark.parametrize("number", range(8))
def test_mistakes_are_explained(models: Path, tmp_path: Path, number: int) -> None:
    names, options, message = list(iterate_mistakes(models))[number]
    with pytest.raises(ValueError, match=message):
        extract_features(make_texts(), names, tmp_path / "bundle.npz", options)


def test_names_of_other_arrays_are_refused(models: Path, tmp_path: Path) -> None:
    data = DatasetDict("texts", {"train": Dataset({"label": Texts(["cat"])})})
    with pytest.raises(DatasetError, match="a bundle cannot have a modality 'label'"):
        extract_features(data, {"label": f"hf:{models / 'bert'}"}, tmp_path / "bundle.npz")


def test_corrupt_images_are_missing_unless_they_must_not(captions: Path, models: Path, tmp_path: Path) -> None:
    for i in range(6):
        Image.new("RGB", (40 + i, 40), "red").save(tmp_path / f"{i}.png")
    (tmp_path / "pets.csv").write_text("photo,text,split\n" + "".join(f"{i}.png,cat,train\n" for i in range(6)))
    data = load_dataset(tmp_path / "pets.csv")
    content = (tmp_path / "3.png").read_bytes()
    (tmp_path / "3.png").write_bytes(content[: len(content) // 2])
    names = {"photo": f"hf:{models / 'vit'}", "text": f"hf:{models / 'clip'}"}
    extract_features(data, names, tmp_path / "bundle.npz")
    bundle = load_dataset(tmp_path / "bundle.npz")["train"]
    assert bundle["photo"].get_mask().tolist() == [True, True, True, False, True, True]
    assert bundle["text"].get_mask().all()
    assert bundle.labels is None


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 8 clips with sentiment from -1 to 1, some audio and video of which is missing."""
    pytest.importorskip("av")
    path = write_clips(tmp_path_factory.mktemp("clips"), 8, seconds=0.6)
    header, *rows = path.read_text().splitlines()
    rows = [",".join([*row.split(",")[:3], str(i / 4 - 0.9), row.split(",")[4]]) for i, row in enumerate(rows)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def encode_wave(folder: Path, wave: torch.Tensor) -> torch.Tensor:
    processor, model = hf.AutoFeatureExtractor.from_pretrained(folder), hf.AutoModel.from_pretrained(folder).eval()
    inputs = processor(wave.numpy(), sampling_rate=processor.sampling_rate, return_tensors="pt")
    with torch.no_grad():
        return torch.stack(model(**inputs, output_hidden_states=True).hidden_states[-2:]).mean(0)[0]


def test_audio_and_video_equal_transformers_by_hand(clips: Path, models: Path, tmp_path: Path) -> None:
    data = load_dataset(clips)
    names = {"audio": f"hf:{models / 'hubert'}", "video": f"hf:{models / 'clip'}"}
    options = FeatureOptions(level="frame", layers=(-2, -1), num_frames=3, segment_seconds=0.7)
    extract_features(data, names, tmp_path / "bundle.npz", options, batch_size=3)
    bundle = load_dataset(tmp_path / "bundle.npz")
    for split, dataset in data.splits.items():
        for i in range(len(dataset)):
            audio, video = dataset["audio"], dataset["video"]
            assert [bundle[split][name].get_mask()[i] for name in names] == [audio.get_mask()[i], video.get_mask()[i]]
            if audio.get_mask()[i]:
                (wave,) = audio.read_clips(i, [0.0])
                segments = wave.tensor_split(-(-len(wave) // 11_200))  # 0.7 s at 16 kHz
                expected = torch.cat([encode_wave(models / "hubert", segment) for segment in segments])
                torch.testing.assert_close(bundle[split]["audio"].get_item(i), expected, rtol=1e-3, atol=1e-4)
            if video.get_mask()[i]:
                frames = [frame for _, frame in video.iterate_frames(i, [1 / 6, 1 / 2, 5 / 6])]
                images = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in frames]
                expected = encode_images(models / "clip", images)
                torch.testing.assert_close(bundle[split]["video"].get_item(i), expected, rtol=1e-4, atol=1e-5)


def test_recording_that_is_too_short_is_missing(clips: Path, models: Path, tmp_path: Path) -> None:
    write_audio(clips.parent / "short.wav", make_tone(0.001, 400))
    (clips.parent / "two.csv").write_text("sound,split\nshort.wav,train\n1.wav,train\n")
    data = load_dataset(clips.parent / "two.csv")
    extract_features(data, {"sound": f"hf:{models / 'hubert'}"}, tmp_path / "b.npz", FeatureOptions(layers=(-1,)))
    assert load_dataset(tmp_path / "b.npz")["train"].ids == ("1",)  # instances without any modality are left out
    with pytest.raises(ValueError, match=r"vit: a vit model takes pixel_values, expected a model of input_values"):
        extract_features(data, {"sound": f"hf:{models / 'vit'}"}, tmp_path / "c.npz")


def test_command_extracts_a_bundle_that_the_recipe_of_ch_sims_trains_on(
    clips: Path, models: Path, tmp_path: Path
) -> None:
    output = tmp_path / "bundle.npz"
    flags = ["--data", str(clips), "--layers", "-2", "-1", "--num-frames", "2", "--level", "frame", "-o", str(output)]
    names = ["--text", f"hf:{models / 'bert'}", "--audio", f"hf:{models / 'hubert'}"]
    done = manyviews("extract", *flags, *names, "--vision", f"video=hf:{models / 'clip'}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{output}: 8 instances, sequences: caption of 32, audio of 32, video of 16\n"
    small = ["--hidden-dim", "16", "--transformer-layers", "1", "--epochs", "1", "--batch-size", "6"]
    done = manyviews("train", "--recipe", "ch-sims", "--data", str(output), *small, "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert mv.Run.open(tmp_path / "run").config.data == str(output)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no model is given: use --text, --audio or --vision"),
        (["--text", "bert"], "--text must be hf:NAME_OR_FOLDER or MODALITY=hf:NAME_OR_FOLDER, got 'bert'"),
        (["--text", "hf:bert"], "words has 2 modalities for it, short, long: use --text short=hf:bert"),
        (["--text", "shrot=hf:bert"], "has no modality 'shrot' for it: did you mean short"),
        (["--audio", "hf:hubert"], "has no modalities for it, only short (text), long (text)"),
        (["--vision", "short=hf:vit"], "has no modality 'short' for it"),
    ],
)
def test_command_explains_flags(tmp_path: Path, flags: list[str], message: str) -> None:
    (tmp_path / "words.csv").write_text("short,long,split\ncat,a cat,train\ndog,a dog,train\n")
    done = manyviews("extract", "--data", str(tmp_path / "words.csv"), "-o", str(tmp_path / "bundle.npz"), *flags)
    assert done.returncode == 2
    assert message in done.stderr
