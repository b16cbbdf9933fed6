"""Every backend of the table keeps the contract of `Session`, and callers use nothing else of a session."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.backends import table
from handheld.backends.base import Session, describe, open_session
from handheld.errors import DeviceError
from handheld.store.commands import COMMAND, LAUNCH, UPLOAD

SOURCE = Path(handheld.__file__).parent
BENCH = SOURCE.parents[1] / "bench"
BATCH = torch.randn(4, 6), torch.randint(0, 3, (4,))


#: ssh and adb have the session of runner; their tests need a machine to reach.
NAMES = [name for name in table.BACKENDS if name not in ("ssh", "adb")]


@pytest.fixture(params=NAMES)
def session(request: pytest.FixtureRequest):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = handheld.capture(model, F.cross_entropy, optimizer, BATCH, evaluate=False)
    found = open_session(step.plan(request.param, isolate=True))
    yield found
    found.close()


def upload(session: Session) -> None:
    graph = session.plan.graphs["train"].graph
    for given, array in zip(graph.inputs, BATCH, strict=True):
        kind = np.int32 if array.dtype == torch.int64 else np.float32
        session.upload("train", given.tensor, array.numpy().astype(kind))


def test_a_step(session: Session) -> None:
    computes = session.plan.device != "null"
    graph = session.plan.graphs["train"].graph
    weight = next(name for name, slot in session.plan.slots.items() if slot.role == "parameter")
    before = session.read_slot(weight)
    upload(session)
    session.run("train")
    loss = session.download("train", graph.outputs[0].view.tensor).read()
    session.finish()
    assert np.isfinite(loss).all() == computes
    after = session.read_slot(weight)
    assert after.shape == before.shape and np.array_equal(before, after) != computes
    session.write_slot(weight, before)
    assert np.array_equal(session.read_slot(weight), before)
    did = session.counters
    assert (did.steps, did.uploads, did.downloads, did.finishes) == (1, 2, 1, 1) and did.launches > 0
    assert session.device_name.partition(":")[0] == session.plan.device.partition(":")[0]
    assert session.allocated_bytes is None or session.allocated_bytes >= before.nbytes


def test_the_parts_of_opening_do_not_overlap(session: Session) -> None:
    begun = time.perf_counter()
    with contextlib.closing(open_session(session.plan)) as opened:
        assert sum(opened.timings.values()) <= time.perf_counter() - begun
        assert all(seconds >= 0 for seconds in opened.timings.values())


def test_node_by_node_is_the_step(session: Session) -> None:
    graph = session.plan.graphs["train"].graph
    output = graph.outputs[0].view.tensor
    upload(session)
    session.begin_nodes("train")
    for i in range(len(graph.nodes)):
        session.run_node("train", i)
    alone = session.read_tensor("train", output)
    session.run("train")
    assert np.array_equal(session.read_tensor("train", output), alone, equal_nan=True)


def test_any_tensor_can_be_set(session: Session) -> None:
    graph = session.plan.graphs["train"].graph
    made = next(t for node in graph.nodes for t in node.outputs if graph.tensors[t].dtype == "f32")
    value = np.arange(graph.tensors[made].size, dtype=np.float32).reshape(graph.tensors[made].shape)
    session.begin_nodes("train")
    session.set_tensor("train", made, value)
    got = session.read_tensor("train", made)
    assert np.array_equal(got, value) if session.plan.device != "null" else np.isnan(got).all()


def test_nodes_are_repeated_or_it_says_that_it_cannot(session: Session) -> None:
    upload(session)
    if "run_repeated" not in vars(type(session)):
        with pytest.raises(DeviceError, match=r"runs every op of a step once.*Try: --on opencl"):
            session.run_repeated("train", {0: 2})
        return
    session.run_repeated("train", {})
    once = session.counters.launches
    session.run_repeated("train", {0: 3})
    assert session.counters.launches - once > once


def test_times_are_recorded_or_it_says_that_there_are_none(session: Session) -> None:
    upload(session)
    if session.plan.device == "null":
        with pytest.raises(DeviceError, match="no times"):
            session.record()
        with pytest.raises(DeviceError, match="no clock"):
            session.clock_mark()
        return
    with session.record() as recording:
        upload(session)
        recording.clear()
        assert not len(recording)
        upload(session)
        session.run("train")
        session.finish()
        assert len(recording)
        rows = recording.read()
    assert rows.dtype == COMMAND and not len(recording)
    nodes = rows["op"][rows["kind"] == LAUNCH]
    assert (np.diff(nodes) >= 0).all() and nodes[-1] < len(session.plan.graphs["train"].graph.nodes)
    assert (rows["kind"] == UPLOAD).sum() == 2 and (rows["op"][rows["kind"] != LAUNCH] == -1).all()
    device_ns, host_ns, error_ns = session.clock_mark()
    assert device_ns > 0 and host_ns > 0 and error_ns >= 0


@pytest.mark.parametrize("kind", list(table.BACKENDS))
def test_a_module_has_what_the_table_promises(kind: str) -> None:
    module = table.backend(kind)
    if kind in NAMES:  # The free memory of an OpenCL device changes.
        assert describe(kind) == module.describe(kind) or kind in ("opencl", "runner")
    first, *options = inspect.signature(module.open_plan).parameters.values()
    assert first.name == "plan" and all(one.default is not inspect.Parameter.empty for one in options)


def test_an_unknown_device_names_what_there_is() -> None:
    with pytest.raises(DeviceError) as caught:
        describe("toaster:1")
    for row in table.BACKENDS.values():
        for name in row.names:
            assert name in str(caught.value)
    with pytest.raises(DeviceError, match="unknown device 'null:1'"):
        describe("null:1")


def test_a_backend_is_one_module_and_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "toaster.py").write_text(
        "from handheld.backends.null import NullSession as open_plan, host_caps\n"
        "def describe(device): return host_caps(device, 'toaster')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(table.BACKENDS, "toaster", table.Row("toaster", ("toaster:slot",)))
    assert describe("toaster:2").name == "toaster:2"
    with pytest.raises(DeviceError, match="toaster:slot"):
        describe("kettle")


def test_what_a_backend_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    row = table.Row("handheld.backends.nowhere", ("toaster",), "bread ({error}). Try: a shop")
    monkeypatch.setitem(table.BACKENDS, "toaster", row)
    with pytest.raises(DeviceError, match=r"toaster needs bread \(No module named .*\)\. Try: a shop"):
        describe("toaster")


def test_callers_use_the_interface_only() -> None:
    """Only a backend itself looks at a session by its type, its class name or private attributes. Benchmarks may
    use the session of one backend, but nothing private of Handheld."""
    wrong = []
    for path in (*SOURCE.rglob("*.py"), *BENCH.glob("*.py")):
        if "backends" in path.relative_to(SOURCE.parents[1]).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, (ast.Call, ast.Attribute)) else ""
            looks = re.match(r"(isinstance|getattr|hasattr)\([\w.]*session\b", text)
            if looks or re.fullmatch(r"[\w.]*session\._\w+", text):
                wrong.append(f"{path}:{node.lineno}: {text}")
            if path.parent == BENCH and isinstance(node, ast.ImportFrom) and str(node.module).startswith("handheld"):
                wrong += [f"{path}:{node.lineno}: {one.name}" for one in node.names if one.name.startswith("_")]
    assert not wrong, wrong
