"""Volumes (GRAM) and areas (TRIANGLE) of the anchor view of one instance and the other views of another.

The functions take unit embeddings (M, N, d), zero where a view is missing in the mask (M, N), and return the losses
(M,) of the instances. They never build an (M, M, N, N) or (M, M, d) tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyviews.losses._contrast import compute_contrast
from manyviews.losses._dense import matmul
from manyviews.losses._linalg import normalize_or_zero, orthonormalize, safe_sqrt

ROUNDING = 16.0
"""A squared height or area of at most so many times the machine epsilon is a rounding error: 0, without a gradient."""


def compute_gram(
    z: Tensor,
    inverse_temperature: Tensor,
    mask: Tensor | None,
    *,
    anchor: int = 0,
    label_smoothing: float = 0.1,
    tile_rows: int | None = None,
) -> Tensor:
    """Contrast the volumes spanned by the anchor of one instance and the other views of another.

    With an orthonormal basis b_jk of the other views, which span the volume v_j, the volume is

        V_ij = v_j sqrt(1 - sum_k (u_i . b_jk)^2)  =  sqrt(det(G_j) (1 - s^T G_j^-1 s)),  s the inner products.
    """
    rows, columns = z[:, anchor], _drop_view(z, anchor)
    other_mask = None if mask is None else _drop_view(mask, anchor)
    basis, volume = orthonormalize(columns, other_mask)
    # From the residual vector, because the scalar formula is imprecise at the small volumes of positives.
    residual = rows - ((rows[:, None] * basis).sum(2, keepdim=True) * basis).sum(1)
    _, height = normalize_or_zero(residual, 8 * torch.finfo(z.dtype).eps)
    scaled_volume = volume * inverse_temperature
    return compute_contrast(
        _multiply_volumes,
        (rows,),
        (scaled_volume, *basis.unbind(1)),
        -scaled_volume * height,
        None if mask is None else mask[:, anchor],
        None if other_mask is None else other_mask.any(1),
        label_smoothing=label_smoothing,
        tile_rows=tile_rows,
    )


def compute_triangle(
    z: Tensor,
    inverse_temperature: Tensor,
    mask: Tensor | None,
    *,
    anchor: int = 0,
    label_smoothing: float = 0.1,
    square_root: bool = False,
    tile_rows: int | None = None,
) -> Tensor:
    """Contrast the areas of triangles of the anchor of one instance and the two other views of another.

    For sides a and b, |a|^2 |b|^2 - (a . b)^2 = 4 (1 - x) (1 - y) - (1 - x - y + g)^2 in the inner products x and y of
    the anchor with the other views and g of these.
    """
    first, second = (view for view in range(3) if view != anchor)
    rows, v, w = z[:, anchor], z[:, first], z[:, second]
    # From the sides and height, because the formula in inner products is imprecise at the small areas of positives.
    direction, base = normalize_or_zero(rows - v)
    side = rows - w
    height = side - (side * direction).sum(1, keepdim=True) * direction
    parallelogram = base * normalize_or_zero(height, 8 * torch.finfo(z.dtype).eps)[1]
    scale = (inverse_temperature / 2).expand(len(z))
    return compute_contrast(
        _multiply_areas if square_root else _multiply_squared_areas,
        (rows,),
        (v, w, (v * w).sum(1), scale),
        -scale * (parallelogram if square_root else parallelogram.square()),
        None if mask is None else mask[:, anchor],
        None if mask is None else mask[:, first] & mask[:, second],
        label_smoothing=label_smoothing,
        tile_rows=tile_rows,
    )


def _drop_view(x: Tensor, view: int) -> Tensor:
    """Return (M, N - 1, ...) without a view, by slices: a list of indices would be copied to the device."""
    return torch.cat([x[:, :view], x[:, view + 1 :]], 1)


def _multiply_volumes(rows: Tensor, scaled_volume: Tensor, *basis: Tensor) -> Tensor:
    squared_height = 1 - matmul(rows, basis[0].T).square()
    for direction in basis[1:]:
        squared_height = squared_height - matmul(rows, direction.T).square()
    return -scaled_volume * safe_sqrt(squared_height, ROUNDING * torch.finfo(rows.dtype).eps)


def _multiply_squared_areas(rows: Tensor, v: Tensor, w: Tensor, g: Tensor, scale: Tensor) -> Tensor:
    x, y = 1 - matmul(rows, v.T), 1 - matmul(rows, w.T)
    return -scale * (4 * x * y - (x + y + (g - 1)).square())


def _multiply_areas(rows: Tensor, v: Tensor, w: Tensor, g: Tensor, scale: Tensor) -> Tensor:
    x, y = 1 - matmul(rows, v.T), 1 - matmul(rows, w.T)
    squared_area = 4 * x * y - (x + y + (g - 1)).square()
    return -scale * safe_sqrt(squared_area, ROUNDING * torch.finfo(rows.dtype).eps)
