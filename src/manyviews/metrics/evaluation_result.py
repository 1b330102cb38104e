"""`EvaluationResult`: what an evaluation found, as dataclasses that are stored as JSON."""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Literal, Union

from manyviews.utils import parse_json

MAX_NUMBER = 1e100
"""NaN and greater numbers in a file are refused: sums and squares of them would overflow."""
Metrics = dict[str, float]

Representation = Literal[
    "majority", "raw_features", "untrained", "trained", "mean_embedding", "fused_prediction", "supervised_head"
]
"""What is scored: baselines, the encoder, and what is computed from its output."""
SubsetProbe = Literal["raw", "per_subset", "mean_imputed", "shared_space"]
"""How a subset of modalities is scored. `raw`, `per_subset`: a probe for each subset, on raw features and on
representations. `mean_imputed`: one probe on the representations of all modalities, with the mean for those not in the
subset. `shared_space`: one probe on mean embeddings."""


@dataclass(frozen=True)
class FewLabelScore:
    """Accuracies of linear probes, each fitted to another random subset of the training labels."""

    labels: int
    linear: tuple[float, ...]


@dataclass(frozen=True)
class Score:
    """Scores of one representation: accuracies for classes, `probes` for regression targets.

    Examples:
        >>> Score(knn=0.411, knn_k=25, linear=0.451).linear
        0.451
    """

    knn: float | None = None
    knn_k: int | None = None
    linear: float | None = None
    few_label: dict[str, FewLabelScore] = field(default_factory=dict)
    """By fraction of the labels."""
    probes: tuple[Metrics, ...] = ()
    """Metrics of each linear probe that was fitted to regression targets."""

    def __post_init__(self) -> None:
        if any("MAE" not in probe for probe in self.probes):
            raise ValueError("every probe of regression targets must have the metric MAE")


@dataclass(frozen=True)
class SubsetScore:
    """Metrics of a subset of the modalities, on the test instances that have at least one of them.

    Examples:
        >>> SubsetScore(("text",), 40, {"per_subset": {"accuracy": 0.8}}, {"accuracy": 0.9}).fused
        {'accuracy': 0.9}
    """

    modalities: tuple[str, ...]
    instances: int
    scores: dict[SubsetProbe, Metrics]
    fused: Metrics
    """Metrics of all modalities on the same instances."""

    def __post_init__(self) -> None:
        if not self.scores or not self.fused or not self.modalities:
            raise ValueError("a subset must have modalities, scores and fused metrics")
        if any(metrics.keys() != self.fused.keys() for metrics in self.scores.values()):
            raise ValueError(f"every probe of the subset {' + '.join(self.modalities)} must have the same metrics")


ALL_OTHERS = "all others"
"""Source of retrieval by the mean embedding of all modalities but the target."""


@dataclass(frozen=True)
class RetrievalScore:
    """Retrieval of the target modality by the source modality, or by `ALL_OTHERS`, of the same instance."""

    source: str
    target: str
    instances: int
    recall: dict[str, float]
    """Recall at k, by k."""
    median_rank: float

    def __post_init__(self) -> None:
        if self.instances < 1 or not self.recall:
            raise ValueError(f"retrieval of {self.target} by {self.source} must have instances and recall")


@dataclass(frozen=True)
class Geometry:
    """Geometry of the representations or embeddings of some modalities; of all views if `modalities` is empty."""

    modalities: tuple[str, ...] = ()
    alignment: float | None = None
    uniformity: float | None = None
    wasserstein: float | None = None
    recall_at_1: float | None = None
    rank: int | None = None
    rankme: float | None = None
    dimensions: int | None = None
    spectrum: tuple[float, ...] = ()


@dataclass(frozen=True)
class GeometryResult:
    """Geometry of representations h and embeddings z: of all views, then of each pair and each single modality."""

    instances: int
    views: int
    h: tuple[Geometry, ...]
    z: tuple[Geometry, ...] = ()


@dataclass(frozen=True)
class ProbeDescription:
    """How linear probes were fitted."""

    solver: str
    learning_rate: float | None = None
    epochs: int | None = None
    augment: bool = False
    count: int = 1
    """Number of probes whose metrics are averaged."""

    def __post_init__(self) -> None:
        if (self.learning_rate is None) != (self.epochs is None):
            raise ValueError("a probe must have both learning_rate and epochs, or neither")


@dataclass(frozen=True)
class EvaluationResult:
    """Scores, retrieval and geometry of a run on one dataset.

    Examples:
        >>> result = EvaluationResult("0.2", "photos", "photos", "test", scores={"trained": Score(linear=0.451)})
        >>> EvaluationResult.from_json(result.to_json()).scores["trained"].linear
        0.451
    """

    version: str
    """Version of manyviews that wrote the result."""
    dataset_path: str
    dataset: str
    """Name of the dataset."""
    split: str
    modalities: tuple[str, ...] = ()
    dropped_modalities: tuple[str, ...] = ()
    skipped_reason: str = ""
    """Why there are no scores."""
    train_instances: int = 0
    """Number of labels that probes were fitted to."""
    test_instances: int = 0
    tested_on_train_holdout: bool = False
    """Whether the test instances are a part of the training split, because there is no other."""
    probe: ProbeDescription | None = None
    sentiment_scale: str | None = None
    summaries: dict[str, str] = field(default_factory=dict)
    """How sequences were summarized over their steps to raw features, by modality."""
    scores: dict[Representation, Score] = field(default_factory=dict)
    """Empty without labels."""
    subsets: tuple[SubsetScore, ...] = ()
    retrieval: tuple[RetrievalScore, ...] = ()
    geometry: GeometryResult | None = None
    caveats: tuple[str, ...] = ()
    better_baselines: tuple[str, ...] = ()
    """A sentence for each baseline that beats the trained encoder."""

    @property
    def is_regression(self) -> bool:
        return any(score.probes for score in self.scores.values())

    @property
    def kept_modalities(self) -> list[str]:
        return [name for name in self.modalities if name not in self.dropped_modalities]

    def list_command_words(self, run: str) -> list[str]:
        """List the words of the command that evaluates a run on its own data to these scores.

        Examples:
            >>> scores = {"trained": Score(knn=0.4, knn_k=25, linear=0.45)}
            >>> EvaluationResult("0.2", "photos", "photos", "test", scores=scores).list_command_words("runs/demo")
            ['manyviews', 'evaluate', 'runs/demo', '--knn-k', '25']
        """
        words = ["manyviews", "evaluate", run]
        trained, probe = self.scores.get("trained"), self.probe
        if trained is not None and trained.knn_k is not None:
            words += ["--knn-k", str(trained.knn_k)]
        if probe is not None and probe.solver == "sgd":
            words += ["--probe-solver", probe.solver] + ["--probe-augment"] * probe.augment
        if probe is not None and probe.learning_rate is not None:
            words += ["--probe-lr", f"{probe.learning_rate:g}", "--probe-epochs", str(probe.epochs)]
        if probe is not None and self.is_regression:
            words += ["--num-regression-probes", str(probe.count)]
        if trained is not None and trained.few_label:
            words += ["--label-fractions", *trained.few_label]
        return words

    def get_geometry(self, kind: Literal["h", "z"]) -> Geometry | None:
        """Get the geometry of all views, or None if there is none."""
        groups: tuple[Geometry, ...] = () if self.geometry is None else getattr(self.geometry, kind)
        return groups[0] if groups else None

    def __post_init__(self) -> None:
        if self.scores and "trained" not in self.scores:
            raise ValueError(f"scores must include 'trained', got {', '.join(self.scores)}")
        if len({bool(score.probes) for score in self.scores.values()}) > 1:
            raise ValueError("all scores must have probes of regression targets, or none")
        if len({(tuple(subset.scores), *sorted(subset.fused)) for subset in self.subsets}) > 1:
            raise ValueError("all subsets of modalities must have the same probes and metrics")
        if unknown := {name for subset in self.subsets for name in subset.modalities} - {*self.kept_modalities}:
            raise ValueError(f"subsets have the modality {min(unknown)!r}, which modalities does not list")

    def to_json(self) -> str:
        """Return a JSON text, which `EvaluationResult.from_json` reads."""
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> EvaluationResult:
        """Parse a JSON text.

        Raises:
            ValueError: the text does not have this format; the message names the key.
        """
        result: EvaluationResult = _decode(cls, parse_json(text), "the result")
        return result


def _decode(kind: Any, value: Any, location: str) -> Any:
    """Convert a JSON value to a type made of dataclasses, dicts, tuples, numbers and texts."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, UnionType):
        return None if value is None else _decode(next(k for k in inner if k is not NoneType), value, location)
    if origin is Literal and value in inner:
        return value
    if origin is dict and isinstance(value, dict):
        return {_decode(inner[0], k, location): _decode(inner[1], item, f"{location}.{k}") for k, item in value.items()}
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(inner[0], item, f"{location}[{i}]") for i, item in enumerate(value))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        types = _get_types(kind)
        required = [name for name, p in signature(kind).parameters.items() if p.default is Parameter.empty]
        if unknown := [key for key in value if key not in types]:
            raise ValueError(f"{location} has the unknown key {unknown[0]!r}")
        if absent := [name for name in required if name not in value]:
            raise ValueError(f"{location} has no {absent[0]!r}")
        return kind(**{key: _decode(types[key], item, f"{location}.{key}") for key, item in value.items()})
    if kind in (int, float) and type(value) in (int, kind) and abs(value) < MAX_NUMBER:
        return kind(value)
    if kind in (bool, str) and type(value) is kind:
        return value
    expected = f"one of {', '.join(inner)}" if origin is Literal else getattr(kind, "__name__", str(kind))
    raise ValueError(f"{location} must be {expected}, got {value!r:.80}")


_get_types = lru_cache(typing.get_type_hints)
