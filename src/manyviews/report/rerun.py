"""A run's configuration, and the command that trains it again."""

import dataclasses
import shlex
from dataclasses import dataclass
from typing import Any

from manyviews.data import KINDS
from manyviews.loading import DEFAULT_VIEWS, ViewSpec
from manyviews.report.scales import format_number
from manyviews.report.summary import RunSummary
from manyviews.runs import Run
from manyviews.training import AUTO_FIELDS, RECIPES, Config, resolve_optimization


@dataclass(frozen=True)
class FieldDiff:
    """A field whose value differs from the recipe's."""

    field: str
    value: str
    recipe_value: str


@dataclass(frozen=True)
class RerunInfo:
    """Everything needed to repeat a run."""

    command: list[str]
    """Shell-quoted words."""
    recipe: str
    """The recipe with the fewest different fields."""
    changes: list[FieldDiff]
    versions: dict[str, str]
    config: str
    """All fields, as in config.yaml."""


def get_rerun_info(run: Run) -> RerunInfo:
    config, recipe = run.config, find_closest_recipe(run.config)
    output = run.path.with_name(f"{run.path.resolve().name}-again")
    words = ["manyviews", "train", "--recipe", str(run.config_path), "--output", str(output)]
    recipe_config = RECIPES[recipe].with_loss_defaults()
    changes = [
        FieldDiff(name, _format_value(getattr(config, name)), _format_recipe_value(recipe_config, name))
        for name in diff_fields(config, RECIPES[recipe])
    ]
    return RerunInfo([shlex.quote(word) for word in words], recipe, changes, run.provenance, config.to_yaml())


def find_closest_recipe(config: Config) -> str:
    """Find the recipe with the fewest different fields; of several, the one that leaves the fewest to the data.

    Examples:
        >>> mine = dataclasses.replace(RECIPES["multimodal"], data="mine.npz")
        >>> find_closest_recipe(Config(epochs=3)), find_closest_recipe(mine)
        ('photos', 'multimodal')
    """

    def count_differences(name: str) -> tuple[int, int]:
        recipe = RECIPES[name]
        unset = sum(getattr(recipe, field) == value for field, value in AUTO_FIELDS.items())
        return len(diff_fields(config, recipe)), unset

    return min(RECIPES, key=count_differences)


def diff_fields(config: Config, recipe: Config) -> list[str]:
    """List fields that change the result, except those with the value that the data or the loss has given them."""
    defaults = dataclasses.replace(recipe, loss=config.loss).with_loss_defaults()
    recipe = dataclasses.replace(recipe, temperature=defaults.temperature, learn_temperature=defaults.learn_temperature)
    config = config.with_loss_defaults()
    names = [
        name
        for name in config.list_changed_fields(recipe)
        if not (getattr(recipe, name) == AUTO_FIELDS.get(name, ...) and _may_follow_from_data(config, recipe, name))
    ]
    return ["data", *names] if config.data != recipe.data else names


def _may_follow_from_data(config: Config, recipe: Config, name: str) -> bool:
    """Return whether a field may have the value that `resolve_task` gives it if the recipe does not set it."""
    value = getattr(config, name)
    if name == "precision":
        return value in ("32", "bf16-mixed")
    if name == "views":
        items = ViewSpec.parse(value).items
        count = DEFAULT_VIEWS if len(items) == 1 else 1
        return all((item.count, item.size) == (count, 0) for item in items)
    if name == "epochs":
        return value in [kind.default_epochs for kind in KINDS.values()]
    if name not in ("optimizer", "learning_rate", "weight_decay"):
        return True
    if name != "optimizer":
        recipe = dataclasses.replace(recipe, optimizer=config.optimizer)
    optimizers = {kind.default_optimizer for kind in KINDS.values()}
    configs = [
        resolve_optimization(recipe, optimizer, is_small=is_small)
        for optimizer in optimizers
        for is_small in (False, True)
    ]
    return value in [getattr(resolved, name) for resolved in configs]


def describe_run(summary: RunSummary) -> dict[str, str]:
    """Describe a run's data, views, encoder, loss and training in a few words each."""
    run, config = summary.run, summary.run.config.with_loss_defaults()
    description = {"data": summary.data if summary.data == config.data else f"{summary.data} ({config.data})"}
    spec = ViewSpec.parse(config.views)
    dropped = f"; {config.missing_rate:.0%} of the modalities dropped in training" if config.missing_rate else ""
    size, encoders = "", []
    # By kind: only images have a size and an encoder that a config always names.
    if config.image_size:
        width = "" if config.width_mult is None else f", width {format_number(config.width_mult)}"
        size, encoders = f"; images of {config.image_size} x {config.image_size}", [", ".join(config.encoder) + width]
    description["views"] = f"{', '.join(spec.to_texts())}{size}{dropped}"
    encoders += [f"representations of {config.hidden_dim} dimensions"] if len(spec.modalities) > 1 else []
    if encoders:
        description["encoder"] = "; ".join(encoders)
    if config.supervised:
        description["loss"] = "supervised: a linear layer on all modalities is trained with labels"
    else:
        learned = " (learned)" if config.learn_temperature else ""
        parts = [config.loss, *(text.replace("=", " ") for text in config.loss_options)]
        if config.temperature is not None:
            parts.append(f"temperature {_format_value(config.temperature)}{learned}")
        description["loss"] = ", ".join(parts)
        description["embedding"] = f"{config.embed_dim} dimensions"
    description["training"] = (
        f"{config.epochs} {'epoch' if config.epochs == 1 else 'epochs'}, "
        f"batches of {config.instances_per_batch:,} instances, "
        f"{config.optimizer}, learning rate {_format_value(config.learning_rate)}, precision {config.precision}, "
        f"seed {config.seed}"
    )
    for e in run.extensions:
        description["training"] += f"; {e.epochs_before} epochs until step {e.step:,}, then extended to {e.epochs}"
    if config.init is not None:
        description["initialized from"] = run.provenance.get("init", str(config.init))
    if "started" in run.provenance:
        description["started"] = run.provenance["started"].replace("T", " ")
    return description


def _format_recipe_value(recipe: Config, name: str) -> str:
    value = getattr(recipe, name)
    if name == "precision" and value == "auto":
        return "by the device"
    return "by the data" if value == AUTO_FIELDS.get(name, ...) else _format_value(value)


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_format_value, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return format_number(value) if isinstance(value, float) else str(value)
