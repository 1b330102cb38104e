"""`Run`: a run directory, and methods that load its contents."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from manyviews.data import DatasetDict
from manyviews.models import (
    Embedder,
    ImageEncoder,
    LateFusionHead,
    MultimodalEmbedder,
    MultimodalEncoder,
    PerModalityHeads,
    ProjectionHead,
    get_representation_dim,
    is_multimodal_file,
    load_image_encoder,
    load_multimodal_encoder,
    load_weights,
    read_first_dim,
)
from manyviews.training import (
    HEAD_FILE,
    ConfigError,
    RunDirectory,
    load_data,
    read_metrics,
)


class Run(RunDirectory):
    """A directory with the config, metrics, checkpoints and results of one training.

    Examples:
        >>> import manyviews as mv
        >>> run = mv.train(mv.Config(epochs=1), output="runs/mine")  # doctest: +SKIP
        >>> run.load_encoder()(["a.jpg"]).shape                      # doctest: +SKIP
        torch.Size([1, 192])
    """

    def read_metrics(self) -> list[dict[str, float]]:
        """Return one dictionary per step."""
        return read_metrics(self.path / "metrics.csv")

    def load_data(self) -> DatasetDict:
        """Load the data that the run was trained on."""
        return load_data(self.config)

    def load_encoder(self) -> ImageEncoder | MultimodalEncoder:
        """Load the trained encoder in evaluation mode: images of any size, or modalities -> representations."""
        return _load_encoder_file(self.encoder_path)

    def load_model(self) -> Embedder | MultimodalEmbedder:
        """Load the trained encoder and head in evaluation mode: views -> representations and embeddings."""
        if self.config.task == "multimodal":
            return self._load_multimodal_model()
        encoder, encoder_config = load_image_encoder(self.encoder_path)
        size = encoder_config.size
        dim = get_representation_dim(encoder, torch.zeros(1, 3, size, size))
        with torch.device("meta"):  # do not allocate memory for a size that only the config states
            head = ProjectionHead(dim, out_dim=self.config.embed_dim)
        load_weights(head, self.path / HEAD_FILE, f"a projection from {dim} to {self.config.embed_dim} dimensions")
        return Embedder(encoder, head, per_view_batch_norm=self.config.per_view_batch_norm).eval().requires_grad_(False)

    def _load_multimodal_model(self) -> MultimodalEmbedder:
        encoder = load_multimodal_encoder(self.encoder_path)
        count = len(encoder.names)
        with torch.device("meta"):
            head: nn.Module = PerModalityHeads(count, encoder.dim, self.config.embed_dim)
            if self.config.supervised:
                head = LateFusionHead(count, encoder.dim, read_first_dim(self.path / HEAD_FILE, "linear.weight"))
        load_weights(head, self.path / HEAD_FILE, f"heads of {count} modalities")
        return MultimodalEmbedder(encoder, head).eval().requires_grad_(False)


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
    if path.suffix == ".safetensors" and not path.is_dir():
        return _load_encoder_file(path)
    return Run.open(path).load_encoder()


def init_from_run(model: Embedder | MultimodalEmbedder, path: Path) -> str:
    """Load the weights of a finished run, or of an encoder file, into a model; return a description of their origin.

    Raises:
        ConfigError: there are no weights, or they do not fit the architecture.
    """
    is_file = path.suffix == ".safetensors" and not path.is_dir()
    file, origin = path, str(path)
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


def _load_encoder_file(path: Path) -> ImageEncoder | MultimodalEncoder:
    if is_multimodal_file(path):
        return load_multimodal_encoder(path)
    encoder, config = load_image_encoder(path)
    return ImageEncoder(encoder, config.size)
