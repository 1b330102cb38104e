"""Pretrained encoders: how `hf:NAME_OR_FOLDER`, `timm:NAME` and `torchvision:NAME` are built, and their weights.

Only configs, tokenizers and safetensors are read; code and pickles of a download are never executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.models.encoder_config import EncoderSpec
from manyviews.models.encoders import create_external, import_external
from manyviews.models.hf_encoders import Tower, clean_config, parse_config, select_tower
from manyviews.models.serialization import read_weights
from manyviews.utils import logger

TOWER_OF_KIND: Mapping[str, Tower] = {"text": "text", "image": "vision", "audio": "audio", "video": "vision"}
TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
MAX_TOKENS = 512
"""Maximum number of tokens of a text, also for models that take more."""
POOLING_FILE = "1_Pooling/config.json"
"""How a model of sentence-transformers pools its tokens."""
LOADING: Mapping[str, Any] = {
    "dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True,
}  # fmt: skip
"""Options of `from_pretrained`; it returns the names of weights that do not fit, instead of printing them."""
DEFAULT_MEAN_STD = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def describe_pretrained(kind: str, name: str) -> EncoderSpec:
    """Return how a pretrained encoder is built, with the preprocessing and the size of images it was trained with.

    Raises:
        ValueError: the model cannot be found, or does not encode data of this kind.
    """
    package, _, model = name.partition(":")
    if package == "hf":
        return _describe_hf(kind, model)
    library = import_external(package, model)
    if package == "timm":
        cfg = library.get_pretrained_cfg(model)
        if cfg is None:
            raise ValueError(f"{name}: timm has no pretrained weights of this name")
        mean, std, size = cfg.mean, cfg.std, cfg.input_size[-1]
    else:
        preset = library.get_model_weights(model).DEFAULT.transforms()
        mean, std, size = preset.mean, preset.std, preset.crop_size[0]
    return EncoderSpec(kind, name, {"mean": list(mean), "std": list(std)}, size)


def load_pretrained(encoder: nn.Module, kind: str, name: str) -> None:
    """Load the pretrained weights of an encoder that was built from `describe_pretrained(kind, name)`."""
    package, _, model = name.partition(":")
    inner = get_inner_model(encoder)
    if package == "hf":
        with translate_hf_errors(model):
            inner.load_state_dict(load_hf_model(model, TOWER_OF_KIND[kind])[0].state_dict())
        return
    try:
        weights = _load_external_weights(package, model)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"cannot load the pretrained weights of {name}: {str(error).rstrip('.')}. Without a network, fetch them as "
            "a .safetensors file and use --weights FILE instead of --pretrained"
        ) from error
    inner.load_state_dict({key: weights[key] for key in inner.state_dict()})


def _load_external_weights(package: str, model: str) -> Mapping[str, Tensor]:
    if package == "timm":
        return create_external(package, model, {"pretrained": True}).state_dict()
    # torchvision's files are pickles, of which only tensors are read here.
    weights = import_external(package, model).get_model_weights(model).DEFAULT
    state: Mapping[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    return state


def load_weights_file(encoder: nn.Module, kind: str, path: Path) -> None:
    """Load initial weights of an encoder from a .safetensors file with the names of the encoder's own library.

    The file must have every weight of the encoder; others, such as those of a classifier, are not used.

    Raises:
        ValueError: the file has no weights of this encoder.
    """
    model = get_inner_model(encoder)
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    weights: Mapping[str, Tensor] = read_weights(path)
    names = ", ".join(sorted(weights)[:3])
    if type(model).__module__.startswith("transformers."):
        weights, unused = _rename_hf_weights(model, weights, TOWER_OF_KIND[kind], path)
    else:
        weights = _strip_prefix(weights, set(expected))
        unused = sorted(set(weights) - set(expected))
    missing = [key for key in expected if key not in weights and not key.endswith("num_batches_tracked")]
    if missing:
        raise ValueError(
            f"{path} has no {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + f" of the encoder, it has {names}, ...: is it of another architecture?"
        )  # fmt: skip
    for key, shape in expected.items():
        if key in weights and tuple(weights[key].shape) != shape:
            raise ValueError(f"{path}: {key} is {tuple(weights[key].shape)}, the encoder has {shape}")
    if unused:
        logger.info(f"{path}: not used: {', '.join(unused[:4])}{', ...' if len(unused) > 4 else ''}")
    model.load_state_dict({key: weights[key] for key in expected if key in weights}, strict=False)


def get_inner_model(encoder: nn.Module) -> nn.Module:
    """Return the model of another library that an encoder wraps, or the encoder itself."""
    for name in ("image_encoder", "model"):
        inner = getattr(encoder, name, None)
        encoder = inner if isinstance(inner, nn.Module) else encoder
    return encoder


def freeze_unused_parameters(encoder: nn.Module, *inputs: Tensor) -> None:
    """Turn off the gradient of parameters that the output does not depend on.

    Pretrained models have some, such as mask tokens, and data-parallel training waits for the gradient of each.
    """
    training = encoder.training
    encoder.eval()
    with torch.enable_grad():
        encoder(*inputs).float().sum().backward()
    for parameter in encoder.parameters():
        parameter.requires_grad_(parameter.requires_grad and parameter.grad is not None)
        parameter.grad = None
    encoder.train(training)


def split_source(model: str) -> tuple[str, str | None]:
    """Split NAME@REVISION or a folder into what transformers loads, and the revision.

    Raises:
        ValueError: it looks like a folder, and there is none.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder), None
    name, _, revision = model.partition("@")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise ValueError(f"hf:{model}: there is no folder {model!r}, and it is not a name on the Hub (org/name)")
    return name, revision or None


def _describe_hf(kind: str, model: str) -> EncoderSpec:
    if kind not in TOWER_OF_KIND:
        raise ValueError(f"hf:{model}: encoders of transformers are for {', '.join(TOWER_OF_KIND)}, got {kind}")
    source, _ = split_source(model)
    name = re.sub(r"[^\w.-]", "-", Path(source).name) if Path(source).is_dir() else source
    describe = DESCRIBE_BY_TOWER[TOWER_OF_KIND[kind]]
    with translate_hf_errors(model):
        config = read_hf_config(model)
        plain = clean_config({**config.to_diff_dict(), "model_type": config.model_type})
        parse_config(plain)  # raises if it cannot be built from plain values
        options, preprocessing, size = describe(model, config)
    return EncoderSpec(kind, f"hf:{name}", {"config": plain, **options}, size, preprocessing)


def load_tokenizer(model: str, config: Any) -> tuple[Any, int]:
    """Return the tokenizer of a model of transformers, and the maximum number of tokens of a text."""
    from transformers import AutoTokenizer

    source, revision = split_source(model)
    if not any(_find_file(model, name) for name in TOKENIZER_FILES):
        raise ValueError(f"hf:{model} has no tokenizer: it needs tokenizer.json, next to its config.json")
    tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(f"hf:{model} has a tokenizer without tokenizer.json: save it with a fast tokenizer")
    pad_id = tokenizer.pad_token_id or 0
    positions = getattr(getattr(config, "text_config", config), "max_position_embeddings", None) or MAX_TOKENS
    longest = tokenizer.model_max_length
    return tokenizer, min(MAX_TOKENS, longest if longest <= positions else max(1, positions - pad_id - 1))


def _describe_text(model: str, config: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    tokenizer, max_tokens = load_tokenizer(model, config)
    preprocessing = {
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "max_tokens": max_tokens,
        "pad_id": tokenizer.pad_token_id or 0,
    }
    pooling = _read_plain(model, POOLING_FILE)
    return {"pooling": "first" if pooling.get("pooling_mode_cls_token") else "mean"}, preprocessing, 0


def _describe_image(model: str, config: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    from transformers.models.auto.image_processing_auto import get_image_processor_config

    source, revision = split_source(model)
    plain = get_image_processor_config(source, revision=revision)
    mean, std = plain.get("image_mean", DEFAULT_MEAN_STD[0]), plain.get("image_std", DEFAULT_MEAN_STD[1])
    if plain.get("do_normalize") is False:
        mean, std = (0.0,) * 3, (1.0,) * 3
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    for given in (plain.get("size"), plain.get("crop_size"), size):  # the last one decides
        sides = given.values() if isinstance(given, Mapping) else given if isinstance(given, list) else [given]
        size = next((side for side in sides if isinstance(side, int)), size)
    return {"mean": list(mean), "std": list(std)}, {}, size or 224


def _describe_audio(model: str, _: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    from transformers.models.auto.feature_extraction_auto import get_feature_extractor_config

    source, revision = split_source(model)
    plain = get_feature_extractor_config(source, revision=revision)
    if plain.get("feature_size", 1) != 1:
        raise ValueError(f"hf:{model} takes features, expected a model of waveforms, such as wav2vec2, hubert or wavlm")
    uses_mask = bool(plain.get("return_attention_mask", False))
    options = {"normalize": bool(plain.get("do_normalize", True)), "uses_mask": uses_mask}
    return options, {"sampling_rate": int(plain.get("sampling_rate", 16_000))}, 0


DESCRIBE_BY_TOWER = {"text": _describe_text, "vision": _describe_image, "audio": _describe_audio}


def load_hf_model(model: str, tower: Tower) -> tuple[Any, bool]:
    """Load the part of a model of transformers that encodes one modality, with its weights, as `build_backbone`."""
    from transformers import AutoModel

    source, revision = split_source(model)
    loaded, info = AutoModel.from_pretrained(
        source,
        revision=revision,
        use_safetensors=True,  # never a pickle
        trust_remote_code=False,
        **LOADING,
    )
    backbone, is_tower, random = _select_loaded(loaded, info, tower, f"hf:{model}")
    if random:
        logger.warning(f"hf:{model} has no weights for {', '.join(random[:3])}: they are random")
    return backbone, is_tower


def _rename_hf_weights(
    model: Any, weights: Mapping[str, Tensor], tower: Tower, path: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of a model by its own names, not those of its files, and the names of unused ones."""
    from transformers import AutoModel

    with torch.device("meta"):
        complete = type(AutoModel.from_config(model.config))
    with _quiet_transformers():
        loaded, info = complete.from_pretrained(None, config=model.config, state_dict=dict(weights), **LOADING)
    backbone, _, random = _select_loaded(loaded, info, tower, str(path))
    state = {name: tensor for name, tensor in backbone.state_dict().items() if name not in random}
    return state, sorted(info["unexpected_keys"])


def _select_loaded(loaded: Any, info: Any, tower: Tower, source: str) -> tuple[Any, bool, list[str]]:
    """Select the part of a loaded model for a modality; also return the names of its weights that are not in `source`.

    Names change if the part is an encoder of an encoder-decoder, so missing weights are found by identity.
    """
    for name, given, expected in sorted(info["mismatched_keys"]):
        raise ValueError(f"{source}: {name} is {tuple(given)}, the encoder has {tuple(expected)}")
    state = loaded.state_dict(keep_vars=True)
    missing = {id(state[name]) for name in info["missing_keys"] if name in state}
    backbone, is_tower = select_tower(loaded, tower)
    random = [name for name, tensor in backbone.state_dict(keep_vars=True).items() if id(tensor) in missing]
    return backbone, is_tower, sorted(random)


def read_hf_config(model: str) -> Any:
    """Read the config of a model of transformers."""
    from transformers import AutoConfig

    source, revision = split_source(model)
    return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)


def _find_file(model: str, name: str) -> Path | None:
    """Return the path of a file of a model, from its folder, the cache or the Hub, or None if it has none."""
    from transformers.utils.hub import cached_file

    source, revision = split_source(model)
    found = cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _read_plain(model: str, name: str) -> Mapping[str, Any]:
    """Read a JSON object among the files of a model; empty if there is none."""
    import json

    path = _find_file(model, name)
    content = {} if path is None else json.loads(path.read_text("utf-8"))
    return content if isinstance(content, Mapping) else {}


def _strip_prefix(weights: Mapping[str, Tensor], expected: set[str]) -> Mapping[str, Tensor]:
    """Remove a common prefix of names, such as `bert.`, if the names without it are the expected ones."""
    first = next(iter(expected), "")
    for key in weights:
        prefix = key.removesuffix(first)
        if prefix != key and prefix and not expected - {name.removeprefix(prefix) for name in weights}:
            return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return weights


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Within this context, transformers prints neither reports nor progress."""
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise ValueError("encoders hf:NAME need transformers: pip install 'manyviews[hf]'") from error

    level, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows_progress:
            logging.enable_progress_bar()


@contextmanager
def translate_hf_errors(model: str) -> Iterator[None]:
    """Within this context, transformers is quiet, and its errors name the model and what to do."""
    with _quiet_transformers():
        try:
            yield
        except Exception as error:  # transformers, safetensors and tokenizers raise errors of their own
            if isinstance(error, ValueError) and f"hf:{model}" in str(error):
                raise
            is_folder = Path(model).expanduser().is_dir()
            hint = (
                "the folder needs config.json and model.safetensors, as save_pretrained writes them"
                if is_folder
                else f"without a network, fetch it elsewhere (hf download {model.replace('@', ' --revision ')}) and "
                "pass its folder, as hf:FOLDER"
            )
            text = " ".join(str(error).split())[:300].rstrip(".")
            raise ValueError(f"cannot load hf:{model}: {text}: {hint}") from error
