"""The machine of a target: its clock, its files and what its sampler reads.

A second runner process on the target answers these requests. It never loads OpenCL, so it is small, and sampling goes
on while the first one builds programs or waits for the device.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterable, Sequence

from handheld.backends.runner import connect
from handheld.backends.runner.link import Link, Op
from handheld.errors import DeviceError
from handheld.sensors.mirror import Found, Wanted
from handheld.sensors.wire import found_files, sample_list
from handheld.targets.adb import AdbTarget
from handheld.targets.base import Target
from handheld.targets.find import find
from handheld.targets.names import parse

TRIES = 16  # round trips for one comparison of the clocks
SYNC_S = 5.0  # Two quartz clocks drift apart by up to 0.1 ms per second, so they are compared again.
#: What an Android phone says about itself.
PROPERTIES = {
    "ro.product.manufacturer": "manufacturer",
    "ro.product.model": "model",
    "ro.soc.model": "soc",
    "ro.build.version.release": "android",
}


class Offset:
    """The clock of another machine, relative to `time.monotonic_ns`. The error is half of the shortest round trip."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self.offset_ns = self.error_ns = 0
        self._synced_s = 0.0
        self.sync()

    def sync(self) -> None:
        best: tuple[int, int] | None = None
        for _ in range(TRIES):
            begin = time.monotonic_ns()
            there = self._ask()
            end = time.monotonic_ns()
            error = (end - begin) // 2
            if best is None or error < best[0]:
                best = error, there - (begin + error)
        assert best is not None
        self.error_ns, self.offset_ns = best
        self._synced_s = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._synced_s > SYNC_S

    def now_ns(self) -> int:
        return time.monotonic_ns() + self.offset_ns


class Observer:
    """A runner that only observes its machine (`sensors.mirror.Machine`). Use it in a `with` statement."""

    def __init__(self, target: Target, pid: int | None = None) -> None:
        self.target, self.name = target, target.name
        self._link = Link(target)
        try:
            self.system = connect.system(self._link)
            self.pid = int(self.system["pid"]) if pid is None else pid
            self.page_bytes = int(self.system["page_bytes"])
            self.clock = Offset(self.clock_ns)
        except BaseException:
            self.close()
            raise

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def clock_ns(self) -> int:
        return int(struct.unpack("<q", self._link.get(Op.CLOCK))[0])

    def files(self, patterns: Iterable[str]) -> list[Found]:
        return found_files(bytes(self._link.get(Op.FILES, "\n".join(patterns).encode())))

    def sample(self, wanted: Sequence[Wanted]) -> None:
        self._link.get(Op.SAMPLE, sample_list(wanted))

    def samples(self) -> bytes:
        if self.clock.due:
            self.clock.sync()
        return bytes(self._link.get(Op.SAMPLES))

    def stop_sampling(self) -> bytes:
        return bytes(self._link.get(Op.SAMPLE_STOP))

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def properties(target: Target) -> dict[str, str]:
    """What an Android phone says about itself; empty elsewhere."""
    if not isinstance(target, AdbTarget):
        return {}
    names = list(PROPERTIES)
    with contextlib.suppress(DeviceError):
        lines = target.script("; ".join(f"getprop {name}" for name in names)).text.splitlines()
        return {PROPERTIES[name]: line.strip() for name, line in zip(names, lines, strict=False) if line.strip()}
    return {}


def runner_pid(device: str) -> int:
    """The process of the runner that the next session on this device will use."""
    with connect.borrowed(parse(device)) as link:
        return int(connect.system(link)["pid"])


def observed(device: str, pid: int | None = None) -> Observer:
    """The machine of a device on a target. `pid` is the process that enqueues the steps. Raises DeviceError if it
    cannot be reached."""
    return Observer(find(device), pid)
