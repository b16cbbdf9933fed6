"""Copies the trained state of an optimizer back into PyTorch's. Needs PyTorch only when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from handheld.errors import HandheldError
from handheld.live_optimizer import TorchOptimizer

#: State that PyTorch keeps per parameter and a step keeps once per group.
SHARED = ("mu_product", "eta", "mu")


def copy_state(
    optimizer: TorchOptimizer, prefix: str, owners: Mapping[int, str], state: Mapping[str, np.ndarray], captured: bool
) -> None:
    """Writes learning rates and state into the optimizer. `owners` has the slot of each parameter, by its id. State
    that no training step has changed is left to PyTorch. The very optimizer that was `captured` may have got more
    groups since then."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        raise HandheldError(
            f"copy_to knows the state of optimizers of torch.optim, not of {type(optimizer).__name__}. "
            f"Try: step.state() and copy the values whose names begin with {prefix!r}"
        )
    groups, rates = optimizer.param_groups, [name for name in state if name.startswith(f"{prefix}.lr.")]
    known = {owner for name in state if name.startswith(f"{prefix}.") for owner in [name.removeprefix(f"{prefix}.")]}
    if len(rates) != len(groups) and not (captured and len(rates) < len(groups)):
        raise HandheldError(
            f"the optimizer has {len(groups)} parameter groups, and the step has {len(rates)}: "
            "is this the optimizer that was captured?"
        )
    steps = int(state[f"{prefix}.step"])
    for number, group in enumerate(groups[: len(rates)]):
        group["lr"] = float(state[f"{prefix}.lr.{number}"])
        shared = {key: state[f"{prefix}.{key}.{number}"] for key in SHARED if f"{key}.{number}" in known}
        for p in group["params"] if steps else ():
            begin = f"{prefix}.{owners.get(id(p), '')}."
            fields = {name.removeprefix(begin): value for name, value in state.items() if name.startswith(begin)}
            own = {key: value for key, value in (fields | shared).items() if "." not in key}
            if own:
                _write(optimizer.state[p], p, own, steps)


def _write(into: dict[str, Any], p: Any, fields: Mapping[str, np.ndarray], steps: int) -> None:
    import torch

    for key, value in fields.items():
        tensor = torch.from_numpy(np.array(value))
        into[key] = tensor if key in SHARED else tensor.to(device=p.device, dtype=p.dtype).reshape(p.shape)
    if set(fields) != {"momentum_buffer"}:  # SGD counts no steps.
        into["step"] = torch.tensor(float(steps))
