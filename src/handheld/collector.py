"""Pauses Python's garbage collector while a step is read, planned or started.

This creates hundreds of thousands of objects, and none of them is garbage. Whenever enough objects are new, the
collector visits all objects, including PyTorch's. Without the pause this takes a quarter of the time, for nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
