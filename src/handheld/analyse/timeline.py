"""Recorded steps on one clock, and where the time of a step goes.

The period of a step runs from its first command to the first command of the next step, both in one window. So no moment
is counted twice or left out. On the device's timeline it is divided into

    ops          the launches of each op
    upload, download, copy
    launching    the device was idle: the host was still enqueueing this command
    caller       the device was idle: the host was outside the step (data, the user's code)
    between      nothing ran although the next command was enqueued: driver and device
    unexplained  the rest, caused by the error of the two clocks
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
MOST_DRIFT = 1e-3  # If two clocks drift apart faster than this, one of them was changed.
UNNOTICED_NS = 20_000  # an additional tolerance


@dataclass(frozen=True)
class Clock:
    """Converts device times to host times by linear interpolation between the marks of a stretch. A new stretch begins
    where the device's clock was changed, that is, where its offset moved by more than it can drift."""

    device: np.ndarray
    at: np.ndarray  # the host's time of each mark, in rising order
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
        """When the device's clock was changed, and by how much: (host time, change), both in ns."""
        where = np.flatnonzero(np.diff(self.stretch))
        moved = np.diff(self.device - self.at)
        return [(int(self.at[i + 1]), int(moved[i])) for i in where]

    def host(self, device_ns: np.ndarray, begin: int, end: int) -> np.ndarray | None:
        """The host's times of device times within a step that ran from `begin` to `end` by the host's clock. None
        if the device's clock was changed between the marks around the step."""
        last = len(self.at) - 1
        before = max(int(np.searchsorted(self.at, begin, "right")) - 1, 0)
        after = min(int(np.searchsorted(self.at, end)), last)
        if self.stretch[before] != self.stretch[after]:
            return None
        marks = np.flatnonzero(self.stretch == self.stretch[before])
        marks = marks[np.argsort(self.device[marks], kind="stable")]
        shift = np.interp(device_ns, self.device[marks], (self.at[marks] - self.device[marks]).astype(np.float64))
        host_ns: np.ndarray = device_ns + np.rint(shift).astype(np.int64)
        return host_ns


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a step's period in ns. They add up to the period."""

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
    """Where the time of a step goes: means over recorded steps in ms. `ms` is the sum of the parts; `steps` is the
    number of recorded steps."""

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
        """The time in which the device ran a command."""
        return self.forward + self.backward + self.update + self.upload + self.download + self.copy

    def by_name(self) -> dict[str, float]:
        """The parts, which add up to `ms`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("ms", "steps")}


@dataclass(frozen=True)
class Period:
    """The period of a recorded step that has a recorded step before and after it. Times are in ns."""

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
    """A recorded step with the times of its commands by the host's clock."""

    step: int
    graph: str
    window: int
    begin: int  # begin and end of the call
    end: int
    commands: Commands


def timed_steps(file: RunFile) -> list[Timed]:
    """All recorded steps whose device times can be converted to host times."""
    clock = Clock.of(file)
    steps = []
    for step in file.table(StepRow, "WHERE window IS NOT NULL ORDER BY id"):
        commands = file.commands(step.id)
        if commands is None or step.window is None or not len(commands):
            continue
        started, ended = (clock.host(commands[name], step.begin_ns, step.end_ns) for name in ("started", "ended"))
        if started is not None and ended is not None:
            if min(started.min(), ended.min()) < 0:
                raise file.damaged(f"the times of step {step.id} are before the start of the host's clock")
            commands["started"], commands["ended"] = started, ended
            steps.append(Timed(step.id, step.graph, step.window, step.begin_ns, step.end_ns, commands))
    return steps


def op_times(steps: list[Timed]) -> dict[int, np.ndarray]:
    """The time of each op in ns: one value per recorded step, without the first step of each window."""
    times: dict[int, list[int]] = {}
    for before, step in itertools.pairwise(steps):
        if before.window != step.window:
            continue
        for op, ns in by_op(step).items():
            times.setdefault(op, []).append(ns)
    return {op: np.array(values) for op, values in times.items()}


def op_means(periods: Sequence[Period]) -> dict[int, float]:
    """The mean time of each op in ns over the periods of its graph, which `step_parts` also uses."""
    counts: dict[str, int] = {}
    sums: dict[tuple[str, int], int] = {}
    for period in periods:
        counts[period.graph] = counts.get(period.graph, 0) + 1
        for op, ns in period.ops.items():
            sums[period.graph, op] = sums.get((period.graph, op), 0) + ns
    return {op: ns / counts[graph] for (graph, op), ns in sums.items()}


def by_op(step: Timed) -> dict[int, int]:
    """The time of each op of a step in ns."""
    launches = step.commands["kind"] == LAUNCH
    ops = step.commands["op"][launches]
    spent = (step.commands["ended"] - step.commands["started"])[launches]
    sums: dict[int, int] = {}
    for op, ns in zip(ops.tolist(), spent.tolist(), strict=True):
        sums[op] = sums.get(op, 0) + ns
    return sums


def periods(steps: list[Timed]) -> list[Period]:
    """The periods of all steps that have a recorded step before and after them in their window."""
    result = []
    for before, step, after in zip(steps, steps[1:], steps[2:], strict=False):
        if before.window == step.window == after.window:
            result.append(_period(step, after))
    return result


def gaps_after(step: Timed, after: Timed) -> tuple[np.ndarray, np.ndarray]:
    """After each command of a step, until the next command: how long nothing ran, and how much of that because the next
    command was not enqueued yet. The next command of the last one is the first of the step `after`."""
    ended = step.commands["ended"]
    started, ready = (np.append(step.commands[name][1:], after.commands[name][0]) for name in ("started", "host_end"))
    gaps = np.maximum(started - ended, 0)
    return gaps, np.clip(ready - ended, 0, gaps)


def _period(step: Timed, after: Timed) -> Period:
    commands = step.commands
    begin, end = int(commands["started"][0]), int(after.commands["started"][0])
    ops = by_op(step)
    busy = sum(ops.values())
    took = commands["ended"] - commands["started"]
    upload, download, copy = (int(took[commands["kind"] == kind].sum()) for kind in (UPLOAD, DOWNLOAD, COPY))
    gaps, late = gaps_after(step, after)
    outside = max(min(after.begin, end) - max(step.end, int(commands["ended"][-1])), 0)
    caller = min(outside, int(late[-1]))
    launching, between = int(late.sum()) - caller, int((gaps - late).sum())
    known = busy + upload + download + copy + launching + caller + between
    parts = Parts(busy, upload, download, copy, launching, caller, between, end - begin - known)
    return Period(step.step, step.graph, begin, end, ops, parts)


def step_parts(periods: Sequence[Period], phases: Mapping[int, str]) -> StepParts | None:
    """The mean over the periods, or None if there is none. `phases` maps each op to its phase."""
    if not periods:
        return None
    ops = dict.fromkeys(PHASES, 0.0)
    for period in periods:
        for op, ns in period.ops.items():
            ops[phases[op]] += ns * 1e-6 / len(periods)

    def mean(values: list[int]) -> float:
        return float(np.mean(values)) * 1e-6

    parts = [period.parts for period in periods]
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
