"""Tuning records: signatures, keys, the folder, the shipped records."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from handheld import cache, files
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.graph.check import check
from handheld.graph.graph import Node, View
from handheld.graph.program import Instr, Store
from handheld.kernels import versions
from handheld.measure.jobs import alone
from handheld.measure.process import WorkerFailed, WorkerProcess
from handheld.measure.timing import Measured
from handheld.measure.tuner import known_record
from handheld.plan import tuning
from handheld.plan.signature import signature
from handheld.plan.tuning import Entry, TuningRecord, load_tuning
from helpers.products import products

# ── small parts ───────────────────────────────────────────────────────────────────────────────


def test_signatures_name_what_decides_speed():
    step = products(64)
    graph = step.graphs["train"]
    node, other = graph.nodes
    assert signature(node, graph) == signature(other, graph) == "matmul 64x64 64x64 > 64x64 e0"
    assert check(alone(node, graph)).nodes == (node,)

    def changed(**changes) -> str:
        view = dataclasses.replace(node.inputs[0], **changes)
        return signature(dataclasses.replace(node, inputs=(view, node.inputs[1])), graph)

    assert changed(strides=(1, 64)) == "matmul 64x64/1x64 64x64 > 64x64 e0"
    assert changed(offset=16) == signature(node, graph)
    assert changed(offset=3) == "matmul 64x64+ 64x64 > 64x64 e0"
    assert changed(tensor=1) == signature(node, graph)
    program = (Instr("acc", "f32"), Instr("const", "f32", (), (2.0,)), Instr("mul", "f32", (0, 1)))
    longer = dataclasses.replace(node, attrs={**node.attrs, "program": program, "stores": (Store(2),)})
    assert signature(longer, graph).endswith("e2")
    views = (View(0, (1, 4, 32, 32), (4096, 1024, 32, 1)), View(1, (4, 4, 3, 3), (36, 9, 3, 1)))
    attrs = {
        "shape": (1, 4, 16, 16),
        "stride": (2, 2),
        "padding": (1, 1),
        "dilation": (1, 1),
        "groups": 1,
        "program": (Instr("acc", "f32"),),
        "stores": (Store(0),),
    }
    conv = Node("conv", views, (2,), attrs, node.origin)
    assert signature(conv, graph) == ("conv 1x4x32x32 4x4x3x3 > 1x4x16x16 stride=2x2 padding=1x1 e0")


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "own"))
    assert cache.folder() == tmp_path / "own"
    monkeypatch.delenv("HANDHELD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "handheld"
    cache.write_json(tmp_path / "deep" / "file.json", {"a": 1})
    with pytest.raises(ValueError):
        cache.write_json(tmp_path / "deep" / "file.json", {"a": float("nan")})
    assert json.loads((tmp_path / "deep" / "file.json").read_text()) == {"a": 1}
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["file.json"]
    left, file = files._temporary(tmp_path / "deep" / "file.json")
    file.close()  # as a killed process leaves it
    cache.write_json(tmp_path / "deep" / "file.json", {"a": 2})
    assert not left.exists()
    with pytest.raises(HandheldError, match=r"could not be written.*HANDHELD_CACHE"):
        cache.write_json(tmp_path / "deep" / "file.json" / "below.json", {})


def test_a_child_that_sleeps_with_its_parent_is_not_late(monkeypatch):
    child = WorkerProcess(("sleep", "60"))
    clock = iter(range(0, 10**6, 1000))
    with pytest.raises(WorkerFailed, match="no answer within 1 s"):
        started = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr("handheld.child.time.monotonic", lambda: next(clock))
            child.ask({}, 1.0)
    assert time.monotonic() - started > 0.4  # A jump of the clock does not count as waiting.


def test_medians():
    assert Measured.of([3.0]) == Measured(3.0, 0.0)
    assert Measured.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Measured(3.0, 2 / 3)


def test_a_shipped_record_holds_for_cpus_that_run_the_same_code(monkeypatch, tmp_path):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path)
    cpu = dataclasses.replace(describe("opencl"), name="some CPU", kind="cpu", vector_width=8)
    record = TuningRecord.of(cpu)
    record.entries["matmul 2x2"] = Entry(choice={"tile": 3})
    record.write(tmp_path / "some-cpu.json")
    assert load_tuning(cpu).choices == {"matmul 2x2": {"tile": 3}}
    assert load_tuning(dataclasses.replace(cpu, name="its neighbour")).choices
    for change in ({"vector_width": 16}, {"driver": "another"}, {"kind": "gpu"}):
        assert not load_tuning(dataclasses.replace(cpu, name="its neighbour", **change)).choices


def test_shipped_records_can_be_read_and_fit_the_kernels():
    records = {path.name: TuningRecord.read(path) for path in tuning.SHIPPED.glob("*.json")}
    assert records
    for name, record in records.items():
        assert record.entries and record.driver and record.kind in ("cpu", "gpu") and record.path().name == name
        assert not record.drop_stale(), f"{name} was measured with other kernels: tune again and ship the new record"


# ── versions of kernels ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def two_families(monkeypatch, tmp_path) -> tuple[DeviceCaps, TuningRecord]:
    """A device, and its record with one entry of each of two families. Their version is 1."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    set_version(monkeypatch, "contract", 1)
    set_version(monkeypatch, "attention", 1)
    caps = dataclasses.replace(describe("opencl"), name="some GPU", kind="gpu")
    record = TuningRecord.of(caps)
    record.entries = {"conv 1": Entry({"a": 1}), "attention 1": Entry({"b": 2})}
    return caps, record


def set_version(monkeypatch: pytest.MonkeyPatch, family: str, number: int) -> None:
    monkeypatch.setattr(versions, "VERSIONS", {**versions.VERSIONS, family: {"cpu": number, "gpu": number}})


def as_version_2(record: TuningRecord, kernels: str) -> Path:
    """The file that Handheld wrote before kernel families had versions."""
    path = record.earlier_path()
    record.write(path)
    data = json.loads(path.read_text())
    del data["families"]
    path.write_text(json.dumps(data | {"version": 2, "kernels": kernels}))
    return path


def test_entries_of_a_changed_family_are_ignored_alone(two_families, monkeypatch):
    caps, record = two_families
    record.write(record.path())
    assert load_tuning(caps).choices == {"conv 1": {"a": 1}, "attention 1": {"b": 2}}
    set_version(monkeypatch, "contract", 2)
    found = load_tuning(caps)
    assert found.choices == {"attention 1": {"b": 2}} and found.used
    (message,) = found.ignored
    assert "its entries of contract (version 1, now version 2) are ignored" in message
    assert "Try: handheld tune MODEL" in message
    set_version(monkeypatch, "attention", 2)
    found = load_tuning(caps)
    assert not found.choices and not found.used
    known, path, _ = known_record(TuningRecord.of(caps))
    assert not known.entries and path == record.path()


def test_a_tuner_replaces_what_a_changed_family_left(two_families, monkeypatch):
    caps, record = two_families
    record.write(record.path())
    set_version(monkeypatch, "contract", 2)
    known, path, notes = known_record(TuningRecord.of(caps))
    assert list(known.entries) == ["attention 1"] and not notes
    known.entries["conv 1"] = Entry({"a": 3})
    known.write(path)
    found = load_tuning(caps)
    assert found.choices == {"attention 1": {"b": 2}, "conv 1": {"a": 3}} and not found.ignored


def test_a_record_of_version_2_with_the_same_kernels_is_read(two_families):
    caps, record = two_families
    path = as_version_2(record, tuning.VERSION_1_HASHES["gpu"])
    found = load_tuning(caps)
    assert found.used == (path,) and len(found.choices) == 2 and not found.ignored
    known, new, _ = known_record(TuningRecord.of(caps))
    assert len(known.entries) == 2 and new != path
    known.entries["conv 1"] = Entry({"a": 9})
    known.write(new)
    assert load_tuning(caps).choices["conv 1"] == {"a": 9}, "the record that tune writes now wins"


def test_a_record_of_version_2_is_version_1_of_its_families(two_families, monkeypatch):
    caps, record = two_families
    as_version_2(record, tuning.VERSION_1_HASHES["gpu"])
    set_version(monkeypatch, "contract", 2)
    assert list(load_tuning(caps).choices) == ["attention 1"]


@pytest.mark.parametrize("kernels", ["0123", tuning.VERSION_1_HASHES["cpu"]], ids=["unknown", "other-kind"])
def test_a_record_of_version_2_with_other_kernels_is_ignored_with_a_message(two_families, kernels):
    caps, record = two_families
    path = as_version_2(record, kernels)
    for source in (True, path):
        found = load_tuning(caps, source)
        assert not found.choices and not found.used
        (message,) = found.ignored
        assert "a record of version 2, now version 1" in message and "Try: handheld tune MODEL" in message
    assert not known_record(TuningRecord.of(caps))[0].entries


def test_a_record_of_a_later_version_says_so(two_families):
    caps, record = two_families
    record.write(record.path())
    record.path().write_text(record.path().read_text().replace('"version": 3', '"version": 4'))
    (message,) = load_tuning(caps).ignored
    assert "of version 4, but this version of Handheld reads 3. Try: tune again" in message
