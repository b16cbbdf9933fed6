"""Tells which module of a PyTorch model runs now, for `capture` (records ops) and `watch` (times ops)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn
from torch.nn.modules import module as hooks


@contextmanager
def follow_modules(path: list[str], names: Mapping[int, str]) -> Iterator[None]:
    """While a model runs, keep the name of the module whose forward runs now as the last entry of `path`.

    `names` maps `id(module)` to its name. A module without a name counts as part of the module that called it."""

    def enter(module: nn.Module, args: object) -> None:
        path.append(names.get(id(module), path[-1]))

    def leave(module: nn.Module, args: object, output: object) -> None:
        path.pop()

    entering = hooks.register_module_forward_pre_hook(enter)
    leaving = hooks.register_module_forward_hook(leave)
    try:
        yield
    finally:
        entering.remove()
        leaving.remove()
