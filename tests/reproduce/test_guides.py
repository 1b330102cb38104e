"""Tables of the guides: their trials, metrics and files."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks import emoji_data, objects
from benchmarks.guides import (
    AUGMENTATIONS,
    DEFAULTS,
    EMOJI_CONFIG,
    GUIDE_METRICS,
    GUIDES,
    MULTI_CROP,
    PHOTOS,
    SENSOR_SETTINGS,
    SHARED,
)
from benchmarks.sensor_data import VOWELS_PATH, make_synthetic, make_vowels

import manyviews as mv
from manyviews.data import Images
from manyviews.evaluation import EvaluationResult
from manyviews.metrics import ALL_OTHERS, FewLabelScore, RetrievalScore, Score, SubsetScore
from manyviews.reproduce import EXPERIMENTS, ReproduceOptions, TrialStore, trials
from manyviews.reproduce.results import METRICS, Results
from manyviews.reproduce.trials import Coordinates, run_trial
from manyviews.training import ConfigError, resolve_task


@pytest.fixture(autouse=True)
def _with_guides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, experiment in GUIDES.items():
        monkeypatch.setitem(EXPERIMENTS, name, experiment)
    for name, metric in GUIDE_METRICS.items():
        monkeypatch.setitem(METRICS, name, metric)


WINNERS = {
    "emoji": {"image encoder": SHARED},
    "objects": {"views": PHOTOS},
    "multi-crop": {"views": MULTI_CROP},
    "sensors": {"setting": DEFAULTS},
}


def decide_claims(name: str, options: ReproduceOptions, advantage: float) -> dict[str, str]:
    """Decide the claims of a guide whose claimed winner is better than the other settings by some points."""
    values: dict[Coordinates, dict[str, dict[int, list[float]]]] = {}
    for trial in GUIDES[name].make_trials(options):
        wins = WINNERS[name].items() <= trial.coordinates.items()
        scores = {metric: {s: [50 + s + advantage * wins] for s in range(3)} for metric in GUIDES[name].metrics}
        scores |= {"gain": {s: [advantage] for s in range(3)}} if name == "sensors" else {}
        values[trial.coordinates] = scores
    return {claim.text: claim.verdict for claim in GUIDES[name].check_claims(Results(values))}


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
@pytest.mark.parametrize("name", GUIDES)
def test_trials_are_valid_and_each_has_its_own_run(name: str, scale: str, tmp_path: Path) -> None:
    files = []
    for stem in ("one", "two"):
        files.append(tmp_path / f"{stem}.csv")
        files[-1].write_text(stem)
    options = ReproduceOptions(scale=scale, seeds=2, datasets=tuple(map(str, files)))
    grid = list(GUIDES[name].make_trials(options))
    for trial in grid:
        trial.config.check()
        assert set(GUIDES[name].rows + GUIDES[name].columns) <= set(trial.coordinates)
    settings = {trial.coordinates for trial in grid}
    assert len({trial.name for trial in grid}) == len(grid) == 2 * len(settings)
    assert options.format_command(name).startswith(f"python -m benchmarks.results --only {name} ")
    assert str(tmp_path) not in options.format_command(name)


@pytest.mark.parametrize("name", WINNERS)
def test_claims_are_in_the_right_direction(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a")
    options = ReproduceOptions(seeds=3, datasets=(str(tmp_path / "a.csv"),))

    def decide(advantage: float) -> set[str]:
        claims = decide_claims(name, options, advantage)
        return {verdict for text, verdict in claims.items() if " has a better " not in text}

    assert decide(5.0) == {"held"}
    assert decide(-5.0) == {"not held"}
    assert decide(0.0) == {"undecided"}


def test_options_that_do_not_apply_are_refused() -> None:
    with pytest.raises(ConfigError, match="the table sensors needs the files of its data"):
        list(GUIDES["sensors"].make_trials(ReproduceOptions()))
    with pytest.raises(ConfigError, match="--losses and --views do not apply to the table multi-crop"):
        list(GUIDES["multi-crop"].make_trials(ReproduceOptions(losses=("pvc",))))


def test_described_settings_are_those_of_the_trials() -> None:
    flags = {"--crop-scale": "crop_scale", "--jitter-strength": "jitter_strength", "--learning-rate": "learning_rate"}
    flags |= {"--transformer-layers": "transformer_layers"}
    settings = GUIDES["emoji"].settings
    for flag, name in flags.items():
        value = EMOJI_CONFIG[name]
        text = " ".join(f"{number:g}" for number in (value if isinstance(value, tuple) else (value,)))
        assert f"{flag} {text}" in settings
    for name, changes in AUGMENTATIONS.items():
        low, high = changes["crop_scale"]
        text = f"{name}: --crop-scale {low:g} {high:g} --jitter-strength {changes['jitter_strength']:g}"
        assert text in GUIDES["objects"].settings


def test_recall_is_the_mean_over_pairs_of_sources_and_targets() -> None:
    pairs = [("noto", "twemoji", 0.5), ("twemoji", "noto", 0.3), ("en", "noto", 0.2), (ALL_OTHERS, "en", 0.1)]
    retrieval = tuple(RetrievalScore(a, b, 9, {"1": r, "10": 2 * r}, 1.0) for a, b, r in pairs)
    result = EvaluationResult("0.2", "emoji", "emoji", "test", retrieval=retrieval)
    values = {name: metric.extract(result) for name, metric in GUIDE_METRICS.items() if name in GUIDES["emoji"].metrics}
    assert values.pop("picture-name") == []
    assert values == {
        "picture-picture-1": pytest.approx([40.0]),
        "picture-picture-10": pytest.approx([80.0]),
        "name-picture": pytest.approx([40.0]),
        "pictures-name": pytest.approx([20.0]),
    }


def test_a_trial_may_be_evaluated_on_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []

    def evaluate(_run: object, data: str | None = None, **_options: object) -> None:
        evaluated.append(data)
        raise RuntimeError("stop here")

    monkeypatch.setattr(trials, "train", lambda *_args, **_options: SimpleNamespace(path=tmp_path))
    monkeypatch.setattr(trials.Run, "open", lambda path: path)
    monkeypatch.setattr(trials, "evaluate", evaluate)
    (transfer,) = GUIDES["transfer"].make_trials(ReproduceOptions())
    own = dataclasses.replace(transfer, eval_data="")
    for trial in (transfer, own):
        with pytest.raises(RuntimeError, match="stop here"):
            run_trial(trial.to_spec(TrialStore(tmp_path)))
    assert evaluated == ["cifar10", None]
    assert transfer.name == own.name
    assert transfer.result_filename != own.result_filename


def test_few_labels_are_the_mean_over_subsets_of_them() -> None:
    few = {"0.01": FewLabelScore(500, (0.4, 0.5))}
    result = EvaluationResult("0.2", "a", "a", "test", scores={"trained": Score(linear=0.5, few_label=few)})
    assert GUIDE_METRICS["few-1"].extract(result) == pytest.approx([45.0])
    assert GUIDE_METRICS["few-10"].extract(result) == []


def test_gain_compares_each_modality_alone_with_its_raw_features() -> None:
    def subset(names: str, raw: float, trained: float) -> SubsetScore:
        scores = {"raw": {"accuracy": raw}, "per_subset": {"accuracy": trained}}
        return SubsetScore(tuple(names), 9, scores, {"accuracy": 0.9})

    result = EvaluationResult(
        "0.2", "a", "a", "test", ("a", "b"), subsets=(subset("a", 0.5, 0.65), subset("b", 0.7, 0.55))
    )
    both = EvaluationResult("0.2", "a", "a", "test", ("a", "b"), subsets=(*result.subsets, subset("ab", 0.1, 0.9)))
    for each in (result, both):
        assert GUIDE_METRICS["gain"].extract(each) == pytest.approx([0.0])
    assert GUIDE_METRICS["gain"].extract(EvaluationResult("0.2", "a", "a", "test")) == []


def test_defaults_of_sensors_are_those_of_small_sets_of_sequences(tmp_path: Path) -> None:
    data = mv.DatasetDict(
        "sensors",
        {
            "train": mv.Dataset({"imu": torch.randn(60, 9, 3), "pose": torch.randn(60, 9, 4)}, torch.arange(60) % 3),
        },
    )
    (tmp_path / "a.csv").write_text("a")
    options = ReproduceOptions(datasets=(str(tmp_path / "a.csv"),))
    configs = {str(trial.coordinates["setting"]): trial.config for trial in GUIDES["sensors"].make_trials(options)}
    assert list(configs) == list(SENSOR_SETTINGS)
    resolved = {name: resolve_task(config, data, 1).config for name, config in configs.items()}
    chosen = {name: (config.temperature, config.hidden_dim) for name, config in resolved.items()}
    assert (chosen["defaults"], chosen["defaults of version 0.1"]) == ((0.2, 64), (0.5, 128))


def test_objects_are_written_as_a_table_of_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("TRAIN_OBJECTS", 20), ("TEST_OBJECTS", 10), ("PHOTOS", 3)):
        monkeypatch.setattr(objects, name, count)
    data = mv.load_dataset(str(objects.write_objects(tmp_path, "own-color")))
    photos, photo = data["train"]["photos"], data["train"]["photo"]
    assert isinstance(photos, Images)
    assert (len(data["train"]), len(data["test"]), sorted(data.class_names)) == (20, 10, sorted(objects.SHAPES))
    pixels, _ = objects.make_split(20, 3, 1, "own-color")
    assert torch.equal(photo.show(7), pixels[7, 0])
    assert torch.equal(photos.show(7), pixels[7, 0])
    assert len(photos.sizes) == 60


def test_emoji_are_those_with_a_group_and_keep_their_split(tmp_path: Path) -> None:
    emoji = [
        {"hexcode": "2764-FE0F", "label": "red heart", "group": 0},
        {"hexcode": "1F3FB", "label": "light skin tone", "group": 2},
        {"hexcode": "1F1E6", "label": "regional indicator A"},
    ]
    for name, content in (
        ("en/data.json", emoji),
        ("meta/groups.json", {"groups": {"0": "smileys", "2": "component"}}),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(content))
    assert emoji_data.list_emoji(tmp_path) == [{"id": "2764", "label": "smileys", "en": "red heart"}]
    splits = Counter(emoji_data.choose_split(f"{code:x}") for code in range(2000))
    assert (splits["test"], splits["valid"]) == (pytest.approx(200, abs=40), pytest.approx(200, abs=40))


def test_sensor_data_have_aligned_lengths_and_labels(tmp_path: Path) -> None:
    synthetic = make_synthetic()
    assert synthetic["train/imu"].shape == (431, 25, 6)
    assert (synthetic["train/imu_length"] == synthetic["train/depth_length"]).all()
    for split, rows in (("TRAIN", ["1,2:" * 11 + "3,4:5", "1:" * 11 + "7:1"]), ("TEST", ["0,1,2:" * 12 + "9"])):
        path = tmp_path / VOWELS_PATH.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# a comment\n@problemName vowels\n@data\n" + "\n".join(rows) + "\n")
    vowels = make_vowels(tmp_path)
    assert vowels["train/high"][:, :, 3].tolist() == [[3.0, 4.0], [7.0, 0.0]]
    assert (vowels["train/low_length"].tolist(), vowels["test/low_length"].tolist()) == ([2, 1], [3])
    assert (vowels["train/label"].tolist(), vowels["test/label"].tolist()) == ([4, 0], [8])
