"""Plan files: the bytes of a small plan written by hand, what a reader refuses, and the command."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld import package
from handheld.device import DeviceCaps
from handheld.errors import PlanFileError
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Slot, Tensor, View
from handheld.kernels.base import Buffer, Float, Int, Launch, Lowered
from handheld.plan import file, file_format
from handheld.plan.file_format import RECORDS, Section
from handheld.plan.file_read import content_of
from handheld.plan.memory import Place
from handheld.plan.plan import GraphPlan, Plan
from handheld.step import Step

TEXT = "__kernel void twice(const __global float *x, __global float *y, int n, float by) { y[0] = x[0] * by; }"


def caps() -> DeviceCaps:
    return DeviceCaps("Tiny", "Nobody", "gpu", "1.0", 1, 64, 1024, 1 << 20, 1 << 20, 64, True)


def tiny() -> Plan:
    """One launch: y = 2 x for 3 floats, and a slot w that it does not touch."""
    tensors = {0: Tensor(0, (3,), "f32", "input"), 1: Tensor(1, (3,), "f32", "activation")}
    view = View(1, (3,), (1,))
    node = Node("map", (View(0, (3,), (1,)),), (1,), {}, Origin("forward", "", ""))
    graph = Graph(
        "go", tensors, (node,), (GraphInput("x", 0, "float32"),), {}, (), (GraphOutput("y", view, "float32"),)
    )
    launch = Launch("twice", TEXT, (Buffer(0), Buffer(1), Int(-1), Float(2.0)), (8,), (4,))
    places = {0: Place(0, 0, 12), 1: Place(0, 64, 12)}
    planned = GraphPlan(graph, (Lowered((launch,)),), places, {}, ())
    slot = Slot("w", (2,), "f32", "parameter", ("model.w",))
    step = Step({"w": slot}, {"w": np.array([1, 2], np.float32)}, {"go": graph}, {"name": "tiny"})
    return Plan(step, "opencl", caps(), {"go": planned}, {"w": Place(1, 0, 8)}, (76, 8), 0)


def by_hand(state: bytes, notes: bytes) -> bytes:
    """The file of `tiny`, written from docs/plan-file.md alone."""
    strings = b"TinyNobody1.0-w" + TEXT.encode() + b"twicex3ygow"
    at = {name: strings.index(name.encode()) for name in ("Tiny", "Nobody", "1.0", "-w", "x3ygow")}
    text, kernel, short = at["-w"] + 2, at["-w"] + 2 + len(TEXT), at["x3ygow"]
    none = 0xFFFFFFFFFFFFFFFF
    sections = [
        (0, strings),
        (1, struct.pack("<IIIIIIIIQQ", at["Tiny"], 4, at["Nobody"], 6, at["1.0"], 3, 1, 1, 64, 0)),
        (2, struct.pack("<QQ", 76, 8)),
        (1, struct.pack("<IIII", text, len(TEXT), at["-w"], 2)),
        (1, struct.pack("<II8II5I", short + 3, 2, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0)),
        (1, struct.pack("<IIIIIIII6QQ", 0, 0, kernel, 5, 1, 0, 4, 0, 8, 1, 1, 4, 1, 1, 0)),
        (
            4,
            struct.pack("<IIQQ", 0, 0, 0, 12)
            + struct.pack("<IIQQ", 0, 0, 64, 12)
            + struct.pack("<IIQQ", 2, 0xFFFFFFFF, 0, 0)
            + struct.pack("<IIQQ", 3, 0x40000000, 0, 0),
        ),
        (0, b""),
        (1, struct.pack("<IIIIQQII", short, 1, 0, 0, 0, 12, short + 1, 1)),
        (1, struct.pack("<IIIIQQ", short + 2, 1, 0, 0, 64, 12)),
        (1, struct.pack("<IIIIQQQII", short + 5, 1, 1, 0, 0, 8, none, 1, 0)),
        (0, b""),
        (0, state),
        (0, notes),
    ]
    table, body, end = b"", b"", 32 + 14 * 24
    for kind, (records, data) in enumerate(sections, 1):
        start = -(-end // (64 if kind == 12 else 8)) * (64 if kind == 12 else 8)
        table += struct.pack("<IIQQ", kind, records, start, len(data))
        body += bytes(start - end) + data
        end = start + len(data)
    return struct.pack("<8sIIQII", b"HANDPLAN", 2, 14, end, zlib.crc32(table + body), 0) + table + body


def test_the_format_is_the_one_in_the_docs():
    """Change the version of the format and docs/plan-file.md when this fails."""
    written = file.to_bytes(tiny())
    content = content_of(np.frombuffer(written, np.uint8))
    notes = json.dumps(content.notes, sort_keys=True).encode()
    assert written == by_hand(content.state, notes)
    sizes = {section: record.itemsize for section, record in RECORDS.items()}
    assert list(sizes.values()) == [48, 8, 16, 64, 88, 24, 32, 40, 32, 48] and file_format.VERSION == 2


def test_a_checkpoint_can_be_filled_in(tmp_path: Path):
    """As the runner does it: without knowing JSON."""
    state = content_of(np.frombuffer(file.to_bytes(tiny()), np.uint8)).state
    steps_at, checksum_at, checksum, _ = struct.unpack("<IIII", state[:16])
    header, data = bytearray(state[16:]), np.array([5, 6], np.float32).tobytes()
    digits = b"%020d" % 7
    header[steps_at : steps_at + 20] = digits
    header[checksum_at : checksum_at + 8] = b"%08x" % zlib.crc32(data, zlib.crc32(digits + b"\0", checksum))
    path = tmp_path / "a.ckpt"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    arrays, meta = package.load_state(path)
    assert arrays["model.w"].tolist() == [5, 6] and meta["step"]["model"] == ("model.w",)


def test_values_are_in_a_complete_file(tmp_path: Path):
    content = file.write(tiny(), tmp_path / "a.plan")
    (slot,) = content.tables[Section.SLOTS]
    at = int(slot["value"])
    assert content.values[at : at + 8].view(np.float32).tolist() == [1, 2]
    assert content.nbytes == (tmp_path / "a.plan").stat().st_size


def rewritten(change: dict[int, bytes]) -> bytes:
    """The file of `tiny` with some bytes replaced, and a checksum that fits again."""
    data = bytearray(file.to_bytes(tiny()))
    for at, new in change.items():
        data[at : at + len(new)] = new
    data[24:28] = struct.pack("<I", zlib.crc32(data[32:]))
    return bytes(data)


def place(section: Section, field: str, record: int = 0) -> int:
    """Where a field of a record is in the file of `tiny`."""
    data = file.to_bytes(tiny())
    (start,) = struct.unpack_from("<Q", data, 32 + 24 * (section - 1) + 8)
    return start + record * RECORDS[section].itemsize + (RECORDS[section].fields or {})[field][1]


@pytest.mark.parametrize(
    "section, field, record, new, what",
    [
        (Section.DEVICE, "base_align_bytes", 0, struct.pack("<Q", 48), "no legal alignment"),
        (Section.SEGMENTS, "bytes", 0, struct.pack("<Q", 75), "lies outside its segment"),
        (Section.PROGRAMS, "text", 0, struct.pack("<II", 0xFFFFFFFF, 2), "outside STRINGS"),
        (Section.GRAPHS, "launches", 0, struct.pack("<I", 2), "out of order"),
        (Section.LAUNCHES, "program", 0, struct.pack("<I", 1), "no program"),
        (Section.LAUNCHES, "node", 0, struct.pack("<I", 1), "order of nodes"),
        (Section.LAUNCHES, "dims", 0, struct.pack("<I", 4), "no legal dimensions"),
        (Section.LAUNCHES, "global", 0, struct.pack("<Q", 9), "no multiples"),
        (Section.ARGS, "a", 0, struct.pack("<I", 2), "no segment"),
        (Section.ARGS, "b", 1, struct.pack("<Q", 2**64 - 64), "lies outside its segment"),
        (Section.ARGS, "b", 1, struct.pack("<Q", 4), "not aligned"),
        (Section.ARGS, "kind", 0, struct.pack("<I", 9), "unknown kind"),
        (Section.INPUTS, "type", 0, struct.pack("<I", 4), "unknown type"),
        (Section.INPUTS, "bytes", 0, struct.pack("<Q", 8), "shape that does not fit its bytes"),
        (Section.INPUTS, "shape", 0, struct.pack("<II", 0, 4), "no legal shape"),
        (Section.OUTPUTS, "bytes", 0, struct.pack("<Q", 16), "lies outside its segment"),
        (Section.SLOTS, "value", 0, struct.pack("<Q", 0), "outside VALUES"),
        (Section.SLOTS, "flags", 0, struct.pack("<I", 0), "STATE does not fit"),
        (Section.SLOTS, "zero", 0, struct.pack("<I", 1), "unknown fields"),
    ],
)
def test_every_number_is_checked(section: Section, field: str, record: int, new: bytes, what: str):
    data = np.frombuffer(rewritten({place(section, field, record): new}), np.uint8)
    with pytest.raises(PlanFileError, match=f"is damaged: .*{what}.*Try: write it again"):
        content_of(data)


def test_a_file_that_is_cut_off_anywhere_is_refused():
    data = np.frombuffer(file.to_bytes(tiny()), np.uint8)
    for end in (1, 8, 31, 100, 400, len(data) - 1):
        with pytest.raises(PlanFileError, match=r"is cut off.*Try"):
            content_of(data[:end])


def test_damage_and_other_versions_are_named(tmp_path: Path):
    data = bytearray(file.to_bytes(tiny()))
    path = tmp_path / "a.plan"
    for change, what in (
        ({}, ""),
        ({len(data) - 1: b"!"}, "is damaged: its checksum does not match"),
        ({8: b"\1"}, "is a plan file of version 1, and this version of Handheld reads 2"),
        ({0: b"SQLite"}, "is no plan file"),
    ):
        wrong = bytearray(data)
        for at, new in change.items():
            wrong[at : at + len(new)] = new
        path.write_bytes(wrong)
        if not what:
            file.read(path)
            continue
        with pytest.raises(PlanFileError, match=rf"a\.plan {what}.*Try"):
            file.read(path)
    path.write_bytes(b"")
    with pytest.raises(PlanFileError, match="is no plan file"):
        file.read(path)
    with pytest.raises(PlanFileError, match=r"no\.plan cannot be read: No such file"):
        file.read(tmp_path / "no.plan")


def test_another_driver_is_named():
    content = content_of(np.frombuffer(file.to_bytes(tiny()), np.uint8))
    assert file.check_device(content, "a.plan", "opencl", caps()) == ""
    note = file.check_device(content, "a.plan", "opencl", replace(caps(), driver="2.0"))
    assert note.startswith("a.plan was made for driver 1.0, but opencl has driver 2.0. Programs are compiled from")
    assert note.endswith("Try: handheld plan STEP --on opencl --out a.plan")


def test_real_plans_are_written_and_read(tmp_path: Path):
    """Halves, textures (of a GPU's description), workspaces, several graphs and inputs."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    batch = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    model(batch[0])
    step = handheld.capture(model, F.cross_entropy, torch.optim.Adam(model.parameters()), batch)
    for name in ("adreno-740", "mali-g78"):
        for precision in ("float32", "half"):
            plan = step.plan(caps=DeviceCaps.shipped(name), precision=precision)
            content = file.write(plan, tmp_path / "a.plan")
            launches = sum(len(low.launches) for graph in plan.graphs.values() for low in graph.lowered)
            assert len(content.tables[Section.LAUNCHES]) == launches
            assert content.device == plan.caps.name
