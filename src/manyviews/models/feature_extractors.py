"""Frozen models of transformers as extractors of features: tokens, waveforms and images -> steps (T, d).

The model's own tokenizer, feature extractor or image processor makes its inputs, so features equal those of a few lines
of transformers. Layers and pooling are those of MERBench (Lian et al. 2024, https://arxiv.org/abs/2401.03429):

- texts: one step per token, without special tokens: the mean over some hidden layers, by default the last four
- audio: one step per frame of the model, the same mean; long recordings are encoded in segments of equal length
- images, and frames of a video: one step each: the image features of CLIP, or else the pooled output of the model
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d

from manyviews.data import Column, DatasetError
from manyviews.models.hf_encoders import Tower, check_input, encode_pixels, get_pooled
from manyviews.models.pretrained import load_hf_model, load_tokenizer, read_hf_config, split_source, translate_hf_errors

Level = Literal["utterance", "frame"]
ExtractPrecision = Literal["32", "bf16", "16"]
DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "16": torch.float16}
MAX_RECORDING_SECONDS = 3_600
MAX_IMAGES_PER_CALL = 64


@dataclass(frozen=True)
class FeatureOptions:
    """What features are extracted.

    Examples:
        >>> FeatureOptions(level="frame", layers=(-1,)).max_steps
        0
    """

    level: Level = "utterance"
    """utterance: a vector for each instance, the mean over its steps; frame: all steps, a sequence."""
    layers: tuple[int, ...] = (-4, -3, -2, -1)
    """Hidden layers that are averaged, for texts and audio: 0 is the input of the first layer, -1 the last output."""
    num_frames: int = 16
    """Number of frames of a video, evenly spaced."""
    segment_seconds: float = 30.0
    """Audio that is longer is encoded in segments of at most so many seconds."""
    max_steps: int = 0
    """Average neighboring steps of longer sequences, so that none has more than this; 0: keep all."""
    precision: ExtractPrecision = "32"
    """Floating-point precision of the model; features are always float32."""

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("layers must have at least one number, such as -1 for the last layer")
        for name, low in (("num_frames", 1), ("segment_seconds", 0.1), ("max_steps", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")


class FeatureExtractor(ABC):
    """A frozen model that maps instances of one kind to steps (T, d)."""

    tower: Tower

    def __init__(self, model: str, options: FeatureOptions, device: torch.device) -> None:
        self.name, self.options, self.device = model, options, device
        with translate_hf_errors(model):
            self.config = read_hf_config(model)
            self.model, self.is_tower = load_hf_model(model, self.tower)
        try:
            check_input(self.model, self.is_tower, self.tower)
        except ValueError as error:
            raise ValueError(f"hf:{model}: {error}") from error
        with translate_hf_errors(model):
            self.processor = self._load_processor()
        self.model = self.model.to(device).eval().requires_grad_(False)

    @abstractmethod
    def _load_processor(self) -> Any: ...

    @abstractmethod
    def read(self, column: Any, i: int) -> Any:
        """Read an instance of a column, as `_encode` takes it.

        Raises:
            DatasetError: its file cannot be read.
        """

    @abstractmethod
    def _encode(self, items: Sequence[Any]) -> list[Tensor]:
        """Encode instances to steps (T, d)."""

    @torch.inference_mode()
    def extract(self, items: Sequence[Any]) -> list[Tensor]:
        """Map what `read` returns for some instances to float32 features: steps (T, d), or (1, d) of an utterance."""
        dtype = DTYPES.get(self.options.precision)
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            steps = self._encode(items)
        return [self._pool(part.float()).cpu() for part in steps]

    def _pool(self, steps: Tensor) -> Tensor:
        if self.options.level == "utterance":
            return steps.mean(0, keepdim=True)
        if 0 < self.options.max_steps < len(steps):
            return adaptive_avg_pool1d(steps.T[None], self.options.max_steps)[0].T
        return steps

    def compute_fingerprint(self) -> str:
        """Compute a hash of the weights, of the processor and of the options."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.options, self._describe_processor())).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _describe_processor(self) -> str:
        text: str = self.processor.to_json_string()
        return text

    def _average_layers(self, output: Any) -> Tensor:
        """Average the chosen hidden layers of an output: (P, T, d)."""
        hidden = getattr(output, "hidden_states", None)
        if not hidden:
            raise ValueError(f"hf:{self.name}: a model of the type {self.config.model_type} gives no hidden layers")
        if invalid := [layer for layer in self.options.layers if not -len(hidden) <= layer < len(hidden)]:
            raise ValueError(
                f"hf:{self.name} has {len(hidden)} hidden layers, from {-len(hidden)} to {len(hidden) - 1}: there is "
                f"no layer {invalid[0]}, choose others (--layers)"
            )
        mean: Tensor = sum(hidden[layer] for layer in self.options.layers) / len(self.options.layers)
        return mean


class TextFeatures(FeatureExtractor):
    """Features of the tokens of a text. Texts of a model of two towers, such as CLIP, have a vector and no tokens."""

    tower = "text"

    def _load_processor(self) -> Any:
        tokenizer, self.max_tokens = load_tokenizer(self.name, self.config)
        tokenizer.padding_side = "right"
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        return tokenizer

    def _describe_processor(self) -> str:
        text: str = self.processor.backend_tokenizer.to_str()
        return text

    def read(self, column: Any, i: int) -> str:
        text: str = column.values[i]
        return text

    def _encode(self, items: Sequence[str]) -> list[Tensor]:
        tokens = self.processor(
            list(items), padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt",
            return_special_tokens_mask=True,
        ).to(self.device)  # fmt: skip
        is_special = tokens.pop("special_tokens_mask").bool()
        if self.is_tower:
            if self.options.level == "frame":
                raise ValueError(
                    f"hf:{self.name} has one vector for a text: use --level utterance, or a model such as BERT"
                )
            return list(get_pooled(self.model.get_text_features(**tokens))[:, None].unbind())
        hidden = self._average_layers(self.model(**tokens, output_hidden_states=True))
        exists = tokens["attention_mask"].bool()
        # A text whose tokens are all special, such as a space, keeps them.
        words = exists & ~is_special
        words = torch.where(words.any(1, keepdim=True), words, exists)
        return [steps[mask] for steps, mask in zip(hidden, words, strict=True)]


class AudioFeatures(FeatureExtractor):
    """Features of the frames of a recording. Only segments of one length share a batch: padding would change them."""

    tower = "audio"

    def _load_processor(self) -> Any:
        from transformers import AutoFeatureExtractor

        source, revision = split_source(self.name)
        return AutoFeatureExtractor.from_pretrained(source, revision=revision, trust_remote_code=False)

    def read(self, column: Any, i: int) -> Tensor:
        rate = int(self.processor.sampling_rate)
        prepared = column.prepare({"sampling_rate": rate, "max_seconds": MAX_RECORDING_SECONDS})
        wave: Tensor = prepared.read_clips(i, [0.0])[0]
        count_frames = getattr(self.model, "_get_feat_extract_output_lengths", None)
        if count_frames is not None and int(count_frames(len(wave))) < 1:
            name = column.values.get_name(i)
            raise DatasetError(f"{name} has {len(wave)} samples at {rate:,} Hz, which is too short for hf:{self.name}")
        return wave

    def _encode(self, items: Sequence[Tensor]) -> list[Tensor]:
        rate = int(self.processor.sampling_rate)
        longest = int(self.options.segment_seconds * rate)
        segments = [list(wave.tensor_split(math.ceil(len(wave) / longest))) for wave in items]
        keys = [(i, j) for i, parts in enumerate(segments) for j in range(len(parts))]
        encoded: dict[tuple[int, int], Tensor] = {}
        for length in sorted({len(part) for parts in segments for part in parts}):
            same = [(i, j) for i, j in keys if len(segments[i][j]) == length]
            waves = [segments[i][j].numpy() for i, j in same]
            inputs = self.processor(waves, sampling_rate=rate, return_tensors="pt").to(self.device)
            hidden = self._average_layers(self.model(**inputs, output_hidden_states=True))
            encoded.update(zip(same, hidden, strict=True))
        return [torch.cat([encoded[i, j] for j in range(len(parts))]) for i, parts in enumerate(segments)]


class ImageFeatures(FeatureExtractor):
    """Features of the images of an instance: CLIP's image features, or else what `HFImageEncoder` takes."""

    tower = "vision"

    def _load_processor(self) -> Any:
        from transformers import AutoImageProcessor

        source, revision = split_source(self.name)
        return AutoImageProcessor.from_pretrained(source, revision=revision, trust_remote_code=False)

    def read(self, column: Any, i: int) -> Tensor:
        start, count = int(column.starts[i]), 1 if column.counts is None else int(column.counts[i])
        return self._process([column.values[start + j] for j in range(count)])

    def _process(self, images: Sequence[Tensor]) -> Tensor:
        """Process images (C, H, W) of any sizes to (K, 3, S, S)."""
        arrays = [image.expand(3, -1, -1).permute(1, 2, 0).numpy() for image in images]
        pixels: Tensor = self.processor(images=arrays, return_tensors="pt", input_data_format="channels_last")[
            "pixel_values"
        ]
        return pixels

    def _encode(self, items: Sequence[Tensor]) -> list[Tensor]:
        pixels = torch.cat(list(items)).split(MAX_IMAGES_PER_CALL)
        features = torch.cat([encode_pixels(self.model, self.is_tower, part.to(self.device)) for part in pixels])
        return list(features.split([len(item) for item in items]))


class VideoFeatures(ImageFeatures):
    """Features of evenly spaced frames of a video."""

    def read(self, column: Any, i: int) -> Tensor:
        count = self.options.num_frames
        frames = column.iterate_frames(i, [(k + 0.5) / count for k in range(count)])
        return torch.cat([self._process([frame]) for _, frame in frames])


EXTRACTORS: Mapping[str, type[FeatureExtractor]] = {
    "text": TextFeatures, "audio": AudioFeatures, "image": ImageFeatures, "video": VideoFeatures,
}  # fmt: skip
"""Extractors by the kind of a modality."""


def load_feature_extractor(
    column: Column, name: str, options: FeatureOptions, device: torch.device | str = "cpu"
) -> FeatureExtractor:
    """Load the frozen model `hf:NAME_OR_FOLDER` for a column.

    Raises:
        ValueError: the model cannot be loaded, or does not encode data of this kind.
    """
    package, _, model = name.partition(":")
    if package != "hf" or not model:
        raise ValueError(f"a model must be hf:NAME_OR_FOLDER, got {name!r}")
    extractor = EXTRACTORS.get(column.kind)
    if extractor is None:
        raise ValueError(f"features are extracted of {', '.join(EXTRACTORS)}; {column.describe()} are features already")
    return extractor(model, options, torch.device(device))


def get_tower(column: Column) -> Tower | None:
    """Return which models extract features of a column, or None if it has features already."""
    extractor = EXTRACTORS.get(column.kind)
    return None if extractor is None else extractor.tower
