"""Python's garbage collector, set aside while a step is read, planned or started.

These make hundreds of thousands of objects, none of them garbage. Each time enough are new the
collector looks at all there are, PyTorch's own among them: a quarter of the time, and for nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
