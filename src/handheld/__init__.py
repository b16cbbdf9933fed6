"""Handheld trains PyTorch models on phone-class hardware and reports where the time of each step goes.

A first training, in two parts:

    step = handheld.capture(model, loss, optimizer, batch)     # needs PyTorch
    step.save("model.step")

    step = handheld.load("model.step")                         # does not need PyTorch
    with step.plan("opencl").start() as trainer:
        loss = trainer.step(x, y)
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handheld.analyse.compare import Comparison
    from handheld.analyse.run import Run
    from handheld.device import DeviceCaps
    from handheld.errors import HandheldError
    from handheld.frontend.capture import Capture
    from handheld.frontend.entry import capture
    from handheld.measure.ceilings import Ceilings
    from handheld.partial.lora import lora, merge_lora
    from handheld.partial.quantise import quantise
    from handheld.partial.select import freeze, train_only
    from handheld.partial.sparse import sparse
    from handheld.plan.plan import Plan
    from handheld.profile.profiler import Profiler
    from handheld.profile.watching import watch
    from handheld.run.verify import Verification
    from handheld.step import Step

__version__ = "0.1.0"
__all__ = [
    "Capture",
    "DeviceCaps",
    "HandheldError",
    "Profiler",
    "Step",
    "capture",
    "ceilings",
    "compare",
    "freeze",
    "load",
    "lora",
    "merge_lora",
    "open_run",
    "quantise",
    "sparse",
    "train_only",
    "tune",
    "verify",
    "watch",
]


def load(path: str | Path) -> Step:
    """Load a step that `Step.save` or `handheld package` wrote. Needs no PyTorch, and runs no code from the file."""
    from handheld.package import load as run

    return run(path)


def ceilings(device: str = "opencl", fresh: bool = False) -> Ceilings:
    """The measured limits of a device. They are measured now, which takes seconds, if `fresh` is set or no earlier
    measurement is stored."""
    from handheld.measure.ceilings import ceilings as run

    return run(device, fresh)


def verify(plan: Plan, batch: Sequence[Any], graph: str = "train", tolerance: float = 1e-5) -> Verification:
    """Compare every op of a graph on the plan's device with PyTorch in float64. Printing the result shows the first op
    that differs. Needs PyTorch; changes no state."""
    from handheld.run.verify import verify_plan

    return verify_plan(plan, batch, graph, tolerance)


def tune(step: Step, device: str = "opencl", seconds: float = 120.0, precision: str = "float32") -> Path:
    """Find the fastest variant of each kernel of the graphs that train. Returns the path of the tuning record,
    which all later plans for the device use. Another call continues the search."""
    from handheld.measure.tuner import tune as run

    return run(step, device, seconds, precision)


def open_run(path: str | Path) -> Run:
    """Open a run file that `plan.profile`, `handheld profile` or a `Profiler` wrote."""
    from handheld.analyse.run import open_run as run

    return run(path)


def compare(*runs: Run | str | Path) -> Comparison:
    """Compare two run files or more, op by op. Each is compared with the first on its device, or with the first of
    all. docs/compare.md says what counts as a difference."""
    from handheld.analyse.compare import compare_files as run

    return run(runs)


def __dir__() -> list[str]:
    return sorted((*__all__, "__doc__", "__version__", "errors"))


#: What is imported when it is first used: its module may import PyTorch, or much else. Every process of Handheld
#: imports this module, also those that only read sensors.
_LATER = {
    "Capture": "handheld.frontend.capture",
    "DeviceCaps": "handheld.device",
    "HandheldError": "handheld.errors",
    "Profiler": "handheld.profile.profiler",
    "Step": "handheld.step",
    "capture": "handheld.frontend.entry",
    "freeze": "handheld.partial.select",
    "lora": "handheld.partial.lora",
    "merge_lora": "handheld.partial.lora",
    "quantise": "handheld.partial.quantise",
    "sparse": "handheld.partial.sparse",
    "train_only": "handheld.partial.select",
    "watch": "handheld.profile.watching",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(name)
    return getattr(importlib.import_module(_LATER[name]), name)
