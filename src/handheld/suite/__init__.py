"""The workloads: models that people train on devices, each with a loss, an optimizer and batches.

    workload = suite.get("mobilenet_v2", size="paper")   # or "small", or pixels: 96
    model, loss, optimizer = workload.make()
    step = workload.step(batch=16)                       # captured and ready to plan

The list is in catalogue.py; each model family has its own file. This file imports without PyTorch; the
families need it.
"""

from __future__ import annotations

from handheld.errors import HandheldError
from handheld.names import suggestion
from handheld.suite.catalogue import ALIASES, WORKLOADS
from handheld.suite.workload import SIZES, Option, Update, Workload

__all__ = ["SIZES", "WORKLOADS", "Update", "Workload", "get"]


def get(name: str, size: str | int | None = None, **options: Option) -> Workload:
    """The workload of this name, for example `get("resnet18", size=224)`.

    `size` is "small", "paper" or a number of pixels. `options` override those of the workload.
    """
    if name in ALIASES and size is None:
        name, size = ALIASES[name]
    if name not in WORKLOADS:
        hint = suggestion(name, WORKLOADS, "handheld bench --list, which lists them")
        raise HandheldError(f"there is no workload {name!r}. {hint}. A model of your own is file.py:function")
    return WORKLOADS[name].with_options(size, **options)
