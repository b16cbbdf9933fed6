"""Verification attributes an error to the op that causes it, and accepts the limits of float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.backends.opencl.session import OpenCLSession
from handheld.errors import BatchError, HandheldError
from handheld.run.verify import relative_error, verify_plan


@pytest.fixture(scope="module")
def case():
    """The bias before batch norm has a gradient of zero, for which float32 gives noise; that is correct."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = (torch.randn(8, 5), torch.randint(0, 3, (8,)))
    step = handheld.capture(model, F.cross_entropy, optimizer, batch)
    return step.plan("opencl"), batch


def test_all_graphs_pass_and_the_state_stays(case):
    plan, batch = case
    before = {name: value.copy() for name, value in plan.step.values.items()}
    for graph in ("train", "evaluate"):
        result = verify_plan(plan, batch, graph)
        assert result.passed and len(result.rows) == len(plan.graphs[graph].graph.nodes)
        assert f"{graph} on opencl: all" in str(result)
    assert verify_plan(plan, batch[:1], "predict").passed
    assert all(np.array_equal(before[n], v) for n, v in plan.step.values.items())


def test_an_error_is_charged_to_its_op_only(case, monkeypatch):
    plan, batch = case
    graph = plan.graphs["train"].graph
    wrong = next(i for i, n in enumerate(graph.nodes) if n.op == "matmul")
    run_node = OpenCLSession.run_node

    def spoiled(self, name: str, index: int) -> None:
        run_node(self, name, index)
        if index == wrong:
            out = graph.nodes[index].outputs[0]
            self.set_tensor(name, out, self.read_tensor(name, out) * np.float32(1.001))

    monkeypatch.setattr(OpenCLSession, "run_node", spoiled)
    result = verify_plan(plan, batch)
    assert [row.index for row in result.rows if not row.passed] == [wrong]
    assert result.first.error == pytest.approx(1e-3, rel=0.01)
    assert f"op {wrong} of" in str(result) and graph.nodes[wrong].origin.path in str(result)


def test_bad_input_is_an_error(case):
    plan, (x, y) = case
    with pytest.raises(HandheldError, match="no graph 'g'"):
        verify_plan(plan, (x, y), "g")
    with pytest.raises(BatchError, match="shape"):
        verify_plan(plan, (x[:, :4], y))


def test_relative_error():
    inf, nan = np.inf, np.nan
    assert relative_error(np.array([3.0, 4.0]), np.array([3.0, 4.0])) == 0
    assert relative_error(np.array([0.0, 5.0]), np.array([0.0, 4.0])) == pytest.approx(0.25)
    assert relative_error(np.array([nan, -inf, 1]), np.array([nan, -inf, 1])) == 0
    assert relative_error(np.array([inf]), np.array([1e39])) == 0
    for got, want in (([1.0], [nan]), ([nan], [1.0]), ([inf], [-inf]), ([inf], [1.0])):
        assert relative_error(np.array(got), np.array(want)) == inf
    assert relative_error(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25
    assert relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0
