"""Helpers for kernel families with a fixed `.cl` file: integer arguments, work-group sizes, simple launches."""

from __future__ import annotations

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import View
from handheld.kernels.base import Arg, Int, Launch, round_up

LIMIT = 2**31 - 1  # Kernels index with 32-bit integers.


def ints(*values: int) -> tuple[Int, ...]:
    """Integer arguments of a kernel. Raises PlanError if a value does not fit in 32 bits."""
    for value in values:
        if not -LIMIT <= value <= LIMIT:
            raise PlanError(
                f"a kernel would need the number {value}, but kernels index with 32-bit integers. Try: a smaller batch"
            )
    return tuple(Int(value) for value in values)


def strided(view: View) -> tuple[Int, ...]:
    """The offset of a view, then its strides, as integer arguments."""
    return ints(view.offset, *view.strides)


def group(caps: DeviceCaps, want: int = 64) -> int:
    """The largest power of two that is at most `want` and that the device can run."""
    size = 1
    while size * 2 <= min(want, caps.max_work_group):
        size *= 2
    return size


def line(kernel: str, text: str, args: tuple[Arg, ...], items: int, caps: DeviceCaps) -> Launch:
    """A one-dimensional launch of at least `items` work-items.

    The number is rounded up to whole work-groups; the kernel must return at once for the extra work-items.
    """
    local = group(caps)
    ints(round_up(items, local))
    return Launch(kernel, text, args, (round_up(items, local),), (local,))
