"""Everything that makes a training what it is, in one typed value: flags change it, a run keeps it."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

import tyro
import yaml

from manyviews.losses import get_objective
from manyviews.models import ENCODERS, get_encoder
from manyviews.models.resnet import Stem
from manyviews.utils.text import describe_type
from manyviews.utils.untrusted import parse_yaml
from manyviews.views import SimCLRPolicy, fixed_batch

LimitOrder = Literal["sample", "first"]
Policy = Literal["crops", "modalities"]
Optimiser = Literal["sgd", "lars", "adamw"]
Precision = Literal["32", "bf16-mixed", "16-mixed", "64"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Logger = Literal["tensorboard", "wandb", "wandb-offline"]

MADE_WITH = "made_with"
"""What a run writes beside the fields: versions, commit, date. A run's config is thus a recipe too."""
EXTENDED = "extended"
"""What a run writes beside the fields where its number of epochs was changed on the way."""


BATCH_SIZE = 128
"""Of a config that gives none, where there are enough instances."""


class ConfigError(ValueError):
    """A config that cannot be trained with; the message names the field."""


@dataclass(frozen=True)
class Config:
    """What to train on, what to train, and how.

    Examples:
        >>> Config(objective="pvc", views=3).instances
        128
    """

    data: str = "photos"
    """photos, digits, cifar10, cifar100, or a path: a folder of images, a .npz or .npy file, a bundle of features."""
    limit: int | None = None
    """Take only so many of the training instances."""
    limit_order: LimitOrder = "sample"
    """Which ones: a sample, the same for all seeds and with as many of each class as can be; or the first ones."""
    classes: Path | None = None
    """A text file that names the classes (subfolders) to take, one a line."""
    strict: bool = False
    """A broken image is an error, instead of being named and left out."""
    follow_links: bool = False
    """Take images behind links that lead out of the folder."""
    held_out: int | None = None
    """Training instances that are only monitored. If not given, a tenth of them, 20 to 250, and none of fewer than 100.
    With 0 all are trained on, and some of these are monitored: their kNN is then better than that of new instances."""

    policy: Policy = "crops"
    """Where views come from: augmented crops of images, or the modalities of an instance."""
    views: int = 4
    """Views of each instance; of modalities 0, for as many as there are."""
    size: int | None = None
    """Height and width of a view; the images' own, at most 224, if not given."""
    scale: tuple[float, float] = (0.2, 1.0)
    """Share of the image's area in a crop."""
    strength: float | None = None
    """How strong the colour jitter is; 0.5 for small images and 1 for large ones if not given."""
    blur: float | None = None
    """Probability of a blur; 0 for small images and 0.5 for large ones if not given."""

    modalities: tuple[str, ...] = ()
    """Which modalities are the views; all if none are named."""
    missing: float = 0.0
    """Share of the modalities of training instances that are left out on purpose, drawn by the seed."""

    encoder: str = "resnet-small"
    """Of images: resnet18, resnet50, resnet-small, timm:NAME or torchvision:NAME."""
    stem: Stem | None = None
    """Of our ResNets: for large or small images; by the size of the views if not given."""
    width: float | None = None
    """Of our ResNets: multiplies the channels; the encoder's own if not given."""
    projection: int = 128
    """Dimensions of the embedding."""
    each_view: bool = False
    """Batch norm sees each view by itself instead of all together."""
    dim: int = 128
    """Of modalities: dimensions of the representation of each."""
    layers: int = 3
    """How many layers the transformers have that encode sequences."""
    heads: int = 8
    """How many attention heads these layers have."""
    dropout: float = 0.1
    """Share of the activations that encoders of features drop in training."""

    init: Path | None = None
    """A finished run whose encoder and head the training begins with; or a .safetensors file of an encoder alone."""

    objective: str = "mv-dhel"
    """As `manyviews losses` lists them."""
    released: bool = False
    """The objective as the authors' released code has it, where that departs from the paper's equation."""
    temperature: float | None = None
    """Of the objective; its own, mostly 0.5, if not given."""
    learnable: tyro.conf.DisallowNone[bool | None] = None
    """Learn the temperature; of siglip the bias too. As the objective does of itself if not given."""
    supervised: bool = False
    """Learn from the labels instead, with a linear layer on all modalities: what contrastive training may hope for."""

    epochs: int = 10
    """Passes through the data."""
    batch_size: int | None = None
    """Instances of a batch, on all ranks together. If not given 128, or as many as there are to train on."""
    fixed_batch: bool = False
    """The batch size counts views instead of instances: it holds batch_size / views instances."""
    micro_batch: int | None = None
    """Embed so many instances at once on each rank, for less memory; the gradient stays that of the whole batch.
    Batch norm then normalises each piece by itself."""
    optimiser: Optimiser = "sgd"
    """What changes the weights."""
    learning_rate: float = 1.0
    """At its highest, for a batch of 256: scaled by instances / 256."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises; then it falls to zero as a cosine."""
    momentum: float = 0.9
    """Share of the last step that SGD and LARS add to the next."""
    weight_decay: float = 1e-6
    """Of weights; biases and norms have none."""
    trust: float = 1e-3
    """Share of a weight's length that a step of LARS may change, at a learning rate of 1."""
    seed: int = 0
    """Of the weights, the order of instances and their views."""

    device: Device = "auto"
    """auto takes a GPU if there is one."""
    devices: int = 1
    """Processes on this machine, each with a device; torchrun and SLURM set it themselves."""
    nodes: int = 1
    """Machines; torchrun and SLURM set it themselves."""
    precision: Precision = "32"
    """Of the encoder; the objective is computed in 32 bits at least."""
    sync_batch_norm: bool = True
    """On several ranks batch norm sees the whole batch, as one rank would."""
    threads: int | None = None
    """CPU threads of each process. If not given, one for encoders of vectors and short sequences; else the CPUs that it
    may use (affinity, cgroup quota) divided among the processes, at most OMP_NUM_THREADS and MKL_NUM_THREADS."""
    workers: int = 2
    """Processes that read images from disk; images in memory need none."""
    detect_anomaly: bool = False
    """Find the operation that makes the first NaN of a gradient; slow."""

    eval_every: int = 0
    """Steps between looks at the watched instances (kNN, alignment, uniformity, rank); 0 for ten in a run."""
    knn_k: int | None = None
    """Neighbors that vote in kNN, at most all training instances. If not given: a tenth of the mean number of training
    instances in a class, from 1 to 200; on CIFAR and ImageNet 200, as in the paper,
    where classes have as many."""
    log_every: int = 10
    """Steps between writes to metrics.csv, which has a row for each step."""
    loggers: tuple[Logger, ...] = ()
    """Where metrics go besides metrics.csv."""
    save_every: int = 0
    """Steps between checkpoints; 0 for none by steps."""
    save_minutes: float = 1.0
    """Minutes between checkpoints; 0 for none by time. One is made at the end too."""
    keep: int = 2
    """Checkpoints that are kept."""
    probe: bool = True
    """End with an evaluation: kNN, linear probe and geometry, beside raw features and the untrained encoder."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, accept(Config, field.name, getattr(self, field.name)))

    @property
    def instances(self) -> int:
        """Of a batch, on all ranks together."""
        size = BATCH_SIZE if self.batch_size is None else self.batch_size
        return fixed_batch(size, self.views) if self.fixed_batch else size

    def check(self) -> None:
        """Raise a ConfigError for the first thing that cannot be."""
        default = Config()
        for policy, names in _ONLY.items():
            for name in names if policy != self.policy else ():
                if getattr(self, name) != getattr(default, name):
                    raise ConfigError(f"{name} is for the policy {policy}, and the policy is {self.policy}")
        if self.policy == "crops" and self.views < 2:
            raise ConfigError(f"views must be >= 2, got {self.views}: an objective contrasts views of an instance")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < 2**62:  # false for NaN too
                raise ConfigError(f"{name} must be a number >= {least}, got {value}")
        if self.held_out == 1:
            raise ConfigError("held_out must be 0, or at least 2 instances to compare, got 1")
        if self.momentum >= 1:
            raise ConfigError(f"momentum must be < 1, got {self.momentum}")
        for name in ("temperature", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} must be > 0, got {value}")
        for name in ("missing", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is a share, from 0 to less than 1, got {getattr(self, name)}")
        if self.dim % self.heads or self.dim % 2:
            raise ConfigError(f"dim must be even and divide among the heads, got {self.dim} and {self.heads} heads")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(f"warmup is a share of the steps, from 0 to 1, got {self.warmup}")
        try:
            if self.instances < 2:
                raise ConfigError(f"a batch needs at least two instances, got {self.instances}")
            most = get_objective(self.objective).most_views
            if ":" not in self.encoder and self.encoder not in ENCODERS:
                get_encoder(self.encoder)  # says which there are
            SimCLRPolicy(self.size or 32, strength=self.strength or 0.0, blur=self.blur or 0.0, scale=self.scale)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.policy == "crops" and self.views > most:
            raise ConfigError(f"{self.objective} is for {most} views, got views {self.views}: try pwe-{self.objective}")

    def settled(self) -> Config:
        """The config with the objective's own temperature, and whether it is learned, where it leaves them open.

        Examples:
            >>> config = Config(objective="siglip").settled()
            >>> config.temperature, config.learnable
            (0.1, True)
        """
        if self.temperature is not None and self.learnable is not None:
            return self
        own, fixed = get_objective(self.objective), get_objective(self.objective, learnable=False).temperature
        return dataclasses.replace(
            self,
            temperature=float(fixed) if self.temperature is None else self.temperature,
            learnable=own.log_temperature is not None if self.learnable is None else self.learnable,
        )

    def to_yaml(self) -> str:
        """The fields, one a line; `Config.from_yaml` reads them."""
        return yaml.safe_dump({name: _plain(value) for name, value in vars(self).items()}, sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str, where: str = "the config") -> Config:
        """A config from the fields in a YAML text; those left out have their defaults."""
        try:
            fields = parse_yaml(text)
            for name in (MADE_WITH, EXTENDED):
                fields.pop(name, None)
            return cls().changed(fields, where)
        except ConfigError:
            raise
        except (ValueError, OverflowError) as error:  # numbers that are too large for their field, or to be shown
            raise ConfigError(f"{where} cannot be read: {error}") from error

    def changed(self, fields: Mapping[str, Any], where: str = "the config") -> Config:
        """The config with other values of some fields."""
        known = {field.name for field in dataclasses.fields(self)}
        for name in fields:
            if name not in known:
                raise ConfigError(f"{where} has a field {name!r}, which is unknown{nearest(name, known)}")
        return dataclasses.replace(self, **{name: accept(Config, name, value, where) for name, value in fields.items()})

    def result(self) -> dict[str, Any]:
        """What decides the result, as plain values."""
        return {name: _plain(value) for name, value in vars(self).items() if name not in _HOW}

    def different(self, other: Config) -> list[str]:
        """The fields in which the two differ and would give another result."""
        return [n for n, value in vars(self).items() if n not in _HOW and value != getattr(other, n)]


_HOW = {
    "data", "classes", "device", "devices", "nodes", "threads", "workers", "detect_anomaly", "eval_every", "knn_k",
    "log_every", "loggers", "save_every", "save_minutes", "keep", "probe",
}  # fmt: skip
"""Fields that say how to get to a result, not which. Of data, checkpoints know the images themselves: it may move."""

_ONLY = {
    "crops": ("size", "scale", "strength", "blur", "stem", "width", "each_view", "fixed_batch"),
    "modalities": ("modalities", "missing", "dim", "layers", "heads", "dropout", "supervised"),
}
"""Fields that mean nothing to the other policy."""

_LEAST = {
    "views": 0, "dim": 2, "layers": 1, "heads": 1,
    "limit": 2, "held_out": 0, "width": 0, "size": 1, "projection": 1, "epochs": 1, "batch_size": 2, "micro_batch": 1,
    "momentum": 0, "weight_decay": 0, "trust": 0, "seed": 0, "devices": 1, "nodes": 1, "threads": 1, "workers": 0,
    "eval_every": 0, "knn_k": 1, "log_every": 1, "save_every": 0, "save_minutes": 0, "keep": 1,
}  # fmt: skip


def nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    return f": did you mean {' or '.join(near)}?" if near else f". There are {', '.join(sorted(known))}"


def accept(owner: type, name: str, value: Any, where: str = "the config") -> Any:
    """The value as the type of the owner's field, or a ConfigError."""
    kind = _types(owner)[name]
    try:
        return _as(kind, value)
    except (TypeError, ValueError):
        plain = isinstance(value, (str, int, float, list, tuple, dict, Path, NoneType))
        got = repr(value) if plain else describe_type(value)
        hint = ": write it to a file or a folder, and give the path" if name == "data" and not plain else ""
        raise ConfigError(f"{name} in {where} must be {_described(kind)}, got {got}{hint}") from None


_types = lru_cache(typing.get_type_hints)


def _as(kind: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        if value is None and NoneType in inner:
            return None
        return _as(next(k for k in inner if k is not NoneType), value)
    if origin is Literal:
        value = str(value)  # YAML reads 32 as a number
        if value not in inner:
            raise ValueError
        return value
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[1:] == (Ellipsis,) else list(inner)
        if isinstance(value, str) or len(kinds) != len(value):
            raise ValueError
        return tuple(_as(k, v) for k, v in zip(kinds, value, strict=True))
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return float(value)  # YAML reads 1e-6 as a word
    if kind is Path and isinstance(value, (str, Path)):
        return Path(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError
    return value


def _described(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return " or ".join("none" if k is NoneType else _described(k) for k in inner)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin is tuple:
        return "a list of " + _described(inner[0])
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}[kind]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value
