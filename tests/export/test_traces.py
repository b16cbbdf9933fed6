"""`handheld export --format perfetto` and `chrome`: slices, counters and rails, read back, equal the run's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handheld.analyse.run import Run
from handheld.analyse.timeline import TRANSFERS
from handheld.cli.main import main
from handheld.errors import HandheldError
from handheld.export import export, perfetto
from handheld.sensors.base import Channel
from handheld.store.commands import LAUNCH
from helpers.run_files import START, MadeRun, rising


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    run = MadeRun(tmp_path / "one.run", begun_monotonic_ns=START - 7, begun_unix_ns=1_700_000_000_000_000_123)
    run.steps(30, outside_ms=lambda i: 1.5)
    meter = (Channel("wall", "power", covers=("system",)), Channel("chip", "energy", counter=True, covers=("gpu",)))
    joules = rising(lambda s: 4.0)
    run.source("meter", meter, 20, lambda s: (5.0 + s / 7, joules(s)))
    machine = (Channel("cpu", "temperature"), Channel("cpu0", "frequency"))
    run.source("machine", machine, 50, lambda s: (40 + s / 3, 1.5e9))
    run.window("slope", "sig0", [0], 3, 20, 0.5)
    run.writer.note("note", "something <b>happened</b>")
    return run


@dataclass
class Read:
    """One event of a trace. The path are the names of the slices around it, and its own."""

    track: str
    path: tuple[str, ...]
    begin: int
    end: int
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    slices: list[Read]
    counters: dict[str, tuple[str, list[int], list[float]]]
    marks: list[Read]


# ── readers that know the format and nothing of the writer ────────────────────────────────────


def from_perfetto(path: Path) -> Trace:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = protos.Trace.FromString(path.read_bytes())
    texts: dict[tuple[str, int], str] = {}
    tracks: dict[int, Any] = {}
    out = Trace([], {}, [])
    opened: dict[int, list[Read]] = {}
    assert {packet.trusted_packet_sequence_id for packet in trace.packet} == {1}
    assert trace.packet[0].sequence_flags == protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED

    def name(uuid: int) -> str:
        track = tracks[uuid]
        return f"{name(track.parent_uuid)}/{track.name}" if track.parent_uuid else track.name

    for packet in trace.packet:
        for table, field_name in (
            ("event_names", "name"),
            ("debug_annotation_names", "name"),
            ("debug_annotation_string_values", "str"),
        ):
            for entry in getattr(packet.interned_data, table):
                assert (table, entry.iid) not in texts
                value = getattr(entry, field_name)
                texts[table, entry.iid] = value.decode() if isinstance(value, bytes) else value
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        args = {}
        for note in event.debug_annotations:
            kind = note.WhichOneof("value")
            value = getattr(note, kind)
            value = texts["debug_annotation_string_values", value] if kind == "string_value_iid" else value
            args[texts["debug_annotation_names", note.name_iid]] = value
        stack = opened.setdefault(event.track_uuid, [])
        track = name(event.track_uuid).partition("/")[2]
        if event.type == event.TYPE_SLICE_BEGIN:
            around = stack[-1].path if stack else ()
            stack.append(Read(track, (*around, texts["event_names", event.name_iid]), packet.timestamp, -1, args))
            out.slices.append(stack[-1])
        elif event.type == event.TYPE_SLICE_END:
            stack.pop().end = packet.timestamp
        elif event.type == event.TYPE_COUNTER:
            _unit, at, values = out.counters.setdefault(track, (tracks[event.track_uuid].counter.unit_name, [], []))
            at.append(packet.timestamp)
            values.append(event.double_counter_value)
        else:
            at_name = texts["event_names", event.name_iid]
            out.marks.append(Read(track, (at_name,), packet.timestamp, packet.timestamp, args))
    assert not any(opened.values())
    return out


def from_chrome(path: Path) -> Trace:
    document = json.loads(path.read_text())
    out = Trace([], {}, [])
    groups, threads = {}, {}
    for event in document["traceEvents"]:
        if event["name"] == "process_name":
            groups[event["pid"]] = event["args"]["name"].partition(":")[0]
        elif event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = f"{groups[event['pid']]}/{event['args']['name']}"
    opened: dict[object, list[Read]] = {}
    for event in document["traceEvents"]:
        at = round(event.get("ts", 0) * 1000)
        if event["ph"] == "X":
            key = event["pid"], event["tid"]
            stack = opened.setdefault(key, [])
            end = at + round(event["dur"] * 1000)
            while stack and stack[-1].end <= at:
                stack.pop()
            around = stack[-1].path if stack else ()
            assert not stack or stack[-1].begin <= at <= end <= stack[-1].end
            stack.append(Read(threads[key], (*around, event["name"]), at, end, event["args"]))
            out.slices.append(stack[-1])
        elif event["ph"] == "C":
            ((unit, value),) = event["args"].items()
            track = out.counters.setdefault(f"{groups[event['pid']]}/{event['name']}", (unit, [], []))
            track[1].append(at)
            track[2].append(value)
        elif event["ph"] == "i":
            out.marks.append(Read("notes", (event["name"],), at, at, event["args"]))
    return out


READERS = {"perfetto": from_perfetto, "chrome": from_chrome}


# ── what the run says ─────────────────────────────────────────────────────────────────────────


def commands(run: Run) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """The path, start and end of every command of the run."""
    ops = {row.id: row for row in run.op_rows}
    for step in run.timed:
        for command in step.commands:
            launch = command["kind"] == LAUNCH
            op = ops.get(int(command["op"]))
            phase = op.phase if launch and op else "transfer"
            title = op.title if launch and op else TRANSFERS[int(command["kind"])]
            yield (f"step {step.step}", phase, title), int(command["started"]), int(command["ended"])


@pytest.mark.parametrize("name", READERS)
def test_slices_equal_the_run(made: MadeRun, tmp_path: Path, name: str) -> None:
    with made.open() as run:
        (path,) = export(run, name, tmp_path / "trace")
        trace = READERS[name](path)
        device = [s for s in trace.slices if s.track == "device/steps"]
        expected = list(commands(run))
        assert [(s.path, s.begin, s.end) for s in device if len(s.path) == 3] == expected and len(expected) == 4 * 12
        assert [s.path for s in device if len(s.path) == 1] == [(f"step {step.step}",) for step in run.timed]
        launched = next(s for s in device if s.path[-1] == "layer conv_input")
        assert launched.args["op id"] == 1 and launched.args["flops"] == 1000 and launched.args["path"] == "layer"
        host = [s for s in trace.slices if s.track == "host/calls" and len(s.path) == 1]
        assert [(s.begin, s.end, s.args["step"]) for s in host] == [(s.begin_ns, s.end_ns, s.id) for s in run.steps()]
        calls = [s for s in trace.slices if s.track == "host/calls" and len(s.path) == 2]
        assert [(s.begin, s.end) for s in calls] == [
            (int(c["host_begin"]), int(c["host_end"])) for step in run.timed for c in step.commands
        ]
        (window,) = [s for s in trace.slices if s.track == "energy windows/windows"]
        assert window.path == ("slope: sig0",) and window.end - window.begin == 500_000_000


@pytest.mark.parametrize("name", READERS)
def test_counters_and_rails_equal_the_run(made: MadeRun, tmp_path: Path, name: str) -> None:
    with made.open() as run:
        (path,) = export(run, name, tmp_path / "trace")
        trace = READERS[name](path)
        groups = {"power": "power rails", "energy": "power rails", "temperature": "temperature", "frequency": "clocks"}
        for series in run.channels:
            unit, at, values = trace.counters[f"{groups[series.quantity]}/{series.rail} ({series.quantity})"]
            assert unit == series.unit
            assert at == series.t_ns.tolist() and values == series.values.tolist()
        unit, at, watts = trace.counters["power rails/meter/chip (from its counter)"]
        assert (
            unit == "W" and watts == pytest.approx([4.0] * len(watts), rel=0.6) and np.mean(watts) == pytest.approx(4)
        )
        unit, at, values = trace.counters["memory/activation"]
        starts = [int(c["started"]) for step in run.timed for c in step.commands if c["kind"] == LAUNCH]
        assert unit == "B" and at == starts and values == [64.0] * len(starts)
        notes = [m for m in trace.marks if m.path == ("note",)]
        assert [m.args["text"] for m in notes] == ["something <b>happened</b>"]
        assert len(trace.counters) == len(run.channels) + 2


def test_perfetto_names_its_clock_and_the_time_of_day(made: MadeRun, tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    with made.open() as run:
        (path,) = export(run, "perfetto", tmp_path / "trace")
    snapshot = protos.Trace.FromString(path.read_bytes()).packet[0].clock_snapshot
    assert snapshot.primary_trace_clock == protos.BUILTIN_CLOCK_MONOTONIC
    assert [(c.clock_id, c.timestamp) for c in snapshot.clocks] == [
        (protos.BUILTIN_CLOCK_MONOTONIC, START - 7),
        (protos.BUILTIN_CLOCK_REALTIME, 1_700_000_000_000_000_123),
    ]


@pytest.mark.parametrize("name", READERS)
def test_commands_at_the_same_time_are_all_there_and_tracks_still_nest(tmp_path: Path, name: str) -> None:
    made = MadeRun(tmp_path / "two.run")
    made.steps(8, commands=((LAUNCH, 0, 6.0), (LAUNCH, 1, 2.0), (LAUNCH, 1, 3.0)))
    with made.open() as run:
        for step in run.timed:
            step.commands["started"][1] = step.commands["started"][0] + 1000  # the second runs beside the first
        (path,) = export(run, name, tmp_path / "trace")
        trace = READERS[name](path)
        device = [s for s in trace.slices if s.track.startswith("device/") and s.path[-1].startswith("layer")]
        expected = sorted((start, end) for _, start, end in commands(run))
        assert sorted((s.begin, s.end) for s in device) == expected
        assert {s.track for s in device} == {"device/steps", "device/beside"}
    for track in {s.track for s in trace.slices}:
        top = [s for s in trace.slices if s.track == track and len(s.path) == 1]
        assert all(a.end <= b.begin for a, b in pairwise(top))


@pytest.mark.parametrize("name", READERS)
def test_a_run_without_recorded_steps_and_sensors(tmp_path: Path, name: str) -> None:
    made = MadeRun(tmp_path / "plain.run")
    made.steps(4, first=5)
    with made.open() as run:
        trace = READERS[name](export(run, name, tmp_path / "trace")[0])
    assert [s.path for s in trace.slices] == [(f"step {i}",) for i in range(4)] and not trace.counters


def test_chrome_is_strict_json_also_with_nan(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "nan.run")
    made.steps(1, first=5)
    made.writer.put("step", 9, "train", 8, START + 10**9, START + 2 * 10**9, None, float("inf"))
    with made.open() as run:
        (path,) = export(run, "chrome", tmp_path / "trace.json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    events = json.loads(path.read_text(), parse_constant=refuse)["traceEvents"]
    assert [e["args"]["loss"] for e in events if "loss" in e.get("args", {})] == ["inf"]


@pytest.mark.parametrize(("name", "file"), [("perfetto", "one.pftrace"), ("chrome", "one.trace.json")])
def test_the_command_writes_one_file_beside_the_run(
    made: MadeRun, capsys: pytest.CaptureFixture[str], name: str, file: str
) -> None:
    made.open().close()
    with pytest.raises(SystemExit) as ended:
        main(["export", str(made.path), "--format", name, "--json"])
    assert ended.value.code == 0
    (written,) = json.loads(capsys.readouterr().out)["files"]
    assert Path(written) == made.path.with_name(file) and Path(written).stat().st_size > 1000


def test_a_missing_package_is_named(made: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    with made.open() as run, pytest.raises(HandheldError, match=r"needs the package perfetto.*pip install perfetto"):
        perfetto.write(run, tmp_path / "trace")
    assert not (tmp_path / "trace").exists()
