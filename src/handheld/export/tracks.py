"""A run as tracks over time: nested slices, counters and marks. The trace formats (perfetto, chrome) write these.

    host              each step's call, and the host's calls that enqueue its commands
    device            recorded steps: step > phase > command (a launch of an op, or a transfer)
    energy windows    windows of repeated equal work
    memory            bytes alive while each recorded op ran, per category, as planned
    power rails, temperature, clocks, …   every reading of every sensor channel
    notes             other events of the run

All times are those of the run: nanoseconds by CLOCK_MONOTONIC. Slices of one track nest; commands that ran at the same
time as another are on a track of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

import numpy as np

from handheld.analyse.rails import Series
from handheld.analyse.run import Run
from handheld.analyse.timeline import TRANSFERS, Timed
from handheld.store.commands import LAUNCH
from handheld.store.rows import EnergyWindowRow, OpRow, StepRow

Value: TypeAlias = str | int | float
Args: TypeAlias = Mapping[str, Value]

#: The group of tracks for each quantity of a sensor.
GROUPS = {
    "power": "power rails",
    "energy": "power rails",
    "temperature": "temperature",
    "frequency": "clocks",
    "utilisation": "load",
    "time": "load",
    "memory": "memory of the machine",
    "charge": "battery",
}
#: The unit of a counter's rate.
RATES = {"energy": "W", "time": "s/s", "charge": "A"}


@dataclass(frozen=True)
class Slice:
    """A time with a name; its children lie within it, one after the other."""

    name: str
    begin_ns: int
    end_ns: int
    category: str
    args: Args = field(default_factory=dict)
    children: Sequence[Slice] = ()


@dataclass(frozen=True)
class SliceTrack:
    """Slices that do not overlap, in the order of time."""

    group: str
    name: str
    slices: Sequence[Slice]


@dataclass(frozen=True)
class CounterTrack:
    """A number over time."""

    group: str
    name: str
    unit: str
    t_ns: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Mark:
    """Something that happened at one moment."""

    t_ns: int
    name: str
    args: Args


@dataclass(frozen=True)
class Tracks:
    """All tracks of a run, and the facts that describe it. Unix time is None if the file does not say it."""

    title: str
    facts: Args
    begin_ns: int
    begin_unix_ns: int | None
    slices: Sequence[SliceTrack]
    counters: Sequence[CounterTrack]
    marks: Sequence[Mark]


def tracks(run: Run) -> Tracks:
    """The tracks of a run."""
    settings, caps = run.meta.get("settings") or {}, run.meta.get("caps") or {}
    facts: dict[str, Value] = {"run file": run.path.name, "status": str(run.meta.get("status", "unknown"))}
    for name, value in (("device", run.meta.get("device")), ("device name", caps.get("name"))):
        if value:
            facts[name] = str(value)
    facts |= {f"setting {name}": str(value) for name, value in settings.items()}
    facts |= {f"version of {name}": str(value) for name, value in (run.meta.get("versions") or {}).items()}
    begun, unix = run.meta.get("begun_monotonic_ns"), run.meta.get("begun_unix_ns")
    return Tracks(
        title=f"{settings.get('what') or run.path.stem} on {run.meta.get('device') or 'an unknown device'}",
        facts=facts,
        begin_ns=begun if isinstance(begun, int) else run.span()[0],
        begin_unix_ns=unix if isinstance(unix, int) and isinstance(begun, int) else None,
        slices=[*_host(run), *_device(run), *_windows(run)],
        counters=[*_memory(run), *_sensors(run.channels)],
        marks=[Mark(note.t_ns, note.kind, {"text": note.text}) for note in run.notes()],
    )


def lanes(slices: Sequence[Slice]) -> list[list[Slice]]:
    """The slices in as few rows as possible, so that those of a row do not overlap."""
    rows: list[list[Slice]] = []
    for one in sorted(slices, key=lambda s: (s.begin_ns, -s.end_ns)):
        row = next((r for r in rows if r[-1].end_ns <= one.begin_ns), None)
        if row is None:
            rows.append([one])
        else:
            row.append(one)
    return rows


def _named(group: str, name: str, slices: Sequence[Slice]) -> Iterator[SliceTrack]:
    """A track, and further ones for slices that overlap those before."""
    for i, row in enumerate(lanes(slices)):
        yield SliceTrack(group, name if i == 0 else f"{name} ({i + 1}, at the same time)", row)


# ── slices ────────────────────────────────────────────────────────────────────────────────────


def _host(run: Run) -> Iterator[SliceTrack]:
    ops, timed = {row.id: row for row in run.op_rows}, {step.step: step for step in run.timed}
    slices: list[Slice] = []
    for step in run.steps():
        calls = _calls(timed[step.id], ops) if step.id in timed else []
        inside: list[Slice] = []
        for call in calls:
            within = step.begin_ns <= call.begin_ns and call.end_ns <= step.end_ns
            (inside if within else slices).append(call)
        first, *others = lanes(inside) or [[]]
        slices += [call for row in others for call in row]
        slices.append(Slice(f"step {step.id}", step.begin_ns, step.end_ns, "step", _step_args(step), first))
    yield from _named("host", "calls", slices)


def _step_args(step: StepRow) -> dict[str, Value]:
    args: dict[str, Value] = {"step": step.id, "graph": step.graph}
    for name, value in (("batch", step.batch), ("window", step.window), ("loss", step.loss)):
        if value is not None:
            args[name] = value
    return args


def _calls(step: Timed, ops: Mapping[int, OpRow]) -> list[Slice]:
    """The host's calls that enqueued the commands of a step."""
    c = step.commands
    columns = (c[name].tolist() for name in ("kind", "op", "host_begin", "host_end"))
    return [
        Slice(f"enqueue {_command(kind, ops.get(op))}", begin, end, "enqueue")
        for kind, op, begin, end in zip(*columns, strict=True)
    ]


def _command(kind: int, op: OpRow | None) -> str:
    if kind != LAUNCH:
        return TRANSFERS.get(kind, f"command {kind}")
    return op.title if op is not None else "an op that the file does not describe"


def _device(run: Run) -> Iterator[SliceTrack]:
    ops = {row.id: row for row in run.op_rows}
    args = {row.id: _op_args(row) for row in run.op_rows}
    for row in run.joules():
        args[row.id] |= {f"joules of {row.rail}": row.joules, f"joules of {row.rail} by": row.source}
    slices, beside = [], []
    for step in run.timed:
        first, *others = lanes(_commands(step, ops, args))
        beside += [one for row in others for one in row]
        phases = [
            Slice(phase, within[0].begin_ns, within[-1].end_ns, "phase", children=within)
            for phase, within in ((p, list(g)) for p, g in groupby(first, key=lambda s: str(s.args["phase"])))
        ]
        slices.append(
            Slice(
                f"step {step.step}",
                phases[0].begin_ns,
                phases[-1].end_ns,
                "step",
                {"step": step.step, "graph": step.graph, "window": step.window},
                phases,
            )
        )
    yield from _named("device", "steps", slices)
    yield from _named("device", "beside", beside)


def _commands(step: Timed, ops: Mapping[int, OpRow], args: Mapping[int, Args]) -> list[Slice]:
    c = step.commands
    columns = (c[name].tolist() for name in ("kind", "op", "bytes", "started", "ended"))
    slices = []
    for kind, op, nbytes, started, ended in zip(*columns, strict=True):
        own: Args = args.get(op, {"phase": "other"})
        if kind != LAUNCH:
            own = {"phase": "transfer", "kind": TRANSFERS.get(kind, str(kind)), "bytes": nbytes}
        slices.append(Slice(_command(kind, ops.get(op)), started, ended, "launch" if kind == LAUNCH else "copy", own))
    return slices


def _op_args(row: OpRow) -> dict[str, Value]:
    args: dict[str, Value] = {
        "phase": row.phase,
        "op id": row.id,
        "op": row.op,
        "path": row.path,
        "source": row.source,
        "signature": row.signature,
        "variant": row.variant,
        "flops": row.flops,
        "bytes": row.bytes,
    }
    return {name: value for name, value in args.items() if value != ""}


def _windows(run: Run) -> Iterator[SliceTrack]:
    slices = [
        Slice(
            f"{row.method}: {row.signature or 'normal steps'}",
            row.begin_ns,
            row.end_ns,
            "energy",
            {"window": row.id, "extra": row.extra, "runs": row.runs, "ops": " ".join(map(str, row.ops))},
        )
        for row in run.file.table(EnergyWindowRow, "ORDER BY begin_ns")
    ]
    yield from _named("energy windows", "windows", slices)


# ── counters ──────────────────────────────────────────────────────────────────────────────────


def _memory(run: Run) -> Iterator[CounterTrack]:
    """Bytes alive by category, at the start of each launch of the recorded steps."""
    live = {row.id: row.live for row in run.op_rows if row.live}
    categories = list(dict.fromkeys(name for bytes_by in live.values() for name in bytes_by))
    at, ops = [], []
    for step in run.timed:
        known = (step.commands["kind"] == LAUNCH) & np.isin(step.commands["op"], list(live))
        at.append(step.commands["started"][known])
        ops.append(step.commands["op"][known])
    if not categories or not sum(map(len, at)):
        return
    t_ns, order = np.concatenate(at), np.concatenate(ops).tolist()
    for name in categories:
        values = np.array([live[op].get(name, 0) for op in order], np.float64)
        yield CounterTrack("memory", name, "B", t_ns, values)


def _sensors(channels: Sequence[Series]) -> Iterator[CounterTrack]:
    for one in channels:
        group = GROUPS.get(one.quantity, one.quantity)
        yield CounterTrack(group, f"{one.rail} ({one.quantity})", one.unit, one.t_ns, one.values)
        if one.counter and one.quantity in RATES:
            t_ns, rate = _rate(one)
            yield CounterTrack(group, f"{one.rail} (from its counter)", RATES[one.quantity], t_ns, rate)


def _rate(one: Series) -> tuple[np.ndarray, np.ndarray]:
    """How fast a counter rises: one value from each change to the next. After the last change it is not known."""
    changes = np.concatenate(([0], np.flatnonzero(np.diff(one.values)) + 1))
    t_ns = one.t_ns[changes]
    return t_ns[:-1], np.diff(one.values[changes]) / (np.diff(t_ns) * 1e-9)
