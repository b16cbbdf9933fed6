"""Plans whose products are in halves. tests/kernels/test_half_products.py holds the kernels against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld import suite
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.check import check
from handheld.graph.codec import from_json, to_json
from handheld.plan.codec import from_json as plan_from_json
from handheld.run.verify import verify_plan
from handheld.step import Step


@pytest.fixture(scope="module")
def mixed() -> Step:
    """A convolution, a depthwise convolution, a product, and an optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.Flatten(), nn.Linear(576, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    example = (torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,)))
    return handheld.capture(model, nn.CrossEntropyLoss(), optimizer, example, evaluate=False)


def batch() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal((8, 3, 8, 8)).astype(np.float32), random.integers(0, 10, 8)


def test_a_phone_multiplies_in_halves(mixed):
    plan = mixed.plan(caps=DeviceCaps.shipped("adreno-740"), precision="half-compute")
    graph = plan.graphs["train"]
    for node, lowered in zip(graph.graph.nodes, graph.lowered, strict=True):
        product = node.op == "matmul" or (node.op.startswith("conv") and node.attrs["groups"] == 1)
        assert (node.attrs.get("arithmetic") == "half") == product
        assert ("products in halves" in lowered.why) == product
    assert sum("arithmetic" in node.attrs for node in graph.graph.nodes) == 5  # conv has no gradient of its input
    assert "products in halves" in plan.explain()
    assert plan_from_json(plan.to_json(), mixed).to_json() == plan.to_json()
    assert check(from_json(to_json(graph.graph)), plan.slots) == graph.graph


def test_a_device_that_cannot_says_so(mixed):
    caps = replace(DeviceCaps.shipped("adreno-740"), fp16=False)
    with pytest.raises(PlanError, match=r"Adreno.* cannot compute in halves: .*cl_khr_fp16\. Try: precision half"):
        mixed.plan(caps=caps, precision="half-compute")
    mixed.plan(caps=caps, precision="half")


def test_the_reference_rounds_the_operands(mixed):
    """Its losses differ from those with float32 products, but only by rounding."""
    losses = {}
    for precision in ("half", "half-compute"):
        with mixed.copy().plan("reference:cpu", precision=precision).start() as trainer:
            losses[precision] = [float(trainer.step(*batch())) for _ in range(4)]
            assert trainer.loss_scale() is not None
    assert losses["half"] != losses["half-compute"]
    assert np.allclose(losses["half"], losses["half-compute"], rtol=2e-3)


def test_every_op_on_a_device_with_halves(mixed):
    if not describe("opencl").fp16:
        pytest.skip("the device has no cl_khr_fp16")
    caps = replace(describe("opencl"), kind="gpu")  # builds faster than the kernels for CPUs
    result = verify_plan(mixed.plan(caps=caps, precision="half-compute"), batch())
    assert result.passed, str(result)


def test_a_graph_names_no_other_arithmetic(mixed):
    graph = suite.get("lenet5").step(4).graphs["train"]
    node = next(node for node in graph.nodes if node.op == "matmul")
    wrong = replace(node, attrs={**node.attrs, "arithmetic": "quarter"})
    nodes = tuple(wrong if n is node else n for n in graph.nodes)
    with pytest.raises(handheld.HandheldError, match="arithmetic 'quarter'"):
        check(replace(graph, nodes=nodes))
