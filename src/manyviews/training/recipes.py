"""Recipes: named sets of hyper-parameters from the paper's appendix (docs/modalities.md lists what it leaves open)."""

from dataclasses import replace
from pathlib import Path

from manyviews.training.config import Config, ConfigError
from manyviews.utils import read_text, suggest

_CIFAR = Config(
    data="cifar10", monitor_size=0, image_size=32, crop_scale=(0.08, 1.0), jitter_strength=0.5, blur_prob=0.0,
    views=("4",), encoder=("resnet18",), stem="small", optimizer="sgd", weight_decay=1e-6, epochs=200,
    batch_size=256, learning_rate=1.0, warmup_fraction=0.01, checkpoint_every_minutes=5.0,
)  # fmt: skip
_IMAGENET = replace(
    _CIFAR, image_size=224, jitter_strength=1.0, blur_prob=0.5, encoder=("resnet50",), stem="imagenet",
    warmup_fraction=0.1, num_workers=8, checkpoint_every_minutes=30.0, evaluate_at_end=False,
)  # fmt: skip
_MULTIMODAL = Config(data="digits", optimizer="adamw", weight_decay=1e-2)
_SENTIMENT = replace(
    _MULTIMODAL, monitor_size=0, epochs=200, batch_size=256, learning_rate=1e-4, warmup_fraction=0.0,
    checkpoint_every_minutes=5.0, augment_features="none", hidden_dim=128, transformer_layers=3,
    temperature=0.5,
)  # fmt: skip

RECIPES: dict[str, Config] = {
    "photos": Config(),
    "demo": Config(image_size=24, width_mult=0.25, epochs=60),
    "cifar10": _CIFAR,
    "cifar100": replace(_CIFAR, data="cifar100"),
    "imagenet100": replace(_IMAGENET, data="imagenet100", learning_rate=1.4),
    "imagenet1k": replace(
        _IMAGENET, data="imagenet", epochs=100, batch_size=512, temperature=0.1, optimizer="lars", learning_rate=0.3
    ),
    "multimodal": _MULTIMODAL,
    "ch-sims": replace(_SENTIMENT, data="ch-sims"),
    "cmu-mosei": replace(_SENTIMENT, data="cmu-mosei"),
}
"""`photos` runs on a CPU; it is also the default for data without a recipe of the same name. `demo` is the best found
for the bundled photos in a minute on two cores: small views and few channels leave time for more epochs."""


def get_default_recipe(data: str) -> Config:
    """Return the recipe with the name of the dataset, or `photos` if there is none.

    Examples:
        >>> get_default_recipe("cifar10").encoder, get_default_recipe("~/pictures").encoder
        (('resnet18',), ('resnet-small',))
    """
    return RECIPES[data] if data in RECIPES else replace(RECIPES["photos"], data=data)


def get_recipe(name: str | Path) -> Config:
    """Return a recipe by name, or from a YAML file with some fields of `Config`.

    Examples:
        >>> get_recipe("imagenet1k").optimizer
        'lars'
    """
    if str(name) in RECIPES:
        return RECIPES[str(name)]
    path = Path(name).expanduser()
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ConfigError(f"no recipe {str(name)!r}{suggest(str(name), RECIPES)} (or a .yaml file)")
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from error
    return Config.from_yaml(text, str(path))
