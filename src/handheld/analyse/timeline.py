"""Recorded steps on one clock, and where the time of a step goes.

A step's period is from its first command to the first command of the step after it, both in one
window: no moment is counted twice or left out. On the device's own timeline it is cut into

    ops          the launches of each op
    upload, download, copy
    launching    nothing to do: the host was still enqueueing this command
    caller       nothing to do: the host was outside of the step (data, the user's code)
    between      nothing running although the next command was there: the driver and the device
    unexplained  what is left over, by the error of the two clocks
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from handheld.backends.base import COPY, DOWNLOAD, LAUNCH, UPLOAD
from handheld.store.reader import RunFile

TRANSFERS = {UPLOAD: "upload", DOWNLOAD: "download", COPY: "copy"}
PARTS = ("ops", "upload", "download", "copy", "launching", "caller", "between", "unexplained")
MOST_DRIFT = 1e-3  # of two clocks that run on: beyond it one of them was set
UNNOTICED_NS = 20_000  # and a little more


@dataclass(frozen=True)
class Clock:
    """The host's time of a device's time: straight lines between the marks of a stretch. A new
    stretch begins where the device's clock was set: its offset moved by more than it can drift."""

    device: np.ndarray
    at: np.ndarray  # the host's time of each mark; they are in its order
    stretch: np.ndarray
    error_ns: int
    drift_ppm: float

    @classmethod
    def of(cls, file: RunFile) -> Clock:
        marks = np.array(
            file.rows("SELECT device_ns, host_ns, error_ns FROM clock ORDER BY host_ns"), np.int64
        ).reshape(-1, 3)
        if not len(marks):
            zero = np.zeros(1, np.int64)
            return cls(zero, zero, zero, 0, 0.0)
        device, at, error = marks.T
        moved = np.abs(np.diff(at - device))
        allowed = error[1:] + error[:-1] + MOST_DRIFT * np.diff(at) + UNNOTICED_NS
        stretch = np.concatenate(([0], np.cumsum(moved > allowed)))
        longest = stretch == np.bincount(stretch).argmax()
        span = at[longest][-1] - at[longest][0]
        offset = (at - device)[longest]
        drift = (offset[-1] - offset[0]) / span * 1e6 if span else 0.0
        return cls(device, at, stretch, int(np.median(error)), float(drift))

    @property
    def stepped(self) -> list[tuple[int, int]]:
        """(when, by how much) in ns the device's clock was set."""
        where = np.flatnonzero(np.diff(self.stretch))
        moved = np.diff(self.device - self.at)
        return [(int(self.at[i + 1]), int(moved[i])) for i in where]

    def host(self, device_ns: np.ndarray, begin: int, end: int) -> np.ndarray | None:
        """Of times in a step that the host saw from `begin` to `end`; None if the clock was set
        between the marks around it."""
        last = len(self.at) - 1
        before = max(int(np.searchsorted(self.at, begin, "right")) - 1, 0)
        after = min(int(np.searchsorted(self.at, end)), last)
        if self.stretch[before] != self.stretch[after]:
            return None
        mine = np.flatnonzero(self.stretch == self.stretch[before])
        mine = mine[np.argsort(self.device[mine], kind="stable")]
        shift = np.interp(device_ns, self.device[mine], (self.at[mine] - self.device[mine]).astype(np.float64))
        placed: np.ndarray = device_ns + np.rint(shift).astype(np.int64)
        return placed


@dataclass(frozen=True)
class Period:
    """A recorded step in which everything before it was as in any other: times in ns."""

    step: int
    graph: str
    begin: int
    end: int
    ops: dict[int, int]
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Timed:
    """A recorded step, its commands on the host's clock."""

    step: int
    graph: str
    window: int
    begin: int  # the call
    end: int
    commands: dict[str, np.ndarray]


def timed_steps(file: RunFile) -> list[Timed]:
    clock = Clock.of(file)
    found = []
    for step, graph, begin, end, window in file.rows(
        "SELECT id, graph, begin_ns, end_ns, window FROM step WHERE window IS NOT NULL ORDER BY id"
    ):
        commands = file.commands(step)
        if commands is None or not len(commands["kind"]):
            continue
        started, ended = (clock.host(commands[name], begin, end) for name in ("started", "ended"))
        if started is not None and ended is not None:
            placed = {**commands, "started": started, "ended": ended}
            found.append(Timed(step, graph, window, begin, end, placed))
    return found


def op_times(steps: list[Timed]) -> dict[int, np.ndarray]:
    """Nanoseconds that each op ran, one value a recorded step; the first of a window aside."""
    found: dict[int, list[int]] = {}
    for before, one in itertools.pairwise(steps):
        if before.window != one.window:
            continue
        for op, ns in _by_op(one).items():
            found.setdefault(op, []).append(ns)
    return {op: np.array(values) for op, values in found.items()}


def _by_op(one: Timed) -> dict[int, int]:
    launches = one.commands["kind"] == LAUNCH
    ops = one.commands["op"][launches]
    spent = (one.commands["ended"] - one.commands["started"])[launches]
    sums: dict[int, int] = {}
    for op, ns in zip(ops.tolist(), spent.tolist(), strict=True):
        sums[op] = sums.get(op, 0) + ns
    return sums


def periods(steps: list[Timed]) -> list[Period]:
    """Steps with a recorded one before and after them."""
    found = []
    for before, one, after in zip(steps, steps[1:], steps[2:], strict=False):
        if before.window == one.window == after.window:
            found.append(_period(before, one, after))
    return found


def gaps_after(one: Timed, after: Timed) -> tuple[np.ndarray, np.ndarray]:
    """After each command of a step, up to the next step's first: how long nothing ran, and how
    much of that because the command that follows was not there yet."""
    ended = one.commands["ended"]
    started, there = (np.append(one.commands[name][1:], after.commands[name][0]) for name in ("started", "host_end"))
    gaps = np.maximum(started - ended, 0)
    return gaps, np.clip(there - ended, 0, gaps)


def _period(before: Timed, one: Timed, after: Timed) -> Period:
    commands = one.commands
    begin, end = int(commands["started"][0]), int(after.commands["started"][0])
    ops = _by_op(one)
    parts = dict.fromkeys(PARTS, 0)
    parts["ops"] = sum(ops.values())
    for kind, name in TRANSFERS.items():
        mine = commands["kind"] == kind
        parts[name] = int((commands["ended"] - commands["started"])[mine].sum())
    gaps, late = gaps_after(one, after)
    outside = max(min(after.begin, end) - max(one.end, int(commands["ended"][-1])), 0)
    caller = min(outside, int(late[-1]))
    parts["caller"] = caller
    parts["launching"] = int(late.sum()) - caller
    parts["between"] = int((gaps - late).sum())
    parts["unexplained"] = (end - begin) - sum(parts.values())
    return Period(one.step, one.graph, begin, end, ops, parts)
