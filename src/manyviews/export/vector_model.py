"""`VectorModel`: the vector of each instance of a batch, from the representations or embeddings of its modalities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.evaluation import average_embeddings
from manyviews.models import Encoder, MultiViewHead, MultiViewModel, ViewBatch
from manyviews.runs import Run, load_encoder
from manyviews.utils import Device, check_finite, resolve_device

VectorKind = Literal["h", "z", "each-modality"]


class VectorModel:
    """Maps a batch with one view of each modality to vectors and a mask (B,) of the instances that have one.

    Args:
        model: an `Encoder`, or a `MultiViewModel` for z.
        kind: h, representations of the modalities, concatenated, with the mean of the training split in the place of
            missing ones, (B, K dim); z, the mean of the available unit embeddings, of unit norm, (B, out_dim); or
            each-modality, representations (B, K, dim), NaN where missing.
        modalities: the modalities that z is made of. Default: all.

    Raises:
        ValueError: the model has no embeddings, or not these modalities.
    """

    def __init__(self, model: Encoder | MultiViewModel, kind: VectorKind, modalities: Sequence[str] = ()) -> None:
        if kind == "z" and not (isinstance(model, MultiViewModel) and isinstance(model.head, MultiViewHead)):
            raise ValueError("z needs a model with projection heads: a supervised run or an encoder file has none")
        self.model, self.kind = model, kind
        self.encoder = model if isinstance(model, Encoder) else Encoder(model.encoder)
        names = self.encoder.modalities
        if unknown := [name for name in modalities if name not in names]:
            raise ValueError(f"there is no modality {unknown[0]!r}, only {', '.join(names)}")
        self.modalities = tuple(modalities)
        self.positions = [names.index(name) for name in modalities or names]

    @property
    def is_small(self) -> bool:
        """Whether no modality has images: more than one thread does not pay then."""
        return not self.encoder.config.largest_size

    @property
    def dim(self) -> int:
        """Dimension of a vector."""
        if self.kind == "h":
            return self.encoder.dim
        head = self.model.head if isinstance(self.model, MultiViewModel) else None
        return head.out_dim if self.kind == "z" and isinstance(head, MultiViewHead) else self.encoder.encoder.dim

    def __call__(self, batch: ViewBatch, owner: str = "the batch") -> tuple[Tensor, Tensor]:
        """Return vectors and the mask; `owner` is named in the error if a vector is not finite."""
        with torch.no_grad():
            if self.kind == "z":
                _, z = self.model(batch)
                z, mask = z.float()[:, self.positions], _get_mask(batch, z)[:, self.positions]
                vectors = normalize(average_embeddings(z, mask), dim=1)
            else:
                h = self.encoder.encoder(batch).float()
                mask = _get_mask(batch, h)
                vectors = self.encoder.encoder.fuse(h, mask) if self.kind == "h" else h
        check_finite(f"vectors of {owner}", vectors)
        if self.kind == "each-modality":
            vectors = vectors.masked_fill(~mask[..., None], torch.nan)
        return vectors.cpu(), mask.any(1).cpu()


def _get_mask(batch: ViewBatch, features: Tensor) -> Tensor:
    if batch.mask is None:
        return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    return batch.mask


def load_vector_model(
    path: str | Path, kind: VectorKind = "h", modalities: Sequence[str] = (), *, device: Device = "auto"
) -> VectorModel:
    """Load the model of a run, or of an encoder file unless `kind` is z, for its vectors; see `VectorModel`.

    Examples:
        >>> load_vector_model("runs/demo", "z").dim  # doctest: +SKIP
        128
    """
    target = resolve_device(device)
    if kind != "z":
        return VectorModel(load_encoder(path).to(target), kind, modalities)
    if not Path(path).expanduser().is_dir():
        raise ValueError(f"{path} has an encoder without a head: embeddings z need the directory of the run")
    return VectorModel(Run.open(path).load_model().to(target), kind, modalities)
