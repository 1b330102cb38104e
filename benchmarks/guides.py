"""Tables of the guides: this library's own questions, as grids of trials like the paper's.

Their files are made by `benchmarks.emoji_data`, `benchmarks.objects` and `benchmarks.sensor_data`; docs/modalities.md
and docs/views.md describe them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from manyviews.evaluation import EvaluationConfig, EvaluationResult
from manyviews.metrics import ALL_OTHERS
from manyviews.reproduce.claims import Claim, claim_best, claim_level_better, find_least_favorable
from manyviews.reproduce.experiments import Experiment, ReproduceOptions, add_seeds, get_image_config
from manyviews.reproduce.results import Metric, Results, extract_score
from manyviews.reproduce.trials import Level, Trial
from manyviews.training import RECIPES, Config, ConfigError

SCRIPT = "python -m benchmarks.results --only"
COMMON_FIELDS: dict[str, Any] = {"monitor_size": 0, "evaluate_at_end": False, "cpu_threads": 1}
EVAL_CONFIG = EvaluationConfig(label_fractions=(), baselines=False, num_workers=1)


def check_options(options: ReproduceOptions, name: str, needs_files: bool = True) -> None:
    """Raise for options that do not apply to a guide's table."""
    if options.losses or options.views:
        raise ConfigError(f"--losses and --views do not apply to the table {name}")
    if needs_files and not options.datasets:
        raise ConfigError(f"the table {name} needs the files of its data")


def make_config(options: ReproduceOptions, recipe: str, **changes: Any) -> Config:
    """Return the config of a recipe, short at scale smoke."""
    config = dataclasses.replace(RECIPES[recipe], **{**COMMON_FIELDS, **changes})
    if options.scale == "smoke":
        config = dataclasses.replace(config, epochs=1, max_instances=64, batch_size=32)
    return options.apply(config)


# ---- several pictures of a thing, and its name ----

PICTURES = ("twemoji", "noto", "openmoji", "fluent")
NAME = "en"
EMOJI_LOSSES = ("mv-dhel", "mv-infonce", "pvc", "pwe-ntxent", "avg-ntxent")
SHARED, SEPARATE = "one for all artists", "one for each artist"
EMOJI_SETTINGS = ((SHARED, 0.2), (SHARED, 0.5), (SEPARATE, 0.5))
# Weak augmentation, because the colors and the whole of a picture are what its name is about, and fast training.
EMOJI_CONFIG: dict[str, Any] = {
    "views": (*PICTURES, NAME), "crop_scale": (0.6, 1.0), "jitter_strength": 0.1, "image_size": 32,
    "transformer_layers": 1, "learning_rate": 0.004, "epochs": 15, "num_workers": 1,
}  # fmt: skip


def make_emoji_trials(options: ReproduceOptions) -> Iterator[Trial]:
    check_options(dataclasses.replace(options, losses=()), "emoji")
    eval_config = dataclasses.replace(EVAL_CONFIG, modality_subsets=False)
    for name, path in options.resolve_datasets(()):
        for loss, (encoder, temperature) in product(options.select_losses(EMOJI_LOSSES), EMOJI_SETTINGS):
            changes = {"loss": loss, "temperature": temperature, "separate_encoders": encoder == SEPARATE}
            config = make_config(options, "multimodal", data=path, **EMOJI_CONFIG, **changes)
            coords = {"data": name, "loss": loss, "image encoder": encoder, "temperature": temperature}
            yield from add_seeds(config, eval_config, options, **coords)


def extract_recall(sources: Collection[str], targets: Collection[str], k: str, result: EvaluationResult) -> list[float]:
    """Return the mean recall at k, in percent, of targets by sources."""
    pairs = [pair for pair in result.retrieval if pair.source in sources and pair.target in targets]
    return [100 * fmean(pair.recall[k] for pair in pairs)] if pairs else []


def make_emoji_claims(results: Results, data: Level) -> Iterator[Claim]:
    for loss in results.list_levels("loss"):
        for metric in ("picture-picture-1", "name-picture"):
            coords = {"data": data, "loss": loss, "temperature": 0.5}
            yield claim_level_better(results, metric, "image encoder", SHARED, SEPARATE, **coords)
    for metric, winner in (("picture-picture-1", "mv-dhel"), ("name-picture", "pwe-ntxent")):
        others = tuple(loss for loss in EMOJI_LOSSES if loss != winner)
        coords = {"data": data, "image encoder": SHARED, "temperature": 0.5}
        yield claim_best(results, metric, winner, others, **coords)


_RECALL: dict[str, tuple[str, Collection[str], Collection[str], str]] = {
    "picture-picture-1": ("picture to picture, R@1, %", PICTURES, PICTURES, "1"),
    "picture-picture-10": ("picture to picture, R@10, %", PICTURES, PICTURES, "10"),
    "name-picture": ("name to picture, R@10, %", (NAME,), PICTURES, "10"),
    "picture-name": ("picture to name, R@10, %", PICTURES, (NAME,), "10"),
    "pictures-name": ("all pictures to name, R@10, %", (ALL_OTHERS,), (NAME,), "10"),
}

# ---- several photos of an object, or crops of one ----

AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "weak": {"crop_scale": (0.8, 1.0), "jitter_strength": 0.5},
    "strong": {"crop_scale": (0.4, 1.0), "jitter_strength": 1.0},
}
PHOTOS, CROPS = "four photos", "four crops of one photo"
COLUMNS = {PHOTOS: "photos", CROPS: "photo"}


def make_object_trials(options: ReproduceOptions) -> Iterator[Trial]:
    check_options(options, "objects")
    grid = product(options.resolve_datasets(()), AUGMENTATIONS.items(), COLUMNS.items())
    for (name, path), (augmentation, changes), (views, column) in grid:
        fixed: dict[str, Any] = {"epochs": 12, "batch_size": 64, "loss": "mv-dhel", "num_workers": 1}
        config = make_config(options, "photos", data=path, views=(f"{column}:4",), **{**fixed, **changes})
        coords = {"data": name, "augmentation": augmentation, "views": views, "loss": "mv-dhel"}
        yield from add_seeds(config, EVAL_CONFIG, options, **coords)


def make_object_claims(results: Results, data: Level) -> Iterator[Claim]:
    for augmentation in AUGMENTATIONS:
        coords = {"data": data, "augmentation": augmentation}
        yield claim_level_better(results, "linear", "views", PHOTOS, CROPS, **coords)


# ---- crops of two sizes ----

PLAIN, MULTI_CROP = "image:4@32", "image:2@32 image:8@16"


def make_crop_trials(options: ReproduceOptions) -> Iterator[Trial]:
    check_options(options, "multi-crop", needs_files=False)
    for views in (PLAIN, MULTI_CROP):
        base = dataclasses.replace(get_image_config(options.scale), image_size=32, epochs=8, max_instances=4000)
        if options.scale == "smoke":
            base = dataclasses.replace(base, epochs=1, max_instances=64)
        config = options.apply(dataclasses.replace(base, views=tuple(views.split()), loss="mv-dhel"))
        yield from add_seeds(config, EVAL_CONFIG, options, data=base.data, loss="mv-dhel", views=views)


def make_crop_claims(results: Results, data: Level) -> Iterator[Claim]:
    for metric in ("linear", "knn"):
        yield claim_level_better(results, metric, "views", MULTI_CROP, PLAIN, data=data)


# ---- the demo, evaluated on all of CIFAR-10 ----


def make_transfer_trials(options: ReproduceOptions) -> Iterator[Trial]:
    check_options(options, "transfer", needs_files=False)
    eval_config = EvaluationConfig(baselines=False)
    config = make_config(options, "demo", monitor_size=None)
    for trial in add_seeds(config, eval_config, options, data="cifar10", loss="mv-dhel"):
        # Baselines take long.
        baselines = trial.config.seed == 0 and options.scale != "smoke"
        data = "cifar10" if options.scale != "smoke" else ""
        with_baselines = dataclasses.replace(eval_config, baselines=baselines)
        yield dataclasses.replace(trial, eval_config=with_baselines, eval_data=data)


def extract_few_label(fraction: str, result: EvaluationResult) -> list[float]:
    """Return the mean accuracy, in percent, of probes on a fraction of the labels."""
    score = result.scores["trained"].few_label.get(fraction) if "trained" in result.scores else None
    return [100 * fmean(score.linear)] if score else []


# ---- small sets of sensor sequences ----

DEFAULTS = "defaults"
SENSOR_SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULTS: {},
    "no augmentation": {"augment_features": "none"},
    "temperature 0.5": {"temperature": 0.5},
    "defaults of version 0.1": {
        "hidden_dim": 128, "transformer_layers": 3, "temperature": 0.5, "learning_rate": 0.001,
        "augment_features": "none", "epochs": 60,
    },
}  # fmt: skip


def make_sensor_trials(options: ReproduceOptions) -> Iterator[Trial]:
    check_options(options, "sensors")
    for (name, path), (setting, changes) in product(options.resolve_datasets(()), SENSOR_SETTINGS.items()):
        config = make_config(options, "multimodal", data=path, loss="mv-dhel", **changes)
        eval_config = dataclasses.replace(EVAL_CONFIG, baselines=setting == DEFAULTS)
        yield from add_seeds(config, eval_config, options, data=name, loss="mv-dhel", setting=setting)


def extract_gain(result: EvaluationResult) -> list[float]:
    """Return by how many points single modalities are better than their raw features, on average."""
    alone = [subset.scores for subset in result.subsets if len(subset.modalities) == 1 and "raw" in subset.scores]
    gains = [100 * (scores["per_subset"]["accuracy"] - scores["raw"]["accuracy"]) for scores in alone]
    return [fmean(gains)] if gains else []


def make_sensor_claims(results: Results, data: Level) -> Iterator[Claim]:
    gains = results.by_seed("gain", data=data, setting=DEFAULTS)
    yield Claim(
        f"single modalities are better than their raw features, on average ({data}, {DEFAULTS})",
        ", ".join(f"{gain:+.1f}" for gain in gains.values()),
        find_least_favorable({"": gains.values()}, GUIDE_METRICS["gain"].digits),
    )
    for setting in list(SENSOR_SETTINGS)[1:]:
        for metric in ("linear", "fused"):
            yield claim_level_better(results, metric, "setting", DEFAULTS, setting, data=data)


GUIDE_METRICS = {
    **{name: Metric(title, partial(extract_recall, *arguments)) for name, (title, *arguments) in _RECALL.items()},
    "fused": Metric("fused prediction, %", extract_score("linear", "fused_prediction")),
    "few-1": Metric("linear probe on 1% of the labels, %", partial(extract_few_label, "0.01")),
    "few-10": Metric("linear probe on 10% of the labels, %", partial(extract_few_label, "0.1")),
    "gain": Metric("mean gain of single modalities over their raw features, points", extract_gain),
}
GUIDES = {
    "emoji": Experiment(
        "retrieval between pictures of unseen emoji by four artists, and their English names",
        make_emoji_trials, tuple(_RECALL), ("loss",), ("image encoder", "temperature"), make_emoji_claims,
        is_multimodal=True, is_in_paper=False, script=SCRIPT,
        settings="pictures of 32 x 32, --crop-scale 0.6 1 --jitter-strength 0.1 --transformer-layers 1 "
        "--learning-rate 0.004",
    ),
    "objects": Experiment(
        "four photos of an object as views, or four crops of one photo",
        make_object_trials, ("linear", "knn"), ("data", "augmentation"), ("views",), make_object_claims,
        is_in_paper=False, script=SCRIPT,
        settings="objects of one color, or each of its own; weak: --crop-scale 0.8 1 --jitter-strength 0.5, strong: "
        "--crop-scale 0.4 1 --jitter-strength 1; the shape of unseen objects is predicted from one photo",
    ),
    "multi-crop": Experiment(
        "crops of two sizes at the encoder cost of four large ones",
        make_crop_trials, ("linear", "knn"), ("views",), ("data",), make_crop_claims,
        is_in_paper=False, script=SCRIPT,
    ),
    "transfer": Experiment(
        "the demo, trained on 2,250 of the bundled photos, evaluated on all of CIFAR-10",
        make_transfer_trials, ("linear", "knn", "few-1", "few-10"), ("data",), ("loss",), lambda _results, _data: [],
        is_in_paper=False, script=SCRIPT, settings="baselines with the first seed alone",
    ),
    "sensors": Experiment(
        "small sets of sensor sequences: the defaults, and what they are made of",
        make_sensor_trials, ("linear", "fused", "gain"), ("data",), ("setting",), make_sensor_claims,
        is_multimodal=True, is_in_paper=False, script=SCRIPT,
        settings="the defaults were chosen by the test accuracy of synthetic and watch with seed 0; those of version "
        "0.1: --hidden-dim 128 --transformer-layers 3 --temperature 0.5 --learning-rate 0.001 --augment-features none "
        "--epochs 60",
    ),
}  # fmt: skip
