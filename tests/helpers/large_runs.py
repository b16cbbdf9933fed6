"""A large artificial run with sensors, for the page: many ops in many modules, all steps recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from handheld.analyse.run import Run, open_run
from handheld.store.commands import COMMAND, DOWNLOAD, LAUNCH, UPLOAD, to_bytes
from handheld.store.writer import RunWriter

MS = 1_000_000
START = 1_000_000 * MS
NASTY = '</script><img src=x onerror="window.hurt=1"><b>bold</b>'


def large_run(path: Path, ops: int = 1000, steps: int = 100, *, sensors: bool = True) -> Run:
    """A run of `steps` recorded steps with `ops` ops each. One module's name is HTML."""
    writer = RunWriter(path)
    writer.meta(
        status="complete",
        device="opencl",
        caps={"name": f"made up {NASTY}"},
        settings={"what": "large", "batch": 8},
        ceilings={
            "flops": 5e12,
            "bytes_s": 4e11,
            **{f"to_{where}_bytes_s": 1e10 for where in ("device", "host")},
            **{f"to_{where}_latency_s": 1e-5 for where in ("device", "host")},
            "others": 0.0,
        },
        allocated_bytes=600_000_000,
        plan_bytes=600_000_000,
        machine={"cores": 4, "core_kinds": {}},
        **{"memory.train": {"peak_op": ops // 2, "peak_bytes": 500_000_000, "owners": [["a", "activation", 10**8]]}},
    )
    _ops(writer, ops)
    for at in (START - 1000 * MS, START + 3_600_000 * MS):
        writer.put("clock", at, at, 500)
    end = _steps(writer, ops, steps)
    if sensors:
        _sensors(writer, end)
    writer.close()
    return open_run(path)


def _ops(writer: RunWriter, count: int) -> None:
    for n in range(count):
        phase = "forward" if n < 0.4 * count else "backward" if n < 0.95 * count else "update"
        place = n if n < count // 2 else count - 1 - n
        path = f"stage{place % 7}.block{place % 31}.conv{place % 3}" if place else NASTY
        swell = math.sin(math.pi * n / count)
        live = {"parameter": 50_000_000, "activation": int(4e8 * swell), "gradient": int(4e7 * swell)}
        kind = ("conv", "matmul", "map")[n % 3]
        row = (n, "train", n, kind, f"aten.{kind}", phase, path, f"sig{n % 90}", "tiles of 8x8", 1)
        writer.put("op", *row, 10**6 * (1 + n % 50), 10**5 * (1 + n % 20), json.dumps(live))


def _steps(writer: RunWriter, ops: int, steps: int) -> int:
    """All steps belong to one window; each third is a little longer. Returns the end of the last one."""
    random = np.random.default_rng(0)
    at = START
    for step in range(steps):
        begin = at
        took = (random.uniform(3_000, 30_000, ops + 2) * (1.2 if step % 3 == 0 else 1.0)).astype(np.int64)
        rows = np.zeros(ops + 2, COMMAND)
        rows["kind"] = [UPLOAD, *[LAUNCH] * ops, DOWNLOAD]
        rows["op"] = [-1, *range(ops), -1]
        rows["bytes"][[0, -1]] = 4096, 4
        rows["ended"] = begin + 20_000 + np.cumsum(took + 1_000)
        rows["started"] = rows["ended"] - took
        rows["host_begin"] = begin + np.arange(ops + 2) * 1_500
        rows["host_end"] = rows["host_begin"] + 1_200
        rows["queued"] = rows["submitted"] = rows["host_begin"]
        at = int(rows["ended"][-1]) + 5_000
        writer.put("step", step, "train", 8, begin, at, 1 if step < 0.9 * steps else None, None)
        if step < 0.9 * steps:
            writer.put("command", step, len(rows), to_bytes(rows))
    return at


CHANNELS = (
    ("gpu energy", "energy", "J", 1, ["gpu"]),
    ("gpu temperature", "temperature", "°C", 0, ["gpu"]),
    ("gpu clock", "frequency", "Hz", 0, ["gpu"]),
    ("gpu load", "utilisation", "%", 0, ["gpu"]),
    ("used", "memory", "B", 0, ["memory"]),
)


def _sensors(writer: RunWriter, end: int) -> None:
    writer.put("source", 0, "board", "made up", 0.01)
    for position, (name, quantity, unit, counter, covers) in enumerate(CHANNELS):
        writer.put("channel", 0, position, name, quantity, unit, counter, json.dumps(covers), "", None)
    writer.put("source", 1, "cpu", "made up", 0.05)
    for core in range(4):
        writer.put("channel", 1, core, f"cpu{core} busy", "time", "s", 1, '["cpu"]', "", None)
    for at in range(START - 500 * MS, end + 200 * MS, 5 * MS):
        s = (at - START) * 1e-9
        writer.put("reading", 0, at, np.array([30 * (s + 1), 50 + s, 1.5e9, 80 + s % 7, 5e8]).tobytes())
        writer.put("reading", 1, at, np.array([(s + 1) * share for share in (0.9, 0.5, 0.1, 0.0)]).tobytes())
