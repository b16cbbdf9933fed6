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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from handheld.graph.graph import PHASES
from handheld.store.commands import COPY, DOWNLOAD, LAUNCH, UPLOAD, Commands
from handheld.store.reader import RunFile
from handheld.store.record import Record
from handheld.store.rows import ClockRow, StepRow

TRANSFERS: dict[int, str] = {UPLOAD: "upload", DOWNLOAD: "download", COPY: "copy"}
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
        marks = file.table(ClockRow, "ORDER BY host_ns")
        if not marks:
            zero = np.zeros(1, np.int64)
            return cls(zero, zero, zero, 0, 0.0)
        device = np.array([mark.device_ns for mark in marks], np.int64)
        at = np.array([mark.host_ns for mark in marks], np.int64)
        error = np.array([mark.error_ns for mark in marks], np.int64)
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


@dataclass(frozen=True, slots=True)
class Parts:
    """A step's period in ns, cut into parts that add up."""

    ops: int
    upload: int
    download: int
    copy: int
    launching: int
    caller: int
    between: int
    unexplained: int


@dataclass(frozen=True, slots=True)
class StepParts(Record):
    """Where the time of a step goes: means over recorded steps in ms. All but `ms`, which is their
    sum, and `steps`, over how many that is, are parts."""

    ms: float
    forward: float
    backward: float
    update: float
    upload: float
    download: float
    copy: float
    launching: float
    caller: float
    between: float
    unexplained: float
    steps: int

    @property
    def busy_ms(self) -> float:
        """In which the device ran a command."""
        return self.forward + self.backward + self.update + self.upload + self.download + self.copy

    def by_name(self) -> dict[str, float]:
        """The parts, which add up to `ms`."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("ms", "steps")}


@dataclass(frozen=True)
class Period:
    """A recorded step in which everything before it was as in any other: times in ns."""

    step: int
    graph: str
    begin: int
    end: int
    ops: dict[int, int]
    parts: Parts

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
    commands: Commands


def timed_steps(file: RunFile) -> list[Timed]:
    clock = Clock.of(file)
    found = []
    for step in file.table(StepRow, "WHERE window IS NOT NULL ORDER BY id"):
        commands = file.commands(step.id)
        if commands is None or step.window is None or not len(commands):
            continue
        started, ended = (clock.host(commands[name], step.begin_ns, step.end_ns) for name in ("started", "ended"))
        if started is not None and ended is not None:
            commands["started"], commands["ended"] = started, ended
            found.append(Timed(step.id, step.graph, step.window, step.begin_ns, step.end_ns, commands))
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
    busy = sum(ops.values())
    took = commands["ended"] - commands["started"]
    upload, download, copy = (int(took[commands["kind"] == kind].sum()) for kind in (UPLOAD, DOWNLOAD, COPY))
    gaps, late = gaps_after(one, after)
    outside = max(min(after.begin, end) - max(one.end, int(commands["ended"][-1])), 0)
    caller = min(outside, int(late[-1]))
    launching, between = int(late.sum()) - caller, int((gaps - late).sum())
    known = busy + upload + download + copy + launching + caller + between
    parts = Parts(busy, upload, download, copy, launching, caller, between, end - begin - known)
    return Period(one.step, one.graph, begin, end, ops, parts)


def step_parts(periods: Sequence[Period], phases: Mapping[int, str]) -> StepParts | None:
    """The mean over periods; `phases` says the phase of each op. None without a period."""
    if not periods:
        return None
    ops = dict.fromkeys(PHASES, 0.0)
    for period in periods:
        for op, ns in period.ops.items():
            ops[phases[op]] += ns * 1e-6 / len(periods)

    def mean(values: list[int]) -> float:
        return float(np.mean(values)) * 1e-6

    parts = [one.parts for one in periods]
    upload, download = mean([p.upload for p in parts]), mean([p.download for p in parts])
    copy, launching = mean([p.copy for p in parts]), mean([p.launching for p in parts])
    caller, between = mean([p.caller for p in parts]), mean([p.between for p in parts])
    unexplained = mean([p.unexplained for p in parts])
    whole = sum(ops.values()) + upload + download + copy + launching + caller + between + unexplained
    return StepParts(
        ms=whole,
        forward=ops["forward"],
        backward=ops["backward"],
        update=ops["update"],
        upload=upload,
        download=download,
        copy=copy,
        launching=launching,
        caller=caller,
        between=between,
        unexplained=unexplained,
        steps=len(periods),
    )
