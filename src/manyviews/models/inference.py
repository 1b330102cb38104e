"""`Encoder`: a trained encoder with its preprocessing, for data as users have them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from manyviews.data import KINDS, BatchColumn, DatasetError, Media, pil_to_tensor, read_image
from manyviews.models.encoder_config import EncoderSpec
from manyviews.models.encoder_folder import save_encoder_folder
from manyviews.models.hub import HUB_PREFIX, upload_encoder
from manyviews.models.model_card import TrainingRecord, make_model_card
from manyviews.models.multi_view import AdaptedEncoder, MultiViewEncoder
from manyviews.models.view_batch import ViewBatch, ViewGroup
from manyviews.transforms import center_crop_batch, load_clips
from manyviews.utils import describe_type

ImageLike = Tensor | Image.Image | str | Path
Values = Tensor | Sequence[Any]
"""Values of one modality. Images: uint8 (B, C, H, W) of any size, floats in [0, 1] of the encoder's size, or a list of
file names, PIL images and uint8 (C, H, W). Texts: a list of strings. Vectors (B, d). Sequences: (B, T, d), or a list of
(T, d). Audio: a list of file names, or of float waveforms (T,) in [-1, 1] at the encoder's sampling rate, which are not
cut. Videos: a list of file names."""
Preprocessed = tuple[Tensor, Tensor | None, Tensor]
"""Rows (P, ...) of the instances that have a modality, their lengths (P,), and the mask (B,)."""


class Encoder(nn.Module):
    """A trained encoder with its preprocessing: maps data to representations (B, dim).

    Call it with the values of its modality or, if it has several, with a dict of them. Modalities that are not in the
    dict are missing; the representation of an instance is then the concatenation of its modalities' representations,
    (B, modalities x dim), with the mean of the training split in the place of missing ones.

    Args:
        encoder: the encoders, built by `MultiViewEncoder.from_config`.
        describe_training: makes the part of the model card about the training. Default: the card has no such part.

    Examples:
        >>> from manyviews.models import MultiViewEncoder, EncoderConfig, EncoderSpec, build_encoder
        >>> spec = EncoderSpec("image", "resnet-small", size=32)
        >>> config = EncoderConfig({"image": spec}, {"image": "image"})
        >>> encoder = Encoder(MultiViewEncoder.from_config(config))
        >>> encoder(torch.zeros(5, 3, 100, 80, dtype=torch.uint8)).shape
        torch.Size([5, 192])
    """

    def __init__(
        self, encoder: MultiViewEncoder, describe_training: Callable[[], TrainingRecord] | None = None
    ) -> None:
        super().__init__()
        if encoder.config is None:
            raise ValueError("the encoder has no config: build it with MultiViewEncoder.from_config")
        self.encoder, self.config, self.describe_training = encoder, encoder.config, describe_training
        self.eval().requires_grad_(False)

    @property
    def modalities(self) -> tuple[str, ...]:
        return self.encoder.modalities

    @property
    def dim(self) -> int:
        """Dimension of the representation of an instance."""
        return self.encoder.dim * len(self.modalities)

    def get_image_modality(self) -> str:
        """Return the modality that image files are of: the first one of images.

        Raises:
            ValueError: the encoder has none.
        """
        images = self.config.list_modalities("image")
        if not images:
            raise ValueError(f"the encoder has no modality of images, only {', '.join(self.modalities)}")
        return images[0]

    def get_image_encoder(self, modality: str | None = None) -> tuple[AdaptedEncoder, EncoderSpec]:
        """Return the module that encodes a modality of images (default: the first one), and how it was built."""
        modality = modality or self.get_image_modality()
        if modality not in self.config.list_modalities("image"):
            names = ", ".join(self.config.list_modalities("image")) or "none"
            raise ValueError(f"there is no modality of images {modality!r}, only {names}")
        name = self.config.modalities[modality]
        return self.encoder.get_adapted_encoder(name), self.config.encoders[name]

    def forward(self, values: Values | Mapping[str, Values]) -> Tensor:
        if not isinstance(values, Mapping):
            if len(self.modalities) > 1:
                names = ", ".join(self.modalities)
                raise ValueError(f"expected a dict with some of the modalities {names}, got {describe_type(values)}")
            values = {self.modalities[0]: values}
        h, mask = self.encode(values)
        return self.encoder.fuse(h, mask)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `load_encoder` and others read: weights, config with preprocessing, and a model card.

        The files of an earlier encoder in the folder are replaced, except README.md, which you may have edited.

        Raises:
            EncoderError: the folder cannot be written, or has a model of another library.

        Examples:
            >>> encoder.save_pretrained("birds")  # doctest: +SKIP
            >>> mv.load_encoder("birds")          # doctest: +SKIP
        """
        folder = Path(folder).expanduser()
        self._save(folder, folder.resolve().name, "FOLDER")

    def push_to_hub(
        self, repo: str, *, private: bool | None = None, token: str | None = None, commit_message: str | None = None
    ) -> str:
        """Upload the files of `save_pretrained` to the Hugging Face Hub (extra `hf`); return the commit's address.

        Args:
            repo: `org/name`. It is created if it does not exist; a README.md that it has is kept.
            private: whether a new repository is private. Default: what the organization has set.
            token: an access token. Default: that of `hf auth login` or of the environment variable HF_TOKEN.
            commit_message: the message of the commit. Default: one with the version of manyviews.

        Raises:
            EncoderError: the Hub cannot be reached, or refuses.

        Examples:
            >>> encoder.push_to_hub("me/birds", private=True)  # doctest: +SKIP
        """

        def save(folder: Path, name: str) -> None:
            self._save(folder, name, HUB_PREFIX + name)

        return upload_encoder(repo, save, private=private, token=token, commit_message=commit_message)

    def _save(self, folder: Path, name: str, source: str) -> None:
        record = None if self.describe_training is None else self.describe_training()
        save_encoder_folder(folder, self.encoder, make_model_card(self.encoder, name, source, record))

    def encode(self, values: Mapping[str, Values]) -> tuple[Tensor, Tensor]:
        """Return the representations h (B, K, dim) of the K modalities, and their mask (B, K)."""
        batch = self.make_batch(values)
        h = self.encoder(batch)
        mask = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device) if batch.mask is None else batch.mask
        return h, mask

    def make_batch(self, values: Mapping[str, Values]) -> ViewBatch:
        """Preprocess values by modality as a batch with one view of each modality; others are missing."""
        if unknown := [name for name in values if name not in self.modalities]:
            raise ValueError(f"there is no modality {unknown[0]!r}, only {', '.join(self.modalities)}")
        counts = {name: len(part) for name, part in values.items()}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            raise ValueError(f"all modalities must have the same number of instances, at least one, got {counts}")
        reference = next(self.encoder.parameters(), self.encoder.mean_representation)
        count, groups = next(iter(counts.values())), []
        mask = torch.zeros(count, len(self.modalities), dtype=torch.bool)
        for i, name in enumerate(self.modalities):
            part, lengths = reference.new_zeros(0), None
            if name in values:
                part, lengths, mask[:, i] = self._preprocess(name, values[name])
            groups.append(ViewGroup(self.config.modalities[name], (i,), part, lengths))
        return ViewBatch(tuple(groups), torch.arange(count), None if mask.all() else mask).to(reference)

    def _preprocess(self, name: str, values: Values) -> Preprocessed:
        """Return the rows (P, ...) of the instances that have a modality, their lengths (P,), and the mask (B,)."""
        spec = self.config.get_spec(name)
        return PREPROCESSORS.get(spec.kind, _preprocess_column)(name, values, spec)


def _preprocess_column(name: str, values: Values, spec: EncoderSpec) -> Preprocessed:
    """Make a batch of values by the column class of their kind."""
    try:
        column = cast("type[BatchColumn]", KINDS[spec.kind]).from_values(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a {spec.kind} for each instance: {error}") from error
    spec.check_column(name, column)
    column = column.prepare(spec.preprocessing)
    mask = column.get_mask()  # an empty text is missing
    return *column.load(mask.nonzero().squeeze(1)), mask


def _preprocess_images(_name: str, values: Values, spec: EncoderSpec) -> Preprocessed:
    return preprocess_images(values, spec.size), None, torch.ones(len(values), dtype=torch.bool)


def _preprocess_recordings(name: str, values: Values, spec: EncoderSpec) -> Preprocessed:
    """Decode the recordings in files, as in evaluation."""
    try:
        column = cast("type[Media]", KINDS[spec.kind]).from_values(values).prepare(spec.preprocessing)
    except DatasetError as error:
        raise ValueError(f"{name} must be {spec.kind} for each instance: {error}") from error
    return *load_clips(column, spec.size), column.get_mask()


def _preprocess_audio(name: str, values: Values, spec: EncoderSpec) -> Preprocessed:
    """Take waveforms (T,) in [-1, 1] at the rate of the encoder as they are, and decode files."""
    if not any(isinstance(value, Tensor) for value in values):
        return _preprocess_recordings(name, values, spec)
    waves = [torch.as_tensor(value) for value in values]
    if any(wave.dim() != 1 or not len(wave) or not wave.is_floating_point() for wave in waves):
        shapes = ", ".join(f"{wave.dtype} {tuple(wave.shape)}" for wave in waves[:3])
        raise ValueError(f"{name} must be paths or float waveforms (T,), got {shapes}")
    lengths = torch.tensor([len(wave) for wave in waves])
    return pad_sequence(waves, batch_first=True), lengths, torch.ones(len(waves), dtype=torch.bool)


PREPROCESSORS: dict[str, Callable[[str, Values, EncoderSpec], Preprocessed]] = {
    "image": _preprocess_images, "audio": _preprocess_audio, "video": _preprocess_recordings,
}  # fmt: skip
"""Preprocessing of a user's values by kind; the default is that of their column class."""


def preprocess_images(images: Values, size: int) -> Tensor:
    """Center-crop and resize images to floats in [0, 1] (B, C, size, size), as in evaluation."""
    if not isinstance(images, Tensor):
        if isinstance(images, (str, Path)) or not isinstance(images, Sequence) or not len(images):
            got = f"{images!r}" if isinstance(images, (str, Path, list)) else type(images).__name__
            raise ValueError(f"images must be a tensor or a list of images, got {got}")
        return center_crop_batch([_load_image(image).expand(3, -1, -1) for image in images], size)
    if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(f"images must be (B, 1 or 3, height, width), got {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return center_crop_batch(images, size)
    if not images.is_floating_point() or images.shape[2:] != (size, size):
        got = f"{images.dtype} {tuple(images.shape)}"
        raise ValueError(f"images must be uint8 of any size, or floats in [0, 1] of {size} x {size}, got {got}")
    low, high = images.aminmax()
    if not (low > -0.01 and high < 1.01):
        raise ValueError(f"float images must be in [0, 1], got values from {low} to {high}: divide by 255?")
    return images


def _load_image(image: ImageLike) -> Tensor:
    if isinstance(image, (str, Path)):
        if not Path(image).is_file():
            raise DatasetError(f"no such file: {image}")
        return read_image(Path(image))
    if isinstance(image, Image.Image):
        return pil_to_tensor(image)
    is_bytes = isinstance(image, Tensor) and image.dtype == torch.uint8 and image.numel() > 0
    if is_bytes and image.dim() == 3 and image.shape[0] in (1, 3):
        return image
    got = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
    raise ValueError(f"an image must be a path, a PIL image or uint8 (1 or 3, height, width), got {got}")
