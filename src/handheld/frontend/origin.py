"""What a step remembers about the model and the programs it came from."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime, timezone

import torch
from torch import nn

import handheld
from handheld.graph.graph import Slot


def origin(modules: Mapping[str, nn.Module], slots: Mapping[str, Slot]) -> dict[str, object]:
    """Facts for the meta of a step.

    `captured` names the versions. `transient` are buffers that PyTorch leaves out of a state dict (persistent=False),
    and `absent` are tensors of the state dict that the step does not hold (complex buffers).
    """
    saved: set[str] = set()
    buffers: set[str] = set()
    for prefix, module in modules.items():
        dot = f"{prefix}." if prefix else ""
        tensors = module.state_dict(keep_vars=True).items()
        saved |= {dot + name for name, value in tensors if isinstance(value, torch.Tensor)}
        buffers |= {dot + name for name, _ in module.named_buffers(remove_duplicate=False)}
    held = {name for slot in slots.values() for name in slot.names}
    return {
        "captured": {
            "handheld": handheld.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        },
        "transient": tuple(sorted(buffers - saved)),
        "absent": tuple(sorted(saved - held)),
    }
