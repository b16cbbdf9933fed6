"""Small things that the families with a fixed .cl file share: integers, groups, launches."""

from __future__ import annotations

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import View
from handheld.kernels.base import Arg, Int, Launch, round_up

LIMIT = 2**31 - 1  # kernels index with 32-bit integers


def ints(*values: int) -> tuple[Int, ...]:
    """Integer arguments; a value that a kernel could not hold is an error of the plan."""
    for value in values:
        if not -LIMIT <= value <= LIMIT:
            raise PlanError(
                f"a kernel would need the number {value}, which does not fit in the "
                "32-bit integers kernels index with. Try: a smaller batch"
            )
    return tuple(Int(value) for value in values)


def strided(view: View) -> tuple[Int, ...]:
    """Offset and strides of a view."""
    return ints(view.offset, *view.strides)


def group(caps: DeviceCaps, want: int = 64) -> int:
    """The largest power of two that is at most `want` and that the device can run."""
    size = 1
    while size * 2 <= min(want, caps.max_work_group):
        size *= 2
    return size


def line(kernel: str, text: str, args: tuple[Arg, ...], items: int, caps: DeviceCaps) -> Launch:
    """A launch of `items` work-items in a row; the kernel turns away those that round it up."""
    local = group(caps)
    ints(round_up(items, local))
    return Launch(kernel, text, args, (round_up(items, local),), (local,))
