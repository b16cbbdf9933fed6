"""The size of a workload: parameters and the operations of a forward pass.

They are counted on meta tensors, which have shapes but no values, so the model is never computed.
"""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from handheld.suite.workload import Workload


def parameters(workload: Workload) -> int:
    """The parameters of all modules, including frozen ones and target networks."""
    with torch.device("meta"):
        modules, _ = workload.parts()
    return sum(p.numel() for module in modules.values() for p in module.parameters())


def trained(workload: Workload) -> int:
    """The parameters that an optimizer updates."""
    with torch.device("meta"):
        modules, updates = workload.parts()
        groups = [g for u in updates for g in u.optimizer(modules).param_groups]
    return sum(p.numel() for group in groups for p in group["params"])


def forward_flops(workload: Workload, batch: int = 1) -> int:
    """Two per multiply-add of matrix products, convolutions and attention in the losses of a step. Pointwise ops
    are not counted."""
    runs = dict(workload.runs(workload.batch(batch)))
    with torch.device("meta"):
        modules, updates = workload.parts()
        for module in modules.values():
            module.eval()  # In training mode, batch norm fails on a single value, which has no variance.
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            for update in updates:
                update.loss(modules, tuple(part.to("meta") for part in runs[update.graph]))
    return int(counter.get_total_flops())
