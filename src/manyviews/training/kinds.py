"""`KindTraining`: what training chooses for one kind of modality: fields of the config, transforms, statistics.

What a kind needs before transforms and encoders exist is in its `Column` class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from manyviews.data import SAMPLING_RATE, Column, Features, Images, Video, compute_statistics
from manyviews.loading import ViewSpec
from manyviews.models import ENCODERS, Standardize, Stem
from manyviews.training.config import Config, ConfigError
from manyviews.training.custom_objects import CustomObjects
from manyviews.training.initial_weights import find_pretrained
from manyviews.transforms import (
    AudioClip,
    ClipTransform,
    FeatureTransform,
    ImageTransform,
    SequenceTransform,
    SimCLRTransform,
    Transform,
    VectorTransform,
    VideoClip,
    make_custom_transform,
)
from manyviews.utils import describe_type

LARGE_IMAGE_SIZE = 64
"""Views with longer sides than this use the ImageNet defaults of stem, jitter and blur."""


@dataclass(frozen=True)
class KindViews:
    """The modalities of one kind in a training."""

    columns: Mapping[str, Column]
    """Training instances by modality."""
    all_columns: Mapping[str, Column]
    """Training instances by modality, of all kinds."""
    spec: ViewSpec
    """The views of all modalities."""
    objects: CustomObjects
    is_small: bool
    """Whether all data are small data of sequences."""


class KindTraining:
    """The choices for a kind of modality. This class is for kinds whose views are not augmented."""

    fields: ClassVar[tuple[str, ...]] = ()
    """Fields of the config that only this kind, or this and some others, use."""

    def resolve(self, config: Config, views: KindViews) -> Config:  # noqa: ARG002 (for subclasses)
        """Fill in the fields that depend on modalities of the kind."""
        return config

    def find_transform(self, modality: str, column: Column, objects: CustomObjects) -> Transform | None:  # noqa: ARG002
        """Return the user's transform of a modality, or None."""
        transform = objects.transforms.get(modality)
        if transform is None or isinstance(transform, FeatureTransform):
            return transform
        raise ConfigError(f"the transform of {modality} must be a FeatureTransform, got {describe_type(transform)}")

    def build_transform(self, *_: Any, **__: Any) -> Transform | None:
        """Build the default transform of a modality, from `config, column, index, size=, largest=`.

        Statistics are those of the instances in `index`; `size` is that of the views, `largest` that of the largest
        views of the modality.
        """
        return None

    def build_plain_transform(self, config: Config) -> Transform | None:  # noqa: ARG002 (for recordings)
        """Build the transform of a modality that is not augmented."""
        return None

    def make_preprocessing(self, config: Config) -> dict[str, Any]:  # noqa: ARG002 (for recordings)
        """Return the preprocessing of encoders that are not pretrained, and the default of those that are."""
        return {}

    def fit_encoder(self, encoder: nn.Module, column: Column, index: Tensor) -> None:
        """Fit the statistics of an encoder to the instances in `index`."""


class ImageTraining(KindTraining):
    fields = (
        "image_size", "crop_scale", "small_crop_scale", "jitter_strength", "blur_prob", "stem", "width_mult",
        "per_view_batch_norm", "separate_encoders",
    )  # fmt: skip

    def resolve(self, config: Config, views: KindViews) -> Config:
        config = self._set_custom_size(config, views)
        size = config.image_size
        if size is None:
            size = max(item.size for item in views.spec.items) or self._infer_size(config, views.all_columns)
        is_large = size > LARGE_IMAGE_SIZE
        return dataclasses.replace(
            config,
            image_size=size,
            jitter_strength=(1.0 if is_large else 0.5) if config.jitter_strength is None else config.jitter_strength,
            blur_prob=(0.5 if is_large else 0.0) if config.blur_prob is None else config.blur_prob,
            stem=self._choose_stem(config, views.all_columns, is_large),
        )

    def _infer_size(self, config: Config, columns: Mapping[str, Column]) -> int:
        """Return the size that a pretrained encoder was trained with, or else that of the images and videos."""
        columns = {name: column for name, column in columns.items() if column.min_size}
        pretrained = (find_pretrained(config, name, column) for name, column in columns.items())
        sizes = [spec.size for spec in pretrained if spec is not None]
        return max(sizes or [cast("Images | Video", column).infer_size() for column in columns.values()])

    def _set_custom_size(self, config: Config, views: KindViews) -> Config:
        """Set the size of images to that of the user's transforms."""
        found = (self.find_transform(name, column, views.objects) for name, column in views.columns.items())
        sizes = {transform.size for transform in found if transform is not None}
        requested = {size for size in (config.image_size, *(item.size for item in views.spec.items)) if size}
        if sizes and (len(sizes) > 1 or not requested <= sizes):
            got = ", ".join(map(str, sorted(sizes | requested)))
            raise ConfigError(f"your transforms make views of one size, which must be that of the config, got {got}")
        return dataclasses.replace(config, image_size=sizes.pop()) if sizes else config

    def _choose_stem(self, config: Config, columns: Mapping[str, Column], is_large: bool) -> Stem | None:
        """Choose the stem of built-in ResNets; None for that of `resnet-small`, which is for small images."""
        chosen = (config.get_encoder_name(name, part.kind) or part.default_encoder for name, part in columns.items())
        builtin = set(chosen) & set(ENCODERS)
        if not builtin and (config.stem is not None or config.width_mult is not None):
            raise ConfigError(f"stem and width_mult require a built-in ResNet, got encoder {' '.join(config.encoder)}")
        if config.stem is not None or not builtin or (builtin == {Images.default_encoder} and not is_large):
            return config.stem
        return "imagenet" if is_large else "small"

    def find_transform(self, modality: str, column: Column, objects: CustomObjects) -> ImageTransform | None:
        """Return the user's transform of a modality or of all images; a function of a PIL image becomes one."""
        transform = objects.transforms.get(modality, objects.transforms.get(""))
        if transform is None or isinstance(transform, ImageTransform):
            return transform
        if isinstance(transform, FeatureTransform):
            raise ConfigError(f"the transform of {modality} must be for images, got {describe_type(transform)}")
        example = cast("Images", column).show(int(column.get_mask().nonzero()[0]))
        try:
            return make_custom_transform(transform, example)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def build_transform(self, config: Config, *_: Any, size: int, largest: int) -> ImageTransform:
        return SimCLRTransform(
            size,
            jitter_strength=config.jitter_strength or 0.0,
            blur_prob=config.blur_prob or 0.0,
            crop_scale=config.crop_scale if size == largest else config.small_crop_scale,
        )


class TransformerTraining(KindTraining):
    """The choices for texts, whose encoder is a transformer."""

    fields: ClassVar[tuple[str, ...]] = ("transformer_layers", "transformer_heads", "dropout")

    def resolve(self, config: Config, views: KindViews) -> Config:
        layers = config.transformer_layers or (2 if views.is_small else 3)
        return dataclasses.replace(config, transformer_layers=layers)


class FeatureTraining(KindTraining):
    """The choices for features, which are standardized."""

    def fit_encoder(self, encoder: nn.Module, column: Column, index: Tensor) -> None:
        standardize = getattr(encoder, "standardize", None)
        if isinstance(standardize, Standardize):  # a module of the user may have none
            standardize.fit(cast("Features", column.select(index)).collect_valid())

    def compute_mean_std(self, column: Column, index: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = compute_statistics(cast("Features", column.select(index)).collect_valid())
        return mean, torch.where(scale > 0, 1 / scale, 0.0)  # constant features have the scale 0


class VectorTraining(FeatureTraining):
    fields = ("augment_features", "feature_noise", "feature_mask", "dropout")

    def build_transform(self, config: Config, column: Column, index: Tensor, **_: Any) -> FeatureTransform:
        return VectorTransform(*self.compute_mean_std(column, index), config.feature_noise, config.feature_mask)


class SequenceTraining(FeatureTraining, TransformerTraining):
    fields = (
        "feature_scaling", "time_crop", "time_mask", "augment_features", "feature_noise", "feature_mask",
        "transformer_layers", "transformer_heads", "dropout",
    )  # fmt: skip

    def build_transform(self, config: Config, column: Column, index: Tensor, **_: Any) -> FeatureTransform:
        return SequenceTransform(
            *self.compute_mean_std(column, index),
            min_crop=config.time_crop,
            scaling=config.feature_scaling,
            noise=config.feature_noise,
            feature_mask=config.feature_mask,
            time_mask=config.time_mask,
        )


class AudioTraining(TransformerTraining):
    fields = (
        "sampling_rate", "max_seconds", "augment_features", "time_crop", "feature_noise", "transformer_layers",
        "transformer_heads", "dropout",
    )  # fmt: skip

    def resolve(self, config: Config, views: KindViews) -> Config:
        for name, column in views.columns.items():
            pretrained = find_pretrained(config, name, column)
            rate = None if pretrained is None else pretrained.preprocessing["sampling_rate"]
            if None not in (rate, config.sampling_rate) and rate != config.sampling_rate:
                raise ConfigError(
                    f"sampling_rate: the pretrained encoder of {name} takes {rate} samples per second, got "
                    f"{config.sampling_rate}"
                )
        return super().resolve(config, views)

    def find_transform(self, modality: str, column: Column, objects: CustomObjects) -> ClipTransform[Any] | None:  # noqa: ARG002
        transform = objects.transforms.get(modality)
        if transform is None or isinstance(transform, ClipTransform):
            return transform
        raise ConfigError(f"the transform of {modality} must be a ClipTransform, got {describe_type(transform)}")

    def make_preprocessing(self, config: Config) -> dict[str, Any]:
        rate = SAMPLING_RATE if config.sampling_rate is None else config.sampling_rate
        return {"sampling_rate": rate, "max_seconds": config.max_seconds}

    def build_transform(self, config: Config, *_: Any, **__: Any) -> ClipTransform[Any]:
        return AudioClip(is_random=True, min_crop=config.time_crop, noise=config.feature_noise)

    def build_plain_transform(self, config: Config) -> ClipTransform[Any]:
        return AudioClip(is_random=config.augment_features != "none")


class VideoTraining(KindTraining):
    """The choices for videos, whose frames are treated as images."""

    fields = (
        "num_frames", "image_size", "crop_scale", "small_crop_scale", "jitter_strength", "blur_prob", "stem",
        "width_mult", "per_view_batch_norm",
    )  # fmt: skip
    frames = ImageTraining()

    def resolve(self, config: Config, views: KindViews) -> Config:
        return self.frames.resolve(config, views)

    def make_preprocessing(self, config: Config) -> dict[str, Any]:
        return {"num_frames": config.num_frames}

    def find_transform(self, modality: str, column: Column, objects: CustomObjects) -> ClipTransform[Any] | None:
        """Return a transform with the user's transform of the frames."""
        transform = self.frames.find_transform(modality, column, objects)
        return None if transform is None else VideoClip(transform, is_random=True)

    def build_transform(self, config: Config, *_: Any, size: int, largest: int) -> ClipTransform[Any]:
        return VideoClip(self.frames.build_transform(config, size=size, largest=largest), is_random=True)


TRAINING_BY_KIND: dict[str, KindTraining] = {
    "image": ImageTraining(),
    "sequence": SequenceTraining(),
    "text": TransformerTraining(),
    "vector": VectorTraining(),
    "audio": AudioTraining(),
    "video": VideoTraining(),
}
"""The choices for each kind of modality."""
