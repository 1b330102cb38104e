"""Embedder: views -> representations h -> embeddings z."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyviews.models.encoders import get_representation_dim


class ProjectionHead(nn.Sequential):
    """The paper's projection head: linear, batch norm, ReLU, linear, batch norm without a bias.

    Examples:
        >>> ProjectionHead(512)(torch.randn(4, 512)).shape
        torch.Size([4, 128])
    """

    def __init__(self, dim: int, hidden: int | None = None, out: int = 128) -> None:
        hidden = dim if hidden is None else hidden
        last = nn.BatchNorm1d(out)
        last.bias.requires_grad_(False)
        super().__init__(
            nn.Linear(dim, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, out, bias=False),
            last,
        )


class EmbedderOutput(NamedTuple):
    """Representations h (B, N, dim) and embeddings z (B, N, out)."""

    h: Tensor
    z: Tensor


class Embedder(nn.Module):
    """An encoder and a projection head.

    Maps views (B, N, C, H, W), or a sequence of such groups of different sizes, to h and z of all N views. Views of one
    size form one batch, so batch norm uses the statistics of all views together, as in the released code. With
    `each_view`, the encoder runs once per view: batch norm then normalizes each view with its own statistics and
    updates its running statistics N times per step.

    Examples:
        >>> embedder = Embedder(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), dim=8)
        >>> h, z = embedder(torch.rand(5, 3, 3, 4, 4))
        >>> h.shape, z.shape
        (torch.Size([5, 3, 8]), torch.Size([5, 3, 128]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module | None = None,
        *,
        dim: int | None = None,
        each_view: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = ProjectionHead(get_representation_dim(encoder) if dim is None else dim) if head is None else head
        self.per_view_batch_norm = each_view

    def forward(self, views: Tensor | Sequence[Tensor]) -> EmbedderOutput:
        groups = [views] if isinstance(views, Tensor) else list(views)
        for group in groups:
            if group.dim() != 5 or len(group) != len(groups[0]):
                shapes = ", ".join(str(tuple(g.shape)) for g in groups)
                raise ValueError(f"views must be (instances, views, channels, height, width), got {shapes}")
        h = torch.cat(self._encode_groups(groups), 1)
        if self.per_view_batch_norm:
            return EmbedderOutput(h, torch.stack([self.head(view) for view in h.unbind(1)], 1))
        return EmbedderOutput(h, self.head(h.flatten(0, 1)).unflatten(0, h.shape[:2]))

    def _encode_groups(self, groups: list[Tensor]) -> list[Tensor]:
        """Return h of each group; groups of one size form one batch."""
        out: dict[int, Tensor] = {}
        for size in dict.fromkeys(group.shape[2:] for group in groups):
            same_size = [i for i, group in enumerate(groups) if group.shape[2:] == size]
            views = torch.cat([groups[i] for i in same_size], 1) if len(same_size) > 1 else groups[same_size[0]]
            if self.per_view_batch_norm:
                h = torch.stack([self.encoder(view) for view in views.unbind(1)], 1)
            else:
                h = self.encoder(views.flatten(0, 1)).unflatten(0, views.shape[:2])
            out |= zip(same_size, h.split([groups[i].shape[1] for i in same_size], 1), strict=True)
        return [out[i] for i in range(len(groups))]
