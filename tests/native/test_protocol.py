"""`runner serve` on a real device, in bytes: a small plan computes what it must, and every misuse has an answer."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.runner import Refused, Wire
from helpers.tiny_plan import TinyPlan

HELLO, OPEN, PLAN, CLOSE, END = 1, 2, 3, 4, 5
WRITE, READ, RUN, RUN_NODE, RUN_REPEATED, FINISH, FILL, WRITE_SHARED = range(10, 18)
RECORD, RECORDED, MARK, CLOCK, STEPS, TIME = range(20, 26)
FILES = 30


@pytest.fixture
def plan(described: dict[str, object]) -> TinyPlan:
    unified = bool(described["unified_memory"])
    return TinyPlan(str(described["name"]), max(int(str(described["base_align_bytes"])), 4), unified).fill()


@pytest.fixture
def wire(runner: Path, tmp_path: Path) -> Iterator[Wire]:
    with Wire(runner, tmp_path / "folder") as opened:
        yield opened


def opened(wire: Wire, plan: TinyPlan) -> dict[str, object]:
    data = plan.pack()
    answer = wire.ask(PLAN, struct.pack("<II", 0, 0) + hashlib.sha256(data).digest() + data)
    assert answer[:4] == b"\1\0\0\0"
    facts: dict[str, object] = json.loads(answer[4:])
    return facts


def place(segment: int, offset: int) -> bytes:
    return struct.pack("<IIQ", segment, 0, offset)


def read(wire: Wire, segment: int, offset: int, count: int) -> np.ndarray:
    return np.frombuffer(wire.ask(READ, place(segment, offset) + struct.pack("<Q", 4 * count)), np.float32)


def test_a_plan_computes(wire: Wire, plan: TinyPlan) -> None:
    hello = json.loads(wire.ask(HELLO, struct.pack("<I", 1)))
    assert hello["protocol"] == 1 and hello["devices"][0]["index"] == 0 and hello["system"]["pid"] == wire.process.pid
    facts = opened(wire, plan)
    assert facts["programs"] == 1 and facts["from_cache"] == 0 and wire.progress[-1] == "building 1 1"
    x, at = np.arange(64, dtype=np.float32), max(plan.align, 256)
    wire.send(WRITE, place(0, 0) + x.tobytes())
    wire.send(RUN, struct.pack("<I", 0))
    assert np.array_equal(read(wire, 0, at, 64), 2 * x + 1), "the value of the slot came with the plan"
    assert read(wire, 1, at, 1)[0] == (2 * x + 1).sum(), "copies come after the launches"
    wire.send(WRITE, place(1, 0) + np.float32(3).tobytes())
    wire.send(RUN_NODE, struct.pack("<II", 0, 0))
    assert np.array_equal(read(wire, 0, at, 64), 3 * x + 1)
    wire.send(FILL, struct.pack("<IIQQ", 0, 0, at, 256))
    wire.send(RUN_REPEATED, struct.pack("<IIII", 0, 1, 0, 0))  # node 0 not at all
    assert read(wire, 0, 2 * at, 1)[0] == 0
    samples = np.frombuffer(wire.ask(TIME, struct.pack("<IId", 0, 0, 0.01)), np.float64)
    assert len(samples) >= 1 and (samples > 0).all()
    assert wire.ask(END) == b"" and wire.close() == 0


def test_segments_in_shared_virtual_memory_compute_the_same(wire: Wire, described: dict[str, object]) -> None:
    facts = []
    for shared in (False, True):
        plan = TinyPlan(str(described["name"]), max(int(str(described["base_align_bytes"])), 4), shared=shared).fill()
        facts.append(opened(wire, plan)["shared_segments"])
        x, at = np.arange(64, dtype=np.float32), max(plan.align, 256)
        assert not read(wire, 0, at, 64).any(), "all memory starts as zeros"
        wire.send(WRITE, place(0, 0) + x.tobytes())
        wire.send(RUN, struct.pack("<I", 0))
        assert np.array_equal(read(wire, 0, at, 64), 2 * x + 1)
        wire.send(CLOSE)
    assert facts == [0, 2], "PoCL has such memory"


def test_reads_are_answered_in_order_while_steps_go_on(wire: Wire, plan: TinyPlan) -> None:
    opened(wire, plan)
    at, expected, seqs = max(plan.align, 256), [], []
    for k in range(40):
        x = np.full(64, k, np.float32)
        wire.send(WRITE, place(0, 0) + x.tobytes())
        wire.send(RUN, struct.pack("<I", 0))
        seqs.append(wire.send(READ, place(0, 2 * at) + struct.pack("<Q", 4)))
        expected.append(64 * (2 * k + 1))
    answers = [wire.answer() for _ in range(40)]
    assert [seq for seq, _ in answers] == seqs
    assert [struct.unpack("<f", data)[0] for _, data in answers] == expected
    steps = np.frombuffer(wire.ask(STEPS), np.int64).reshape(-1, 2)
    assert len(steps) == 40 and (steps[:, 1] >= steps[:, 0]).all() and (np.diff(steps[:, 0]) > 0).all()
    assert wire.ask(STEPS) == b""


def test_recordings_have_launches_uploads_downloads_and_copies(wire: Wire, plan: TinyPlan) -> None:
    opened(wire, plan)
    at = max(plan.align, 256)
    before = np.frombuffer(wire.ask(CLOCK), np.int64)[0]
    wire.ask(RECORD, struct.pack("<I", 1))
    wire.send(WRITE, place(0, 0) + bytes(256))
    wire.send(WRITE, place(1, 0) + np.float32(5).tobytes())  # a slot: not part of the recording
    wire.send(RUN, struct.pack("<I", 0))
    read(wire, 0, 2 * at, 1)
    rows = np.frombuffer(wire.ask(RECORDED), np.int64).reshape(-1, 9)
    assert [tuple(row) for row in rows[:, :3]] == [(1, -1, 256), (0, 0, 0), (0, 2, 0), (3, -1, 4), (2, -1, 4)]
    assert (rows[:, 3] >= before).all() and (rows[:, 4] >= rows[:, 3]).all()
    assert (np.diff(rows[:, 5:], axis=1) >= 0).all(), "queued, submitted, started, ended"
    wire.ask(RECORD, struct.pack("<I", 0))
    wire.send(RUN, struct.pack("<I", 0))
    assert wire.ask(RECORDED) == b""
    device, clock, error = struct.unpack("<qqq", wire.ask(MARK))
    assert device > 0 and clock >= before and 0 <= error < 10**9


def test_a_plan_is_kept_and_its_programs_too(runner: Path, plan: TinyPlan, tmp_path: Path) -> None:
    data, folder = plan.pack(), tmp_path / "folder"
    key = struct.pack("<II", 0, 0) + hashlib.sha256(data).digest()
    with Wire(runner, folder) as wire:
        assert wire.ask(OPEN, key) == bytes(4), "not in the folder yet"
        wire.ask(PLAN, key + data)
    with Wire(runner, folder) as wire:
        assert json.loads(wire.ask(OPEN, key)[4:])["from_cache"] == 1
    (kept,) = (folder / "plans").iterdir()
    kept.write_bytes(data[:-5])
    for binary in (folder / "binaries").iterdir():
        binary.write_bytes(binary.read_bytes()[:-1] + b"?")
    with Wire(runner, folder) as wire:
        assert wire.ask(OPEN, key) == bytes(4) and not kept.exists(), "a damaged copy is asked for again"
        assert json.loads(wire.ask(PLAN, key + data)[4:])["from_cache"] == 0, "and a damaged binary is built again"
        assert np.array_equal(read(wire, 1, 0, 1), [2])
    assert sorted(path.name for path in folder.iterdir()) == ["binaries", "plans"]


def test_a_driver_with_a_cache_is_not_asked_for_binaries(runner: Path, plan: TinyPlan, tmp_path: Path) -> None:
    data, folder = plan.pack(), tmp_path / "folder"
    key = struct.pack("<II", 0, 32) + hashlib.sha256(data).digest()
    for _ in range(2):
        with Wire(runner, folder) as wire:
            assert json.loads(wire.ask(PLAN, key + data)[4:])["from_cache"] == 0
            assert np.array_equal(read(wire, 1, 0, 1), [2])
    assert [path.name for path in folder.iterdir()] == ["plans"]


def test_the_newest_sixteen_plans_are_kept(wire: Wire, plan: TinyPlan, tmp_path: Path) -> None:
    for number in range(18):
        plan.sections[14] = b'{"number": %2d}' % number
        opened(wire, plan)
    assert len(list((tmp_path / "folder" / "plans").iterdir())) == 16


def test_a_failed_request_without_an_answer_closes_the_plan(wire: Wire, plan: TinyPlan) -> None:
    opened(wire, plan)
    with pytest.raises(Refused, match="no 8 bytes at 4000 of segment 0"):
        wire.ask(WRITE, place(0, 4000) + bytes(8))
    with pytest.raises(Refused, match="no 8 bytes at 4000 of segment 0"):
        wire.ask(FINISH)
    assert opened(wire, plan)["from_cache"] == 1, "a plan may be opened again"
    wire.ask(FINISH)


@pytest.mark.parametrize(
    ("op", "payload", "text"),
    [
        (RUN, struct.pack("<I", 7), "no graph 7"),
        (RUN_NODE, struct.pack("<II", 0, 4), "no node 4"),
        (RUN_REPEATED, struct.pack("<IIII", 0, 1, 9, 1), "no node 9"),
        (RUN_REPEATED, struct.pack("<IIII", 0, 1, 0, 2**31), "too long"),
        (READ, struct.pack("<IIQQ", 0, 0, 2**64 - 4, 8), "no 8 bytes"),
        (READ, struct.pack("<IIQQ", 2, 0, 0, 8), "segment 2"),
        (FILL, struct.pack("<IIQQ", 1, 0, 0, 2**40), "segment 1"),
        (WRITE_SHARED, struct.pack("<IIQQQ", 0, 0, 0, 0, 8), "no 8 bytes at 0 of the shared memory"),
        (TIME, struct.pack("<IId", 0, 0, float("nan")), "0 to 600 seconds"),
        (HELLO, struct.pack("<I", 2), "protocol 1, and the host protocol 2"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(wire: Wire, plan: TinyPlan, op: int, payload: bytes, text: str) -> None:
    opened(wire, plan)
    with pytest.raises(Refused, match=text):
        wire.ask(op, payload)
    assert wire.ask(CLOCK), "the runner goes on"


@pytest.mark.parametrize(("op", "length"), [(77, 0), (READ, 2**63), (HELLO, 0), (FILES, 2**40)])
def test_garbage_ends_the_runner_after_a_sentence(wire: Wire, op: int, length: int) -> None:
    assert wire.process.stdin is not None
    wire.process.stdin.write(struct.pack("<IIQ", op, 1, length) + bytes(100))
    wire.process.stdin.flush()
    with pytest.raises(Refused, match=f"op {op} with {length} bytes, which is no request of protocol 1"):
        wire.answer()
    assert wire.process.wait(10) == 1


def test_without_a_plan_there_is_nothing_to_run(wire: Wire) -> None:
    with pytest.raises(Refused, match="no plan is open"):
        wire.ask(RUN, struct.pack("<I", 0))


def test_a_plan_for_another_device_is_refused(wire: Wire) -> None:
    with pytest.raises(Refused, match=r"was made for Adreno 740, but this device is .* Try: make the plan again"):
        opened(wire, TinyPlan("Adreno 740").fill())


def test_the_end_of_the_stream_ends_the_runner(runner: Path, plan: TinyPlan, tmp_path: Path) -> None:
    with Wire(runner, tmp_path / "folder") as wire:
        opened(wire, plan)
        wire.send(RUN, struct.pack("<I", 0))
        assert wire.close() == 0
    with Wire(runner, tmp_path / "folder") as wire:
        assert wire.process.stdin is not None
        wire.process.stdin.write(struct.pack("<IIQ", PLAN, 1, 10**9) + bytes(1000))
        assert wire.close() == 1
    assert [path.suffix for path in (tmp_path / "folder" / "plans").iterdir()] == [".plan"], "no half of a plan is left"
