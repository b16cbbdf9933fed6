"""Handheld: train PyTorch models on phone-class hardware, and see where every step goes.

    step = handheld.capture(model, loss, optimizer, batch)     # needs PyTorch
    step.save("model.step")

    step = handheld.load("model.step")                         # does not
    with step.plan("opencl").start() as trainer:
        loss = trainer.step(x, y)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.step import Step

if TYPE_CHECKING:
    from handheld.analyse.run import Run
    from handheld.capture.capture import Capture
    from handheld.measure.ceilings import Ceilings
    from handheld.profile.profiler import Profiler
    from handheld.profile.watch import Watch

__version__ = "0.1.0"
__all__ = [
    "Capture", "DeviceCaps", "HandheldError", "Profiler", "Step", "capture", "ceilings", "load",
    "open_run", "watch",
]


def capture(*args: Any, **options: Any) -> Step:
    """See handheld.capture.capture.capture: PyTorch is imported only when something is captured."""
    from handheld.capture import call

    step: Step = call(*args, **options)
    return step


def load(path: Any) -> Step:
    """Reads a step file."""
    from handheld.package import load as run

    return run(path)


def ceilings(device: str = "opencl", fresh: bool = False) -> Ceilings:
    """What a device can do at most: as measured before, or measured now, which takes seconds."""
    from handheld.measure.ceilings import ceilings as run

    return run(device, fresh)


def open_run(path: Any) -> Run:
    """Opens what `plan.profile`, `handheld profile` or a `Profiler` has written."""
    from handheld.analyse.run import open_run as run

    return run(path)


def watch(model: Any, path: Any, **options: Any) -> Watch:
    """Profiles plain PyTorch, which Handheld does not run; see handheld.profile.watch."""
    from handheld.profile.watch import Watch as found

    return found(model, path, **options)


def __getattr__(name: str) -> Any:
    if name == "Profiler":
        from handheld.profile.profiler import Profiler as profiler

        return profiler
    if name == "Capture":
        from handheld.capture.capture import Capture as found

        return found
    raise AttributeError(name)
