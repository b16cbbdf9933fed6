"""How large a workload is, without making it: parameters and the work of a forward pass, counted on
tensors that have shapes and no values."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from handheld.suite.workload import Workload


def parameters(workload: Workload) -> int:
    """Of all modules together, frozen ones and target networks among them."""
    with torch.device("meta"):
        modules, _ = workload.parts()
    return sum(p.numel() for module in modules.values() for p in module.parameters())


def trained(workload: Workload) -> int:
    """Parameters that an optimizer updates."""
    with torch.device("meta"):
        modules, updates = workload.parts()
        groups = [g for u in updates for g in u.optimizer(modules).param_groups]
    return sum(p.numel() for group in groups for p in group["params"])


def forward_flops(workload: Workload, batch: int = 1) -> int:
    """Two for each multiply-add of products, convolutions and attention in the losses of a step;
    what is done point by point is not counted."""
    runs = dict(workload.runs(workload.batch(batch)))
    with torch.device("meta"):
        modules, updates = workload.parts()
        for module in modules.values():
            module.eval()  # batch norm of one value has no variance
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            for update in updates:
                update.loss(modules, tuple(part.to("meta") for part in runs[update.graph]))
    return int(counter.get_total_flops())
