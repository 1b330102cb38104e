"""Decompositions with bounded gradients in full precision, also where singular values are equal or zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, autograd

from manyviews.losses._dense import matmul


class _SafeSqrt(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: float) -> Tensor:
        root = x.masked_fill(x <= threshold, 0.0).sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (root,) = ctx.saved_tensors
        return torch.where(root <= 0, 0.0, 0.5 * grad / root), None


def safe_sqrt(x: Tensor, threshold: float = 0.0) -> Tensor:
    """Compute the square root; it and its gradient are 0, not NaN or inf, where x is at most `threshold`."""
    root: Tensor = _SafeSqrt.apply(x, threshold)
    return root


def safe_norm(x: Tensor) -> Tensor:
    """Compute the norms over the last dimension, with the gradient 0 at 0."""
    return safe_sqrt(x.square().sum(-1))


def normalize_or_zero(x: Tensor, min_norm: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    """Return unit vectors and norms; both are 0, without a gradient, for vectors not longer than `min_norm`."""
    norm = safe_norm(x)
    is_zero = norm <= min_norm
    norm = norm.masked_fill(is_zero, 0.0)
    unit = x.masked_fill(is_zero.unsqueeze(-1), 0.0) / norm.masked_fill(is_zero, 1.0).unsqueeze(-1)
    return unit, norm


def orthonormalize(vectors: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return orthonormal bases (M, K, d) of the spans of K unit vectors (M, K, d), and their volumes (M,).

    This is the method of Gram and Schmidt, applied twice. The norms of the residuals are the diagonal of the Cholesky
    factor of the Gram matrix, but computed from the vectors they have twice as many correct digits. A residual of the
    size of a rounding error is a vector that depends on the others: the volume is 0 and has no gradient from it, and
    the basis has a zero vector in its place. A vector that is missing in `mask` (M, K) has a zero vector in the basis
    and does not change the volume.
    """
    min_norm = 8 * torch.finfo(vectors.dtype).eps
    basis: list[Tensor] = []
    volume = torch.ones_like(vectors[:, 0, 0])
    for k, vector in enumerate(vectors.unbind(1)):
        residual = vector
        for _ in range(2 if basis else 0):
            for direction in basis:
                residual = residual - (residual * direction).sum(1, keepdim=True) * direction
        direction, norm = normalize_or_zero(residual, min_norm)
        basis.append(direction)
        volume = volume * (norm if mask is None else norm.masked_fill(~mask[:, k], 1.0))
    return torch.stack(basis, 1), volume


def _refuse_second_derivative() -> None:
    """Raise if a backward pass is to be differentiated: its formula is a constant to autograd."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError("losses of singular values and determinants can be differentiated only once")


class _NuclearNorm(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        is_wide = x.shape[-2] < x.shape[-1]
        tall = x.mT if is_wide else x
        is_bad = ~tall.isfinite().all(-1).all(-1)
        # The decompositions raise an error for NaN, or do not return.
        tall = tall.masked_fill(is_bad[..., None, None], 0.0)
        Q, R = torch.linalg.qr(tall)
        U, S, Vh = torch.linalg.svd(R)
        tolerance = max(x.shape[-2:]) * torch.finfo(x.dtype).eps * S[..., :1]
        polar = Q @ ((U * (S > tolerance).to(U).unsqueeze(-2)) @ Vh)
        ctx.save_for_backward(polar.mT if is_wide else polar)
        return S.sum(-1).masked_fill(is_bad, torch.nan)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        _refuse_second_derivative()
        (polar,) = ctx.saved_tensors
        return grad[..., None, None] * polar


def compute_nuclear_norm(x: Tensor) -> Tensor:
    """Compute the sums of the singular values of matrices (..., a, b).

    The decomposition is of a square matrix of the smaller side. The gradient is U V^T without the directions whose
    singular value is zero up to rounding.
    """
    norm: Tensor = _NuclearNorm.apply(x)
    return norm


class _SingularValues(autograd.Function):
    @staticmethod
    def forward(ctx: Any, gram: Tensor) -> tuple[Tensor, Tensor]:
        is_bad = ~gram.isfinite().all(-1).all(-1)
        values, vectors = torch.linalg.eigh(gram.masked_fill(is_bad[..., None, None], 0.0))
        values, vectors = values.flip(-1).clamp_min(0.0), vectors.flip(-1)
        is_bad = is_bad.unsqueeze(-1)
        ctx.save_for_backward(values, vectors)
        return values.sqrt().masked_fill(is_bad, torch.nan), vectors[..., 0].masked_fill(is_bad, torch.nan)

    @staticmethod
    def backward(ctx: Any, value_grad: Tensor, vector_grad: Tensor) -> Tensor:
        _refuse_second_derivative()
        values, vectors = ctx.saved_tensors
        with torch.autocast(values.device.type, enabled=False):
            eps, largest = torch.finfo(values.dtype).eps, values[..., :1]
            is_zero = values <= values.shape[-1] * eps * largest
            slope = torch.where(is_zero, 0.0, 0.5 * value_grad / values.sqrt())
            gradient = (vectors * slope.unsqueeze(-2)) @ vectors.mT
            # The principal direction turns with the inverse of the gap to the other eigenvalues, which is bounded here.
            gap = largest - values
            inverse_gap = gap / (gap.square() + eps * largest.square()).clamp_min(torch.finfo(values.dtype).tiny)
            turn = (vectors.mT @ vector_grad.unsqueeze(-1)).squeeze(-1) * inverse_gap
            turn = (vectors @ turn.unsqueeze(-1)) * vectors[..., :1].mT
            return gradient + (turn + turn.mT) / 2


def decompose_views(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the singular values (M, N), descending, and principal directions (M, d) of the views (M, N, d).

    They are computed from the N x N Gram matrices. A singular value of zero has the gradient zero. The gradient of a
    direction that is not unique, because the two largest singular values are equal, is bounded. The inner product of a
    direction and the mean of the views is positive. If it is zero, as for two views with a negative cosine, the
    coordinate of largest absolute value is positive.
    """
    values, weights = _SingularValues.apply(matmul(z, z.mT))
    directions, _ = normalize_or_zero((weights.unsqueeze(-1) * z).sum(-2))
    with torch.no_grad():
        total = weights.sum(-1, keepdim=True)  # the inner product with the mean, up to a positive factor
        largest = directions.gather(-1, directions.abs().argmax(-1, keepdim=True))
        is_tie = total.abs() <= 64 * torch.finfo(z.dtype).eps
        is_negative = torch.where(is_tie, largest, total) < 0
    return values, torch.where(is_negative, -directions, directions)


class _LogDet(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        is_wide = x.shape[-2] < x.shape[-1]
        gram = x @ x.mT if is_wide else x.mT @ x
        shifted = scale[..., None, None] * gram
        shifted.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor, _ = torch.linalg.cholesky_ex(shifted)
        ctx.is_wide = is_wide
        ctx.save_for_backward(x, scale, factor)
        logdet = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return logdet.masked_fill(~gram.isfinite().all(-1).all(-1), torch.nan)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        _refuse_second_derivative()
        x, scale, factor = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            inverse = torch.cholesky_inverse(factor)
            product = inverse @ x if ctx.is_wide else x @ inverse
            return (2 * grad * scale)[..., None, None] * product, None


def compute_logdet(x: Tensor, scale: Tensor) -> Tensor:
    """Compute log det(I + scale X^T X) of matrices X (..., a, b), with a decomposition of the smaller side."""
    logdet: Tensor = _LogDet.apply(x, scale)
    return logdet
