"""Encoders of the package transformers: texts, images and waveforms -> representations (P, dim).

An encoder is built from a plain config, such as a file of weights has in its header, and never from code of a download.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

Tower = Literal["text", "vision", "audio"]
"""The part of a model of several modalities, such as CLIP, that encodes one of them."""
Pooling = Literal["mean", "first"]

TOWERS: tuple[Tower, ...] = ("text", "vision", "audio")
PROJECTIONS: Mapping[Tower, str] = {
    "text": "text_projection", "vision": "visual_projection", "audio": "audio_projection",
}  # fmt: skip
INPUTS: Mapping[Tower, str] = {"text": "input_ids", "vision": "pixel_values", "audio": "input_values"}
DESCRIPTIONS: Mapping[Tower, str] = {
    "text": "texts", "vision": "images", "audio": "waveforms, such as wav2vec2, hubert or wavlm",
}  # fmt: skip
IGNORED_KEYS = {
    "architectures", "attn_implementation", "auto_map", "custom_pipelines", "dtype", "id2label", "label2id",
    "name_or_path", "quantization_config", "torch_dtype", "transformers_version",
}  # fmt: skip
"""Keys of a config that name code, kernels or another precision, or that only other tasks use."""
DETERMINISTIC = {"apply_spec_augment": False, "layerdrop": 0.0}
"""Options of encoders of speech that draw from a generator other than torch's, or leave parameters without gradient."""
PADDED_AUDIO = {"hubert", "unispeech", "unispeech-sat", "wav2vec2", "wavlm"}
"""Models of waveforms whose frames do not depend on padding, if they have an attention mask and layer normalization.

Group normalization has statistics over padded frames, and convolutions of other models reach into them.
"""
MAX_CONFIG_NUMBER = 10_000_000
MIN_VARIANCE = 1e-7
"""Added to the variance of a waveform, as the feature extractors of these models do."""


class HFTextEncoder(nn.Module):
    """Encodes token ids (P, T) with lengths (P,): the output of a model of two towers, or else its pooled tokens.

    Args:
        config: the config of a model of transformers, as plain values.
        pooling: "mean" over the tokens of a text, or its "first" token.

    Examples:
        >>> sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        >>> encoder = HFTextEncoder({"model_type": "bert", "vocab_size": 50, **sizes})
        >>> encoder(torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1])).shape
        torch.Size([2, 32])
    """

    def __init__(self, config: Mapping[str, Any], pooling: Pooling = "mean") -> None:
        super().__init__()
        if str(config.get("model_type")).startswith("siglip"):
            raise ValueError("the text encoders of siglip need padding of a fixed length: use one of CLIP")
        self.model, self.is_tower = build_backbone(config, "text")
        self.pooling, self.dim = pooling, get_output_dim(self.model, self.is_tower)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        tokens = tokens[:, : int(lengths.max())]
        valid = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        inputs = {"input_ids": tokens, "attention_mask": valid.long()}
        if self.is_tower:
            return get_pooled(self.model.get_text_features(**inputs))
        steps = self.model(**inputs).last_hidden_state
        return _average(steps, valid) if self.pooling == "mean" else steps[:, 0]


class HFImageEncoder(nn.Module):
    """Encodes images (P, 3, H, W) in [0, 1], which it normalizes.

    The representation is the output of a model of two towers; or else the pooled output, if pooling has no weights,
    which many checkpoints lack; or else the first token or the mean over positions.

    Examples:
        >>> sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        >>> encoder = HFImageEncoder({"model_type": "vit", "image_size": 32, "patch_size": 16, **sizes})
        >>> encoder(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 32])
    """

    def __init__(
        self, config: Mapping[str, Any], mean: Sequence[float] = (0.5,) * 3, std: Sequence[float] = (0.5,) * 3
    ) -> None:
        super().__init__()
        self.model, self.is_tower = build_backbone(config, "vision")
        self.normalize = Normalize(mean, std)

    def forward(self, images: Tensor) -> Tensor:
        return encode_pixels(self.model, self.is_tower, self.normalize(images))


class HFAudioEncoder(nn.Module):
    """Encodes waveforms (P, T) with lengths (P,): the mean over the frames of a model such as HuBERT.

    Models in which padding changes the frames, even with an attention mask, encode the waveforms of each length
    separately, so that the result does not depend on the batch. Silence is appended to those too short for one frame.

    Args:
        config: the config of a model of waveforms, as plain values.
        normalize: whether each waveform is scaled to zero mean and unit variance.
        uses_mask: whether the model was trained with an attention mask.

    Examples:
        >>> sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        >>> sizes |= {"conv_dim": [8], "conv_kernel": [10], "conv_stride": [5], "num_conv_pos_embeddings": 8}
        >>> encoder = HFAudioEncoder({"model_type": "hubert", "num_conv_pos_embedding_groups": 2, **sizes})
        >>> encoder(torch.randn(2, 400), torch.tensor([400, 300])).shape
        torch.Size([2, 32])
    """

    def __init__(self, config: Mapping[str, Any], normalize: bool = True, uses_mask: bool = False) -> None:
        super().__init__()
        self.model, is_tower = build_backbone(config, "audio")
        if is_tower or not hasattr(self.model, "_get_feat_extract_output_lengths"):
            raise ValueError(f"expected a model of {DESCRIPTIONS['audio']}, got {config.get('model_type')}")
        self.normalizes, self.dim = normalize, get_output_dim(self.model, False)
        self.uses_mask = uses_mask and ignores_padding(self.model.config)
        self.min_length = get_frame_length(self.model.config)

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        valid = torch.arange(waves.shape[1], device=waves.device) < lengths[:, None]
        if self.normalizes:
            waves = _normalize_waves(waves, valid)
        waves = nn.functional.pad(waves, (0, max(0, self.min_length - waves.shape[1])))
        lengths = lengths.clamp_min(self.min_length)
        if self.uses_mask:
            return self._encode(waves, lengths, torch.arange(waves.shape[1], device=waves.device) < lengths[:, None])
        h = waves.new_zeros(len(waves), self.dim)
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().squeeze(1)
            part = self._encode(waves[rows, :length], lengths[rows], None)
            h = h.to(part.dtype).index_copy(0, rows, part)
        return h

    def _encode(self, waves: Tensor, lengths: Tensor, valid: Tensor | None) -> Tensor:
        mask = None if valid is None else valid.long()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask")  # WavLM's own call
            frames: Tensor = self.model(waves, attention_mask=mask).last_hidden_state
        counts = self.model._get_feat_extract_output_lengths(lengths)
        return _average(frames, torch.arange(frames.shape[1], device=frames.device) < counts[:, None])


class Normalize(nn.Module):
    """Subtracts the mean and divides by the standard deviation of each channel of images (P, 3, H, W).

    Examples:
        >>> Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.25])(torch.ones(1, 3, 1, 1)).flatten()
        tensor([1., 1., 2.])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32)[:, None, None])
        self.mean: Tensor
        self.std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def build_backbone(config: Mapping[str, Any], tower: Tower) -> tuple[Any, bool]:
    """Build the part of a model of transformers that encodes one modality, with random weights.

    Returns:
        the model, and whether it is one tower of a model of several modalities, such as CLIP.
    """
    from transformers import AutoModel

    model, is_tower = select_tower(AutoModel.from_config(parse_config(config)), tower)
    check_input(model, is_tower, tower)
    return model, is_tower


def check_input(model: Any, is_tower: bool, tower: Tower) -> None:
    """Raise a ValueError if a model does not encode this modality."""
    if not is_tower and model.main_input_name != INPUTS[tower]:
        expected = f"a model of {INPUTS[tower]}, for {DESCRIPTIONS[tower]}"
        raise ValueError(f"a {model.config.model_type} model takes {model.main_input_name}, expected {expected}")


def select_tower(model: Any, tower: Tower) -> tuple[Any, bool]:
    """Remove what does not encode one modality: other towers, a decoder, pooling with weights of its own."""
    config = model.config
    if sum(hasattr(config, f"{name}_config") for name in TOWERS) > 1:
        name = "image" if tower == "vision" else tower
        if not hasattr(model, f"get_{name}_features"):
            raise ValueError(f"a model of the type {config.model_type} does not encode the modality {name}")
        for other in TOWERS:
            if other != tower:
                for part in (f"{other}_model", PROJECTIONS[other]):
                    if hasattr(model, part):
                        delattr(model, part)
        for scale in [name for name, _ in model.named_parameters() if name.startswith("logit_")]:
            delattr(model, scale)
        return model, True
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
    pooler = getattr(model, "pooler", None)
    if isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
        model.pooler = None
    return model, False


def parse_config(plain: Mapping[str, Any]) -> Any:
    """Make a config of transformers of plain values, which may come from a file of a stranger."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        raise ValueError("encoders hf:NAME need transformers: pip install 'manyviews[hf]'") from error
    cleaned = clean_config(plain)
    model_type = cleaned.pop("model_type", None)
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ValueError(f"transformers has no model of the type {model_type!r}")
    try:
        config = CONFIG_MAPPING[model_type](**cleaned)
    except Exception as error:  # a config checks its values in its own ways
        raise ValueError(f"the config of the {model_type} model is invalid: {error}") from error
    for name, value in DETERMINISTIC.items():
        if hasattr(config, name):
            setattr(config, name, value)
    return config


def clean_config(value: Any) -> Any:
    """Remove keys that could name code or kernels from the plain values of a config.

    Raises:
        ValueError: a value is not a plain one, or a number is too large for any model.
    """
    if isinstance(value, Mapping):
        kept = (str(key) for key in value if not str(key).startswith("_") and key not in IGNORED_KEYS)
        return {key: clean_config(value[key]) for key in kept}
    if isinstance(value, list | tuple):
        return [clean_config(part) for part in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_CONFIG_NUMBER:
        raise ValueError(f"the config of the model has the number {value:,}, the maximum is {MAX_CONFIG_NUMBER:,}")
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"the config of the model has a value of the type {type(value).__name__}")
    return value


def ignores_padding(config: Any) -> bool:
    """Return whether an attention mask makes the frames of a model of waveforms independent of padding."""
    return config.model_type in PADDED_AUDIO and config.feat_extract_norm == "layer"


def get_frame_length(config: Any) -> int:
    """Return how many samples the first frame of a model of waveforms depends on.

    Examples:
        >>> from transformers import HubertConfig
        >>> get_frame_length(HubertConfig())
        400
    """
    length = 1
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        length = (length - 1) * stride + kernel
    return length


def get_output_dim(model: Any, is_tower: bool) -> int:
    """Return the dimension of the output of a backbone for texts or waveforms."""
    dim = getattr(model.config, "projection_dim" if is_tower else "hidden_size", None)
    if not isinstance(dim, int):
        raise ValueError(f"a model of the type {model.config.model_type} gives no vectors of one known size")
    return dim


def encode_pixels(model: Any, is_tower: bool, pixels: Tensor) -> Tensor:
    """Encode normalized images (P, 3, H, W) to representations (P, dim), see `HFImageEncoder`."""
    if is_tower:
        return get_pooled(model.get_image_features(pixel_values=pixels))
    output = model(pixel_values=pixels)
    pooled = getattr(output, "pooler_output", None)
    if isinstance(pooled, Tensor):
        return pooled.flatten(1)
    h: Tensor = output.last_hidden_state
    return h.mean((2, 3)) if h.dim() == 4 else h[:, 0]


def get_pooled(output: Any) -> Tensor:
    """Return the features of a tower, which are a tensor or, in newer versions of transformers, the pooled output."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _average(steps: Tensor, valid: Tensor) -> Tensor:
    """Average steps (P, T, d) where `valid` (P, T)."""
    return (steps * valid[..., None]).sum(1) / valid.sum(1, keepdim=True).clamp_min(1)


def _normalize_waves(waves: Tensor, valid: Tensor) -> Tensor:
    """Scale each waveform to zero mean and unit variance; padding stays zero."""
    count = valid.sum(1, keepdim=True)
    centered = (waves - (waves * valid).sum(1, keepdim=True) / count) * valid
    variance = centered.square().sum(1, keepdim=True) / count
    return centered / (variance + MIN_VARIANCE).sqrt()
