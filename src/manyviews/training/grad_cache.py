"""Gradient caching: the gradient of a full contrastive batch with the memory of one chunk (Gao et al. 2021).

The batch is embedded chunk by chunk without a graph, and the loss of all embeddings gives their gradients; then each
chunk is embedded again, with a graph, and back-propagates its part. The result equals the plain backward pass if the
embeddings of a chunk do not depend on other chunks. Batch norm breaks this: it normalizes each chunk by the chunk's
statistics (the running statistics are updated once per chunk, not twice).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manyviews.models import ViewBatch

Views: TypeAlias = Tensor | Sequence[Tensor] | ViewBatch


def grad_cache_backward(
    embed_fn: Callable[[Views], Tensor],
    views: Views,
    loss_fn: Callable[[Tensor], Tensor],
    chunk_size: int,
    *,
    model: nn.Module | None = None,
    parameters: Sequence[Tensor] | None = None,
    no_sync: Callable[[], AbstractContextManager[object]] = nullcontext,
    backward: Callable[[Tensor, Tensor], None] = Tensor.backward,
) -> Tensor:
    """Compute the gradients of `loss_fn(embed_fn(views)).backward()` chunk by chunk, and return the loss.

    Args:
        embed_fn: maps views (B, N, ...), a list of view groups, or a `ViewBatch`, to embeddings (B, N, d).
        views: views of the full batch.
        loss_fn: maps the embeddings (M, N, d) of the full batch to the loss.
        chunk_size: number of instances embedded at once.
        model: the model used by `embed_fn`, if it has batch norm: running statistics are then updated only once.
        parameters: parameters of the loss. Default: those of `loss_fn` if it is a module.
        no_sync: returns a context in which ranks do not exchange gradients; the last chunk is outside of it.
        backward: replaces `Tensor.backward` (Fabric's scales float16 gradients).

    Examples:
        >>> from manyviews.losses import MVDHELLoss
        >>> layer, views = nn.Linear(8, 4), torch.randn(32, 3, 8)
        >>> loss = grad_cache_backward(layer, views, MVDHELLoss(), chunk_size=8)
        >>> layer.weight.grad.shape
        torch.Size([4, 8])
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be >= 1, got {chunk_size}")
    chunks = list(_split_chunks(views, chunk_size))
    first = views.groups[0].values if isinstance(views, ViewBatch) else views if isinstance(views, Tensor) else views[0]
    device = first.device
    cuda_devices = [device] if device.type == "cuda" else []
    rng_states, embeddings = [], []
    with torch.no_grad(), _freeze_running_statistics(model):
        for chunk in chunks:
            rng_states.append((torch.get_rng_state(), [torch.cuda.get_rng_state(cuda) for cuda in cuda_devices]))
            embeddings.append(embed_fn(chunk))
    z = torch.cat(embeddings).requires_grad_()
    total = loss_fn(z)
    if parameters is None:
        parameters = list(loss_fn.parameters()) if isinstance(loss_fn, nn.Module) else []
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    grad_z, *grad_trainable = torch.autograd.grad(total, [z, *trainable])
    for parameter, gradient in zip(trainable, grad_trainable, strict=True):
        backward(parameter, gradient)
    gradients = grad_z.split([len(e) for e in embeddings])
    for i, (chunk, (cpu_state, cuda_states), gradient) in enumerate(zip(chunks, rng_states, gradients, strict=True)):
        # Use the same dropout masks as in the first pass, and leave the RNG state as it was.
        with torch.random.fork_rng(cuda_devices), no_sync() if i + 1 < len(chunks) else nullcontext():
            torch.set_rng_state(cpu_state)
            for cuda, state in zip(cuda_devices, cuda_states, strict=True):
                torch.cuda.set_rng_state(state, cuda)
            backward(embed_fn(chunk), gradient)
    return total.detach()


def _split_chunks(views: Views, chunk_size: int) -> Iterator[Views]:
    if isinstance(views, Tensor | ViewBatch):
        yield from views.split(chunk_size)
        return
    for chunk in zip(*(group.split(chunk_size) for group in views), strict=True):
        yield list(chunk)


@contextmanager
def _freeze_running_statistics(model: nn.Module | None) -> Iterator[None]:
    """Let batch norms normalize as in training, without an update of their running statistics."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)] if model is not None else []
    saved = [(m.momentum, None if m.num_batches_tracked is None else m.num_batches_tracked.clone()) for m in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, saved, strict=True):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None and batches is not None:
                norm.num_batches_tracked.copy_(batches)
