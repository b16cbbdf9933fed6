"""The functions of math.cl against Python's, and maxima of rows that hold a NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest

from handheld.graph.program import Builder, Store
from handheld.plan.lowering import lower
from helpers.harness import caps_of_kind, make, run_node


@pytest.mark.parametrize(("name", "ulp"), [("exp", 2), ("tanh", 6), ("erf", 6)])
def test_errors_and_special_values(name: str, ulp: int) -> None:
    special = np.float32([0.0, -0.0, 1e-40, 30, -30, -103, 88.7, math.inf, -math.inf, math.nan])
    x = np.concatenate([np.linspace(-12, 12, 20_001, dtype=np.float32), special])
    builder = Builder()
    y = builder.op(name, "f32", builder.load(0, "f32", (), 0))
    attrs = {"shape": x.shape, "axes": (), "program": builder.program, "stores": (Store(y),)}
    graph, values = make("map", [x], None, [(x.shape, "f32")], attrs)
    (got,) = run_node(lower, graph, values, caps_of_kind("cpu"))
    want = np.array([getattr(math, name)(float(v)) for v in x])
    assert np.array_equal(got[-3:], want[-3:].astype(np.float32), equal_nan=True)
    known = np.isfinite(want)
    spacing = np.spacing(np.abs(want[known]).astype(np.float32)).astype(np.float64)
    assert (np.abs(got[known] - want[known]) <= ulp * spacing).all()
    if name != "exp":
        assert np.abs(got[known]).max() <= 1


@pytest.mark.parametrize("op", ["max_of", "min_of"])
@pytest.mark.parametrize("size", [20, 133])
def test_a_row_with_a_nan_has_no_maximum(op: str, size: int) -> None:
    x = np.random.default_rng(size).standard_normal((7, size)).astype(np.float32)
    x[1, 0] = x[2, size - 1] = x[3, size // 2] = np.nan
    x[4] = np.inf
    x[5] = -np.inf
    builder = Builder()
    y = builder.op(op, "f32", builder.load(0, "f32", (), 0))
    attrs = {"shape": x.shape, "axes": (1,), "program": builder.program, "stores": (Store(y, full=False),)}
    graph, values = make("reduce", [x], None, [((7,), "f32")], attrs)
    (got,) = run_node(lower, graph, values, caps_of_kind("cpu"))
    want = (x.max if op == "max_of" else x.min)(axis=1)
    assert np.array_equal(got.ravel(), want, equal_nan=True)
