"""Configs and recipes: what they accept, what they refuse and what they say then."""

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml

from manyviews.training import RECIPES, Config, ConfigError, get_recipe, recipe_for
from manyviews.training.run import Run, made_with


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_yaml_and_checks(name: str) -> None:
    recipe = get_recipe(name)
    recipe.check()
    assert Config.from_yaml(recipe.to_yaml()) == recipe


def test_recipes_are_the_papers() -> None:
    def told(name: str) -> tuple:
        r = RECIPES[name]
        return r.encoder, r.stem, r.epochs, r.batch_size, r.optimiser, r.learning_rate, r.warmup, r.temperature, r.size

    assert told("cifar10") == ("resnet18", "small", 200, 256, "sgd", 1.0, 0.01, 0.5, 32)
    assert told("cifar100") == told("cifar10")
    assert told("imagenet100") == ("resnet50", "imagenet", 200, 256, "sgd", 1.4, 0.1, 0.5, 224)
    assert told("imagenet1k") == ("resnet50", "imagenet", 100, 512, "lars", 0.3, 0.1, 0.1, 224)
    for name in ("cifar10", "cifar100"):
        assert (RECIPES[name].strength, RECIPES[name].blur, RECIPES[name].data) == (0.5, 0.0, name)
    for name in ("imagenet100", "imagenet1k"):
        assert (RECIPES[name].strength, RECIPES[name].blur) == (1.0, 0.5)
    for name in ("ch-sims", "cmu-mosei"):
        r = RECIPES[name]
        assert (r.policy, r.optimiser, r.epochs, r.learning_rate, r.warmup, r.held_out, r.instances) == (
            "modalities", "adamw", 200, 1e-4, 0.0, 0, 256,
        )  # fmt: skip
        assert (r.dim, r.layers, r.heads, r.dropout) == (128, 3, 8, 0.1)
    for recipe in (recipe for recipe in RECIPES.values() if recipe.policy == "crops"):
        assert (recipe.momentum, recipe.weight_decay, recipe.trust) == (0.9, 1e-6, 1e-3)
        assert recipe.scale == ((0.2 if recipe.data == "photos" else 0.08), 1.0)


def test_data_has_the_recipe_of_its_name_else_that_of_the_photos() -> None:
    assert recipe_for("cifar100") == RECIPES["cifar100"]
    assert recipe_for("some/folder") == dataclasses.replace(RECIPES["photos"], data="some/folder")


def test_a_recipe_from_a_file_changes_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "objective: pvc\nweight_decay: 1e-4\nscale: [0.3, 1]\nloggers: [tensorboard]\n"
        "classes: some.txt\nprecision: 64\n"
    )
    recipe = get_recipe(file)
    assert recipe.objective == "pvc"
    assert recipe.weight_decay == 1e-4  # which YAML reads as a word
    assert recipe.scale == (0.3, 1.0)
    assert recipe.precision == "64"
    assert recipe.loggers == ("tensorboard",)
    assert recipe.classes == Path("some.txt")
    assert (
        dataclasses.replace(
            recipe, objective="mv-dhel", weight_decay=1e-6, scale=(0.2, 1.0), loggers=(), classes=None, precision="32"
        )
        == Config()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vews: 4", "field 'vews', which is unknown: did you mean views"),
        ("zzz: 4", "which is unknown. There are batch_size, blur"),
        ("views: four", "views in .* must be a whole number, got 'four'"),
        ("views: 2.5", "views in .* must be a whole number, got 2.5"),
        ("views: true", "views in .* must be a whole number, got True"),
        ("size: big", "size in .* must be a whole number or none, got 'big'"),
        ("temperature: hot", "temperature in .* must be a number or none, got 'hot'"),
        ("optimiser: adam", "optimiser in .* must be one of sgd, lars, adamw, got 'adam'"),
        ("scale: [1]", "scale in .* must be a list of a number"),
        ("loggers: tensorboard", "loggers in .* must be a list of one of tensorboard"),
        ("learnable: 1", "learnable in .* must be true or false or none, got 1"),
        ("- 1", "must have lines like `views: 4`"),
        ("a: [", "is not YAML"),
        ("!!python/object/apply:os.system [ls]", "is not YAML"),
    ],
)
def test_a_bad_recipe_file_is_explained(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        get_recipe(file)


@pytest.mark.parametrize(
    ("objective", "own"), [("mv-dhel", (0.5, False)), ("kcl", (0.25, False)), ("siglip", (0.1, True))]
)
def test_a_temperature_that_is_not_given_is_the_objectives_own(objective: str, own: tuple) -> None:
    for recipe in (RECIPES["photos"], RECIPES["multimodal"]):
        assert (recipe.temperature, recipe.learnable) == (None, None)
        config = dataclasses.replace(recipe, objective=objective).settled()
        assert (config.temperature, config.learnable) == own
        assert config.settled() == config
    told = Config(objective=objective, temperature=0.3, learnable=False).settled()
    assert (told.temperature, told.learnable) == (0.3, False)


def test_unknown_recipes() -> None:
    with pytest.raises(ConfigError, match="no recipe 'cifar': did you mean cifar10 or cifar100"):
        get_recipe("cifar")
    with pytest.raises(ConfigError, match=r"cannot read the recipe nowhere\.yaml"):
        get_recipe("nowhere.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": 1}, "views must be >= 2, got 1"),
        ({"objective": "mv-dhell"}, "no objective 'mv-dhell': did you mean mv-dhel"),
        ({"objective": "infonce", "views": 3}, "infonce is for 2 views, got views 3: try pwe-infonce"),
        ({"batch_size": 1}, "batch_size must be a number >= 2"),
        ({"batch_size": 6, "views": 4, "fixed_batch": True}, "too small for two instances of 4 views"),
        ({"temperature": 0.0}, "temperature must be > 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be > 0"),
        ({"warmup": 2.0}, "warmup is a share"),
        ({"scale": (0.5, 0.2)}, "scale must be 0 < low <= high <= 1"),
        ({"blur": 1.5}, "blur is a probability"),
        ({"epochs": 0}, "epochs must be a number >= 1"),
        ({"micro_batch": 0}, "micro_batch must be a number >= 1"),
        ({"keep": 0}, "keep must be a number >= 1"),
        ({"knn_k": 0}, "knn_k must be a number >= 1"),
        ({"held_out": 1}, "held_out must be 0, or at least 2"),
        ({"momentum": 1.5}, "momentum must be < 1"),
        ({"momentum": float("nan")}, "momentum must be a number >= 0"),
        ({"weight_decay": float("inf")}, "weight_decay must be a number >= 0"),
        ({"seed": 2**64}, "seed must be a number >= 0"),
        ({"encoder": "resnet-smal"}, "no encoder 'resnet-smal': did you mean resnet-small"),
        ({"views": "4"}, "views in the config must be a whole number, got '4'"),
        ({"precision": "8"}, "precision in the config must be one of 32"),
    ],
)
def test_what_cannot_be_is_said(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(Config(), **changes).check()


def test_values_become_what_their_fields_are() -> None:
    config = Config(precision=64, scale=[0.2, 1], learning_rate="0.5", classes="some.txt")
    assert (config.precision, config.scale, config.learning_rate) == ("64", (0.2, 1.0), 0.5)
    assert config.classes == Path("some.txt")


def test_fixed_batch_keeps_instances_times_views() -> None:
    assert Config(batch_size=256, views=4, fixed_batch=True).instances == 64
    assert Config(batch_size=256, views=4).instances == 256


def test_what_changes_the_result_is_told_from_what_does_not() -> None:
    base = Config()
    other = dataclasses.replace(base, workers=7, keep=5, device="cpu", save_every=3, loggers=("wandb",), devices=2)
    assert base.different(other) == []
    assert base.different(dataclasses.replace(base, views=3, temperature=0.1)) == ["views", "temperature"]


def test_a_runs_config_is_whole_and_a_recipe_too(tmp_path: Path) -> None:
    config = dataclasses.replace(Config(), views=3, size=24, seed=5)
    run = Run.create(tmp_path / "mine", config, overwrite=False)
    held = yaml.safe_load((run.path / "config.yaml").read_text())
    assert {field.name for field in dataclasses.fields(Config)} < set(held)
    assert held["seed"] == 5
    assert held["made_with"]["torch"] == torch.__version__
    assert set(made_with("x")) >= {"identity", "started", "commit", "manyviews", "python", "numpy", "lightning-fabric"}
    assert get_recipe(run.path / "config.yaml") == config
    assert Run.open(run.path) == run
    with pytest.raises(ConfigError, match=r"is no run: it has no config\.yaml"):
        Run.open(tmp_path)
