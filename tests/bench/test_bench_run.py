"""Benchmarks in real processes, some of which are killed or need too much memory."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld import bench
from handheld.bench import Matrix, Settings
from handheld.bench.shapes import Info
from handheld.cli.repeating import as_measured
from handheld.cli.trying import made, request_of
from handheld.errors import DeviceError, ResultsError
from handheld.profile.facts import plan_hash
from helpers.paths import clean_path

QUICK = Settings(steps=6, cool_s=0)

FACTORIES = """
import os, signal, time

def raises():
    raise ValueError("no such layer")

def sleeps():
    time.sleep(1000)

def crashes():
    os.kill(os.getpid(), signal.SIGSEGV)
"""

BENCH = """
import sys
from handheld import bench
matrix = bench.Matrix(tuple(sys.argv[2:]), ("opencl",))
for row in bench.run(matrix, sys.argv[1], bench.Settings(steps=6, cool_s=0),
                         tell=lambda now: print(now.stage, flush=True)):
    print("row", flush=True)
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> list[str]:
    """Two small step files. They run without PyTorch, which takes seconds to import."""
    folder, paths = tmp_path_factory.mktemp("steps"), []
    for width in (8, 16):
        model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
        batch = (torch.randn(4, 6), torch.zeros(4, dtype=torch.int64))
        paths.append(str(folder / f"w{width}.step"))
        handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch).save(paths[-1])
    return paths


def start(folder: Path, names: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", BENCH, str(folder), *names],
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(clean_path())},
    )


def test_killed_at_random_moments_nothing_is_lost_or_run_twice(steps, tmp_path, tmp_path_factory):
    draw = random.Random(7)
    for messages in (draw.randint(1, 5), draw.randint(6, 8)):  # a run has about 12 messages
        process = start(tmp_path, steps)
        for _ in range(messages):
            assert process.stdout.readline(), "it ended before it was killed"
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive, "what it started goes with it"
    before = [row["key"] for row in bench.open_results(tmp_path).lines]
    # A kill during a write leaves this.
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"key": "w8')
    rows = list(bench.run(Matrix(tuple(steps), ("opencl",)), tmp_path, QUICK))
    assert len(before) + len(rows) == 2
    results = bench.open_results(tmp_path)
    assert set(results.info) <= set(get_type_hints(Info))
    keys = [row["key"] for row in results.lines]
    assert len(keys) == len(set(keys)) == 2 and keys[: len(before)] == before
    assert any("cut off" in note for note in results.notes)
    for row in results.rows:
        assert row["status"] == "trained" and row["samples_s"] > 0 and row["loss"] is not None
        assert set(row) <= set(get_type_hints(bench.Row)), "every field of a row is named in bench/shapes.py"
        with handheld.open_run(results.run_path(row)) as run:
            assert run.complete and len(run.steps()) == row["steps"] == 6
            plan, inputs = made(as_measured(run, request_of(run), tmp_path_factory.mktemp("tuning")))
            assert plan_hash(plan) == run.meta["plan_hash"], "profile --like and advise --try repeat it"
            assert inputs["train"][0].shape == (4, 6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bench.json", "lock", "results.jsonl", "runs"]
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert list(bench.run(None, tmp_path)) == [], "nothing is left to do"


def test_a_device_that_disappears(steps, tmp_path, monkeypatch):
    rows = []
    for row in bench.run(Matrix(tuple(steps), ("opencl", "null")), tmp_path / "out", QUICK):
        rows.append(row)
        if row["device"] == "opencl":
            monkeypatch.setenv("OCL_ICD_VENDORS", os.devnull)  # The driver is gone.
    first, second = (row for row in rows if row["device"] == "opencl")
    assert first["status"] == "trained"
    assert second["status"] == "device lost" and "is no longer available" in second["reason"]
    assert [row["status"] for row in rows if row["device"] == "null"] == ["failed"] * 2, (
        "the rest goes on; null computes NaN"
    )
    with pytest.raises(DeviceError, match="no OpenCL"):
        bench.run(None, tmp_path / "out", retry=True)
    monkeypatch.undo()
    again = list(bench.run(Matrix(tuple(steps), ("opencl",)), tmp_path / "out", QUICK, retry=True))
    assert [row["key"] for row in again] == [second["key"]]
    assert again[0]["status"] == "trained"


@pytest.mark.parametrize("limit, status", [(1000, "does not fit"), (2_000_000, "out of memory")])
def test_a_limit_of_memory(steps, tmp_path, limit, status):
    settings = Settings(steps=6, cool_s=0, limit_bytes=limit)
    (row,) = bench.run(Matrix((steps[0],), ("opencl",)), tmp_path, settings)
    assert row["status"] == status
    assert row["planned_bytes"] > 1000, "how much it needed"
    if status == "does not fit":
        assert row["available_bytes"] == 1000 and row["run"] is None
        assert not list((tmp_path / "runs").iterdir()), "it was not started"
    else:
        assert row["held_bytes"] > limit and "stopped at the limit" in row["reason"]


def test_models_that_do_not_build(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    names = ("mine.py:raises", "mine.py:sleeps", "mine.py:crashes")
    rows = {
        row["workload"]: row
        for row in bench.run(Matrix(names, ("null",)), "out", Settings(steps=1, cool_s=0, silence_s=6))
    }
    assert rows[names[0]]["status"] == "does not build"
    assert "mine.py:5: ValueError: no such layer" in rows[names[0]]["reason"]
    assert rows[names[1]]["status"] == "hung"
    assert "reported nothing for 6 s while capturing" in rows[names[1]]["reason"]
    assert rows[names[2]]["status"] == "crashed" and "SIGSEGV" in rows[names[2]]["reason"]
    assert all(row.get("run") is None for row in rows.values())
    path = Path("out/bench.json")
    data = json.loads(path.read_text())
    data["devices"]["null"]["driver"] = "another"
    path.write_text(json.dumps(data))
    with pytest.raises(ResultsError, match="the driver of null is 'another'"):
        bench.run(None, "out", retry=True)
