"""Restores the attributes of modules after a capture, and finds buffers that the forward pass replaced.

Modules keep tensors as attributes (position tables, attention biases, moving averages). During a capture these
would be fake tensors, so cached tensors are removed afterwards. A buffer that was replaced by a new tensor
becomes a write in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

_OWN = frozenset({"_modules", "_parameters", "_buffers"})


class Attributes:
    """The attributes of modules as they were before the capture."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(dict.fromkeys(m for module in modules for m in module.modules()))
        self._before = [{k: _copied(v) for k, v in vars(m).items()} for m in self._modules]
        self._objects = [dict(vars(m)) for m in self._modules]
        parameters = [p for m in self._modules for p in m._parameters.values() if p is not None]
        self._gradients = [(p, p.grad) for p in dict.fromkeys(parameters)]
        for p, _ in self._gradients:
            p.grad = None  # A gradient found here later comes from a backward pass inside the forward pass.

    def new_buffers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns (old, new) for every buffer that the forward pass replaced by another tensor."""
        replaced = []
        for module, before in zip(self._modules, self._before, strict=True):
            for name, new in module._buffers.items():
                old = before["_buffers"].get(name)
                if old is None or new is None or new is old:
                    continue
                if new.shape == old.shape and new.dtype == old.dtype:
                    replaced.append((old, new))
        return replaced

    def restore(self) -> None:
        """Removes every tensor that the capture left on a module, and puts the old values back."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for module, before, objects in zip(self._modules, self._before, self._objects, strict=True):
            now = vars(module)
            for key in list(now):
                if key in _OWN:
                    _refill(now[key], before[key])
                elif key not in before:
                    if _has_tensor(now[key]):
                        del now[key]
                elif now[key] is not objects[key]:
                    if _has_tensor(now[key]):
                        now[key] = objects[key]
                elif isinstance(now[key], (dict, list)) and _changed(now[key], before[key]):
                    _refill(now[key], before[key])


def _copied(value: Any) -> Any:
    return type(value)(value) if type(value) in (dict, list) else dict(value) if isinstance(value, dict) else value


def _changed(now: Any, before: Any) -> bool:
    if not _has_tensor(now):
        return False
    if isinstance(now, dict):
        return now.keys() != before.keys() or any(now[k] is not before[k] for k in now)
    return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))


def _refill(target: Any, values: Any) -> None:
    if isinstance(target, dict):
        if target.keys() == values.keys() and all(target[k] is values[k] for k in target):
            return
        target.clear()
        target.update(values)
    else:
        target[:] = values


def _has_tensor(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, (dict, list, tuple, set)):
        return any(
            isinstance(leaf, torch.Tensor)
            for leaf in pytree.tree_leaves(list(value) if isinstance(value, set) else value)
        )
    return False
