"""One capture per run and machine: Flower starts a process per message, and a capture takes seconds and PyTorch.

The first process of a run captures the step and keeps it as a step file in the cache. The others load it, without
PyTorch. Processes that begin at the same time wait for the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from pathlib import Path

from handheld import cache
from handheld.errors import StepFileError
from handheld.federated.model import StepSource, step_of
from handheld.package import load
from handheld.step import Step

#: Seconds after which the step file of a run is removed.
OLD_S = 24 * 3600.0


def shared(source: StepSource, run_id: int) -> Step:
    """The step of this run, from the cache if a process of this machine made it before."""
    if isinstance(source, Step):
        return source
    folder = cache.folder() / "federated"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run_id}.step"
    with (folder / f"{run_id}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            with contextlib.suppress(StepFileError):
                return load(path)
        _forget(folder)
        step = step_of(source)
        step.save(path)
        return step


def _forget(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > OLD_S:
                path.unlink()
