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
from handheld.analyse.rules.command import command
from handheld.analyse.run import Run
from handheld.cli import output, run_tables
from handheld.cli.data_options import DataOptions
from handheld.cli.repeating import Request, as_measured, repeated
from handheld.cli.trying import request_of
from handheld.cost.energy import Effort, EnergyModel, EnergySample, Rail
from handheld.errors import HandheldError
from handheld.export import chrome, csv, parquet, perfetto
from handheld.forecast.rest import rest_of_run
from handheld.forecast.store import of_runs
from handheld.report.document import document
from handheld.report.run_payload import run_payload
from handheld.report.training_page import training_page
from handheld.sensors.base import Channel
from handheld.store.rows import TrainingEpochRow, TrainingStepRow
from helpers.harness import caps_of_kind
from helpers.run_files import MadeRun, busy, rising

JUNK: tuple[object, ...] = (
    None, 0, 1, -1, 7, 2**31, 2**62, 2**63 - 1, -(2**63), 0.5, 1e308, float("inf"), -1e308, "", "a", "1", "train", "{}",
    "[]", "null", "NaN", "[1]", '{"a": 1}', '{"a": "b"}', "[" * 30_000, "é\x1b[31m<b>", b"", b"12345678", b"\xff" * 72,
)  # fmt: skip
VALUES: tuple[object, ...] = (
    None, True, 0, -1, 3, 2**63, 10**40, 10**400, 0.5, 1e308, float("inf"), float("nan"), "", "a", [], [[]], [1],
    {}, {"a": 1}, {"a": {"b": []}},
)  # fmt: skip


#: What `profile --like` and `advise --try` repeat.
ASKED = Request("lenet5", batch=8, memory_limit=1 << 30, given=DataOptions(image_size=(8, 8), drop=("a",))).to_json()
BOARD = "rapl/package"


def _energy_model() -> dict[str, object]:
    """Two ops whose power is known, at two sizes each."""
    samples = [
        EnergySample(Effort(op, op, 1000 * times, 2000 * times, 1, 8, 512), 0.003 * times, {BOARD: 0.06 * times})
        for op in ("conv", "conv_input")
        for times in (1, 2)
    ]
    rails = (Rail(BOARD, ("cpu",), "", 1.0, 2.0, 0.05),)
    return EnergyModel("test", "0", "2026-01-01", 60.0, 2, 1 << 20, rails, tuple(samples), {"contract": 1}).to_json()


CEILINGS = {
    "flops": 1e10,
    "bytes_s": 1e10,
    "to_device_bytes_s": 1e9,
    "to_device_latency_s": 1e-5,
    "to_host_bytes_s": 1e9,
    "to_host_latency_s": 1e-5,
    "others": 0.0,
}


def rich_run(path: Path) -> Path:
    """A finished run file that has a bit of everything."""
    made = MadeRun(
        path,
        caps={**caps_of_kind("cpu").to_json(), "unified_memory": True},
        settings={"steps": 60, "graphs": ["train"], "what": "made", "batch": 8, "model": "lenet5", "repeat": ASKED},
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
        ceilings=CEILINGS,
        energy_model=_energy_model(),
        no_energy_model="",
        stale_energy_model="the energy model of this device was measured with other kernels of contract",
        launch_sizes={"0": ["conv", 8, 512], "1": ["conv_input", 8, 512]},
        isolated={"graph": "train", "plan_bytes": 1 << 21, "op_ms": {"0": 6.1, "1": 3.1}},
        tuning={
            "records": [],
            "variants": 2,
            "without": [0, 1],
            "gains": {"conv": {"shapes": 9, "mean": 0.8, "low": 0.7, "high": 0.9, "from": "this device"}},
        },
        training={"stopped": "", "paused_seconds": 0.5, "best_epoch": 1, "best_by": "loss", "kept_epoch": 2},
        less_memory={"limit_bytes": 1 << 19, "bytes": 1 << 19, "more": 0.1},
        kernels={"contract": 2, "attention": 1},
        tuned={"conv x": {"tile": 1}},
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
    for step in range(0, 60, 10):
        made.writer.add(TrainingStepRow(step, 1, made.now + step, 1.0 / (step + 1), 0.1))
    made.writer.add(TrainingEpochRow(1, made.now, 59, 0.5, 0.1, 480, 0.6, {"loss": 0.4}))
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


def repeat(run: Run, folder: Path) -> None:
    """What `profile --like`, `advise --try` and `cost` read. A run may lack what they need."""
    readers: tuple[Callable[[], object], ...] = (
        lambda: as_measured(run, request_of(run), folder),
        lambda: repeated(run.path, None, Request("")),
        lambda: rest_of_run(run, 100),
        lambda: of_runs([run]),
        lambda: [command(run, "--batch 2", name) for name in ("profile", "tune", "train")],
    )
    for read in readers:
        with contextlib.suppress(HandheldError):
            read()


def export_all(run: Run, folder: Path) -> None:
    """Write the run in the formats that need other packages."""
    perfetto.write(run, folder / "one.pftrace")
    parquet.write(run, folder / "parquet")


def read_all(run: Run, folder: Path) -> None:
    """Ask a run for everything, print it as `handheld show` does, make its pages, compare it, take its advice, and
    export it."""
    repeat(run, folder)
    document(training_page(run))
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
