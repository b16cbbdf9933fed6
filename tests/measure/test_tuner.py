"""The tuner: what it chooses, what it survives, and what it remembers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from handheld import cache
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.errors import HandheldError, PlanError
from handheld.graph.check import check
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Tensor, View
from handheld.graph.program import Instr, Store
from handheld.kernels import versions
from handheld.measure.jobs import alone, find_jobs
from handheld.measure.process import WorkerFailed, WorkerProcess
from handheld.measure.timing import Measured
from handheld.measure.tuner import Tuner, known_record
from handheld.plan import lowering, make, tuning
from handheld.plan.codec import from_json, to_json
from handheld.plan.signature import signature
from handheld.plan.tuning import Entry, TuningRecord, load_tuning
from handheld.step import Step
from helpers import fake_family

SIZES = (97, 64, 161)  # no work-group divides them evenly


def products(*sizes: int) -> Step:
    """y = x w for square x and w of each size, each product twice."""
    tensors, nodes, inputs, outputs = {}, [], [], []
    for n in sizes:
        x = len(tensors)
        for i, role in enumerate(("input", "input", "activation", "activation")):
            tensors[x + i] = Tensor(x + i, (n, n), "f32", role)
        views = [View(x + i, (n, n), (n, 1)) for i in range(2)]
        inputs += [GraphInput(f"x{x + i}", x + i, "float32") for i in range(2)]
        for out in (x + 2, x + 3):
            attrs = {"shape": (n, n), "program": (Instr("acc", "f32"),), "stores": (Store(0),)}
            nodes.append(Node("matmul", tuple(views), (out,), attrs, Origin("forward", "m", "mm")))
            outputs.append(GraphOutput(f"y{out}", View(out, (n, n), (n, 1)), "float32"))
    graph = Graph("train", tensors, tuple(nodes), tuple(inputs), {}, (), tuple(outputs))
    return Step({}, {}, {"train": check(graph)})


@pytest.fixture
def variants(monkeypatch, tmp_path):
    """Puts the fake family in, offering the variants that a test names."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(make, "_told", set())
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")  # made for other families
    monkeypatch.setattr(lowering, "FAMILIES", {**lowering.FAMILIES, "matmul": fake_family.lower_matmul})

    def offer(names: str) -> None:
        monkeypatch.setenv("FAKE_VARIANTS", names)

    return offer


def tuner_for(step: Step, **options) -> Tuner:
    caps = describe("opencl")
    record = TuningRecord.of(caps)
    path = record.path()
    if path.exists():
        record = TuningRecord.read(path)
    jobs = find_jobs(step.graphs.values(), caps)
    return Tuner("opencl", caps, jobs, record, path, WorkerProcess(fake_family.COMMAND), **options)


def only(tuner: Tuner) -> Entry:
    (entry,) = TuningRecord.read(tuner.path).entries.values()
    return entry


def reasons(entry: Entry) -> dict[int, str]:
    return {choice["VARIANT"]: why for choice, why in entry.failed}


def test_the_fastest_right_variant_wins(variants):
    variants("own empty partial fast twin")
    tuner = tuner_for(products(97))
    tuner.run(60)
    entry = only(tuner)
    assert entry.choice == {"VARIANT": fake_family.FAST} and entry.done and not entry.timed
    assert entry.best_ms < 0.7 * entry.default_ms
    assert set(reasons(entry)) == {fake_family.EMPTY, fake_family.PARTIAL}
    assert all("wrong result" in why for why in reasons(entry).values())
    (row,) = tuner.rows()
    assert row.count == 2
    assert row.saved_ms == pytest.approx(2 * (entry.default_ms - entry.best_ms))
    assert tuner.worker.starts == 1  # no wrong result costs a process


def test_bad_variants_take_down_the_child_only(variants):
    variants("own raises unbuilt dies hangs fast")
    tuner = tuner_for(products(64), timeout=8.0)
    tuner.run(120)
    entry = only(tuner)
    assert entry.choice == {"VARIANT": fake_family.FAST} and entry.done
    why = reasons(entry)
    assert "not on this device" in why[fake_family.RAISES]
    assert "could not build" in why[fake_family.UNBUILT]
    assert "crashed (signal 6, SIGABRT)" in why[fake_family.DIES]
    assert "no answer within 8 s" in why[fake_family.HANGS]
    assert tuner.worker.starts == 3 and not tuner.worker.running
    again = tuner_for(products(64))
    again.run(60)
    assert again.worker.starts == 0  # nothing is left to try


def test_a_default_that_fails_needs_two_that_agree(variants):
    variants("unbuilt partial fast")
    tuner = tuner_for(products(64))
    tuner.run(60)
    entry = only(tuner)
    assert entry.choice is None and entry.default_ms is None  # one against one
    tuner.path.unlink()
    variants("unbuilt fast twin")
    tuner = tuner_for(products(64))
    tuner.run(60)
    entry = only(tuner)
    assert entry.choice == {"VARIANT": fake_family.FAST} and entry.default_ms is None


def test_a_stopped_search_goes_on(variants):
    variants("own empty partial twin fast")
    tuner = tuner_for(products(64))

    def stop(now) -> None:
        if now.tried == 2:
            raise KeyboardInterrupt

    tuner.progress = stop
    with pytest.raises(KeyboardInterrupt):
        tuner.run(60)
    assert not tuner.worker.running
    entry = only(tuner)
    assert not entry.done and len(entry.failed) == 2
    tried = []
    again = tuner_for(products(64), progress=tried.append)
    again.run(60)
    assert next(now.tried for now in tried) == 2  # what failed is not tried again
    entry = only(again)
    assert entry.done and entry.choice == {"VARIANT": fake_family.FAST}


KILLED = """
import sys
sys.path[:0] = {paths!r}
from helpers import fake_family
from test_tuner import products, tuner_for
fake_family.install()
tuner_for(products(64)).run(60)
"""


def test_a_killed_tuner_loses_one_candidate(variants):
    variants("own empty hangs fast")
    here = Path(__file__).parent
    code = KILLED.format(paths=[str(here), str(here.parent)])
    path = TuningRecord.of(describe("opencl")).path()
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", code]) as process:
        while not path.exists() or not any(e.failed for e in TuningRecord.read(path).entries.values()):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)  # it is in the one that hangs now
        (child,) = psutil.Process(process.pid).children()
        process.kill()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()
    (entry,) = TuningRecord.read(path).entries.values()
    assert list(reasons(entry)) == [fake_family.EMPTY] and not entry.done
    variants("own empty fast")
    tuner = tuner_for(products(64))
    tuner.run(60)
    assert only(tuner).choice == {"VARIANT": fake_family.FAST}


def test_a_budget_leaves_the_rest_for_later(variants):
    variants("own empty partial fast")
    step = products(*SIZES)
    tuner = tuner_for(step)
    assert [job.signature.split()[1] for job in tuner.jobs] == ["161x161", "97x97", "64x64"]
    tuner.run(0.01)
    first = TuningRecord.read(tuner.path).entries
    assert len(first) == 1 and not any(entry.done for entry in first.values())
    again = tuner_for(step)
    again.run(60)
    assert all(entry.done for entry in TuningRecord.read(tuner.path).entries.values())
    assert len(TuningRecord.read(tuner.path).entries) == 3


def test_a_node_that_cannot_be_opened_is_a_note(variants):
    variants("own fast")
    tuner = tuner_for(products(64))
    tuner.device = "opencl:no-such-device"
    tuner.run(10)
    assert "cannot be timed" in tuner.notes[0] and "no-such-device" in tuner.notes[0]


# ── plans ─────────────────────────────────────────────────────────────────────────────────────


def tuned_record(step: Step, **changes: str) -> TuningRecord:
    caps = describe("opencl")
    record = dataclasses.replace(TuningRecord.of(caps), date="2030-01-01", **changes)
    for job in find_jobs(step.graphs.values(), caps):
        record.entries[job.signature] = Entry({"VARIANT": fake_family.FAST}, 2.0, 1.0, 2, True)
    record.write(record.path())
    return record


def test_plans_use_what_was_tuned(variants, tmp_path):
    variants("own fast")
    step = products(*SIZES)
    record = tuned_record(step)
    tuned, plain = step.plan("opencl"), step.plan("opencl", tuning=False)
    assert tuned.graphs["train"].launches * 8 == plain.graphs["train"].launches
    assert set(tuned.graphs["train"].tuned) == set(range(6)) and not plain.graphs["train"].tuned
    assert "tuned: VARIANT 1" in tuned.explain() and "; default" not in tuned.explain()
    assert "; default" in plain.explain() and "tuned:" not in plain.explain()
    again = from_json(json.loads(json.dumps(to_json(tuned))), step)
    assert again == tuned and again.graphs["train"].tuned[0] == {"VARIANT": fake_family.FAST}
    moved = tmp_path / "elsewhere.json"
    record.path().rename(moved)
    assert not step.plan("opencl").graphs["train"].tuned
    assert step.plan("opencl", tuning=moved).graphs["train"].tuned
    with pytest.raises(PlanError, match="cannot be read"):
        step.plan("opencl", tuning=tmp_path / "nowhere.json")


def test_tuned_and_plain_plans_compute_the_same(variants):
    variants("own fast")
    step = products(*SIZES)
    tuned_record(step)
    rng = np.random.default_rng(0)
    batch = [rng.standard_normal((n, n)).astype(np.float32) for n in SIZES for _ in range(2)]
    results = []
    for tuned in (True, False):
        with step.plan("opencl", tuning=tuned).start() as trainer:
            trainer.run("train", *batch)
            results.append(trainer.outputs())
    for name, want in results[1].items():
        np.testing.assert_array_equal(results[0][name], want)


def test_a_foreign_record_is_ignored_with_one_message(variants):
    variants("own fast")
    step, words = products(64), "it is for the driver another"
    tuned_record(step, driver="another")
    with pytest.warns(UserWarning, match=words) as caught:
        plans = [step.plan("opencl") for _ in range(2)]
    assert len(caught) == 1 and not any(p.graphs["train"].tuned for p in plans)
    tuned_record(step)  # a record that fits, beside it
    assert step.plan("opencl").graphs["train"].tuned
    assert any(words in message for message in load_tuning(describe("opencl")).ignored)


@pytest.mark.parametrize("damage", ["{", "[]", "{}", None, '"done": "', '"VARIANT": 1.5'])
def test_a_corrupt_record_is_ignored_with_a_message(variants, damage):
    variants("own fast")
    step = products(64)
    path = tuned_record(step).path()
    whole = path.read_text()
    text = {
        None: whole[: len(whole) // 2],
        '"done": "': whole.replace('"done"', '"don"'),
        '"VARIANT": 1.5': whole.replace('"VARIANT": 1', '"VARIANT": 1.5'),
    }.get(damage, damage)
    assert text != whole
    path.write_text(text)
    with pytest.warns(UserWarning, match="is not a tuning record.*It is ignored") as told:
        assert not step.plan("opencl").graphs["train"].tuned
    assert not any("Error" in str(one.message) for one in told)  # Python's own say nothing here
    with pytest.raises(PlanError, match="is not a tuning record"):
        step.plan("opencl", tuning=path)


def test_a_choice_that_is_not_offered_is_not_used(variants):
    variants("own fast")
    step = products(64)
    tuned_record(step)
    variants("own partial")
    assert not step.plan("opencl").graphs["train"].tuned


def test_a_tuned_kernel_that_does_not_build_falls_back(variants):
    variants("own fast unbuilt")
    step = products(64)
    record = tuned_record(step)
    for entry in record.entries.values():
        entry.choice = {"VARIANT": fake_family.UNBUILT}
    record.write(record.path())
    batch = [np.eye(64, dtype=np.float32)] * 2
    with pytest.warns(UserWarning, match="Trying variants that were not tuned"):
        trainer = step.plan("opencl").start()
    with trainer:
        trainer.run("train", *batch)
        np.testing.assert_array_equal(trainer.outputs()["y2"], batch[0])


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
    assert time.monotonic() - started > 0.4  # a jump of the clock is no waiting


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
    """A device, and a record of it with an entry of each of two families."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    caps = dataclasses.replace(describe("opencl"), name="some GPU", kind="gpu")
    record = TuningRecord.of(caps)
    record.entries = {"conv 1": Entry({"a": 1}), "attention 1": Entry({"b": 2})}
    return caps, record


def raise_version(monkeypatch: pytest.MonkeyPatch, family: str, number: int) -> None:
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
    raise_version(monkeypatch, "contract", 2)
    found = load_tuning(caps)
    assert found.choices == {"attention 1": {"b": 2}} and found.used
    (message,) = found.ignored
    assert "its entries of contract (version 1, now version 2) are ignored" in message
    assert "Try: handheld tune MODEL" in message
    raise_version(monkeypatch, "attention", 2)
    found = load_tuning(caps)
    assert not found.choices and not found.used
    known, path, _ = known_record(TuningRecord.of(caps))
    assert not known.entries and path == record.path()


def test_a_tuner_replaces_what_a_changed_family_left(two_families, monkeypatch):
    caps, record = two_families
    record.write(record.path())
    raise_version(monkeypatch, "contract", 2)
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
    raise_version(monkeypatch, "contract", 2)
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
    assert "of version 4, and this Handheld reads 3. Try: tune again" in message
