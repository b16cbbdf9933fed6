"""Every tensor that a workload makes in a step is on the device of its inputs, so that PyTorch trains it on any device.

The model and its batch are meta tensors, which have shapes but no values. A tensor on the CPU is then one that the
workload made there.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from handheld import suite


class OnMeta(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            assert not isinstance(value, torch.Tensor) or value.device.type == "meta", f"{func} makes a CPU tensor"
        return result


@pytest.mark.parametrize("name", suite.WORKLOADS)
def test_a_step_makes_no_tensor_on_another_device(name):
    workload = suite.get(name, size="small")
    parts = dict(workload.runs(workload.batch(2)))
    modules, updates = workload.parts()
    for module in modules.values():
        module.to("meta").train()
    for update in updates:
        part = tuple(tensor.to("meta") for tensor in parts[update.graph])
        with OnMeta():
            loss = update.loss(modules, part)
            loss.backward()
        assert loss.device.type == "meta"


def test_a_tensor_on_the_cpu_is_found():
    layer = torch.nn.Embedding(4, 2, device="meta")
    with pytest.raises(AssertionError, match=r"arange.* makes a CPU tensor"), OnMeta():
        layer(torch.arange(3))
