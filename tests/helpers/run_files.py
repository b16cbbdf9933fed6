"""Artificial run files for tests, written by the same writer as real ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from handheld.analyse.finding import Finding
from handheld.analyse.run import Run, open_run
from handheld.sensors.base import Channel
from handheld.store.commands import COPY, DOWNLOAD, LAUNCH, UPLOAD, to_bytes
from handheld.store.commands import commands as to_commands
from handheld.store.rows import OpRow
from handheld.store.writer import RunWriter

MS = 1_000_000
START = 1_000_000 * MS
BYTES = {UPLOAD: 4096, DOWNLOAD: 4, COPY: 1024}

#: the commands of a step: (kind, op or -1, ms)
Command = tuple[int, int, float]
PLAIN: tuple[Command, ...] = ((UPLOAD, -1, 0.1), (LAUNCH, 0, 6.0), (LAUNCH, 1, 3.0), (DOWNLOAD, -1, 0.05))

#: the columns of an op that a test does not set
PLAIN_OP: dict[str, Any] = {
    "graph": "train",
    "op": "conv",
    "source": "aten.conv",
    "phase": "forward",
    "path": "layer",
    "variant": "default",
    "launches": 1,
    "flops": 1000,
    "bytes": 2000,
    "live": {"activation": 64},
}
OPS: tuple[dict[str, Any], ...] = ({}, {"op": "conv_input", "source": "aten.conv_input", "phase": "backward"})


class MadeRun:
    """A run of two ops, conv (forward) and conv_input (backward), or of `ops`, on a device whose clock is `offset` ns
    ahead of the host's. Steps run one after the other."""

    def __init__(
        self, path: Path, offset: int = 5_000_000_000, ops: Sequence[Mapping[str, Any]] = OPS, **meta: Any
    ) -> None:
        self.writer, self.path, self.offset = RunWriter(path), path, offset
        self.now, self.count, self.windows, self.sources, self.energies = START, 0, 0, 0, 0
        self.writer.meta(
            **{"status": "complete", "device": "opencl", "caps": {"name": "made up"}, "settings": {}, **meta}
        )
        for i, values in enumerate(ops):
            self.writer.add(OpRow(**{**PLAIN_OP, "id": i, "position": i, "signature": f"sig{i}", **values}))
        for at in (START, START + 3_600_000 * MS):
            self.writer.put("clock", at + offset, at, 500)

    def steps(
        self,
        count: int,
        *,
        commands: Sequence[Command] = PLAIN,
        every: int = 10,
        outside_ms: Callable[[int], float] = lambda i: 0.0,
        slower: Callable[[int], float] = lambda i: 1.0,
        graph: str = "train",
        first: int = 0,
        batch: int = 8,
    ) -> None:
        """Adds `count` steps. Of every `every` steps, counted from `first`, the first four are recorded. Time
        outside of the calls lies before a step. `slower` is a factor on the device's time."""
        for i in range(count):
            recorded = (first + i) % every < 4
            if (first + i) % every == 0:
                self.windows += 1
            begin = self.now + round(outside_ms(i) * MS)
            rows, at = [], begin + 10_000
            for k, (kind, op, ms) in enumerate(commands):
                end = at + round(ms * slower(i) * MS)
                called = begin + 1000 * k
                device = [t + self.offset for t in (called, called, at, end)]
                rows.append((kind, op, BYTES.get(kind, 0), called, called + 800, *device))
                at = end + 2000
            self.writer.put("step", self.count, graph, batch, begin, at, self.windows if recorded else None, None)
            if recorded:
                self.writer.put("command", self.count, len(rows), to_bytes(to_commands(rows)))
            self.now, self.count = at, self.count + 1

    def source(
        self,
        name: str,
        channels: Sequence[Channel],
        period_ms: float,
        read: Callable[[float], Sequence[float]],
        until: int | None = None,
    ) -> None:
        """Adds the readings of a source from the start to the end. `read` takes the seconds since START."""
        number = self.sources
        self.sources += 1
        self.writer.put("source", number, name, name, period_ms * 1e-3)
        for position, one in enumerate(channels):
            self.writer.put(
                "channel",
                number,
                position,
                one.name,
                one.quantity,
                one.unit,
                int(one.counter),
                json.dumps(one.covers),
                one.part_of,
                None,
            )
        at = START - 2000 * MS
        while at <= (until or self.now) + 100 * MS:
            values = read((at - START) * 1e-9)
            self.writer.put("reading", number, at, struct.pack(f"<{len(values)}d", *values))
            at += round(period_ms * MS)

    def window(self, method: str, signature: str, ops: Sequence[int], extra: int, runs: int, seconds: float) -> None:
        """Adds an energy window: a time of equal work."""
        begin, self.now = self.now, self.now + round(seconds * 1e9)
        self.writer.put(
            "energy_window", self.energies, method, signature, json.dumps(list(ops)), extra, runs, begin, self.now
        )
        self.energies += 1
        self.now += 50 * MS

    def open(self) -> Run:
        self.writer.close()
        return open_run(self.path)


def busy(*names: str) -> list[Channel]:
    return [Channel(name, "time", counter=True) for name in names]


def rising(rate: Callable[[float], float], step: float = 0.01) -> Callable[[float], float]:
    """A counter that increases at `rate`, a function of the time in seconds."""
    total, at = [0.0], [-2.0]

    def value(now: float) -> float:
        while at[0] < now:
            total[0] += rate(at[0]) * step
            at[0] += step
        return total[0]

    return value


def kinds(run: Run) -> set[str]:
    return {one.kind for one in run.findings()}


def named(run: Run, kind: str) -> Finding:
    """The only finding of a kind."""
    found = [one for one in run.findings() if one.kind == kind]
    assert len(found) == 1, [one.text for one in run.findings()]
    return found[0]
