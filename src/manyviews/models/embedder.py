"""Views -> representations h -> embeddings z."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyviews.models.encoders import representation_dim


class ProjectionHead(nn.Sequential):
    """Linear, batch norm, ReLU, linear, batch norm without a bias: the paper's projection, to 128.

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


class Embedded(NamedTuple):
    """What becomes of views: representations (B, N, dim) and embeddings (B, N, out)."""

    h: Tensor
    z: Tensor


class Embedder(nn.Module):
    """An encoder and a projection head.

    Views (B, N, C, H, W), or a sequence of such groups of different sizes, become h and z of all N views. The views
    of one size go through the encoder in one batch, so that batch norm sees all views together, as the released code
    does. With `each_view` they go one after another: batch norm then normalises each view by its own statistics,
    which lets it tell views apart, and its running statistics are updated N times a step.

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
        self.head = ProjectionHead(representation_dim(encoder) if dim is None else dim) if head is None else head
        self.each_view = each_view

    def forward(self, views: Tensor | Sequence[Tensor]) -> Embedded:
        groups = [views] if isinstance(views, Tensor) else list(views)
        for group in groups:
            if group.dim() != 5 or len(group) != len(groups[0]):
                shapes = ", ".join(str(tuple(g.shape)) for g in groups)
                raise ValueError(f"views must be (instances, views, channels, height, width), got {shapes}")
        # The head is small: it sees all views at once even when the encoder runs once a size.
        h = torch.cat(self._representations(groups), 1)
        if self.each_view:
            return Embedded(h, torch.stack([self.head(view) for view in h.unbind(1)], 1))
        return Embedded(h, self.head(h.flatten(0, 1)).unflatten(0, h.shape[:2]))

    def _representations(self, groups: list[Tensor]) -> list[Tensor]:
        """H of each group; groups of one size go through the encoder together."""
        out: dict[int, Tensor] = {}
        for size in dict.fromkeys(group.shape[2:] for group in groups):
            alike = [number for number, group in enumerate(groups) if group.shape[2:] == size]
            views = torch.cat([groups[number] for number in alike], 1) if len(alike) > 1 else groups[alike[0]]
            if self.each_view:
                h = torch.stack([self.encoder(view) for view in views.unbind(1)], 1)
            else:
                h = self.encoder(views.flatten(0, 1)).unflatten(0, views.shape[:2])
            out |= zip(alike, h.split([groups[number].shape[1] for number in alike], 1), strict=True)
        return [out[number] for number in range(len(groups))]
