"""Embedder: views -> representations h -> embeddings z."""

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

    def __init__(self, in_dim: int, hidden_dim: int | None = None, out_dim: int = 128) -> None:
        hidden_dim = in_dim if hidden_dim is None else hidden_dim
        last = nn.BatchNorm1d(out_dim)
        last.bias.requires_grad_(False)
        first, second = nn.Linear(in_dim, hidden_dim, bias=False), nn.Linear(hidden_dim, out_dim, bias=False)
        super().__init__(first, nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True), second, last)


class EmbedderOutput(NamedTuple):
    """Representations h (B, N, dim) and embeddings z (B, N, out)."""

    h: Tensor
    z: Tensor


class Embedder(nn.Module):
    """An encoder and a projection head.

    Maps views (B, N, C, H, W), or a sequence of such groups of different sizes, to h and z of all N views. Views of one
    size form one batch, so batch norm uses the statistics of all views together, as in the released code. With
    `per_view_batch_norm`, the encoder runs once per view: batch norm then normalizes each view with its own statistics
    and updates its running statistics N times per step.

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
        per_view_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = ProjectionHead(get_representation_dim(encoder) if dim is None else dim) if head is None else head
        self.per_view_batch_norm = per_view_batch_norm

    def forward(self, views: Tensor | Sequence[Tensor]) -> EmbedderOutput:
        groups = [views] if isinstance(views, Tensor) else list(views)
        for group in groups:
            if group.dim() != 5 or len(group) != len(groups[0]):
                shapes = ", ".join(str(tuple(g.shape)) for g in groups)
                raise ValueError(f"views must be (instances, views, channels, height, width), got {shapes}")
        h = torch.cat(self._encode_groups(groups), 1)
        return EmbedderOutput(h, self._apply_to_views(self.head, h))

    def _encode_groups(self, groups: list[Tensor]) -> list[Tensor]:
        """Return h of each group; groups of one size form one batch."""
        out: dict[int, Tensor] = {}
        for size in dict.fromkeys(group.shape[2:] for group in groups):
            same_size = [i for i, group in enumerate(groups) if group.shape[2:] == size]
            views = torch.cat([groups[i] for i in same_size], 1) if len(same_size) > 1 else groups[same_size[0]]
            h = self._apply_to_views(self.encoder, views)
            out |= zip(same_size, h.split([groups[i].shape[1] for i in same_size], 1), strict=True)
        return [out[i] for i in range(len(groups))]

    def _apply_to_views(self, module: nn.Module, views: Tensor) -> Tensor:
        """Apply a module to views (B, N, ...) as one batch, or to one view after the other."""
        if self.per_view_batch_norm:
            return torch.stack([module(view) for view in views.unbind(1)], 1)
        return module(views.flatten(0, 1)).unflatten(0, views.shape[:2])
