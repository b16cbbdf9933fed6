"""What a plan needs: bytes by category, launches and operations, without a device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.device import DeviceCaps
from handheld.plan.work import flops
from handheld.profile.need import REST, need


def test_categories_add_up_to_the_plan():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    example = torch.randn(5, 3, 8, 8), torch.zeros(5, dtype=torch.int64)
    step = handheld.capture(model, F.cross_entropy, torch.optim.Adam(model.parameters()), example)
    plan = step.plan("opencl", caps=DeviceCaps.shipped("adreno-740"))
    found = need(plan, 5, ["train"])
    weights = sum(4 * p.numel() for p in model.parameters())
    assert sum(found.by_category.values()) == found.bytes == plan.bytes
    assert found.by_category["parameter"] == weights and found.by_category["optimizer state"] == 2 * weights
    assert found.by_category["buffer"] == 4 * (8 + 8 + 1) and found.by_category["input"] == 5 * (4 * 192 + 4)
    assert found.by_category[REST] >= 0
    assert found.launches == plan.graphs["train"].launches


@pytest.mark.parametrize("causal", [False, True])
def test_operations_of_attention(causal):
    q, k, v = (nn.Parameter(torch.randn(2, 3, length, 16)) for length in (8, 8, 8))
    model = nn.ParameterList([q, k, v])

    def loss(batch):
        return F.scaled_dot_product_attention(*model, is_causal=causal).sum() * batch[0].sum()

    builder = handheld.Capture(model)
    step = builder.train(loss, torch.optim.SGD([q, k, v], 0.1), (torch.randn(1),)).step()
    graph = step.graphs["train"]
    found = {node.op: flops(node, graph) for node in graph.nodes if node.op.startswith("attention")}
    pairs = 8 * 9 // 2 if causal else 64
    assert found == {"attention": 2 * 6 * pairs * 32, "attention_grad": 2 * 6 * pairs * 80}
