"""Heads: representations h -> embeddings z, or the predictions of a supervised baseline."""

import torch
from torch import Tensor, nn

from manyviews.models.view_batch import ViewBatch


class ProjectionHead(nn.Sequential):
    """The paper's projection head: linear, batch norm, ReLU, linear, batch norm without a bias.

    Without `batch_norm` (the paper's heads of modalities): linear, ReLU, linear, with biases.

    Examples:
        >>> ProjectionHead(512)(torch.randn(4, 512)).shape
        torch.Size([4, 128])
    """

    def __init__(
        self, in_dim: int, hidden_dim: int | None = None, out_dim: int = 128, *, batch_norm: bool = True
    ) -> None:
        hidden_dim = in_dim if hidden_dim is None else hidden_dim
        first = nn.Linear(in_dim, hidden_dim, bias=not batch_norm)
        if not batch_norm:
            super().__init__(first, nn.ReLU(), nn.Linear(hidden_dim, out_dim))
            return
        second, last = nn.Linear(hidden_dim, out_dim, bias=False), nn.BatchNorm1d(out_dim)
        last.bias.requires_grad_(False)
        super().__init__(first, nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True), second, last)


class LateFusionHead(nn.Module):
    """A linear layer from the concatenated representations h (B, N, dim) to predictions (B, out_dim).

    Examples:
        >>> batch = ViewBatch.from_views(torch.rand(4, 3, 8))
        >>> LateFusionHead(3, 128, out_dim=7)(torch.randn(4, 3, 128), batch).shape
        torch.Size([4, 7])
    """

    def __init__(self, views: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(views * in_dim, out_dim)
        # Median and scale of regression targets, so that the layer predicts standardized values.
        self.register_buffer("target_median", torch.zeros(()))
        self.register_buffer("target_scale", torch.ones(()))
        self.target_median: Tensor
        self.target_scale: Tensor

    def forward(self, h: Tensor, _batch: ViewBatch) -> Tensor:
        return self.target_median + self.target_scale * self.linear(h.flatten(1))
