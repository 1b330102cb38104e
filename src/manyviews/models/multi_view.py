"""`MultiViewModel`: the views of a batch -> representations h (B, N, dim) -> embeddings z (B, N, out_dim)."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manyviews.data import KINDS
from manyviews.models.encoder_config import CUSTOM, EncoderConfig, build_encoder
from manyviews.models.encoders import eval_mode, get_representation_dim, switch_to_eval
from manyviews.models.heads import LateFusionHead, ProjectionHead
from manyviews.models.view_batch import ViewBatch
from manyviews.utils import describe_type

DEFAULT_DIM = 128
"""Dimension of representations if the encoders have different ones."""


class ModelOutput(NamedTuple):
    """Representations h (B, N, dim) and embeddings z (B, N, out_dim)."""

    h: Tensor
    z: Tensor


class MultiViewEncoder(nn.Module):
    """One encoder for each kind of data or modality: maps a batch to representations h (B, N, dim).

    Views of one encoder and one shape form one batch, so batch norm uses the statistics of all of them together, as in
    the released code. Absent views are not encoded; their h is zero.

    Args:
        encoders: modules by name, from views (P, ...), and lengths (P,) of sequences and texts, to (P, n). A linear
            layer maps n to `dim` where they differ.
        modalities: the name of the encoder of each modality. Default: each encoder has the modality of its name.
        dim: dimension of the representations. Default: that of the encoders, or 128 if theirs differ.
        encoder_dims: output dimension n of encoders without an attribute `dim`.
        per_view_batch_norm: run encoders once per view: batch norm then normalizes each view with its own statistics
            and updates its running statistics N times per step.

    Examples:
        >>> flat = nn.Sequential(nn.Flatten(), nn.Linear(48, 8))
        >>> encoder = MultiViewEncoder({"image": flat}, encoder_dims={"image": 8})
        >>> encoder(ViewBatch.from_views(torch.rand(5, 3, 3, 4, 4), "image")).shape
        torch.Size([5, 3, 8])
    """

    config: EncoderConfig | None = None
    """How the encoders were built; None if they are modules of a user."""

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        modalities: Mapping[str, str] | None = None,
        *,
        dim: int | None = None,
        encoder_dims: Mapping[str, int] = MappingProxyType({}),
        per_view_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.names = tuple(encoders)
        self.encoder_of_modality = dict(modalities or {name: name for name in encoders})
        if not encoders:
            raise ValueError("a MultiViewEncoder needs at least one encoder")
        if unknown := [name for name in encoder_dims if name not in encoders]:
            raise ValueError(f"no encoder {unknown[0]!r}: there are encoders {', '.join(encoders)}")
        if set(self.encoder_of_modality.values()) != set(encoders):
            raise ValueError(
                f"every encoder needs a modality, and every modality an encoder: got encoders {', '.join(encoders)} "
                f"for {', '.join(f'{key} ({name})' for key, name in self.encoder_of_modality.items())}"
            )
        dims = [encoder_dims.get(name) or _get_dim(name, encoder) for name, encoder in encoders.items()]
        self.dim = dim or (dims[0] if len(set(dims)) == 1 else DEFAULT_DIM)
        self.encoders = nn.ModuleList(
            [AdaptedEncoder(encoder, n, self.dim) for encoder, n in zip(encoders.values(), dims, strict=True)]
        )
        self.per_view_batch_norm = per_view_batch_norm
        self.register_buffer("mean_representation", torch.zeros(len(self.modalities), self.dim))
        self.mean_representation: Tensor
        """Mean representation (modalities, dim) of the training split; `fuse` uses it for missing modalities."""

    @classmethod
    def from_config(
        cls,
        config: EncoderConfig,
        *,
        per_view_batch_norm: bool = False,
        modules: Mapping[str, nn.Module] = MappingProxyType({}),
    ) -> "MultiViewEncoder":
        """Build the encoders of a config, with random weights; `modules` are those that a user has built."""
        encoders = {
            name: modules[name] if name in modules else build_encoder(spec) for name, spec in config.encoders.items()
        }
        dims = {
            name: spec.options.get("dim") or _get_dim(name, encoders[name], KINDS[spec.kind].make_example(spec.size))
            for name, spec in config.encoders.items()
        }
        custom = {
            name: replace(spec, options={"dim": dims[name]})
            for name, spec in config.encoders.items()
            if spec.name == CUSTOM
        }
        config = replace(config, encoders={**config.encoders, **custom})
        encoder = cls(
            encoders, config.modalities, dim=config.dim, encoder_dims=dims, per_view_batch_norm=per_view_batch_norm
        )
        encoder.config = config
        return encoder

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self.encoder_of_modality)

    def get_encoder(self, name: str) -> nn.Module:
        """Return the encoder of this name, without the linear layer that adapts its dimension."""
        return self.get_adapted_encoder(name).encoder

    def get_adapted_encoder(self, name: str) -> "AdaptedEncoder":
        """Return the encoder of this name, with the linear layer."""
        if name not in self.names:
            raise ValueError(f"there is no encoder {name!r}, only {', '.join(self.names)}")
        module = self.encoders[self.names.index(name)]
        assert isinstance(module, AdaptedEncoder)
        return module

    def forward(self, batch: ViewBatch) -> Tensor:
        if not isinstance(batch, ViewBatch):
            got = describe_type(batch)
            raise TypeError(f"an encoder takes a ViewBatch, got {got}: use ViewBatch.from_views or a ViewLoader")
        shape = (batch.num_instances, batch.num_views)
        if batch.mask is not None and (batch.mask.dtype != torch.bool or batch.mask.shape != shape):
            raise ValueError(f"mask must be bool {shape}, got {batch.mask.dtype} {tuple(batch.mask.shape)}")
        rows = []
        for group in batch.groups:
            adapted = self.get_adapted_encoder(group.encoder)
            module = adapted.adapter if group.is_encoded else adapted
            rows.append(
                apply_to_rows(
                    module, group.values, batch, group.views, self.dim, self.per_view_batch_norm, group.lengths
                )
            )
        return batch.scatter(rows, [group.views for group in batch.groups])

    def fit_mean_representation(self, h: Tensor, mask: Tensor) -> None:
        """Set `mean_representation` to the mean of the representations h (n, K, dim) that exist."""
        if len(self.modalities) > 1:
            self.mean_representation.copy_(h.double().sum(0) / mask.sum(0).clamp_min(1)[:, None])

    def fuse(self, h: Tensor, mask: Tensor) -> Tensor:
        """Concatenate the representations (B, K, dim) of all K modalities to (B, K dim), one view of each.

        The mean of the training split replaces missing ones (late fusion).
        """
        return torch.where(mask[..., None], h, self.mean_representation.to(h)).flatten(1)


class AdaptedEncoder(nn.Module):
    """An encoder and, if its output has another dimension, a linear layer."""

    def __init__(self, encoder: nn.Module, encoder_dim: int, dim: int) -> None:
        super().__init__()
        self.encoder, self.encoder_dim = encoder, encoder_dim
        self.adapter = nn.Identity() if encoder_dim == dim else nn.Linear(encoder_dim, dim)

    def forward(self, views: Tensor, lengths: Tensor | None = None) -> Tensor:
        adapted: Tensor = self.adapter(self.encode(views, lengths))
        return adapted

    def encode(self, views: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the output (P, encoder_dim) of the encoder."""
        h: Tensor = self.encoder(views) if lengths is None else self.encoder(views, lengths)
        if h.dim() != 2 or h.shape[1] != self.encoder_dim:
            got = f"views {tuple(views.shape)} to {tuple(h.shape)}"
            raise ValueError(f"an encoder must map views (P, ...) to (P, {self.encoder_dim}), this one maps {got}")
        return h


class MultiViewHead(nn.Module):
    """A head for each encoder: maps representations h (B, N, dim) of a batch to embeddings z (B, N, out_dim).

    Examples:
        >>> batch = ViewBatch.from_views(torch.rand(5, 3, 8), "audio")
        >>> MultiViewHead({"audio": ProjectionHead(8)})(torch.randn(5, 3, 8), batch).shape
        torch.Size([5, 3, 128])
    """

    def __init__(
        self, heads: Mapping[str, nn.Module], out_dim: int = 128, *, per_view_batch_norm: bool = False
    ) -> None:
        super().__init__()
        self.names, self.heads, self.out_dim = tuple(heads), nn.ModuleList(heads.values()), out_dim
        self.per_view_batch_norm = per_view_batch_norm

    def forward(self, h: Tensor, batch: ViewBatch) -> Tensor:
        views: dict[str, list[int]] = {}
        for group in batch.groups:
            views.setdefault(group.encoder, []).extend(group.views)
        rows, positions = [], [sorted(part) for part in views.values()]
        for name, part in zip(views, positions, strict=True):
            head = self.heads[self.names.index(name)]
            rows.append(apply_to_rows(head, batch.gather(h, part), batch, part, self.out_dim, self.per_view_batch_norm))
        return batch.scatter(rows, positions)


class MultiViewModel(nn.Module):
    """Encoders and heads: maps a batch of views to representations h (B, N, dim) and embeddings z (B, N, out_dim).

    Args:
        encoder: a `MultiViewEncoder`, or one module for all views.
        head: a `MultiViewHead` or, for one encoder, any module from (P, dim) to (P, out_dim). Default: a
            `ProjectionHead` for each encoder.
        dim: dimension of the representations, if it cannot be inferred from the module.
        per_view_batch_norm: see `MultiViewEncoder`.

    Examples:
        >>> model = MultiViewModel(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), dim=8)
        >>> h, z = model(torch.rand(5, 3, 3, 4, 4))
        >>> h.shape, z.shape
        (torch.Size([5, 3, 8]), torch.Size([5, 3, 128]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module | None = None,
        *,
        dim: int | None = None,
        per_view_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(encoder, MultiViewEncoder):
            dims = {} if dim is None else {"": dim}
            encoder = MultiViewEncoder({"": encoder}, encoder_dims=dims, per_view_batch_norm=per_view_batch_norm)
        self.encoder = encoder
        if head is None:
            heads = {name: ProjectionHead(encoder.dim) for name in encoder.names}
            head = MultiViewHead(heads, per_view_batch_norm=per_view_batch_norm)
        elif not isinstance(head, MultiViewHead | LateFusionHead):
            if len(encoder.names) > 1:
                raise ValueError("several encoders need a MultiViewHead, with a head for each of them")
            with eval_mode(head) as reference:
                out_dim = head(torch.zeros(2, encoder.dim).to(reference)).shape[1]
            head = MultiViewHead({encoder.names[0]: head}, out_dim, per_view_batch_norm=per_view_batch_norm)
        self.head = head

    def forward(self, views: ViewBatch | Tensor | Sequence[Tensor]) -> ModelOutput:
        """Embed a batch; views (B, N, ...), or a list of such groups of different shapes, if there is one encoder."""
        if not isinstance(views, ViewBatch):
            views = ViewBatch.from_views(views, self.encoder.names[0])
            if len(names := self.encoder.names) > 1:
                raise ValueError(
                    f"views of {len(names)} encoders, {', '.join(names)}, must be a ViewBatch: use a ViewLoader"
                )
        h = self.encoder(views)
        return ModelOutput(h, self.head(h, views))


def apply_to_rows(
    module: nn.Module,
    rows: Tensor,
    batch: ViewBatch,
    views: Sequence[int],
    out_dim: int,
    per_view: bool = False,
    lengths: Tensor | None = None,
) -> Tensor:
    """Apply a module to the rows (P, ...) of some views of a batch, in one call or, if `per_view`, in one per view.

    A single row has no batch statistics: batch norm then uses its running statistics.
    """
    if per_view and len(views) > 1:
        number = torch.arange(len(views)).repeat(batch.num_instances)
        if batch.mask is not None:
            number = batch.mask[:, list(views)].nonzero()[:, 1]
        parts = [(number == i).nonzero().squeeze(1).to(rows.device) for i in range(len(views))]
        outputs = [
            apply_to_rows(module, rows[part], batch, [], out_dim, False, None if lengths is None else lengths[part])
            for part in parts
        ]
        return torch.cat(outputs)[torch.cat(parts).argsort()]
    if not len(rows):
        # DDP expects a gradient for each parameter, so even an empty result depends on all of them.
        zero: Tensor = sum((p.sum() * 0 for p in module.parameters()), torch.zeros((), device=rows.device))
        return zero.expand(0, out_dim)
    with switch_to_eval(module, _BatchNorm) if len(rows) == 1 else nullcontext():
        output: Tensor = module(rows) if lengths is None else module(rows, lengths)
    return output


def _get_dim(name: str, encoder: nn.Module, image: Tensor | None = None) -> int:
    try:
        return get_representation_dim(encoder, image)
    except ValueError as error:
        hint = f"pass encoder_dims={{{name!r}: ...}}" if name else "pass dim=..."
        raise ValueError(
            f"cannot infer the dimension of the representations of {name or 'the encoder'} ({error}): {hint}"
        ) from error
