"""Plans say in which arithmetic they compute products."""

from __future__ import annotations

import torch
from torch import nn

import handheld
from handheld.bench.row import measured
from handheld.kernels.contract_local import MATRIX
from handheld.plan.arithmetic import arithmetic
from helpers.harness import caps_of_kind
from helpers.run_files import MadeRun


def step(width: int) -> handheld.Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
    batch = (torch.randn(64, width), torch.zeros(64, dtype=torch.int64))
    return handheld.capture(model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch)


def test_products_on_matrix_units_are_named():
    gpu = {"max_work_group": 256, "local_mem_bytes": 48 << 10}
    captured = step(512)
    plain, units = (
        captured.plan("opencl", caps=caps_of_kind("gpu", **gpu, **more)) for more in ({}, {"features": MATRIX})
    )
    assert arithmetic(plain) == "float32"
    assert arithmetic(units).endswith("3xtf32") or "% 3xtf32" in arithmetic(units)
    assert "3 TF32 products each" in units.explain()
    half = captured.plan("opencl", caps=caps_of_kind("gpu", **gpu, features=MATRIX), precision="half")
    assert "2xtf32" in arithmetic(half) or "1xtf32" in arithmetic(half)


def test_a_bench_row_has_the_arithmetic_of_its_plan(tmp_path):
    made = MadeRun(tmp_path / "one.run", arithmetic="98% 3xtf32, 2% float32")
    made.steps(30)
    with made.open() as run:
        assert measured(run, 4, "opencl")["arithmetic"] == "98% 3xtf32, 2% float32"
