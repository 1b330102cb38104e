"""`Run`: a run directory, and methods that load its contents."""

import dataclasses
import hashlib
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor, nn

from manyviews.data import Dataset, DatasetDict
from manyviews.loading import ModalityLoader, encode_images, encode_multimodal
from manyviews.models import (
    Embedder,
    ImageEncoder,
    LateFusionHead,
    MultimodalEmbedder,
    MultimodalEncoder,
    PerModalityHeads,
    ProjectionHead,
    is_multimodal_file,
    load_image_encoder,
    load_multimodal_encoder,
    load_weights,
    read_first_dim,
)
from manyviews.training import (
    CONFIG_FILE,
    HEAD_FILE,
    LOG_FILE,
    METRICS_FILE,
    ConfigError,
    ImageTask,
    MultimodalTask,
    RunDirectory,
    limit_cpu_threads,
    load_data,
    make_task,
    read_metrics,
)
from manyviews.utils import LogEntry, read_log


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

    def read_metrics(self) -> list[dict[str, float]]:
        """Return one dictionary per step."""
        return read_metrics(self.path / METRICS_FILE)

    def read_log(self) -> list[LogEntry]:
        """Return the entries of log.txt."""
        return read_log(self.path / LOG_FILE)

    def load_data(self) -> DatasetDict:
        """Load the data that the run was trained on."""
        return load_data(self.config)

    def make_task(self, data: DatasetDict) -> ImageTask | MultimodalTask:
        """Return how the run trained on its data: the views, the training and monitored instances, the untrained model.

        Raises:
            ConfigError: config.yaml lacks fields that the config of a run always has.
        """
        if self.config.monitor_size is None:
            raise ConfigError("config.yaml does not specify monitor_size, as that of a run always does")
        return make_task(self.config, data)

    def limit_cpu_threads(self, data: DatasetDict) -> AbstractContextManager[None]:
        """Limit this process, which encodes data alone, to the CPU threads that the encoder can use."""
        return limit_cpu_threads(dataclasses.replace(self.config, devices=1), data)

    def load_encoder(self) -> ImageEncoder | MultimodalEncoder:
        """Load the trained encoder in evaluation mode: images of any size, or modalities -> representations."""
        encoder = _load_encoder_file(self.encoder_path)
        if isinstance(encoder, MultimodalEncoder) != (self.config.task == "multimodal"):
            raise ConfigError(f"{self.encoder_path} is not the encoder of a run with task {self.config.task}")
        return encoder

    def encode(
        self, split: Dataset, index: Tensor, device: torch.device, num_workers: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Encode instances: representations (n, d), fused if multimodal, and the indices (n,) of readable images."""
        encoder = self.load_encoder().to(device)
        if isinstance(encoder, MultimodalEncoder):
            return encoder.fuse(*encode_multimodal(encoder, ModalityLoader(split, encoder.names), index)), index
        return encode_images(encoder.encoder, split.images, index, encoder.size, num_workers)

    def load_model(self) -> Embedder | MultimodalEmbedder:
        """Load the trained encoder and head in evaluation mode: views -> representations and embeddings."""
        encoder, config, head_path = self.load_encoder(), self.config, self.path / HEAD_FILE
        with torch.device("meta"):  # do not allocate memory for a size that only the config states
            if isinstance(encoder, ImageEncoder):
                head: nn.Module = ProjectionHead(encoder.dim, out_dim=config.embed_dim)
                expected = f"a projection from {encoder.dim} to {config.embed_dim} dimensions"
            else:
                count, expected = len(encoder.names), f"heads of {len(encoder.names)} modalities"
                if config.supervised:
                    head = LateFusionHead(count, encoder.dim, read_first_dim(head_path, "linear.weight"))
                else:
                    head = PerModalityHeads(count, encoder.dim, config.embed_dim)
        load_weights(head, head_path, expected)
        if isinstance(encoder, ImageEncoder):
            per_view = config.per_view_batch_norm
            model: Embedder | MultimodalEmbedder = Embedder(encoder.encoder, head, per_view_batch_norm=per_view)
        else:
            model = MultimodalEmbedder(encoder, head)
        return model.eval().requires_grad_(False)


def load_encoder(path: str | Path) -> ImageEncoder | MultimodalEncoder:
    """Load the encoder of a run, or a file written by `manyviews export RUN safetensors`.

    Args:
        path: a run directory, or a .safetensors file.

    Returns:
        an encoder in evaluation mode. Image encoder: images (B, C, H, W) of any size, or a list of files ->
        representations (B, dim). Multimodal encoder: a batch of `ModalityLoader` -> representations (B, N, dim).

    Raises:
        ValueError: there is no encoder, or the weights do not fit the architecture.

    Examples:
        >>> encoder = load_encoder("runs/demo")             # doctest: +SKIP
        >>> encoder(["a.jpg", "b.jpg"]).shape               # doctest: +SKIP
        torch.Size([2, 192])
    """
    path = Path(path).expanduser()
    return _load_encoder_file(path) if _is_encoder_file(path) else Run.open(path).load_encoder()


def init_from_run(model: Embedder | MultimodalEmbedder, path: Path) -> str:
    """Load the weights of a finished run, or of an encoder file, into a model; return a description of their origin.

    Raises:
        ConfigError: there are no weights, or they do not fit the architecture.
    """
    is_file, file, origin = _is_encoder_file(path), path, str(path)
    if not is_file:
        run = Run.open(path)
        file, origin = run.encoder_path, f"{path}, run {run.run_id}"
    try:
        if isinstance(model, MultimodalEmbedder):
            names = load_multimodal_encoder(file).names
            if names != model.encoder.names:
                expected = ", ".join(model.encoder.names)
                raise ConfigError(f"it encodes the modalities {', '.join(names)}, expected {expected}")
        elif is_multimodal_file(file):
            raise ConfigError("it is a multimodal encoder, expected an image encoder")
        load_weights(model.encoder, file, "this config's encoder")
        if not is_file:
            load_weights(model.head, path / HEAD_FILE, f"this config's head (to load only the encoder, use {file})")
    except ValueError as error:
        raise ConfigError(f"cannot initialize from {path}: {error}") from error
    return f"{origin}, encoder sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def _is_encoder_file(path: Path) -> bool:
    return path.suffix == ".safetensors" and not path.is_dir()


def _load_encoder_file(path: Path) -> ImageEncoder | MultimodalEncoder:
    if is_multimodal_file(path):
        return load_multimodal_encoder(path)
    encoder, config = load_image_encoder(path)
    return ImageEncoder(encoder, config.size)
