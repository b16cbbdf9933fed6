"""Damages run files at random, and reads everything that a run file can be asked for."""

from __future__ import annotations

import contextlib
import inspect
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from handheld.analyse.advise import advice
from handheld.analyse.compare import compare
from handheld.analyse.run import Run
from handheld.cli import output, run_tables
from handheld.export import chrome, csv
from handheld.report.document import document
from handheld.report.run_payload import run_payload
from handheld.sensors.base import Channel
from helpers.run_files import MadeRun, busy, rising

JUNK: tuple[object, ...] = (
    None, 0, 1, -1, 7, 2**31, 2**62, 2**63 - 1, -(2**63), 0.5, 1e308, float("inf"), -1e308, "", "a", "1", "train", "{}",
    "[]", "null", "NaN", "[1]", '{"a": 1}', '{"a": "b"}', "[" * 30_000, "é\x1b[31m<b>", b"", b"12345678", b"\xff" * 72,
)  # fmt: skip
VALUES: tuple[object, ...] = (
    None, True, 0, -1, 3, 2**63, 10**40, 10**400, 0.5, 1e308, float("inf"), float("nan"), "", "a", [], [[]], [1],
    {}, {"a": 1}, {"a": {"b": []}},
)  # fmt: skip


def rich_run(path: Path) -> Path:
    """A finished run file that has a bit of everything."""
    made = MadeRun(
        path,
        caps={"name": "made up", "kind": "cpu", "unified_memory": True},
        settings={"steps": 60, "graphs": ["train"], "what": "made", "batch": 8},
        plan_options={"precision": "float32"},
        plan_bytes=1 << 20,
        allocated_bytes=1 << 20,
        started_ns=1_000_000 * 1_000_000 - 1_000_000_000,
        begun_monotonic_ns=1_000_000 * 1_000_000 - 1_900_000_000,
        idle_ns=[1_000_000 * 1_000_000 - 900_000_000, 1_000_000 * 1_000_000 - 100_000_000],
        process={"pid": 1, "created": 0.5},
        versions={"python": "3.12"},
        machine={"cores": 4, "core_kinds": {"big": [0, 1]}},
        estimate={"watts_busy": 5.0, "watts_idle": 1.0},
        others={"before": None, "during": {"cores": 0.5, "count": 4, "seconds": 2.0, "top": "make", "top_cores": 0.4}},
        sensors_absent={"battery": "there is none"},
        recording_ns=12_000_000,
        loss=0.5,
        ceilings={
            "flops": 1e10,
            "bytes_s": 1e10,
            "to_device_bytes_s": 1e9,
            "to_device_latency_s": 1e-5,
            "to_host_bytes_s": 1e9,
            "to_host_latency_s": 1e-5,
            "others": 0.0,
        },
        **{"memory.train": {"peak_op": 1, "peak_bytes": 64, "owners": [["x", "activation", 64]]}},
    )
    made.steps(60, slower=lambda i: 3.0 if i == 37 else 1.0, outside_ms=lambda i: 4.0 if i % 2 else 0.0)
    for n in range(3):
        made.window("slope", "", [], 0, 20, 0.2)
        made.window("slope", "sig0", [0], 4, 20, 0.3)
        made.window("alone", "sig0", [0], 1, 20, 0.1 + 0.01 * n)
    energy, cpu, own = rising(lambda s: 20.0), rising(lambda s: 1.5 if s > 0.3 else 0.2), rising(lambda s: 0.5)
    made.source("rapl", [Channel("package", "energy", counter=True, covers=("cpu",))], 10, lambda s: [energy(s)])
    made.source("cpu", busy("cpu0"), 20, lambda s: [cpu(s)])
    made.source("process", [*busy("cpu time"), Channel("resident", "memory")], 20, lambda s: [own(s), 1e8 + 1e7 * s])
    made.source("cpu-clock", [Channel("cpu0", "frequency")], 20, lambda s: [2e9 if s < 0.5 else 1e9])
    made.source("thermal", [Channel("soc", "temperature")], 50, lambda s: [40 + 10 * s])
    made.writer.put("gap", 1, 0, None, 1_000_000 * 1_000_000, None, "it stopped")
    made.writer.put("cost", 0, 100, 1, 0.1, 0.01, 0.05)
    made.writer.note("sampler", "a sensor went")
    made.open().close()
    return path


def damage(source: Path, target: Path, seed: int) -> str:
    """Write a damaged copy and return what was done."""
    rng = random.Random(seed)
    data = bytearray(source.read_bytes())
    kind = rng.choice(("bits", "bytes", "cut", "cells", "cells", "cells", "meta", "meta", "meta", "rows", "schema"))
    if kind == "bits":
        for _ in range(rng.choice((1, 2, 8, 64))):
            data[rng.randrange(100, len(data))] ^= 1 << rng.randrange(8)
    elif kind == "bytes":
        at, length = rng.randrange(len(data)), rng.choice((1, 4, 100, 4096))
        data[at : at + length] = rng.randbytes(len(data[at : at + length]))
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    target.write_bytes(data)
    if kind in ("cells", "meta", "rows", "schema"):
        with sqlite3.connect(target) as db:
            for _ in range(rng.choice((1, 1, 2, 4))):
                {"cells": _cell, "meta": _meta, "rows": _row, "schema": _schema}[kind](db, rng)
        db.close()
    return kind


def _tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")]


def _cell(db: sqlite3.Connection, rng: random.Random) -> None:
    table = rng.choice([name for name in _tables(db) if name != "meta"])
    column = rng.choice([row[1] for row in db.execute(f"PRAGMA table_info({table})")])
    rows = [row for (row,) in db.execute(f"SELECT rowid FROM {table}")]
    some = rows if rng.random() < 0.2 else rng.sample(rows, min(len(rows), rng.choice((1, 3))))
    junk = rng.choice(JUNK)
    for row in some:
        with contextlib.suppress(sqlite3.IntegrityError):  # A key of whole numbers takes nothing else.
            db.execute(f"UPDATE OR REPLACE {table} SET {column}=? WHERE rowid=?", (junk, row))


def _boxes(data: object) -> list[dict[str, object] | list[object]]:
    boxes: list[dict[str, object] | list[object]] = []
    if isinstance(data, (dict, list)):
        boxes.append(data)
        for child in data.values() if isinstance(data, dict) else data:
            boxes += _boxes(child)
    return boxes


def _meta(db: sqlite3.Connection, rng: random.Random) -> None:
    rows = list(db.execute("SELECT key, value FROM meta ORDER BY key"))
    key, text = rng.choice(rows)
    if rng.random() < 0.2:
        db.execute("UPDATE meta SET value=? WHERE key=?", (rng.choice(JUNK), key))
        return
    whole: dict[str, object] = {"value": None}
    with contextlib.suppress(ValueError, TypeError, RecursionError):  # An earlier change may have left no JSON.
        whole["value"] = json.loads(text)
    box = rng.choice([box for box in _boxes(whole) if box])
    at = rng.choice(list(box)) if isinstance(box, dict) else rng.randrange(len(box))
    if rng.random() < 0.2 and box is not whole:
        del box[at]  # type: ignore[arg-type]
    else:
        box[at] = rng.choice(VALUES)  # type: ignore[index]
    db.execute("UPDATE meta SET value=? WHERE key=?", (json.dumps(whole["value"]), key))


def _row(db: sqlite3.Connection, rng: random.Random) -> None:
    table = rng.choice([name for name in _tables(db) if name != "meta"])
    share = rng.choice((1, 2, 5))
    db.execute(f"DELETE FROM {table} WHERE rowid % {share} = 0")


def _schema(db: sqlite3.Connection, rng: random.Random) -> None:
    table = rng.choice(_tables(db))
    column = rng.choice([row[1] for row in db.execute(f"PRAGMA table_info({table})")])
    change = rng.choice(
        (f"DROP TABLE {table}", f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
         f"ALTER TABLE {table} RENAME TO other")
    )  # fmt: skip
    try:
        db.execute(change)
    except sqlite3.Error:
        db.execute(f"DROP TABLE IF EXISTS {table}")


def questions(run: Run) -> list[Callable[[], object]]:
    """Every method and property of a run that needs no argument."""
    asked: list[Callable[[], object]] = []
    for name in dir(Run):
        if name.startswith("_") or name == "close":
            continue
        member = inspect.getattr_static(Run, name)
        if not callable(member):
            asked.append(lambda name=name: getattr(run, name))  # type: ignore[misc]
        elif all(p.default is not p.empty for p in list(inspect.signature(member).parameters.values())[1:]):
            asked.append(getattr(run, name))
    return asked


def read_all(run: Run, folder: Path) -> None:
    """Ask a run for everything, print it as `handheld show` does, make its page, compare it, take its advice, and
    export it."""
    for ask in questions(run):
        ask()
    document(run_payload(run))
    compare([run, run])
    advice(run)
    quiet = Console(file=(folder / "shown").open("w"), width=80)
    shown, output.out = output.out, quiet
    try:
        run_tables.present(run)
        with contextlib.redirect_stdout(quiet.file):
            run_tables.present(run, json=True)
    finally:
        output.out = shown
        quiet.file.close()
    csv.write(run, folder / "csv")
    chrome.write(run, folder / "chrome.json")
