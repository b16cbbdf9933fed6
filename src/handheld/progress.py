"""Reports the stages of long preparations (capturing, planning, building) to a function that the caller chose.

Nothing is reported by default. `with reporting(function):` lets the code inside call the function:

    capturing, 0, 0       a stage begins; its length is not known
    building, 12, 33      12 of 33 kernels' programs are built
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

#: Takes the stage, the number done and the total (0: not known). Builds report from several threads, one at a time.
Progress = Callable[[str, int, int], None]

_listener: ContextVar[Progress | None] = ContextVar("_listener", default=None)


@contextlib.contextmanager
def reporting(to: Progress | None) -> Iterator[None]:
    """While active, stages are reported to this function. None changes nothing."""
    if to is None:
        yield
        return
    token = _listener.set(to)
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Progress | None:
    """The function of the current context. A thread does not inherit it, so who starts threads asks before."""
    return _listener.get()


def report(stage: str, done: int = 0, total: int = 0) -> None:
    to = _listener.get()
    if to is not None:
        to(stage, done, total)
