"""The paper's tables and figures: which cells each has, what is read from them, and what the paper says of it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from manyviews.data import load_dataset, path_of
from manyviews.data.dataset import IMAGE
from manyviews.data.sentiment import is_merbench
from manyviews.evaluation.knn import PAPER_K
from manyviews.experiments import paper
from manyviews.experiments.cells import Cell, Place
from manyviews.experiments.claims import Claim, best, does_not_grow, grows, steadier, steady
from manyviews.experiments.results import Results
from manyviews.training import RECIPES, Config, ConfigError, EvaluationConfig

Scale = Literal["smoke", "laptop", "paper"]

RATES = (1e-5, 5e-5, 1e-4)
"""Learning rates among which the paper chose for modalities, by the validation split."""
MAIN = ("pwe", "avg", "pvc", "mv-infonce", "mv-dhel")
ALL = (*MAIN, "mv-cl1", "mv-cl2")

_SMOKE = Config(
    data="digits", limit=160, held_out=0, size=8, width=0.125, projection=16, epochs=1, batch_size=32, threads=1,
    workers=0, eval_every=10**6, probe=False,
)  # fmt: skip
_LAPTOP = Config(data="cifar10", limit=10_000, held_out=0, epochs=8, threads=1, eval_every=10**6, probe=False)
_IMAGES: dict[Scale, Config] = {"smoke": _SMOKE, "laptop": _LAPTOP}
_MODALITIES = dataclasses.replace(RECIPES["multimodal"], held_out=0, threads=1, eval_every=10**6, probe=False)


@dataclass(frozen=True)
class Options:
    """What a person may change about a table.

    Examples:
        >>> len(list(EXPERIMENTS["table1"].cells(Options(scale="smoke", views=(2,), seeds=2))))
        10
    """

    scale: Scale = "laptop"
    """smoke takes seconds and says nothing; laptop has a small ResNet and a part of the data; paper is the paper's."""
    data: tuple[str, ...] = ()
    """Other data than the table's own: names or paths, or NAME=PATH for data that the paper has under that name."""
    seeds: int = 1
    """Trainings of each cell; with several, mean and deviation are given."""
    objectives: tuple[str, ...] = ()
    """Only these of the table's objectives."""
    views: tuple[int, ...] = ()
    """Only these numbers of views."""
    released: bool = False
    """The objectives as in the authors' code, not by the equations; at the scale paper its figures stand beside."""
    limit: int | None = None
    """Training instances, the first of the data, if not the scale's own."""
    epochs: int | None = None
    """If not the scale's own."""
    missing: float = 0.0
    """Of modalities: share that is left out of training."""
    subsets: bool = False
    """Of modalities: score every subset of them for every objective, not for mv-dhel alone."""

    def format_command(self, table: str) -> str:
        """The command of a table with these options.

        Examples:
            >>> Options(views=(2, 4), released=True).format_command("table1")
            'manyviews reproduce table1 --views 2 4 --released'
        """
        words = ["manyviews", "reproduce", table]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                values = value if isinstance(value, tuple) else () if value is True else (value,)
                words += ["--" + field.name.replace("_", "-"), *map(str, values)]
        return shlex.join(words)

    def check(self, experiment: Experiment) -> None:
        """Raise for what means nothing to a table."""
        if (self.missing or self.subsets) and not experiment.modalities:
            raise ConfigError("missing and subsets are for the table of modalities")
        if self.views and experiment.modalities:
            raise ConfigError("views is for images, and the table is of modalities")

    def chosen(self, objectives: Sequence[str]) -> list[str]:
        """Of the objectives of a table those that are wanted, by the table's names or by ours."""
        ours = {real_name(name, self.released): name for name in objectives}
        wanted = [ours.get(name, name) for name in self.objectives]
        if unknown := [name for name in wanted if name not in objectives]:
            raise ConfigError(f"no objective {unknown[0]!r} in this table, only {', '.join(objectives)}")
        return [name for name in objectives if not wanted or name in wanted]

    def counts(self, views: Sequence[int]) -> list[int]:
        """Of the numbers of views of a table those that are wanted."""
        if unknown := [count for count in self.views if count not in views]:
            raise ConfigError(f"no {unknown[0]} views in this table, only {', '.join(map(str, views))}")
        return [count for count in views if not self.views or count in self.views]

    def sources(self, default: Sequence[str]) -> list[tuple[str, str]]:
        """Names and where the data of that name is."""
        pairs: dict[str, str] = {}
        for given in self.data or default:
            name, equals, path = given.partition("=")
            where = path_of(given)
            if where and where.exists():
                name, path = Path(given).stem, given
            elif not equals:
                path = RECIPES[given].data if given in RECIPES else given
            if name in pairs:
                raise ConfigError(f"two data sets are called {name!r}: give them names, as in --data one={path}")
            pairs[name] = path
        return list(pairs.items())

    @property
    def papers(self) -> bool:
        """Whether the setting is that of the paper's tables, so that its figures can stand beside the results."""
        return (
            self.scale == "paper" and self.released and self.limit is None and self.epochs is None and not self.missing
        )

    def reduced(self, config: Config) -> Config:
        changes: dict[str, Any] = {"released": self.released}
        changes |= {} if self.limit is None else {"limit": self.limit}
        changes |= {} if self.epochs is None else {"epochs": self.epochs}
        config = dataclasses.replace(config, **changes)
        return config if config.limit is None else dataclasses.replace(config, limit_order="first")


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    about: str
    cells: Callable[[Options], Iterator[Cell]]
    metrics: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    claims: Callable[[Results], Iterator[Claim]]
    paper: Callable[[Place, str], float | None] = lambda _place, _metric: None
    """The paper's figure for a place and a metric, in its setting."""
    along: str | None = None
    """The part of the places that is the horizontal axis of its figure."""
    modalities: bool = False
    """Of modalities alone."""


def real_name(objective: str, released: bool) -> str:
    """Which of our objectives a name of the paper's tables is: it writes InfoNCE for pairs, its code has NT-Xent."""
    return f"{objective}-{'ntxent' if released else 'infonce'}" if objective in ("pwe", "avg") else objective


def seeds_of(config: Config, how: EvaluationConfig, options: Options, **place: Any) -> Iterator[Cell]:
    for seed in range(options.seeds):
        yield Cell(dataclasses.replace(config, seed=seed), how, place)


def image_cells(
    options: Options, objectives: Sequence[str], views: Sequence[int], default: Sequence[str], **changes: Any
) -> Iterator[Cell]:
    """Of each data set, objective and number of views; a batch size among the `changes` is part of the place."""
    paper_scale = options.scale == "paper"
    how = EvaluationConfig(few=(), baselines=False)
    if paper_scale:
        how = dataclasses.replace(how, probe="sgd", knn_k=PAPER_K)
    for name, path in options.sources(default if paper_scale else [_IMAGES[options.scale].data]):
        base = RECIPES.get(name, RECIPES["cifar10"]) if paper_scale else _IMAGES[options.scale]
        for objective in options.chosen(objectives):
            for count in options.counts(views):
                real = real_name(objective, options.released)
                config = dataclasses.replace(base, data=path, objective=real, views=count, probe=False, **changes)
                place: dict[str, Any] = {"data": name, "objective": objective, "views": count}
                place |= {"batch": config.batch_size} if "batch_size" in changes else {}
                yield from seeds_of(options.reduced(config), how, options, **place)


def modality_cells(options: Options, objectives: Sequence[str]) -> Iterator[Cell]:
    base = _MODALITIES
    if options.scale == "smoke":
        base = dataclasses.replace(base, limit=160, epochs=2, batch_size=32)
    for name, path in options.sources(("cmu-mosei", "ch-sims") if options.scale == "paper" else ("digits",)):
        own = dataclasses.replace(RECIPES.get(name, base), probe=False) if options.scale == "paper" else base
        for objective in options.chosen(objectives):
            supervised = objective == "supervised"
            changes = {"supervised": True} if supervised else {"objective": real_name(objective, options.released)}
            config = dataclasses.replace(own, data=path, missing=options.missing, **changes)
            # What it is compared with is the same whatever the objective: once is enough.
            once = objective == "mv-dhel"
            how = EvaluationConfig(few=(), baselines=once, subsets=once or options.subsets)
            yield from seeds_of(options.reduced(config), how, options, data=name, objective=objective)


VIEWS = tuple(range(2, 9))
SMOKE_VIEWS = (2, 3)


def _views(options: Options, views: Sequence[int]) -> Sequence[int]:
    return SMOKE_VIEWS if options.scale == "smoke" else views


def _table(options: Options) -> Iterator[Cell]:
    return image_cells(options, MAIN, _views(options, (2, 3, 4)), paper.DATA)


def _view_cells(options: Options) -> Iterator[Cell]:
    changes = {"batch_size": 128} if options.scale == "paper" else {}
    for cell in image_cells(options, MAIN, _views(options, VIEWS), ("cifar10", "cifar100"), **changes):
        yield dataclasses.replace(cell, place={k: v for k, v in cell.place.items() if k != "batch"})


def _batch_cells(options: Options) -> Iterator[Cell]:
    for batch in (16, 32) if options.scale == "smoke" else (32, 64, 128, 256):
        yield from image_cells(options, MAIN, (4,), ("cifar10", "cifar100"), batch_size=batch)


def _memory_cells(options: Options) -> Iterator[Cell]:
    for batch in (16, 32) if options.scale == "smoke" else (64, 128, 256):
        yield from image_cells(options, ("mv-dhel",), (4,), ("cifar10", "cifar100", "imagenet100"), batch_size=batch)


def _fixed_cells(options: Options) -> Iterator[Cell]:
    changes = {"batch_size": 64 if options.scale == "smoke" else 256, "fixed_batch": True}
    for cell in image_cells(options, MAIN, _views(options, VIEWS), ("cifar10", "cifar100"), **changes):
        yield dataclasses.replace(cell, place={k: v for k, v in cell.place.items() if k != "batch"})


def _other_cells(options: Options) -> Iterator[Cell]:
    compared = ("mv-infonce", "mv-cl1", "mv-dhel", "mv-cl2")
    modal = tuple(given for given in options.data if _of_modalities(given))
    images = tuple(given for given in options.data if given not in modal)
    default = ("ch-sims",) if options.scale == "paper" else ("digits",)
    yield from image_cells(
        dataclasses.replace(options, data=images), compared, _views(options, (2, 3, 4)), ("imagenet100",)
    )
    # How much of the images is taken says nothing of modalities.
    whole = dataclasses.replace(options, data=modal or default, limit=None, epochs=None)
    for cell in modality_cells(whole, compared):
        yield dataclasses.replace(cell, place={**cell.place, "views": "modalities"})


def _of_modalities(given: str) -> bool:
    """Whether data is a bundle: by what it holds, or by the recipe of a name that is no path."""
    ((name, source),) = Options(data=(given,)).sources(())
    path = path_of(source)
    if path is None or not path.exists():
        return name in RECIPES and RECIPES[name].policy == "modalities"
    if path.is_dir():  # of images there may be millions
        return is_merbench(path)
    return set(load_dataset(path)["train"].modalities) != {IMAGE}


def _table_claims(metric: str) -> Callable[[Results], Iterator[Claim]]:
    def claims(results: Results) -> Iterator[Claim]:
        for data in results.options("data"):
            for views in results.options("views"):
                yield best(results, metric, "mv-dhel", MAIN[:-1], data=data, views=views)
            most = max(results.options("views"), default=0, key=float)
            yield best(results, metric, "mv-infonce", MAIN[:-2], data=data, views=most)
            for objective in results.options("objective"):
                yield grows(results, metric, "views", data=data, objective=objective)

    return claims


def _view_claims(results: Results) -> Iterator[Claim]:
    for data in results.options("data"):
        most = max(results.options("views"), default=0, key=float)
        for objective in results.options("objective"):
            yield grows(results, "linear", "views", data=data, objective=objective)
        for winner in ("mv-dhel", "mv-infonce"):
            yield best(results, "linear", winner, MAIN[:-2], data=data, views=most)
            yield best(results, "uniformity", winner, MAIN[:-2], data=data, views=most)
        for metric in ("rank", "rankme"):
            yield grows(results, metric, "views", data=data, objective="mv-dhel")
            yield best(results, metric, "mv-dhel", MAIN[:-1], data=data, views=most)
            for objective in results.options("objective"):
                if objective != "mv-dhel":
                    yield does_not_grow(results, metric, "views", data=data, objective=objective)
        yield grows(results, "uniformity", "views", data=data, objective="mv-dhel")
        for other in MAIN[:-1]:
            if results.mean("alignment", data=data, views=most, objective=other) is not None:
                yield best(results, "alignment", other, ("mv-dhel",), data=data, views=most)


def _batch_claims(results: Results) -> Iterator[Claim]:
    for data in results.options("data"):
        yield steadier(results, "linear", "batch", "mv-dhel", ("pwe", "avg"), data=data)


def _memory_claims(results: Results) -> Iterator[Claim]:
    for data in results.options("data"):
        yield steady(results, "linear", "batch", 1.0, data=data, objective="mv-dhel")


def _fixed_claims(results: Results) -> Iterator[Claim]:
    for data in results.options("data"):
        for objective in results.options("objective"):
            asked = grows if objective == "mv-dhel" else does_not_grow
            yield asked(results, "linear", "views", data=data, objective=objective)


def _other_claims(results: Results) -> Iterator[Claim]:
    for data in results.options("data"):
        for views in results.options("views"):
            for winner, other in (("mv-infonce", "mv-cl1"), ("mv-dhel", "mv-cl2")):
                for metric in ("linear", "mae"):
                    if results.mean(metric, data=data, views=views, objective=winner) is not None:
                        yield best(results, metric, winner, (other,), data=data, views=views)


def _multimodal_claims(results: Results) -> Iterator[Claim]:
    for data in results.options("data"):
        metric = "mae" if results.mean("mae", data=data, objective="mv-dhel") is not None else "linear"
        yield best(results, metric, "mv-dhel", MAIN[:-1], data=data)
        yield best(results, metric, "mv-infonce", MAIN[:-2], data=data)
        if metric == "linear":
            yield best(results, "common", "mv-dhel", MAIN[:-1], data=data)


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(
        "the linear-probe table: objectives, views, data sets",
        _table, ("linear",), ("data", "objective"), ("views",), _table_claims("linear"),
        paper.linear,
    ),
    "knn": Experiment(
        "the kNN table, of the same runs",
        _table, ("knn", "knn_k"), ("data", "objective"), ("views",), _table_claims("knn"), paper.knn,
    ),
    "views": Experiment(
        "accuracy, rank, uniformity and alignment against 2 to 8 views",
        _view_cells, ("linear", "rank", "rankme", "uniformity", "alignment"), ("data", "objective"), ("views",),
        _view_claims, along="views",
    ),
    "batch-size": Experiment(
        "accuracy against the batch size, at 4 views",
        _batch_cells, ("linear",), ("data", "objective"), ("batch",), _batch_claims, along="batch",
    ),
    "memory": Experiment(
        "4-view MV-DHEL by unique instances of a batch",
        _memory_cells, ("linear",), ("data",), ("batch",), _memory_claims, paper.memory,
    ),
    "fixed-batch": Experiment(
        "accuracy against views, where instances x views stay the same",
        _fixed_cells, ("linear",), ("data", "objective"), ("views",), _fixed_claims, along="views",
    ),
    "other-losses": Experiment(
        "MV-InfoNCE and MV-DHEL beside MV-CL1 and MV-CL2, on images and modalities",
        _other_cells, ("linear", "has0", "mult", "mae"), ("objective",), ("data", "views"), _other_claims,
        lambda place, metric: (paper.multimodal if place["views"] == "modalities" else paper.linear)(place, metric),
    ),
    "multimodal": Experiment(
        "modalities as views: every objective beside supervised training",
        lambda options: modality_cells(options, (*ALL, "supervised")),
        ("linear", "common", "own", "has0", "mult", "mae", "own-has0", "own-mult", "own-mae"),
        ("objective",), ("data",), _multimodal_claims, paper.multimodal, modalities=True,
    ),
}  # fmt: skip
