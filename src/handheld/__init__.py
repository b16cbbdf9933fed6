"""Handheld: train PyTorch models on phone-class hardware, and see where every step goes.

    step = handheld.capture(model, loss, optimizer, batch)     # needs PyTorch
    step.save("model.step")

    step = handheld.load("model.step")                         # does not
    with step.plan("opencl").start() as trainer:
        loss = trainer.step(x, y)
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.step import Step

if TYPE_CHECKING:
    from handheld.capture import call as capture
    from handheld.capture.capture import Capture
    from handheld.measure.ceilings import Ceilings

__version__ = "0.1.0"
__all__ = ["Capture", "DeviceCaps", "HandheldError", "Step", "capture", "ceilings", "load"]


def load(path: str | Path) -> Step:
    """The step that `Step.save` or `handheld package` wrote. Needs no PyTorch; runs no code of the
    file's."""
    from handheld.package import load as run

    return run(path)


def ceilings(device: str = "opencl", fresh: bool = False) -> Ceilings:
    """What a device can do at most: as measured before, or measured now, which takes seconds."""
    from handheld.measure.ceilings import ceilings as run

    return run(device, fresh)


def __getattr__(name: str) -> Any:
    if name == "capture":  # a package that can be called; PyTorch is imported only then
        return importlib.import_module("handheld.capture")
    if name == "Capture":
        from handheld.capture.capture import Capture as found

        return found
    raise AttributeError(name)
