"""`Run`: a run directory, and methods that load its contents."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from manyviews.data import KINDS, Dataset, DatasetDict
from manyviews.loading import encode_instances, make_eval_loader
from manyviews.metrics import EvaluationResult, list_tables
from manyviews.models import (
    HUB_PREFIX,
    WEIGHTS_FILE,
    Encoder,
    EncoderError,
    LateFusionHead,
    MultiViewEncoder,
    MultiViewHead,
    MultiViewModel,
    ProjectionHead,
    TrainingRecord,
    download_encoder,
    is_encoder_folder,
    load_encoder_file,
    load_encoder_folder,
    load_weights,
    read_encoder_config,
    read_first_dim,
)
from manyviews.training import (
    CONFIG_FILE,
    CUSTOM_DATA,
    EVALUATION_FILE,
    HEAD_FILE,
    LOG_FILE,
    METRICS_FILE,
    Config,
    ConfigError,
    RunDirectory,
    TrainingTask,
    limit_cpu_threads,
    load_data,
    read_metrics,
)
from manyviews.utils import LogEntry, read_log, read_text


class Run(RunDirectory):
    """A directory with the config, metrics, checkpoints and results of one training.

    Examples:
        >>> import manyviews as mv
        >>> run = mv.train(mv.Config(epochs=1), output="runs/mine")  # doctest: +SKIP
        >>> run.load_encoder()(["a.jpg"]).shape                      # doctest: +SKIP
        torch.Size([1, 192])
    """

    @property
    def config_path(self) -> Path:
        """File with the config, which `manyviews train --recipe` accepts."""
        return self.path / CONFIG_FILE

    @property
    def has_custom_transform(self) -> bool:
        """Whether the views were made by a transform of the user, which is not saved."""
        return "transform" in self.provenance

    def read_metrics(self) -> list[dict[str, float]]:
        """Return one dictionary per step."""
        return read_metrics(self.path / METRICS_FILE)

    def read_log(self) -> list[LogEntry]:
        """Return the entries of log.txt."""
        return read_log(self.path / LOG_FILE)

    def load_data(self) -> DatasetDict:
        """Load the data that the run was trained on."""
        return load_data(self.config)

    def make_task(self, data: DatasetDict) -> TrainingTask:
        """Return how the run trained on its data: the views, the training and monitored instances, the untrained model.

        Raises:
            ConfigError: config.yaml lacks fields that the config of a run always has.
        """
        if self.has_custom_transform:
            raise ConfigError("the transform of the run is an object of yours, which is not saved")
        missing = [name for name in ("monitor_size", "views", "epochs") if not getattr(self.config, name)]
        if missing and (missing != ["monitor_size"] or self.config.monitor_size is None):
            raise ConfigError(f"config.yaml does not specify {missing[0]}, as that of a run always does")
        try:
            config = read_encoder_config(self.encoder_path)
        except (ConfigError, EncoderError):  # not finished, or damaged: the views follow from config.yaml alone
            config = None
        return TrainingTask(self.config, data, torch.device("cpu"), encoder_config=config)

    def limit_cpu_threads(self, data: DatasetDict) -> AbstractContextManager[None]:
        """Limit this process, which encodes data alone, to the CPU threads that the encoder can use."""
        return limit_cpu_threads(dataclasses.replace(self.config, devices=1), data)

    def load_encoder(self, encoder: nn.Module | Mapping[str, nn.Module] | None = None) -> Encoder:
        """Load the trained encoder in evaluation mode, with its preprocessing: data -> representations.

        If the run was trained with a module of yours, or several by modality or kind, pass it as `encoder`.
        """
        return Encoder(load_encoder_file(self.encoder_path, _list_modules(encoder)), self.describe_training)

    def describe_training(self) -> TrainingRecord:
        """Describe the training and the evaluation for a model card, without the paths of files on this machine."""
        config, result = self.config, load_evaluation(self)
        data = "an object in Python" if config.data == CUSTOM_DATA else _strip_folders(config.data)
        rows = {
            "data": data if result is None or result.dataset == data else f"{data} ({result.dataset})",
            "views": " ".join(config.views),
            "loss": "supervised" if config.supervised else config.loss,
            "temperature": "" if config.temperature is None else f"{config.temperature:g}",
            "epochs": str(config.epochs),
            "instances per batch": str(config.instances_per_batch),
            "optimizer": config.optimizer,
            "precision": config.precision,
            "seed": str(config.seed),
            **{name: self.provenance.get(name, "") for name in ("manyviews", "torch", "started", "run_id")},
        }
        # The loss is written also where it is the default.
        fields, changed = config.to_plain(), dict.fromkeys(["loss", *config.list_changed_fields(Config())])
        recipe = yaml.safe_dump({name: _strip_folders(fields[name]) for name in changed}, sort_keys=False)
        return TrainingRecord(
            [(name, value) for name, value in rows.items() if value],
            recipe,
            [] if result is None else list_tables(result),
            "" if result is None else " ".join(result.list_command_words("RUN")),
        )

    def encode(
        self, split: Dataset, index: Tensor, device: torch.device, num_workers: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Encode instances: fused representations (n, d), and the indices (n,) of those that have a modality."""
        encoder = self.load_encoder().encoder.to(device)
        h, mask = encode_instances(encoder, make_eval_loader(split, encoder, num_workers, device), index)
        exists = mask.any(1)
        return encoder.fuse(h, mask)[exists], index[exists.cpu()]

    def load_model(self, encoder: nn.Module | Mapping[str, nn.Module] | None = None) -> MultiViewModel:
        """Load the trained encoder and head in evaluation mode: views -> representations and embeddings."""
        loaded = load_encoder_file(self.encoder_path, _list_modules(encoder))
        return self._add_head(loaded)

    def _add_head(self, encoder: MultiViewEncoder) -> MultiViewModel:
        config, head_path = self.config, self.path / HEAD_FILE
        with torch.device("meta"):  # do not allocate memory for a size that only the config states
            if config.supervised:
                outputs = read_first_dim(head_path, "linear.weight")
                head: nn.Module = LateFusionHead(len(encoder.modalities), encoder.dim, outputs)
            else:
                assert encoder.config is not None
                kinds = {name: spec.kind for name, spec in encoder.config.encoders.items()}
                heads = {
                    name: ProjectionHead(encoder.dim, out_dim=config.embed_dim, batch_norm=KINDS[kind].uses_batch_norm)
                    for name, kind in kinds.items()
                }
                head = MultiViewHead(heads, config.embed_dim, per_view_batch_norm=config.per_view_batch_norm)
        load_weights(head, head_path, f"heads from {encoder.dim} to {config.embed_dim} dimensions")
        encoder.per_view_batch_norm = config.per_view_batch_norm
        return MultiViewModel(encoder, head).eval().requires_grad_(False)


def load_encoder(path: str | Path, encoder: nn.Module | Mapping[str, nn.Module] | None = None) -> Encoder:
    """Load the encoder of a run, of a folder that `save_pretrained` has written, or of the Hugging Face Hub.

    Args:
        path: a run directory; a folder of `save_pretrained`; a .safetensors file of `manyviews export RUN safetensors`;
            or `hf-hub:org/name`, or `hf-hub:org/name@revision`, a repository of the Hub (extra `hf`).
        encoder: your own module, or several by modality or kind, if the run was trained with it; its copy gets the
            trained weights.

    Returns:
        an encoder in evaluation mode: the values of its modality, such as images (B, C, H, W) of any size or a list of
        files, or a dict of modalities -> representations (B, dim).

    Raises:
        ValueError: there is no encoder, or the weights do not fit the architecture.

    Examples:
        >>> encoder = load_encoder("runs/demo")             # doctest: +SKIP
        >>> encoder(["a.jpg", "b.jpg"]).shape               # doctest: +SKIP
        torch.Size([2, 192])
    """
    modules, name = _list_modules(encoder), str(path)
    if name.startswith(HUB_PREFIX):
        return Encoder(load_encoder_folder(download_encoder(name.removeprefix(HUB_PREFIX)), modules, name))
    path = Path(path).expanduser()
    if _is_run(path):
        return Run.open(path).load_encoder(encoder)
    return Encoder(_load_file_or_folder(path, modules)[0])


def load_evaluation(run: Run | str | Path) -> EvaluationResult | None:
    """Load the evaluation of a run on its own data, or return None if it was not evaluated.

    Raises:
        ConfigError: the path is not a run, or the file does not have this version's format.

    Examples:
        >>> load_evaluation("runs/demo").scores["trained"].linear  # doctest: +SKIP
        0.451
    """
    run = run if isinstance(run, Run) else Run.open(run)
    path = run.path / EVALUATION_FILE
    if not path.exists():
        return None
    try:
        return EvaluationResult.from_json(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}. Run `manyviews evaluate` to rewrite it") from error


def init_from_run(model: MultiViewModel, path: Path) -> str:
    """Load the weights of a run, or of the file or folder of an encoder, into a model; return what they are from.

    Raises:
        ConfigError: there are no weights, or they do not fit the architecture.
    """
    run = Run.open(path) if _is_run(path) else None
    source, origin = (path, str(path)) if run is None else (run.encoder_path, f"{path}, run {run.run_id}")
    try:
        encoder, file = _load_file_or_folder(source)
        names = encoder.modalities
        if names != model.encoder.modalities:
            expected = ", ".join(model.encoder.modalities)
            raise ConfigError(f"it encodes the modalities {', '.join(names)}, expected {expected}")
        load_weights(model.encoder, file, "this config's encoder")
        if run is not None:
            load_weights(model.head, path / HEAD_FILE, f"this config's head (to load only the encoder, use {file})")
    except ValueError as error:
        raise ConfigError(f"cannot initialize from {path}: {error}") from error
    return f"{origin}, encoder sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def _list_modules(encoder: nn.Module | Mapping[str, nn.Module] | None) -> Mapping[str, nn.Module]:
    return {} if encoder is None else {"": encoder} if isinstance(encoder, nn.Module) else encoder


def _is_run(path: Path) -> bool:
    """Return whether a path is that of a run, also if it does not exist: not a file or a folder of an encoder."""
    is_file = path.suffix == ".safetensors" and not path.is_dir()
    return (path / CONFIG_FILE).exists() or not (is_file or is_encoder_folder(path))


def _load_file_or_folder(
    path: Path, modules: Mapping[str, nn.Module] = MappingProxyType({})
) -> tuple[MultiViewEncoder, Path]:
    """Load the encoder of a file, or of a folder of `save_pretrained`; also return the file with its weights."""
    if path.is_dir():
        return load_encoder_folder(path, modules), path / WEIGHTS_FILE
    return load_encoder_file(path, modules), path


def _strip_folders(value: Any) -> Any:
    """Shorten absolute paths in a plain value of a config to their last part.

    Examples:
        >>> _strip_folders(["/home/me/photos", "text=hf:/home/me/bert", "image:2"])
        ['photos', 'text=hf:bert', 'image:2']
    """
    if isinstance(value, list):
        return [_strip_folders(part) for part in value]
    return re.sub(r"(^|[:=])/(.*/)?", r"\1", value) if isinstance(value, str) else value
