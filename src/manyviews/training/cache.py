"""The gradient of a whole contrastive batch in the memory of a piece of it (Gao et al. 2021).

The batch is embedded piece by piece without a graph; the loss of all embeddings gives their gradients; then each piece
is embedded again, with a graph, and handed its part. Equal to the plain backward pass where a piece's embeddings do not
depend on the others. Batch norm makes them: each piece is normalised by its own statistics (its running statistics move
once a piece, not twice).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Views = Tensor | Sequence[Tensor]


def cached_backward(
    embed: Callable[[Views], Tensor],
    views: Views,
    loss: Callable[[Tensor], Tensor],
    piece: int,
    *,
    model: nn.Module | None = None,
    parameters: Sequence[Tensor] | None = None,
    no_sync: Callable[[], AbstractContextManager[object]] = nullcontext,
    backward: Callable[[Tensor, Tensor], None] = Tensor.backward,
) -> Tensor:
    """Put the gradients of `loss(embed(views))` where `.backward()` would, and return the loss.

    Args:
        embed: from views (B, N, ...), or groups of them, to embeddings (B, N, d).
        views: of the whole batch.
        loss: of the whole batch's embeddings (M, N, d).
        piece: instances embedded at once.
        model: what `embed` uses, if it has batch norm: its running statistics then move once.
        parameters: of the loss; its own if it is a module.
        no_sync: makes a context in which gradients are not exchanged between ranks; the last piece is outside.
        backward: of a tensor and its gradient, where it is not torch's own (Fabric's, which scales float16).

    Examples:
        >>> from manyviews.losses import MVDHEL
        >>> layer, views = nn.Linear(8, 4), torch.randn(32, 3, 8)
        >>> loss = cached_backward(layer, views, MVDHEL(), piece=8)
        >>> layer.weight.grad.shape
        torch.Size([4, 8])
    """
    if piece < 1:
        raise ValueError(f"piece must be >= 1 instance, got {piece}")
    pieces = list(_pieces(views, piece))
    randomness, embeddings = [], []
    with torch.no_grad(), _still_statistics(model):
        for part in pieces:
            randomness.append(_random_state(part))
            embeddings.append(embed(part))
    z = torch.cat(embeddings).requires_grad_()
    total = loss(z)
    if parameters is None:
        parameters = list(loss.parameters()) if isinstance(loss, nn.Module) else []
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    of_z, *of_learned = torch.autograd.grad(total, [z, *learned])
    for parameter, gradient in zip(learned, of_learned, strict=True):
        backward(parameter, gradient)
    gradients = of_z.split([len(e) for e in embeddings])
    for number, (part, state, gradient) in enumerate(zip(pieces, randomness, gradients, strict=True)):
        # The same dropout as in the first pass, without disturbing what comes after.
        with torch.random.fork_rng(devices=_devices(part)), no_sync() if number + 1 < len(pieces) else nullcontext():
            _set_random_state(part, state)
            backward(embed(part), gradient)
    return total.detach()


def _pieces(views: Views, piece: int) -> Iterator[Views]:
    if isinstance(views, Tensor):
        yield from views.split(piece)
        return
    for part in zip(*(group.split(piece) for group in views), strict=True):
        yield list(part)


def _first(views: Views) -> Tensor:
    return views if isinstance(views, Tensor) else views[0]


def _devices(views: Views) -> list[torch.device]:
    device = _first(views).device
    return [device] if device.type == "cuda" else []


def _random_state(views: Views) -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in _devices(views)]


def _set_random_state(views: Views, state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    for device, cuda in zip(_devices(views), state[1], strict=True):
        torch.cuda.set_rng_state(cuda, device)


@contextmanager
def _still_statistics(model: nn.Module | None) -> Iterator[None]:
    """Batch norms of the model normalise as in training, but remember nothing."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)] if model is not None else []
    held = [(m.momentum, None if m.num_batches_tracked is None else m.num_batches_tracked.clone()) for m in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, held, strict=True):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None and batches is not None:
                norm.num_batches_tracked.copy_(batches)
