"""Recipes: full sets of hyper-parameters by name (the paper's appendix; docs/paper.md says what it leaves open)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from manyviews.training.config import Config, ConfigError, nearest
from manyviews.utils.untrusted import read_text

_CIFAR = Config(
    data="cifar10",
    held_out=0,
    size=32,
    scale=(0.08, 1.0),
    strength=0.5,
    blur=0.0,
    encoder="resnet18",
    stem="small",
    epochs=200,
    batch_size=256,
    temperature=0.5,
    learning_rate=1.0,
    warmup=0.01,
    save_minutes=5.0,
)
_IMAGENET = dataclasses.replace(
    _CIFAR,
    size=224,
    strength=1.0,
    blur=0.5,
    encoder="resnet50",
    stem="imagenet",
    warmup=0.1,
    workers=8,
    save_minutes=30.0,
    probe=False,
)

_MODALITIES = Config(
    data="digits",
    policy="modalities",
    views=0,
    epochs=60,
    optimiser="adamw",
    learning_rate=1e-3,
    weight_decay=1e-2,
)
_SENTIMENT = dataclasses.replace(
    _MODALITIES, held_out=0, epochs=200, batch_size=256, learning_rate=1e-4, warmup=0.0, save_minutes=5.0
)

RECIPES: dict[str, Config] = {
    "photos": Config(),
    "cifar10": _CIFAR,
    "cifar100": dataclasses.replace(_CIFAR, data="cifar100"),
    "imagenet100": dataclasses.replace(_IMAGENET, data="imagenet100", learning_rate=1.4),
    "imagenet1k": dataclasses.replace(
        _IMAGENET, data="imagenet", epochs=100, batch_size=512, temperature=0.1, optimiser="lars", learning_rate=0.3
    ),
    "multimodal": _MODALITIES,
    "ch-sims": dataclasses.replace(_SENTIMENT, data="ch-sims"),
    "cmu-mosei": dataclasses.replace(_SENTIMENT, data="cmu-mosei"),
}
"""`photos` is for a machine without a GPU, and for data that has no recipe of its name."""


def recipe_for(data: str) -> Config:
    """The recipe of a data set's name, or `photos` for other data.

    Examples:
        >>> recipe_for("cifar10").encoder, recipe_for("~/pictures").encoder
        ('resnet18', 'resnet-small')
    """
    return RECIPES[data] if data in RECIPES else dataclasses.replace(RECIPES["photos"], data=data)


def get_recipe(name: str | Path) -> Config:
    """A recipe by its name, or from a YAML file with some of the config's fields.

    Examples:
        >>> get_recipe("imagenet1k").optimiser
        'lars'
    """
    if str(name) in RECIPES:
        return RECIPES[str(name)]
    path = Path(name).expanduser()
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ConfigError(f"no recipe {str(name)!r}{nearest(str(name), RECIPES)} (or a .yaml file)")
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from error
    return Config.from_yaml(text, str(path))
