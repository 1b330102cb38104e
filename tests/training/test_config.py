"""Configs and recipes: accepted values, and errors for invalid ones."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

import manyviews as mv
from manyviews.runs import Run
from manyviews.training import RECIPES, Config, ConfigError, build_loss, get_default_recipe, get_recipe, resolve_task
from manyviews.training.run_directory import get_git_commit


def test_an_encoder_without_a_modality_is_for_images_whatever_their_name() -> None:
    config = Config(encoder=("resnet18", "text=transformer", "audio=mlp"))
    assert config.get_encoder_name("photo", "image") == "resnet18"
    assert config.get_encoder_name("image", "text") == "transformer"
    assert Config().get_encoder_name("image", "text") is None
    assert config.get_encoder_name("audio", "vector") == "mlp"


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_valid_and_survives_yaml(name: str) -> None:
    recipe = get_recipe(name)
    recipe.check()
    assert Config.from_yaml(recipe.to_yaml()) == recipe


def test_recipes_match_the_paper() -> None:
    def summarize(name: str) -> tuple:
        r = RECIPES[name]
        return (
            r.encoder,
            r.stem,
            r.epochs,
            r.batch_size,
            r.optimizer,
            r.learning_rate,
            r.warmup_fraction,
            r.with_loss_defaults().temperature,
            r.image_size,
        )

    assert summarize("cifar10") == (("resnet18",), "small", 200, 256, "sgd", 1.0, 0.01, 0.5, 32)
    assert summarize("cifar100") == summarize("cifar10")
    assert summarize("imagenet100") == (("resnet50",), "imagenet", 200, 256, "sgd", 1.4, 0.1, 0.5, 224)
    assert summarize("imagenet1k") == (("resnet50",), "imagenet", 100, 512, "lars", 0.3, 0.1, 0.1, 224)
    for name in ("cifar10", "cifar100"):
        assert (RECIPES[name].jitter_strength, RECIPES[name].blur_prob, RECIPES[name].data) == (0.5, 0.0, name)
    for name in ("imagenet100", "imagenet1k"):
        assert (RECIPES[name].jitter_strength, RECIPES[name].blur_prob) == (1.0, 0.5)
    for name in ("ch-sims", "cmu-mosei"):
        r = RECIPES[name]
        assert (r.views, r.optimizer, r.epochs, r.learning_rate) == ((), "adamw", 200, 1e-4)
        assert (r.warmup_fraction, r.monitor_size, r.instances_per_batch) == (0.0, 0, 256)
        assert (r.hidden_dim, r.transformer_layers, r.transformer_heads, r.dropout) == (128, 3, 8, 0.1)
    photos = resolve_task(RECIPES["photos"], mv.load_dataset("photos"), 1).config
    for recipe in (photos, *(RECIPES[name] for name in ("cifar10", "cifar100", "imagenet100", "imagenet1k"))):
        assert (recipe.momentum, recipe.weight_decay, recipe.lars_trust_coefficient) == (0.9, 1e-6, 1e-3)
        assert recipe.crop_scale == ((0.2 if recipe.data == "photos" else 0.08), 1.0)


def test_fields_that_are_not_set_follow_from_the_data() -> None:
    def summarize(config: Config) -> tuple:
        return config.views, config.epochs, config.optimizer, config.learning_rate, config.weight_decay

    photos, digits = mv.load_dataset("photos"), mv.load_dataset("digits")
    of_images = (("image:4",), 10, "sgd", 1.0, 1e-6)
    of_features = (("pixels", "fourier", "profiles", "gradients"), 60, "adamw", 1e-3, 1e-2)
    assert summarize(resolve_task(Config(), photos, 1).config) == of_images
    assert summarize(resolve_task(Config(data="digits"), digits, 1).config) == of_features
    assert summarize(resolve_task(RECIPES["multimodal"], digits, 1).config) == of_features
    lars = resolve_task(Config(optimizer="lars", epochs=3, weight_decay=0.0), photos, 1).config
    assert summarize(lars) == (("image:4",), 3, "lars", 0.3, 0.0)
    adamw = resolve_task(Config(optimizer="adamw", views=2), photos, 1).config
    assert summarize(adamw) == (("image:2",), 10, "adamw", 1e-3, 1e-2)
    assert resolve_task(adamw, photos, 1).config == adamw


def test_default_recipe_has_the_name_of_the_data_or_is_photos() -> None:
    assert get_default_recipe("cifar100") == RECIPES["cifar100"]
    assert get_default_recipe("some/folder") == dataclasses.replace(RECIPES["photos"], data="some/folder")


def test_recipe_file_changes_only_its_fields(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "loss: pvc\nweight_decay: 1e-4\ncrop_scale: [0.3, 1]\nloggers: [tensorboard]\n"
        "class_list: some.txt\nprecision: 64\n"
    )
    recipe = get_recipe(file)
    assert recipe.loss == "pvc"
    assert recipe.weight_decay == 1e-4  # which YAML parses as a string
    assert recipe.crop_scale == (0.3, 1.0)
    assert recipe.precision == "64"
    assert recipe.loggers == ("tensorboard",)
    assert recipe.class_list == Path("some.txt")
    assert (
        dataclasses.replace(
            recipe,
            loss="mv-dhel",
            weight_decay=None,
            crop_scale=(0.2, 1.0),
            loggers=(),
            class_list=None,
            precision="auto",
        )
        == Config()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vews: 4", "unknown field 'vews' in .*: did you mean views"),
        ("zzz: 4", "unknown field 'zzz' in .*batch_counts_views, batch_size, blur_prob"),
        ("views: 2.5", "views in .* must be a list, each item a string, got 2.5"),
        ("views: true", "views in .* must be a list, each item a string, got True"),
        ("views: {image: 4}", "views in .* must be a list, each item a string, got {'image': 4}"),
        ("encoder: 1.5", "encoder in .* must be a list, each item a string, got 1.5"),
        ("task: images", "unknown field 'task' in .*"),
        ("image_size: big", "image_size in .* must be an integer or none, got 'big'"),
        ("temperature: hot", "temperature in .* must be a number or none, got 'hot'"),
        ("optimizer: adam", "optimizer in .* must be one of auto, sgd, lars, adamw, got 'adam'"),
        ("crop_scale: [1]", "crop_scale in .* must be a list, each item a number"),
        ("loggers: tensorboard", "loggers in .* must be a list, each item one of tensorboard"),
        ("learn_temperature: 1", "learn_temperature in .* must be true or false or none, got 1"),
        ("- 1", "must have lines like `views: 4`"),
        ("a: [", "is not YAML"),
        ("!!python/object/apply:os.system [ls]", "is not YAML"),
    ],
)
def test_invalid_recipe_file_raises(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        get_recipe(file)


@pytest.mark.parametrize(
    ("loss", "expected"), [("mv-dhel", (0.5, False)), ("kcl", (0.25, False)), ("siglip", (0.1, True))]
)
def test_temperature_defaults_to_that_of_the_loss(loss: str, expected: tuple) -> None:
    for recipe in (RECIPES["photos"], RECIPES["multimodal"]):
        assert (recipe.temperature, recipe.learn_temperature) == (None, None)
        config = dataclasses.replace(recipe, loss=loss).with_loss_defaults()
        assert (config.temperature, config.learn_temperature) == expected
        assert config.with_loss_defaults() == config
    explicit = Config(loss=loss, temperature=0.3, learn_temperature=False).with_loss_defaults()
    assert (explicit.temperature, explicit.learn_temperature) == (0.3, False)


def test_unknown_recipe_raises() -> None:
    with pytest.raises(ConfigError, match="no recipe 'cifar': did you mean cifar10 or cifar100"):
        get_recipe("cifar")
    with pytest.raises(ConfigError, match=r"cannot read the recipe nowhere\.yaml"):
        get_recipe("nowhere.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": 1}, "at least two views are required, got 1: try --views 2$"),
        ({"views": "image@16"}, "at least two views are required, got image@16: try --views image:2@16$"),
        ({"views": "image:1"}, "at least two views are required, got image:1: try --views image:2$"),
        ({"views": 0}, "invalid view '0': expected for instance 4, image:4, text audio vision"),
        ({"views": -3}, "invalid view '-3'"),
        ({"views": "2.5"}, "invalid view '2.5': expected for instance"),
        ({"views": "image:0"}, "invalid view 'image:0': expected for instance"),
        ({"views": "image:2@0"}, "invalid view 'image:2@0': expected for instance"),
        ({"views": "2 image"}, "a number of views cannot be combined with others, got 2 image"),
        ({"loss": "mv-dhell"}, "unknown loss 'mv-dhell': did you mean mv-dhel"),
        ({"loss": "infonce", "views": 3}, "infonce supports 2 views, got 3: try pwe-infonce"),
        ({"loss": "infonce", "views": "text audio:2"}, "infonce supports 2 views, got 3: try pwe-infonce"),
        ({"batch_size": 1}, "batch_size must be a number >= 2"),
        ({"batch_size": 6, "views": 4, "batch_counts_views": True}, "too small for two instances of 4 views"),
        ({"temperature": 0.0}, "temperature must be > 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be > 0"),
        ({"warmup_fraction": 2.0}, "warmup_fraction must be in \\[0, 1\\], got 2.0"),
        ({"crop_scale": (0.5, 0.2)}, r"crop_scale must be 0 < low <= high <= 1, got \(0.5, 0.2\)"),
        ({"blur_prob": 1.5}, r"blur_prob must be in \[0, 1\], got 1.5"),
        ({"epochs": -1}, "epochs must be a number >= 0, got -1"),
        ({"grad_cache_chunk": 0}, "grad_cache_chunk must be a number >= 1"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must be a number >= 1"),
        ({"knn_k": 0}, "knn_k must be a number >= 1"),
        ({"monitor_size": 1}, "monitor_size must be 0 or >= 2, got 1"),
        ({"momentum": 1.5}, "momentum must be in \\[0, 1\\), got 1.5"),
        ({"momentum": float("nan")}, "momentum must be in \\[0, 1\\), got nan"),
        ({"weight_decay": float("inf")}, "weight_decay must be a number >= 0"),
        ({"seed": 2**64}, "seed must be a number >= 0"),
        ({"encoder": "resnet-smal"}, "no encoder 'resnet-smal' for image: did you mean resnet-small"),
        ({"encoder": ("resnet18", "resnet-smal")}, "no encoder 'resnet-smal' for image: did you mean resnet-small"),
        ({"views": ("image", 2)}, r"views in the config must be a list, each item a string, got \('image', 2\)"),
        ({"small_crop_scale": (0.5, 0.2)}, r"crop_scale must be 0 < low <= high <= 1, got \(0.5, 0.2\)"),
        ({"precision": "8"}, "precision in the config must be one of auto, 32"),
    ],
)
def test_invalid_config_raises(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(Config(), **changes).check()


def test_values_are_converted_to_the_type_of_their_field() -> None:
    config = Config(precision=64, crop_scale=[0.2, 1], learning_rate="0.5", class_list="some.txt")
    assert (config.precision, config.crop_scale, config.learning_rate) == ("64", (0.2, 1.0), 0.5)
    assert config.class_list == Path("some.txt")


def test_views_may_be_a_number_or_a_text() -> None:
    assert Config(views=4).views == Config(views="4").views == Config(views=["4"]).views == ("4",)
    assert Config(views="image:2 caption").views == ("image:2", "caption")
    assert Config(encoder="resnet18").encoder == ("resnet18",)
    assert [Config(views=views).num_views for views in ((), 4, "image:2@16 image:4@8", "text audio")] == [0, 4, 6, 2]
    assert Config.from_yaml("views: 4").views == ("4",)
    assert Config.from_yaml("views: image:2 caption").views == Config.from_yaml("views: [image:2, caption]").views


def test_batch_counts_views_keeps_instances_times_views() -> None:
    assert Config(batch_size=256, views=4, batch_counts_views=True).instances_per_batch == 64
    assert Config(batch_size=256, views=4).instances_per_batch == 256


def test_changed_fields_are_those_that_affect_the_result() -> None:
    base = Config()
    other = dataclasses.replace(
        base, num_workers=7, keep_checkpoints=5, device="cpu", checkpoint_every_steps=3, loggers=("wandb",), devices=2
    )
    assert base.list_changed_fields(other) == []
    assert base.list_changed_fields(dataclasses.replace(base, views=3, temperature=0.1)) == ["views", "temperature"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_is_the_last_one_that_changed_any_file_of_the_package(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", str(tmp_path), *name, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit_file(name: str) -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
        git("add", ".")
        git("commit", "-m", name)
        return git("rev-parse", "HEAD")

    git("init", "-q")
    commit_file("package/training/a.py")
    last = commit_file("package/b.py")
    commit_file("README.md")
    assert get_git_commit(tmp_path / "package") == last
    (tmp_path / "package/b.py").write_text("changed")
    assert get_git_commit(tmp_path / "package") == f"{last} with changes"


def test_config_of_a_run_is_complete_and_a_valid_recipe(tmp_path: Path) -> None:
    config = dataclasses.replace(Config(), views=3, image_size=24, seed=5)
    run = Run.create(tmp_path / "mine", config, overwrite=False)
    content = yaml.safe_load((run.path / "config.yaml").read_text())
    assert {field.name for field in dataclasses.fields(Config)} < set(content)
    assert content["seed"] == 5
    assert content["provenance"]["torch"] == torch.__version__
    assert set(run.provenance) >= {
        "run_id",
        "started",
        "commit",
        "manyviews",
        "python",
        "numpy",
        "lightning-fabric",
    }
    assert get_recipe(run.path / "config.yaml") == config
    assert Run.open(run.path) == run
    with pytest.raises(ConfigError, match=r"is not a run directory \(cannot read config\.yaml"):
        Run.open(tmp_path)


def test_loss_options_are_typed_by_the_loss() -> None:
    config = Config(loss="anchored", loss_options="anchor_view=1 pair_loss=dhel")
    assert config.parse_loss_options() == {"anchor_view": 1, "pair_loss": "dhel"}
    assert Config.from_yaml(config.to_yaml()) == config
    loss = build_loss(Config(loss="emp-ssl", loss_options=("invariance_weight=20",)).with_loss_defaults())
    assert loss.invariance_weight == 20.0
    for name, options, message in (
        ("anchored", "anchor=1", "anchored has no option 'anchor', only anchor_view, .* did you mean anchor_view"),
        ("anchored", "anchor_view=x", "anchor_view of anchored must be an integer, got 'x'"),
        ("anchored", "anchor_view", "loss_options takes NAME=VALUE, got 'anchor_view'"),
        ("pvc", "aggregation=both", "aggregation of pvc must be one of geometric, arithmetic, got 'both'"),
        ("mv-dhel", "temperature=1", "temperature is not one of the loss_options: use --temperature"),
        ("emp-ssl", "invariance_weight=-1", "invariance_weight"),
        ("mv-dhel+0.5*pvc", "aggregation=geometric", "has no option 'aggregation'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Config(loss=name, loss_options=options).check()


def test_losses_without_temperature_refuse_one() -> None:
    for name in ("mmcr", "emp-ssl", "lejepa"):
        config = Config(loss=name).with_loss_defaults()
        assert (config.temperature, config.learn_temperature) == (None, False)
        build_loss(config)
        with pytest.raises(ConfigError, match=f"{name} has no temperature: use --temperature None"):
            Config(loss=name, temperature=0.5).check()
    assert Config(loss="mv-dhel+0.5*prod-dhel").with_loss_defaults().temperature == 0.5
    # The parts have temperatures of their own.
    mixed = Config(loss="mv-dhel+symile").with_loss_defaults()
    assert mixed.temperature is None
    assert [part.temperature for part in build_loss(mixed).parts] == [0.5, 0.07]
