"""The baseline matrix product: equal to PyTorch in float64, and used only on request."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.graph.program import Instr, Store
from handheld.kernels import naive
from handheld.plan.codec import from_json, to_json
from handheld.run.planning import plan_step
from helpers.harness import caps_of_kind, error, make, run_node, view

ACC = {"program": (Instr("acc", "f32"),), "stores": (Store(0),)}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(a, b, look_a, look_b, **caps):
    def looked(look):
        def made(tensor):
            t = look(torch.empty(tensor.shape))
            return view(tensor, t.shape, t.stride(), t.storage_offset())

        return made

    want = torch.matmul(*(look(torch.from_numpy(v.astype(np.float64))) for v, look in ((a, look_a), (b, look_b))))
    graph, data = make(
        "matmul", [a, b], [looked(look_a), looked(look_b)], [(want.shape, "f32")], {"shape": tuple(want.shape), **ACC}
    )
    (got,) = run_node(naive.lower_matmul, graph, data, caps_of_kind("gpu", **caps))
    assert error(got, want.numpy()) < 1e-6


@pytest.mark.parametrize(
    ("a", "b", "look_a", "look_b"),
    [
        ((13, 7), (7, 17), None, None),
        ((5, 1), (1, 3), None, None),
        ((23, 37), (41, 23), lambda t: t.t(), lambda t: t.t()),
        ((40, 24), (20, 50), lambda t: t[3:, 2::2], lambda t: t[1:12, 5:]),
        ((3, 5, 2, 7, 4), (5, 2, 3, 4, 6), lambda t: t.permute(2, 0, 1, 3, 4), lambda t: t.permute(1, 2, 0, 3, 4)),
    ],
)
def test_products(a, b, look_a, look_b):
    check(numbers(*a), numbers(*b, seed=1), look_a or torch.clone, look_b or torch.clone)


def test_small_groups_and_empty_sums():
    check(numbers(9, 9), numbers(9, 9), torch.clone, torch.clone, max_work_group=4)
    check(numbers(5, 0), numbers(0, 3), torch.clone, torch.clone)


def test_a_plan_takes_it_when_asked():
    model = nn.Sequential(nn.Linear(9, 17), nn.ReLU(), nn.Linear(17, 5))
    batch = (torch.randn(7, 9), torch.randint(5, (7,)))
    step = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), batch)
    kernels = {}
    for wanted in (False, True):
        plan = plan_step(step, "opencl", graphs=["train"], naive=wanted)
        graph = plan.graphs["train"]
        kernels[wanted] = [
            low.launches[0].kernel
            for node, low in zip(graph.graph.nodes, graph.lowered, strict=True)
            if node.op == "matmul"
        ]
    assert set(kernels[True]) == {"naive"} and "naive" not in kernels[False]
    result = handheld.verify(plan, batch)
    assert result.passed, result
    again = from_json(json.loads(json.dumps(to_json(plan))), step)
    assert again == plan and again.options["naive"] and again.again(tuning=False).options["naive"]


def test_a_step_does_not_offer_what_only_studies_ask_for():
    assert "naive" not in inspect.signature(handheld.Step.plan).parameters
    assert "naive" in inspect.signature(plan_step).parameters
