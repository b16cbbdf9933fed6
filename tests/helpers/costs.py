"""Products of matrices on a made-up device whose times follow a law."""

from __future__ import annotations

from handheld.cost.rates import Rates
from handheld.cost.work import Work

RATES = Rates(1e12, ((1 << 20, 4e11), (1 << 30, 1e11)), launch_s=1e-6)


def matmul(m: int, n: int, k: int) -> Work:
    signature = f"matmul {m}x{k} {k}x{n} > {m}x{n} e0"
    return Work("matmul", signature, "register blocks of 8x64", 1, 2 * m * n * k, 4 * (m * n + m * k + k * n))


def law(work: Work) -> float:
    """Products reach a share of the peak that grows with their size."""
    share = 0.8 * work.flops / (work.flops + 1e8)
    return work.flops / (share * RATES.flops) + 2e-6
