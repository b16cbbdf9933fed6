"""Linear systems, factors and determinants, decomposed into block products and elimination row by row."""

from __future__ import annotations

import numpy as np
import torch

from handheld.errors import UnsupportedOp
from handheld.frontend.registry import decomposed

T = torch.Tensor

#: The most rows of a matrix. Elimination takes several ops per row, so more rows would make the step too long.
ROWS = 128


@decomposed("linalg_solve_triangular.default")
def solve_triangular(a: T, b: T, *, upper: bool, left: bool = True, unitriangular: bool = False) -> T:
    inverse = _lower_inverse(a.mT if upper else a, unitriangular)
    inverse = inverse.mT if upper else inverse
    return inverse @ b if left else b @ inverse


def _lower_inverse(a: T, unit: bool) -> T:
    """Inverts lower triangular matrices a[..., n, n].

    It inverts the diagonal blocks of size 1, then combines pairs of blocks until one block is left:

        [[P, 0], [C, Q]] has the inverse [[P⁻¹, 0], [-Q⁻¹ C P⁻¹, Q⁻¹]]
    """
    n, lead = a.shape[-1], a.shape[:-2]
    size = 1
    while size < n:
        size *= 2
    diagonal = a.diagonal(dim1=-2, dim2=-1)
    diagonal = torch.ones_like(diagonal) if unit else diagonal
    inverse = torch.nn.functional.pad(1 / diagonal, (0, size - n), value=1.0)
    inverse = inverse.reshape(*lead, size, 1, 1)
    a = torch.nn.functional.pad(a, (0, size - n, 0, size - n))
    step = 1
    while step < size:
        count = size // (2 * step)
        blocks = a.reshape(*lead, count, 2 * step, count, 2 * step)
        blocks = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        corner = blocks[..., step:, :step]
        first, second = inverse.reshape(*lead, count, 2, step, step).unbind(-3)
        below = -(second @ corner @ first)
        top = torch.cat([first, torch.zeros_like(first)], -1)
        inverse = torch.cat([top, torch.cat([below, second], -1)], -2)
        step *= 2
    return inverse.reshape(*lead, size, size)[..., :n, :n]


def _check_rows(n: int) -> None:
    if n > ROWS:
        raise UnsupportedOp(
            f"a linear system of {n} unknowns has no lowering (at most {ROWS}). Try: compute it outside the step"
        )


def _no_info(a: T) -> T:
    return torch.zeros(a.shape[:-2], dtype=torch.int32)


@decomposed("_linalg_check_errors.default")
def check_errors(info: T, api_name: str, *, is_matrix: bool) -> None:
    """Checks nothing. A singular matrix gives infinities instead of an error."""


@decomposed("linalg_lu_factor_ex.default")
def lu_factor(a: T, *, pivot: bool = True, check_errors: bool = False) -> tuple[T, T, T]:
    """Returns both factors in one matrix, and for each row the row it was swapped with, counted from 1."""
    n, lead = a.shape[-1], a.shape[:-2]
    _check_rows(n)
    line, pivots = torch.arange(n), []
    for k in range(n):
        size = torch.where(line >= k, a[..., k].abs(), -1.0)
        best = size.argmax(-1, keepdim=True)  # [..., 1]
        pivots.append(best + 1)
        row = a.gather(-2, best.unsqueeze(-1).expand(*lead, 1, n))
        a = torch.where((line == best).unsqueeze(-1), a[..., k : k + 1, :], a)
        factor = torch.where(line > k, a[..., k] / row[..., k], 0.0).unsqueeze(-1)
        below = (line > k).unsqueeze(-1)
        rest = torch.where(below & (line == k), factor, a - factor * torch.where(line > k, row, 0.0))
        a = torch.where((line == k).unsqueeze(-1), row, rest)
    return a, torch.cat(pivots, -1).to(torch.int32), _no_info(a)


def _order(pivots: T) -> T:
    """Returns the original position of each row after all swaps."""
    n = pivots.shape[-1]
    line = torch.arange(n)
    order = line.expand(pivots.shape)
    for k in range(n):
        other = pivots[..., k : k + 1].to(torch.int64) - 1
        moved = order.gather(-1, other)
        order = torch.where(line == other, order[..., k : k + 1], order)
        order = torch.where(line == k, moved, order)
    return order


@decomposed("linalg_lu_solve.default")
def lu_solve(lu: T, pivots: T, b: T, *, left: bool = True, adjoint: bool = False) -> T:
    if not left:
        across: T = lu_solve(lu, pivots, b.mT, adjoint=not adjoint)
        return across.mT
    lead = _lead(lu, b)
    order = _order(pivots).unsqueeze(-1).expand(*lead, *b.shape[-2:])
    b = b.expand(*lead, *b.shape[-2:])
    lower, upper = _lower_inverse(lu, True), _lower_inverse(lu.mT, False).mT
    if not adjoint:
        return upper @ (lower @ b.gather(-2, order))
    turned = lower.mT @ (upper.mT @ b)
    return torch.zeros_like(turned).scatter(-2, order, turned)


def _lead(a: T, b: T) -> tuple[int, ...]:
    return tuple(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))


@decomposed("_linalg_solve_ex.default")
def solve(a: T, b: T, *, left: bool = True, check_errors: bool = False) -> tuple[T, T, T, T]:
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    factors, pivots, info = lu_factor(a)
    x = lu_solve(factors, pivots, b.unsqueeze(-1) if vector else b, left=left or vector)
    return x.squeeze(-1) if vector else x, factors, pivots, info


@decomposed("linalg_inv_ex.default")
def inverse(a: T, *, check_errors: bool = False) -> tuple[T, T]:
    factors, pivots, info = lu_factor(a)
    return lu_solve(factors, pivots, torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape)), info


def _determined(a: T) -> tuple[T, T, T, T]:
    """Returns factors, pivots, the diagonal, and the sign of each swap.

    PyTorch's gradients expect the factors of the transposed matrix if the matrix is contiguous.
    """
    factors, pivots, _ = lu_factor(a.mT if a.is_contiguous() else a)
    moved = torch.where(pivots == torch.arange(a.shape[-1]) + 1, 1.0, -1.0).to(a.dtype)
    return factors, pivots, factors.diagonal(dim1=-2, dim2=-1), moved


@decomposed("_linalg_slogdet.default")
def slogdet(a: T) -> tuple[T, T, T, T]:
    factors, pivots, diagonal, moved = _determined(a)
    return (moved * diagonal.sign()).prod(-1), diagonal.abs().log().sum(-1), factors, pivots


@decomposed("_linalg_det.default")
def det(a: T) -> tuple[T, T, T]:
    factors, pivots, diagonal, moved = _determined(a)
    return (moved * diagonal).prod(-1), factors, pivots


@decomposed("linalg_cholesky_ex.default")
def cholesky(a: T, *, upper: bool = False, check_errors: bool = False) -> tuple[T, T]:
    """Computes the factor column by column, and subtracts each column's part from the rest."""
    n = a.shape[-1]
    _check_rows(n)
    columns, rest, line = [], a.mT if upper else a, torch.arange(n)
    for k in range(n):
        column = torch.where(line >= k, rest[..., k] / rest[..., k, k : k + 1].sqrt(), 0.0)
        columns.append(column)
        rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
    lower = torch.stack(columns, -1)
    return lower.mT if upper else lower, _no_info(a)
