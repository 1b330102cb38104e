"""`Config`: all settings of a training run, its validation, and its YAML form."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

import yaml
from torch import Tensor

from manyviews.loading import ViewSpec, count_instances_per_batch
from manyviews.losses import MultiViewLoss, get_loss, list_loss_options
from manyviews.models import CUSTOM, Stem, check_encoder_name
from manyviews.transforms import SimCLRTransform
from manyviews.utils import Device, describe_type, parse_yaml, suggest

AugmentFeatures = Literal["auto", "all", "none"]
LimitOrder = Literal["sample", "first"]
OptimizerName = Literal["auto", "sgd", "lars", "adamw"]
Precision = Literal["auto", "32", "bf16-mixed", "16-mixed", "64"]
Logger = Literal["tensorboard", "wandb", "wandb-offline"]

PROVENANCE_KEY = "provenance"
"""Key of config.yaml for versions, commit and date, in addition to the fields."""
EXTENSIONS_KEY = "extensions"
"""Key of config.yaml for later changes of the number of epochs, in addition to the fields."""
CUSTOM_DATA = "(object)"
"""Value of `data` if it is an object of the user."""
DEFAULT_ENCODER_KIND = "image"
"""Kind of the modalities whose encoder is named without KIND= or MODALITY=."""
DEFAULT_BATCH_SIZE = 128
"""Instances per batch if the config has no batch_size and the data are large enough."""


class ConfigError(ValueError):
    """An invalid config; the message names the field."""


@dataclass(frozen=True)
class Config:
    """All settings of a training run: data, views, model, loss, optimization and logging.

    Examples:
        >>> Config(loss="pvc", views=3).instances_per_batch
        128
    """

    data: str = "photos"
    """Dataset: photos, digits, cifar10, cifar100, hf:NAME_OR_FOLDER[/CONFIG], or the path of an image folder, a table
    (.csv, .tsv, .jsonl, .parquet), tar shards such as 'shards/{000..099}.tar', or a .npz, .npy, .pkl or .mat file."""
    max_instances: int | None = None
    """Use at most this many training instances. Default: all."""
    subset: LimitOrder = "sample"
    """Instances that max_instances keeps: a sample, balanced over the classes and equal for all seeds, or the first."""
    class_list: Path | None = None
    """Text file with the names of the classes (subfolders) to use, one per line. Default: all."""
    raise_on_corrupt: bool = False
    """Stop with an error at a corrupt image, audio file or video instead of skipping it with a warning."""
    follow_symlinks: bool = False
    """Follow symbolic links that lead out of the folder of the data."""
    kinds: tuple[str, ...] = ()
    """Kinds of a table's columns that are not recognized: COLUMN=KIND, with image, text, sequence, vector, audio, video
    or skip."""
    id_column: str | None = None
    """Column of a table with the ids of its rows. Default: id."""
    split_column: str | None = None
    """Column of a table with the split of each row. Default: split."""
    label_column: str | None = None
    """Column of a table with the labels. Default: label, class, target or group."""
    monitor_size: int | None = None
    """Number of training instances that are only monitored, not trained on. With 0, trained instances are monitored;
    their kNN accuracy is higher. Default: a tenth, between 20 and 250, or 0 if there are fewer than 100."""

    views: tuple[str, ...] = ()
    """Views of an instance: items `MODALITY[:COUNT][@SIZE]`, such as image:4, text audio vision, image:2@224
    image:6@96, image:2 caption; or the number of views of the only image modality. Default: 4 of one modality, or one
    of each."""
    image_size: int | None = None
    """Height and width of views of images in pixels. Default: that of the images, at most 224."""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """Minimum and maximum area of a random crop, as fractions of the image."""
    small_crop_scale: tuple[float, float] = (0.05, 0.2)
    """Minimum and maximum area of a random crop for views smaller than the largest of their modality (multi-crop)."""
    jitter_strength: float | None = None
    """Strength of the color jitter. Default: 0.5 for views of up to 64 pixels, 1 for larger ones."""
    blur_prob: float | None = None
    """Probability of a Gaussian blur. Default: 0 for views of up to 64 pixels, 0.5 for larger ones."""
    augment_features: AugmentFeatures = "auto"
    """Modalities of features and audio that are augmented: all, none, or auto, sequences and those with several
    views."""
    feature_noise: float = 0.1
    """Noise of augmented features, relative to the standard deviation of each feature, or of the waveform."""
    feature_mask: float = 0.1
    """Probability that a feature of a view of augmented features is replaced by its mean."""
    feature_scaling: float = 0.1
    """Standard deviation of the logarithm of the factor that scales each feature of an augmented sequence."""
    time_crop: float = 0.8
    """Minimum fraction of an augmented sequence or audio clip that a random crop in time keeps; that of a sequence is
    resampled. 1: no crop."""
    time_mask: float = 0.2
    """Maximum fraction of the successive steps of an augmented sequence that are replaced by the mean."""
    sampling_rate: int | None = None
    """Samples per second that audio is resampled to. Default: that of a pretrained encoder, else 16,000."""
    max_seconds: float = 10.0
    """Maximum duration of a view of audio: a random clip of longer recordings, the one in the middle in evaluation."""
    num_frames: int = 8
    """Number of frames of a view of a video: a random one of each of as many equal parts, the middle ones in
    evaluation."""
    missing_rate: float = 0.0
    """Fraction of the training instances' modalities that is removed at random, by the seed."""

    encoder: tuple[str, ...] = ("resnet-small",)
    """Image encoder: resnet-small, resnet18, resnet50, timm:NAME, torchvision:NAME, or hf:NAME_OR_FOLDER, a pretrained
    model of transformers. Encoders of other kinds, or of one modality, as KIND=NAME or MODALITY=NAME: transformer for
    sequences and texts, mlp for vectors, spectrogram for audio, hf:NAME_OR_FOLDER for texts and audio. An image
    encoder for a video encodes its frames, such as video=resnet18."""
    pretrained: bool = False
    """Start encoders timm:NAME and torchvision:NAME from their pretrained weights; hf:NAME always does."""
    weights: tuple[str, ...] = ()
    """Initial weights of the image encoder, a .safetensors file with the names of the encoder's own library; of other
    encoders, as KIND=FILE or MODALITY=FILE."""
    separate_encoders: bool = False
    """Give each image modality an encoder of its own, instead of one that they share."""
    stem: Stem | None = None
    """First layers of a built-in ResNet: imagenet for large images, the others for small. Default: by image size."""
    width_mult: float | None = None
    """Multiplier for the number of channels of a built-in ResNet. Default: that of the encoder."""
    embed_dim: int = 128
    """Dimension of the embeddings."""
    per_view_batch_norm: bool = False
    """Compute batch norm statistics for each view separately instead of over all views."""
    hidden_dim: int | None = None
    """Dimension of the representations of features and texts, and of all if there are several encoders. Default: 128,
    or 64 for small data of sequences alone (up to 2,000 training instances)."""
    transformer_layers: int | None = None
    """Number of layers of the transformers that encode sequences, texts and audio. Default: 3, or 2 for small data of
    sequences alone."""
    transformer_heads: int = 8
    """Number of attention heads of these transformers."""
    dropout: float = 0.1
    """Dropout probability of the encoders of features, texts and audio."""
    init: Path | None = None
    """Initial weights: a finished run (encoder and head), or a .safetensors file or folder that `manyviews export`
    has written (encoder only). Default: random."""
    freeze: tuple[str, ...] = ()
    """Modalities or kinds whose encoders keep their initial weights, or all. Default: none."""
    freeze_until: tuple[str, ...] = ()
    """Keep the initial weights of an encoder before this submodule, such as layer3 of an image encoder; of other
    encoders MODALITY=NAME or KIND=NAME, such as text=encoder.layer.8. Default: none."""

    loss: str = "mv-dhel"
    """Name of the loss, or a weighted sum such as mv-dhel+0.5*prod-dhel; `manyviews losses` lists all."""
    loss_options: tuple[str, ...] = ()
    """Options of the loss as NAME=VALUE, such as anchor_view=1. Default: those of the loss."""
    released_variant: bool = False
    """Use the loss as in the authors' released code where that differs from the paper's equation."""
    temperature: float | None = None
    """Temperature of the loss; some losses have none. Default: that of the loss, usually 0.5, and at most 0.2 for small
    data of sequences alone (up to 2,000 training instances)."""
    learn_temperature: bool | None = None
    """Learn the temperature (and SigLIP's bias). Default: that of the loss."""
    supervised: bool = False
    """Train a supervised baseline instead, with a linear layer on the fused modalities."""

    epochs: int = 0
    """Number of passes over the training data. Default: 10 if all views are images, else 60, or more for small data: at
    least 600 steps."""
    batch_size: int | None = None
    """Instances per batch, over all ranks. Default: 128, or all training instances if there are fewer."""
    batch_counts_views: bool = False
    """Interpret batch_size as a number of views: a batch then has batch_size / views instances."""
    grad_cache_chunk: int | None = None
    """Save memory: embed at most this many instances at once on each rank. The gradient stays that of the full batch;
    batch norm normalizes each chunk separately."""
    optimizer: OptimizerName = "auto"
    """Optimizer; auto is sgd if all views are images and no encoder is pretrained, else adamw."""
    learning_rate: float | None = None
    """Peak learning rate for a batch of 256; it is multiplied by instances per batch / 256. Default: 1 for sgd, 0.3 for
    lars, 0.001 for adamw, 0.003 for adamw and small data of sequences alone."""
    encoder_lr_scale: float | None = None
    """Multiplier for the learning rate of encoders, relative to that of all other weights. It is for encoders that
    start from trained weights: pretrained ones, those of --init, your own modules. Default: 0.05 if encoders are
    pretrained, else 1."""
    warmup_fraction: float = 0.1
    """Fraction of the steps with linear warm-up; afterwards the learning rate decays to zero as a cosine."""
    momentum: float = 0.9
    """Momentum of SGD and LARS."""
    weight_decay: float | None = None
    """Weight decay; biases and normalization layers have none. Default: 0.01 for adamw, else 1e-6."""
    lars_trust_coefficient: float = 1e-3
    """Trust coefficient of LARS."""
    clip_grad: float | None = None
    """Scale gradients down to this norm, that of the gradients of all weights together. Default: not scaled."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, such as 0.999: it is the model that is monitored,
    evaluated and saved. Default: no average."""
    seed: int = 0
    """Seed of the initial weights, the batches and the views."""

    device: Device = "auto"
    """Device; auto uses a GPU if available."""
    devices: int = 1
    """Number of processes on this machine, one per device; torchrun and SLURM set it."""
    num_nodes: int = 1
    """Number of machines; torchrun and SLURM set it."""
    precision: Precision = "auto"
    """Floating-point precision of the encoder in training; the loss uses at least 32 bits. auto is bf16-mixed on GPUs
    from Ampere on and CPUs with AVX512-BF16 or AMX, else 32."""
    sync_batch_norm: bool = True
    """Compute batch norm statistics over the batches of all ranks."""
    cpu_threads: int | None = None
    """CPU threads per process. Default: 1 for encoders of vectors and short sequences; otherwise the available CPUs
    (affinity, cgroup quota) divided by the number of processes, at most OMP_NUM_THREADS and MKL_NUM_THREADS."""
    num_workers: int = 2
    """Number of processes that read images, audio and videos from disk; images in memory need none."""
    detect_anomaly: bool = False
    """Report the operation that produces the first NaN gradient (slow)."""

    monitor_every: int = 0
    """Steps between evaluations of the monitored instances (kNN, alignment, uniformity, rank); 0 = ten per run, or
    fewer if that would take more than about 3% of it."""
    knn_k: int | None = None
    """Number of neighbors for kNN. Default: a tenth of the mean class size, between 1 and 200; for CIFAR and ImageNet
    the paper's 200 if classes are that large."""
    log_every: int = 10
    """Steps between writes to metrics.csv, which has one row per step."""
    loggers: tuple[Logger, ...] = ()
    """Additional destinations of the metrics. Default: none."""
    checkpoint_every_steps: int = 0
    """Steps between checkpoints; 0 = no checkpoints by steps."""
    checkpoint_every_minutes: float = 1.0
    """Minutes between checkpoints; 0 = no checkpoints by time. There is always one at the end."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep."""
    evaluate_at_end: bool = True
    """After training, compare the encoder with raw features and the untrained one: kNN, linear probe, geometry."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, coerce_field(Config, field.name, getattr(self, field.name)))

    @property
    def instances_per_batch(self) -> int:
        """Instances per batch, over all ranks."""
        size = DEFAULT_BATCH_SIZE if self.batch_size is None else self.batch_size
        return count_instances_per_batch(size, self.num_views) if self.batch_counts_views else size

    @property
    def num_views(self) -> int:
        """Number of views per instance; 0 if it depends on the data."""
        return ViewSpec.parse(self.views).num_views

    def get_table_options(self) -> dict[str, Any]:
        """Return the options of `load_dataset` about the columns of a table."""
        return {name: getattr(self, name) for name in ("kinds", "id_column", "split_column", "label_column")}

    def get_encoder_name(self, modality: str, kind: str) -> str | None:
        """Return the encoder that is chosen for a modality of a kind, or None."""
        return _choose(self.encoder, modality, kind)

    def get_weights_file(self, modality: str, kind: str) -> Path | None:
        """Return the file of initial weights that is chosen for the encoder of a modality of a kind, or None."""
        chosen = _choose(self.weights, modality, kind)
        return None if chosen is None else Path(chosen).expanduser()

    def check(self) -> None:
        """Raise a ConfigError for the first invalid field."""
        for expected, (is_valid, names) in BOUNDS.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and not is_valid(value):
                    raise ConfigError(f"{name} must be {expected}, got {value}")
        if self.monitor_size == 1:
            raise ConfigError("monitor_size must be 0 or >= 2, got 1")
        if self.hidden_dim is not None and (self.hidden_dim % self.transformer_heads or self.hidden_dim % 2):
            got = f"{self.hidden_dim} and {self.transformer_heads} heads"
            raise ConfigError(f"hidden_dim must be even and divisible by transformer_heads, got {got}")
        try:
            if self.num_views or not self.batch_counts_views:
                _ = self.instances_per_batch  # raises if it is less than 2
            self.check_num_views()
            self.check_temperature()
            for text in self.encoder:
                if "=" not in text:
                    check_encoder_name(DEFAULT_ENCODER_KIND, text)
            for scale in (self.crop_scale, self.small_crop_scale):
                SimCLRTransform(
                    self.image_size or 32,
                    jitter_strength=self.jitter_strength or 0.0,
                    blur_prob=self.blur_prob or 0.0,
                    crop_scale=scale,
                )
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def check_num_views(self) -> None:
        """Raise a ConfigError if the loss cannot use this number of views; 0 means that it is not known yet."""
        max_views = 0 if self.loss == CUSTOM else self.build_default_loss().max_views
        count = self.num_views
        if count == 1 and not self.supervised:
            (item,) = ViewSpec.parse(self.views).items
            (twice,) = ViewSpec((dataclasses.replace(item, count=2),)).to_texts()
            raise ConfigError(f"at least two views are required, got {self.views[0]}: try --views {twice}")
        if count > max_views > 0 and not self.supervised:
            raise ConfigError(f"{self.loss} supports {max_views} views, got {count}: try pwe-{self.loss}")

    def check_temperature(self) -> None:
        """Raise a ConfigError if the loss has no temperature and the config sets one."""
        if self.supervised or self.loss == CUSTOM or not (self.temperature or self.learn_temperature):
            return
        if not _list_temperatures(self.build_default_loss()):
            options = ", ".join(f"{name}=" for name in list_loss_options(self.loss))
            raise ConfigError(
                f"{self.loss} has no temperature: use --temperature None --learn-temperature None"
                + (f"; --loss-options takes {options}" if options else "")
            )

    def parse_loss_options(self) -> dict[str, Any]:
        """Parse `loss_options` by the types of the loss's options.

        Examples:
            >>> Config(loss="anchored", loss_options="anchor_view=1 pair_loss=dhel").parse_loss_options()
            {'anchor_view': 1, 'pair_loss': 'dhel'}
        """
        if not self.loss_options:
            return {}
        if self.loss == CUSTOM:
            raise ConfigError("loss_options are for losses by name: set the options of your own loss yourself")
        kinds, options = list_loss_options(self.loss), {}
        for text in self.loss_options:
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"loss_options takes NAME=VALUE, got {text!r}")
            if name in ("temperature", "learn_temperature"):
                raise ConfigError(f"{name} is not one of the loss_options: use --{name.replace('_', '-')}")
            if name not in kinds:
                known = f", only {', '.join(kinds)}" if kinds else ""
                raise ConfigError(f"{self.loss} has no option {name!r}{known}{suggest(name, kinds)}")
            try:
                options[name] = _coerce(kinds[name], yaml.safe_load(value))
            except (TypeError, ValueError, KeyError, yaml.YAMLError):
                kind = _name_type(kinds[name]) if _has_name(kinds[name]) else "set in Python"
                raise ConfigError(f"{name} of {self.loss} must be {kind}, got {value!r}") from None
        return options

    def build_default_loss(self, **options: Any) -> MultiViewLoss:
        """Build the loss with its options, and with its own default temperature."""
        try:
            return get_loss(self.loss, **self.parse_loss_options(), **options)
        except TypeError as error:
            raise ConfigError(str(error)) from error

    def with_loss_defaults(self) -> Config:
        """Fill in the loss's default for the temperature, and for whether it is learned.

        Examples:
            >>> config = Config(loss="siglip").with_loss_defaults()
            >>> config.temperature, config.learn_temperature
            (0.1, True)
        """
        if self.loss == CUSTOM:
            return self
        temperature, learned = self.temperature, self.learn_temperature
        loss = self.build_default_loss()
        if learned is None:
            learned = any(name.endswith("log_temperature") for name, _ in loss.named_parameters())
        if temperature is None:
            if any(isinstance(value, Tensor) for value in _list_temperatures(loss)):
                loss = self.build_default_loss(learn_temperature=False)
            temperatures = {float(value) for value in _list_temperatures(loss)}
            # The parts of a sum may have temperatures of their own.
            temperature = temperatures.pop() if len(temperatures) == 1 else None
        return dataclasses.replace(self, temperature=temperature, learn_temperature=learned)

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as values that YAML and JSON have."""
        paths_as_text = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in paths_as_text.items()}

    def to_yaml(self) -> str:
        """Return the fields as YAML, which `Config.from_yaml` reads."""
        return yaml.safe_dump(self.to_plain(), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str, source: str = "the config") -> Config:
        """Parse a YAML text; fields that are not in it have their defaults."""
        try:
            others = {PROVENANCE_KEY, EXTENSIONS_KEY}
            fields = {name: value for name, value in parse_yaml(text).items() if name not in others}
            return cls().with_fields(fields, source)
        except ConfigError:
            raise
        except (ValueError, OverflowError) as error:  # a number that is too large for its field, or to print
            raise ConfigError(f"cannot parse {source}: {error}") from error

    def with_fields(self, fields: Mapping[str, Any], source: str = "the config") -> Config:
        """Return a copy with new values of some fields."""
        for name in fields:
            if name not in vars(self):
                raise ConfigError(f"unknown field {name!r} in {source}{suggest(name, vars(self))}")
        return dataclasses.replace(
            self, **{name: coerce_field(Config, name, value, source) for name, value in fields.items()}
        )

    def get_result_fields(self) -> dict[str, Any]:
        """Return the fields that affect the result, as plain values."""
        return {name: value for name, value in self.to_plain().items() if name not in RUNTIME_FIELDS}

    def list_changed_fields(self, other: Config) -> list[str]:
        """List the fields that differ and affect the result."""
        return [name for name in self.get_result_fields() if getattr(self, name) != getattr(other, name)]


def _choose(texts: Sequence[str], modality: str, kind: str) -> str | None:
    """Return what is chosen for a modality of a kind, as NAME (for the default kind), KIND=NAME or MODALITY=NAME."""
    chosen, unnamed = _list_named(texts), [text for text in texts if "=" not in text]
    default = {DEFAULT_ENCODER_KIND: unnamed[-1]} if unnamed else {}
    return chosen.get(modality) or (default | chosen).get(kind)


def _list_named(texts: Sequence[str]) -> dict[str, str]:
    return dict(text.split("=", 1) for text in texts if "=" in text)


def _list_temperatures(loss: MultiViewLoss) -> list[float | Tensor]:
    """List the temperatures of a loss, or of the parts of a sum; losses without temperature have none."""
    parts = [module for module in loss.modules() if isinstance(module, MultiViewLoss)]
    own = parts[1:] or parts
    return [part.temperature for part in own if part.temperature is not None]


FIRST_FIELDS = {
    "data": "data", "views": "views", "model": "encoder", "loss": "loss", "optimization": "epochs", "runtime": "device",
    "logging": "monitor_every",
}  # fmt: skip
"""The groups of fields in `manyviews train --help`, each with its first field."""

RUNTIME_FIELDS = {
    "data", "class_list", "device", "devices", "num_nodes", "cpu_threads", "num_workers", "detect_anomaly",
    "monitor_every", "knn_k", "log_every", "loggers", "checkpoint_every_steps", "checkpoint_every_minutes",
    "keep_checkpoints", "evaluate_at_end",
}  # fmt: skip
"""Fields that do not affect the result. `data` is one: checkpoints fingerprint the data, so the path may change."""

_MAX = 2**62
BOUNDS: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "a number >= 0": (lambda value: 0 <= value < _MAX, (
        "monitor_size", "width_mult", "weight_decay", "epochs", "lars_trust_coefficient", "seed", "num_workers",
        "monitor_every", "checkpoint_every_steps", "checkpoint_every_minutes", "feature_noise", "feature_scaling",
    )),
    "a number >= 1": (lambda value: 1 <= value < _MAX, (
        "image_size", "embed_dim", "transformer_layers", "transformer_heads", "grad_cache_chunk", "devices",
        "num_nodes", "cpu_threads", "knn_k", "log_every", "keep_checkpoints",
    )),
    "a number >= 2": (lambda value: 2 <= value < _MAX, ("max_instances", "hidden_dim", "batch_size")),
    "> 0": (lambda value: 0 < value < float("inf"), ("temperature", "learning_rate", "encoder_lr_scale", "clip_grad")),
    "from 1,000 to 192,000": (lambda value: 1_000 <= value <= 192_000, ("sampling_rate",)),
    "> 0 and at most 3,600": (lambda value: 0 < value <= 3_600, ("max_seconds",)),
    "from 1 to 512": (lambda value: 1 <= value <= 512, ("num_frames",)),
    "in [0, 1)": (lambda value: 0 <= value < 1, (
        "missing_rate", "dropout", "momentum", "feature_mask", "time_mask", "ema",
    )),
    "in (0, 1]": (lambda value: 0 < value <= 1, ("time_crop",)),
    "in [0, 1]": (lambda value: 0 <= value <= 1, ("warmup_fraction",)),
}  # fmt: skip
"""Limits of fields by what an error says is expected. No comparison holds for NaN."""


def coerce_field(owner: type, name: str, value: Any, source: str = "the config") -> Any:
    """Convert a value to the type of the owner's field, or raise a ConfigError."""
    kind = _get_types(owner)[name]
    try:
        return _coerce(kind, value)
    except (TypeError, ValueError):
        plain = isinstance(value, (str, int, float, list, tuple, dict, Path, NoneType))
        got = repr(value) if plain else describe_type(value)
        hint = ": save it to a file or folder and pass the path" if name == "data" and not plain else ""
        raise ConfigError(f"{name} in {source} must be {_name_type(kind)}, got {got}{hint}") from None


_get_types = lru_cache(typing.get_type_hints)
_TYPES: dict[Any, tuple[str, tuple[type, ...]]] = {
    int: ("an integer", (int,)),
    float: ("a number", (int, float, str)),  # YAML parses 1e-6 as a string
    bool: ("true or false", (bool,)),
    str: ("a string", (str,)),
    Path: ("a path", (str, Path)),
}
"""Name and accepted types of each type."""


def _coerce(kind: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return None if value is None else _coerce(inner[0], value)
    if origin is tuple:
        if inner == (str, ...) and isinstance(value, (str, int)) and not isinstance(value, bool):
            value = str(value).split()
        if not isinstance(value, (list, tuple)):
            raise TypeError
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_coerce(k, v) for k, v in zip(kinds, value, strict=True))
    if origin is Literal:  # YAML parses 32 as a number
        return inner[inner.index(str(value))]
    if not isinstance(value, _TYPES[kind][1]) or (isinstance(value, bool) and kind is not bool):
        raise TypeError
    return kind(value)


def _has_name(kind: Any) -> bool:
    return kind in _TYPES or typing.get_origin(kind) in (Literal, tuple, typing.Union, UnionType)


def _name_type(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return f"{_name_type(inner[0])} or none"
    if origin is Literal:
        return "one of " + ", ".join(inner)
    return f"a list, each item {_name_type(inner[0])}" if origin is tuple else _TYPES[kind][0]
