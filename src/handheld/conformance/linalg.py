"""Linear systems, factors and determinants."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from handheld.conformance.case import Case, normal, of

T = torch.Tensor


def square(*shape: int) -> Callable[[], T]:
    """Well-conditioned square matrices."""
    return lambda: torch.randn(*shape, shape[-1]) + 3 * torch.eye(shape[-1])


def _positive(a: T) -> T:
    return a @ a.mT + torch.eye(a.shape[-1])


def _triangular() -> Iterator[Case]:
    for n in (1, 5, 8):
        for name, options in (
            ("", {"upper": False}),
            (" upper", {"upper": True}),
            (" right", {"upper": False, "left": False}),
            (" unit", {"upper": False, "unitriangular": True}),
        ):
            yield of(
                f"solve_triangular {n}{name}",
                lambda a, b, o=options: torch.linalg.solve_triangular(0.3 * a, b, **o),
                square(2, n),
                normal(2, n, n),
            )


def _systems() -> Iterator[Case]:
    yield of("solve", torch.linalg.solve, square(2, 5), normal(2, 5, 3))
    yield of("solve vector", torch.linalg.solve, square(5), normal(5))
    yield of("solve one for many", torch.linalg.solve, square(5), normal(3, 5, 2))
    yield of("solve right", lambda a, b: torch.linalg.solve(a, b, left=False), square(5), normal(3, 5))
    yield of("solve with swaps", torch.linalg.solve, lambda: torch.eye(5).flip(0), normal(5, 2))
    yield of("inv", torch.linalg.inv, square(2, 5))
    yield of("inverse method", lambda a: a.inverse(), square(1))
    yield of("det", torch.det, square(2, 5))
    yield of("logdet", lambda a: torch.logdet(_positive(a)), square(3))
    yield of("slogdet", lambda a: torch.slogdet(a)[1], square(2, 5))
    yield of("slogdet sign", lambda a: torch.linalg.slogdet(a.detach()).sign, normal(7, 3, 3))
    yield of("cholesky", lambda a: torch.linalg.cholesky(_positive(a)), square(2, 5))
    yield of("cholesky upper", lambda a: torch.linalg.cholesky(_positive(a), upper=True), square(3))


def linalg_cases() -> list[Case]:
    return [*_triangular(), *_systems()]
