"""Contractions on matrix units, with the instruction emulated (helpers/matrix_units.py), beside float64."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.errors import PlanError
from handheld.kernels import contract_local
from handheld.kernels.contract_local import MATRIX, MATRIX_TILES
from handheld.kernels.contract_problem import MatmulMaps, Problem
from helpers.contractions import device, numbers, run_conv, run_matmul

ROOM = {"features": MATRIX, "max_work_group": 256, "local_mem_bytes": 48 << 10}


def choice(tile: tuple[int, ...], splits: int = 1) -> dict[str, int]:
    return contract_local._named((*tile, splits), False)


@pytest.mark.parametrize("tile", MATRIX_TILES, ids=str)
def test_products(tile):
    run_matmul(numbers(67, 41), numbers(41, 71, seed=1), "gpu", choice=choice(tile), limit=1e-6, **ROOM)
    # Both operands are contiguous along k, in three parts, with tiles that are only partly filled.
    look = {"look_a": lambda t: t, "look_b": lambda t: t.transpose(-1, -2)}
    run_matmul(
        numbers(2, 65, 132), numbers(2, 36, 132, seed=1), "gpu", choice=choice(tile, 3), limit=1e-6, **look, **ROOM
    )


@pytest.mark.parametrize("tile", MATRIX_TILES[::3], ids=str)
@pytest.mark.parametrize("geometry", [{"padding": (1, 1)}, {"padding": (1, 0), "stride": (2, 1), "groups": 2}])
def test_convolutions(tile, geometry):
    channels = 4 // geometry.get("groups", 1)
    run_conv("gpu", numbers(2, 4, 9, 7), numbers(6, channels, 3, 3, seed=1), choice=choice(tile), **geometry, **ROOM)


@pytest.mark.parametrize("halves", [(True, False), (False, True), (True, True)])
def test_halves_in_memory_need_fewer_products(halves):
    a, b = (
        x.astype(np.float16) if half else x for x, half in zip((numbers(33, 40), numbers(40, 35)), halves, strict=True)
    )
    run_matmul(a, b, "gpu", choice=choice(MATRIX_TILES[-1]), limit=1e-6, **ROOM)


def test_other_devices_have_no_such_tile():
    with pytest.raises(PlanError, match="not a legal tile"):
        run_matmul(numbers(8, 8), numbers(8, 8), "gpu", choice=choice(MATRIX_TILES[-1]), **{**ROOM, "features": ""})


def test_large_products_take_them_and_small_ones_do_not():
    large, small = (MatmulMaps(1, n, n, n, 0, n, 1, n * n, 0, 1, n, n * n, 1, 1, 0, 0, 0, 0, 0, 0) for n in (4096, 8))
    caps = device("gpu", **ROOM, compute_units=100)
    assert "MATRIX" in contract_local.choose(Problem("MATMUL", 0, 1, large, (4096, 1)), caps)
    assert "MATRIX" not in contract_local.choose(Problem("MATMUL", 0, 1, small, (8, 1)), caps)
    plain = device("gpu", **{**ROOM, "features": ""})
    assert "MATRIX" not in contract_local.choose(Problem("MATMUL", 0, 1, large, (4096, 1)), plain)
