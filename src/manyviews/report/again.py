"""What was trained, and how to train it again."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from typing import Any

from manyviews.report.account import Account
from manyviews.report.scales import plain
from manyviews.training import RECIPES, Config
from manyviews.training.run import CONFIG
from manyviews.training.setup import FITTED


@dataclass(frozen=True)
class Change:
    """A field that the recipe says otherwise."""

    field: str
    value: str
    recipe: str


@dataclass(frozen=True)
class Again:
    """How to make a run again."""

    command: list[str]
    """Its words, as a shell takes them."""
    recipe: str
    """Whose fields are nearest to the run's."""
    changes: list[Change]
    versions: dict[str, str]
    config: str
    """All fields, as config.yaml has them."""


def again(account: Account) -> Again:
    run, config = account.run, account.run.config
    recipe = nearest_recipe(config)
    output = run.path.with_name(f"{run.path.resolve().name}-again")
    words = ["manyviews", "train", "--recipe", str(run.path / CONFIG), "--output", str(output)]
    usual = RECIPES[recipe].settled()
    changes = [
        Change(name, _said(getattr(config, name)), _said(getattr(usual, name)))
        for name in changed_fields(config, RECIPES[recipe])
    ]
    return Again([shlex.quote(word) for word in words], recipe, changes, account.made_with, config.to_yaml())


def nearest_recipe(config: Config) -> str:
    """The recipe of the same policy that the config changes least.

    Examples:
        >>> nearest_recipe(Config(epochs=3)), nearest_recipe(Config(policy="modalities", views=0))
        ('photos', 'multimodal')
    """
    same = [name for name, recipe in RECIPES.items() if recipe.policy == config.policy]
    return min(same, key=lambda name: len(changed_fields(config, RECIPES[name])))


def changed_fields(config: Config, recipe: Config) -> list[str]:
    """The fields that give another result, but for those that the recipe leaves to the data or the objective."""
    told = dataclasses.replace(recipe, objective=config.objective).settled()
    recipe = dataclasses.replace(recipe, temperature=told.temperature, learnable=told.learnable)
    config = config.settled()
    names = [
        name for name in config.different(recipe) if not (name in FITTED and getattr(recipe, name) == FITTED[name])
    ]
    return ["data", *names] if config.data != recipe.data else names


def facts(account: Account) -> dict[str, str]:
    """What was trained, in a few words each."""
    config = account.run.config.settled()
    told = {"data": account.data if account.data == config.data else f"{account.data} ({config.data})"}
    if config.policy == "modalities":
        told["views"] = f"the modalities {', '.join(config.modalities)}"
        if config.missing:
            told["views"] += f"; {config.missing:.0%} of them left out on purpose"
        told["encoders"] = f"one for each modality, {config.dim} dimensions"
    else:
        size = f" of {config.size} x {config.size}" if config.size else ""
        told["views"] = f"{config.views} crops{size} of each image"
        told["encoder"] = config.encoder if config.width is None else f"{config.encoder}, width {plain(config.width)}"
    if config.supervised:
        told["objective"] = "supervised: a linear layer on all modalities learns the labels"
    else:
        learnt = " (learned)" if config.learnable else ""
        told["objective"] = f"{config.objective}, temperature {_said(config.temperature)}{learnt}"
        told["embedding"] = f"{config.projection} dimensions"
    told["training"] = (
        f"{config.epochs} {'epoch' if config.epochs == 1 else 'epochs'}, batches of {config.instances:,} instances, "
        f"{config.optimiser}, learning rate {plain(config.learning_rate)}, seed {config.seed}"
    )
    if config.init is not None:
        told["began with"] = account.made_with.get("init", str(config.init))
    for one in account.run.extended:
        told["training"] += f"; {one.epochs_before} epochs until step {one.step:,}, then planned for {one.epochs}"
    if "started" in account.made_with:
        told["started"] = account.made_with["started"].replace("T", " ")
    return told


def _said(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_said, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return plain(value) if isinstance(value, float) else str(value)
