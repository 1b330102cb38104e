"""The paper's tables and figures: the trials, metrics and claims of each."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

from manyviews.data import IMAGE_MODALITY, as_path, is_merbench, load_dataset
from manyviews.evaluation import EvaluationConfig
from manyviews.metrics import PAPER_K
from manyviews.reproduce import paper_values
from manyviews.reproduce.claims import (
    Claim,
    claim_best,
    claim_constant,
    claim_does_not_improve,
    claim_improves,
    claim_less_variable,
)
from manyviews.reproduce.results import Results
from manyviews.reproduce.trials import Candidate, Coordinates, Level, Trial
from manyviews.training import RECIPES, Config, ConfigError, Precision

Scale = Literal["smoke", "laptop", "paper"]

LEARNING_RATES = (1e-5, 5e-5, 1e-4)
"""The paper's grid for multimodal data; the validation split selects one."""
LEARNING_RATE_CANDIDATES = tuple(Candidate.make(learning_rate=rate) for rate in LEARNING_RATES)
MAIN_LOSSES = ("pwe", "avg", "pvc", "mv-infonce", "mv-dhel")
ALL_LOSSES = (*MAIN_LOSSES, "mv-cl1", "mv-cl2")
CIFAR = ("cifar10", "cifar100")
SENTIMENT_DATASETS = ("cmu-mosei", "ch-sims")

_MINIMAL: dict[str, Any] = {"monitor_size": 0, "cpu_threads": 1, "monitor_every": 10**6, "evaluate_at_end": False}
_IMAGES: dict[Scale, Config] = {
    "smoke": Config(
        data="digits", max_instances=160, image_size=8, width_mult=0.125, embed_dim=16, epochs=1, batch_size=32,
        num_workers=0, **_MINIMAL,
    ),
    "laptop": Config(data="cifar10", max_instances=10_000, image_size=24, width_mult=0.25, epochs=10, **_MINIMAL),
}  # fmt: skip
_MODALITIES = dataclasses.replace(RECIPES["multimodal"], **_MINIMAL)


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of a table.

    Examples:
        >>> len(list(EXPERIMENTS["table1"].make_trials(ReproduceOptions(scale="smoke", views=(2,), seeds=2))))
        10
    """

    scale: Scale = "laptop"
    """smoke: seconds, to see that it runs; laptop: a small ResNet and part of the data; paper: the paper's setting."""
    datasets: tuple[str, ...] = ()
    """Datasets: names, paths, or NAME=PATH to give a path one of the paper's names. Default: those of the table."""
    seeds: int = 1
    """Seeds per table entry; with several, mean and standard deviation are shown."""
    losses: tuple[str, ...] = ()
    """Only these losses of the table. Default: all."""
    views: tuple[int, ...] = ()
    """Only these numbers of views. Default: all."""
    released_variant: bool = False
    """Losses as in the authors' code instead of the equations; at scale paper, the paper's values are shown too."""
    max_instances: int | None = None
    """Train on this many first instances only. Default: set by the scale."""
    epochs: int | None = None
    """Number of training epochs. Default: set by the scale."""
    precision: Precision = "32"
    """Floating-point precision of the trials: 32 on every machine, so that results do not depend on it, or another
    one, such as auto, which is that of the machine."""
    missing_rate: float = 0.0
    """Multimodal table: fraction of the modalities removed from training."""
    search_trials: int = 6
    """Table rivals: trials of each loss's search."""
    modality_subsets: bool = False
    """Multimodal table: score every subset of modalities for every loss, not only for mv-dhel."""

    def format_command(self, table: str) -> str:
        """Format the command that makes a table with these options.

        Examples:
            >>> ReproduceOptions(views=(2, 4), released_variant=True).format_command("table1")
            'manyviews reproduce table1 --views 2 4 --released-variant'

        Absolute paths are shortened to their last part: another machine has other folders.
        """
        script = EXPERIMENTS[table].script if table in EXPERIMENTS else ""
        words = [*(script or "manyviews reproduce").split(), table]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default and (not script or field.name in ("scale", "seeds")):
                values = value if isinstance(value, tuple) else () if value is True else (value,)
                words += ["--" + field.name.replace("_", "-"), *(_strip_folder(str(value)) for value in values)]
        return shlex.join(words)

    def check(self, experiment: Experiment) -> None:
        """Raise for options that do not apply to a table."""
        if (self.missing_rate or self.modality_subsets) and not experiment.is_multimodal:
            raise ConfigError("--missing-rate and --modality-subsets apply only to the multimodal table")
        if self.search_trials != ReproduceOptions.search_trials and not experiment.has_search:
            raise ConfigError("--search-trials applies only to the table rivals")
        if self.search_trials < 1:
            raise ConfigError(f"search_trials must be >= 1, got {self.search_trials}")
        if self.views and experiment.is_multimodal:
            raise ConfigError("--views applies only to image tables, and this table is multimodal")

    def select_losses(self, losses: Sequence[str]) -> list[str]:
        """Select the requested losses of a table, by its names or by the library's."""
        table_names = {get_loss_name(name, self.released_variant): name for name in losses}
        selected = [table_names.get(name, name) for name in self.losses]
        if unknown := [name for name in selected if name not in losses]:
            raise ConfigError(f"this table has no loss {unknown[0]!r}, only {', '.join(losses)}")
        return [name for name in losses if not selected or name in selected]

    def select_view_counts(self, views: Sequence[int]) -> list[int]:
        """Select the requested numbers of views of a table."""
        if unknown := [count for count in self.views if count not in views]:
            raise ConfigError(f"this table does not have {unknown[0]} views, only {', '.join(map(str, views))}")
        return [count for count in views if not self.views or count in self.views]

    def resolve_datasets(self, default: Sequence[str]) -> list[tuple[str, str]]:
        """List pairs of a dataset's name and its source."""
        pairs: dict[str, str] = {}
        for source in self.datasets or default:
            name, equals, path = source.partition("=")
            location = as_path(source)
            if location and location.exists():
                name, path = Path(source).stem, source
            elif not equals:
                path = RECIPES[source].data if source in RECIPES else source
            if name in pairs:
                raise ConfigError(f"two datasets are called {name!r}: name one of them, as in --datasets one={path}")
            pairs[name] = path
        return list(pairs.items())

    @property
    def matches_paper(self) -> bool:
        """Whether the setting is that of the paper's tables, so that its values are comparable."""
        is_reduced = self.max_instances is not None or self.epochs is not None or self.missing_rate
        return self.scale == "paper" and self.released_variant and not is_reduced

    def apply(self, config: Config) -> Config:
        limits = {name: getattr(self, name) for name in ("max_instances", "epochs", "precision")}
        changes = {name: value for name, value in limits.items() if value is not None}
        config = dataclasses.replace(config, released_variant=self.released_variant, **changes)
        return config if config.max_instances is None else dataclasses.replace(config, subset="first")


def _strip_folder(value: str) -> str:
    """Shorten an absolute path, also after NAME=, to its last part."""
    name, equals, path = value.rpartition("=")
    return name + equals + Path(path).name if Path(path).is_absolute() else value


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    description: str
    make_trials: Callable[[ReproduceOptions], Iterator[Trial]]
    metrics: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    make_claims: Callable[[Results, Level], Iterable[Claim]]
    """The paper's claims about one dataset."""
    get_paper_value: Callable[[Coordinates, str], float | None] = lambda _coords, _metric: None
    """The paper's value of a metric at these coordinates."""
    x_axis: str | None = None
    """The coordinate on the horizontal axis of its figure."""
    is_multimodal: bool = False
    """Whether all its data are multimodal."""
    has_search: bool = False
    """Whether `search_trials` applies."""
    is_in_paper: bool = True
    settings: str = ""
    """What the trials have in common, where the scale does not say it."""
    script: str = ""
    """The command that makes the table, before its name, with --scale and --seeds. Default: `manyviews reproduce`."""

    def check_claims(self, results: Results) -> list[Claim]:
        """Compare the paper's claims about the losses of a table with the results, for each dataset."""
        claims = [claim for data in results.list_levels("data") for claim in self.make_claims(results, data)]
        return [claim for claim in claims if claim.subject in ("", *results.list_levels("loss"))]


def get_loss_name(loss: str, released: bool) -> str:
    """Return the library's name of a table's loss: for pairs, the paper writes InfoNCE and its code uses NT-Xent."""
    return f"{loss}-{'ntxent' if released else 'infonce'}" if loss in ("pwe", "avg") else loss


def add_seeds(
    config: Config, eval_config: EvaluationConfig, options: ReproduceOptions, **coords: Any
) -> Iterator[Trial]:
    for seed in range(options.seeds):
        yield Trial(dataclasses.replace(config, seed=seed), eval_config, Coordinates(**coords))


def make_image_trials(
    options: ReproduceOptions,
    losses: Sequence[str],
    views: Sequence[int],
    default: Sequence[str],
    batch_sizes: Sequence[int] = (),
    **changes: Any,
) -> Iterator[Trial]:
    """Make trials for each batch size, dataset, loss and number of views; `batch_sizes` become a coordinate."""
    paper_scale = options.scale == "paper"
    eval_config = EvaluationConfig(label_fractions=(), baselines=False)
    if paper_scale:
        eval_config = dataclasses.replace(eval_config, probe_solver="sgd", knn_k=PAPER_K)
    datasets = options.resolve_datasets(default if paper_scale else [_IMAGES[options.scale].data])
    losses, views = options.select_losses(losses), options.select_view_counts(views)
    sizes: Sequence[int | None] = batch_sizes or (None,)
    for batch_size, (name, path), loss, count in product(sizes, datasets, losses, views):
        base = RECIPES.get(name, RECIPES["cifar10"]) if paper_scale else _IMAGES[options.scale]
        batch: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
        loss_name = get_loss_name(loss, options.released_variant)
        config = dataclasses.replace(
            base, data=path, loss=loss_name, views=(str(count),), evaluate_at_end=False, **batch, **changes
        )
        coords = {"data": name, "loss": loss, "views": count, **({"batch": batch_size} if batch_size else {})}
        yield from add_seeds(options.apply(config), eval_config, options, **coords)


def get_image_config(scale: Scale) -> Config:
    """Return the config of images at a scale."""
    return dataclasses.replace(_IMAGES.get(scale, RECIPES["cifar10"]), evaluate_at_end=False)


def get_multimodal_config(scale: Scale) -> Config:
    """Return the config of modalities at a scale."""
    if scale != "smoke":
        return _MODALITIES
    return dataclasses.replace(_MODALITIES, max_instances=160, epochs=2, batch_size=32)


def make_multimodal_trials(options: ReproduceOptions, losses: Sequence[str]) -> Iterator[Trial]:
    base = get_multimodal_config(options.scale)
    for name, path in options.resolve_datasets(SENTIMENT_DATASETS if options.scale == "paper" else ("digits",)):
        recipe = (
            dataclasses.replace(RECIPES.get(name, base), evaluate_at_end=False) if options.scale == "paper" else base
        )
        for loss in options.select_losses(losses):
            supervised = loss == "supervised"
            changes = {"supervised": True} if supervised else {"loss": get_loss_name(loss, options.released_variant)}
            config = dataclasses.replace(recipe, data=path, missing_rate=options.missing_rate, **changes)
            # Baselines do not depend on the loss: one of them is enough.
            is_reference = loss == "mv-dhel"
            eval_config = EvaluationConfig(
                label_fractions=(), baselines=is_reference, modality_subsets=is_reference or options.modality_subsets
            )
            for trial in add_seeds(options.apply(config), eval_config, options, data=name, loss=loss):
                candidates = LEARNING_RATE_CANDIDATES if options.scale == "paper" else ()
                yield dataclasses.replace(trial, candidates=candidates)


def _get_view_counts(options: ReproduceOptions, views: Sequence[int] = tuple(range(2, 9))) -> Sequence[int]:
    return (2, 3) if options.scale == "smoke" else views


def _make_main_trials(options: ReproduceOptions) -> Iterator[Trial]:
    return make_image_trials(options, MAIN_LOSSES, _get_view_counts(options, (2, 3, 4)), paper_values.DATA)


def _make_view_trials(options: ReproduceOptions) -> Iterator[Trial]:
    changes: dict[str, Any] = {"batch_size": 128} if options.scale == "paper" else {}
    return make_image_trials(options, MAIN_LOSSES, _get_view_counts(options), CIFAR, **changes)


def _make_batch_trials(options: ReproduceOptions) -> Iterator[Trial]:
    sizes = (16, 32) if options.scale == "smoke" else (32, 64, 128, 256)
    return make_image_trials(options, MAIN_LOSSES, (4,), CIFAR, sizes)


def _make_memory_trials(options: ReproduceOptions) -> Iterator[Trial]:
    sizes = (16, 32) if options.scale == "smoke" else (64, 128, 256)
    return make_image_trials(options, ("mv-dhel",), (4,), (*CIFAR, "imagenet100"), sizes)


def _make_fixed_trials(options: ReproduceOptions) -> Iterator[Trial]:
    changes: dict[str, Any] = {"batch_size": 64 if options.scale == "smoke" else 256, "batch_counts_views": True}
    return make_image_trials(options, MAIN_LOSSES, _get_view_counts(options), CIFAR, **changes)


def _make_other_trials(options: ReproduceOptions) -> Iterator[Trial]:
    compared = ("mv-infonce", "mv-cl1", "mv-dhel", "mv-cl2")
    multimodal = tuple(source for source in options.datasets if is_multimodal(source))
    images = tuple(source for source in options.datasets if source not in multimodal)
    default = ("ch-sims",) if options.scale == "paper" else ("digits",)
    yield from make_image_trials(
        dataclasses.replace(options, datasets=images), compared, _get_view_counts(options, (2, 3, 4)), ("imagenet100",)
    )
    # Limits on image training do not apply to multimodal data.
    full = dataclasses.replace(options, datasets=multimodal or default, max_instances=None, epochs=None)
    for trial in make_multimodal_trials(full, compared):
        yield dataclasses.replace(trial, coordinates=Coordinates(**trial.coordinates, views="modalities"))


def is_multimodal(dataset: str) -> bool:
    """Return whether a dataset is multimodal: by its content, or by its recipe if it is not an existing path."""
    ((name, source),) = ReproduceOptions(datasets=(dataset,)).resolve_datasets(())
    path = as_path(source)
    if path is None or not path.exists():
        return name in SENTIMENT_DATASETS
    if path.is_dir():  # may hold millions of images
        return is_merbench(path)
    return set(load_dataset(path)["train"].modalities) != {IMAGE_MODALITY}


def _make_table_claims(metric: str, results: Results, data: Level) -> Iterator[Claim]:
    for views in results.list_levels("views"):
        yield claim_best(results, metric, "mv-dhel", MAIN_LOSSES[:-1], data=data, views=views)
    max_views = max(results.list_levels("views"), default=0, key=float)
    yield claim_best(results, metric, "mv-infonce", MAIN_LOSSES[:-2], data=data, views=max_views)
    for loss in results.list_levels("loss"):
        yield claim_improves(results, metric, "views", data=data, loss=loss)


def _make_view_claims(results: Results, data: Level) -> Iterator[Claim]:
    max_views = max(results.list_levels("views"), default=0, key=float)
    for loss in results.list_levels("loss"):
        yield claim_improves(results, "linear", "views", data=data, loss=loss)
    for winner in ("mv-dhel", "mv-infonce"):
        yield claim_best(results, "linear", winner, MAIN_LOSSES[:-2], data=data, views=max_views)
        yield claim_best(results, "uniformity", winner, MAIN_LOSSES[:-2], data=data, views=max_views)
    for metric in ("rank", "rankme"):
        yield claim_improves(results, metric, "views", data=data, loss="mv-dhel")
        yield claim_best(results, metric, "mv-dhel", MAIN_LOSSES[:-1], data=data, views=max_views)
        for loss in results.list_levels("loss"):
            if loss != "mv-dhel":
                yield claim_does_not_improve(results, metric, "views", data=data, loss=loss)
    yield claim_improves(results, "uniformity", "views", data=data, loss="mv-dhel")
    for other in MAIN_LOSSES[:-1]:
        if results.mean("alignment", data=data, views=max_views, loss=other) is not None:
            yield claim_best(results, "alignment", other, ("mv-dhel",), data=data, views=max_views)


def _make_fixed_claims(results: Results, data: Level) -> Iterator[Claim]:
    for loss in results.list_levels("loss"):
        claim = claim_improves if loss == "mv-dhel" else claim_does_not_improve
        yield claim(results, "linear", "views", data=data, loss=loss)


def _make_other_claims(results: Results, data: Level) -> Iterator[Claim]:
    pairs = (("mv-infonce", "mv-cl1"), ("mv-dhel", "mv-cl2"))
    for views, (winner, other), metric in product(results.list_levels("views"), pairs, ("linear", "mae")):
        if results.mean(metric, data=data, views=views, loss=winner) is not None:
            yield claim_best(results, metric, winner, (other,), data=data, views=views)


def _make_multimodal_claims(results: Results, data: Level) -> Iterator[Claim]:
    metric = "mae" if results.mean("mae", data=data, loss="mv-dhel") is not None else "linear"
    yield claim_best(results, metric, "mv-dhel", MAIN_LOSSES[:-1], data=data)
    yield claim_best(results, metric, "mv-infonce", MAIN_LOSSES[:-2], data=data)
    if metric == "linear":
        yield claim_best(results, "shared", "mv-dhel", MAIN_LOSSES[:-1], data=data)


def _get_other_paper_value(coords: Coordinates, metric: str) -> Any:
    get_value = paper_values.get_multimodal_value if coords["views"] == "modalities" else paper_values.get_linear_value
    return get_value(coords, metric)


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(
        "linear-probe accuracy by loss, views and dataset",
        _make_main_trials, ("linear",), ("data", "loss"), ("views",), partial(_make_table_claims, "linear"),
        paper_values.get_linear_value,
    ),
    "knn": Experiment(
        "kNN accuracy of the same runs",
        _make_main_trials, ("knn", "knn_k"), ("data", "loss"), ("views",), partial(_make_table_claims, "knn"),
        paper_values.get_knn_value,
    ),
    "views": Experiment(
        "accuracy, rank, uniformity and alignment against 2 to 8 views",
        _make_view_trials, ("linear", "rank", "rankme", "uniformity", "alignment"), ("data", "loss"), ("views",),
        _make_view_claims, x_axis="views",
    ),
    "batch-size": Experiment(
        "accuracy against the batch size, at 4 views",
        _make_batch_trials, ("linear",), ("data", "loss"), ("batch",),
        lambda results, data: [claim_less_variable(results, "linear", "batch", "mv-dhel", ("pwe", "avg"), data=data)],
        x_axis="batch",
    ),
    "memory": Experiment(
        "accuracy of 4-view MV-DHEL by unique instances per batch",
        _make_memory_trials, ("linear",), ("data",), ("batch",),
        lambda results, data: [claim_constant(results, "linear", "batch", 1.0, data=data, loss="mv-dhel")],
        paper_values.get_memory_value,
    ),
    "fixed-batch": Experiment(
        "accuracy against views, with instances x views fixed",
        _make_fixed_trials, ("linear",), ("data", "loss"), ("views",), _make_fixed_claims, x_axis="views",
    ),
    "other-losses": Experiment(
        "MV-InfoNCE and MV-DHEL compared with MV-CL1 and MV-CL2, on images and modalities",
        _make_other_trials, ("linear", "has0", "mult", "mae"), ("loss",), ("data", "views"), _make_other_claims,
        _get_other_paper_value,
    ),
    "multimodal": Experiment(
        "modalities as views: every loss compared with supervised training",
        lambda options: make_multimodal_trials(options, (*ALL_LOSSES, "supervised")),
        (
            "linear", "shared", "recall", "recall-others", "head", "has0", "mult", "mae", "head-has0", "head-mult",
            "head-mae",
        ),
        ("loss",), ("data",), _make_multimodal_claims, paper_values.get_multimodal_value, is_multimodal=True,
    ),
}  # fmt: skip
