"""The check of a driver: right references, wrong kernels are found, ways around them, and the stored result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from handheld.backends.base import describe
from handheld.backends.reference.ops import run_node
from handheld.device import DeviceCaps
from handheld.drivers import check as checking
from handheld.drivers.halves import Asked, problems
from handheld.drivers.numpy_ops import run_graph
from handheld.drivers.runner import FLOATS, Results
from handheld.drivers.sketch import Sketch
from handheld.drivers.sketches import sketches
from handheld.drivers.store import Truth, known, path_of
from handheld.drivers.worker import HALF_LIMIT, difference
from handheld.errors import DeviceError, PlanError, TargetLost
from handheld.plan.lowering import FAMILIES, family
from handheld.plan.ways import WAYS, others, parsed, precision_of, refused, way_of

ALL = {sketch.name: sketch for sketch in sketches(large=False)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))


def test_every_op_has_a_problem() -> None:
    assert {op for sketch in ALL.values() for op in sketch.ops} == set(FAMILIES)
    assert [s.name for s in sketches(large=True)] == list(ALL)


@pytest.mark.parametrize("name", ALL)
def test_the_references_are_right(name: str) -> None:
    """NumPy's results are those of PyTorch in float64."""
    sketch = ALL[name]
    got = run_graph(sketch.graph, sketch.inputs)
    values = {t: torch.from_numpy(x.astype(np.float64) if x.dtype.kind == "f" else x) for t, x in sketch.inputs.items()}
    for node in sketch.graph.nodes:
        for tensor, value in zip(node.outputs, run_node(node, sketch.graph, values, torch.float64), strict=True):
            values[tensor] = value
            assert not difference(got[tensor], value.numpy())


def test_a_target_that_is_lost_says_nothing_about_its_driver() -> None:
    caps = describe("opencl")
    with pytest.raises(TargetLost, match=r"ssh:me@127\.0\.0\.1:1"):
        checking.check("ssh:me@127.0.0.1:1", caps)
    assert known(caps) is None


def test_a_right_driver_passes_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "simulated", lambda caps: True)  # Small problems: the test is not about the driver.
    monkeypatch.setenv(checking.VARIABLE, "on")
    caps = checking.described("opencl")
    truth = known(caps)
    assert truth is not None and not truth.avoid and caps.avoid == ""
    (words,) = truth.words()
    assert words.startswith(f"{len(ALL)} problems of all kernel families (small ones") and words.endswith("all right")
    monkeypatch.setattr(checking, "check", lambda *_: pytest.fail("checked twice"))
    again = checking.described("opencl")
    assert replace(again, global_mem_bytes=0, max_alloc_bytes=0) == replace(caps, global_mem_bytes=0, max_alloc_bytes=0)
    data = json.loads(path_of(caps).read_text())
    for changed in ({"kernels": "other"}, {"driver": "other"}, {"version": 0}, {"avoid": "matmul=nonsense"}):
        path_of(caps).write_text(json.dumps({**data, **changed}))
        assert known(caps) is None, changed
    path_of(caps).write_text("{")
    assert known(caps) is None


class Wrong:
    """Stands for a driver that computes some ops wrongly in some ways."""

    wrong: ClassVar[dict[str, set[str]]] = {}
    crash = False
    precision = "float32"

    def __init__(self, device: str, large: bool, patient: bool = False, asked: Asked = FLOATS) -> None:
        self.asked = asked

    def __enter__(self) -> Wrong:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, way: str, problems: list[Sketch]) -> Results:
        bad = self.wrong.get(way, set()) if self.asked.precision == self.precision else set()
        key = [""] if self.crash else []
        return {s.name: dict.fromkeys(key or bad & set(s.ops), "off by 9.0e-01") for s in problems}


def checked(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, set[str]], caps: DeviceCaps) -> Truth:
    monkeypatch.setattr(checking, "Runner", Wrong)
    monkeypatch.setattr(Wrong, "wrong", wrong)
    return checking.check("opencl", caps)


def test_what_is_wrong_only_in_halves_is_avoided_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    caps = replace(cpu(), fp16=True)
    monkeypatch.setenv(checking.VARIABLE, "on")
    monkeypatch.setattr(checking, "describe", lambda device: caps)
    monkeypatch.setattr(checking, "Runner", Wrong)
    monkeypatch.setattr(Wrong, "precision", "half")
    monkeypatch.setattr(Wrong, "wrong", {"": {"conv", "max_pool"}, "wide": set(), **{w: {"max_pool"} for w in WAYS}})
    assert checking.described("opencl").avoid == "" and known(caps, "half") is None
    monkeypatch.setattr(Wrong, "wrong", {"": {"conv", "max_pool"}, **{way: {"max_pool"} for way in WAYS}})
    found = checking.described("opencl", "half-compute")
    contractions = {f"{op}:half": "wide" for op in FAMILIES if family(op) == "contract"}
    assert parsed(found.avoid) == {**contractions, "max_pool:half": "none"}
    assert known(caps, "half-compute") is not None
    assert way_of("conv", found)[1] == "" and not refused("max_pool", found)
    for precision in ("half", "half-compute"):
        assert way_of("conv", found, precision)[0].vector_width == 16
    with pytest.raises(PlanError, match=r"computes max_pool in halves wrongly .*Try: --precision float32"):
        way_of("max_pool", found, "half")
    truth = known(caps, "half")
    assert truth is not None and "problems in precision half: " in truth.words()[0]
    assert any("max_pool with halves: wrong in every way, refused" in line for line in truth.words())


@pytest.mark.parametrize("precision", ["half", "half-compute"])
def test_problems_in_halves_have_what_plans_have(precision: str) -> None:
    made = problems(False, precision)
    kinds = {node.op for s in made for node in s.graph.nodes if precision_of(node, s.graph) == precision}
    products = {"matmul", "conv", "conv_input", "conv_weight"}
    pools = {"max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad", "attention", "attention_grad"}
    assert kinds == (products if precision == "half-compute" else {*products, *pools, "map", "reduce"})
    assert [s.name for s in made] == [s.name for s in problems(True, precision)]
    for sketch in made:
        want = run_graph(sketch.graph, sketch.inputs)
        exact = run_graph(ALL[sketch.name].graph, ALL[sketch.name].inputs)
        for node in ALL[sketch.name].graph.nodes:
            for tensor in node.outputs:
                assert not difference(want[tensor], exact[tensor], limit=HALF_LIMIT), (sketch.name, node.op)


def test_the_check_in_halves_passes_on_a_right_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "simulated", lambda caps: True)  # Small problems: the test is not about the driver.
    few = [s for s in problems(False, "half") if s.name in ("product-k128", "max-pool")]
    monkeypatch.setattr(checking, "problems_of", lambda large, precision: few)
    truth = checking.check("opencl", describe("opencl"), precision="half")
    assert not truth.avoid and truth.problems == len(few), truth


def cpu() -> DeviceCaps:
    return replace(describe("opencl"), kind="cpu", vector_width=1, features="", name="llvmpipe", driver="22.3.6")


def test_a_wrong_family_takes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = checked(monkeypatch, {"": {"matmul"}, "wide": {"conv"}}, cpu())
    assert parsed(truth.avoid) == {op: "gpu" for op in FAMILIES if family(op) == "contract"}
    assert "matmul in linear: off by 9.0e-01" in truth.words()
    assert any(line.startswith("avoided: conv, conv_input") and "kernels for GPUs" in line for line in truth.words())
    assert known(cpu()) == truth


def test_an_op_that_is_wrong_in_every_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = {way: {"sort"} for way in ("", *WAYS)}
    truth = checked(monkeypatch, everywhere, cpu())
    assert truth.refused == ["sort"] and "scan" not in parsed(truth.avoid)
    with pytest.raises(PlanError, match=r"computes sort wrongly .*Try: another version of the driver"):
        way_of("sort", replace(cpu(), avoid=truth.avoid))


def test_a_device_that_cannot_run_says_nothing_about_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrong, "crash", True)
    with pytest.raises(DeviceError, match="off by"):
        checked(monkeypatch, {}, cpu())
    assert known(cpu()) is None
    monkeypatch.setenv(checking.VARIABLE, "on")
    with pytest.warns(UserWarning, match="could not be checked"):
        checking.described("opencl")


def test_the_check_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(checking.VARIABLE, "off")
    monkeypatch.setattr(checking, "check", lambda *_: pytest.fail("checked"))
    assert checking.described("opencl").avoid == ""
    assert checking.described("reference:cpu").kind == "reference"


def test_a_wrong_result_is_found() -> None:
    right = np.ones((260, 768))
    wrong = right.copy()
    wrong[48:] = 0
    assert difference(right, right) == "" and "off by 9.0e-01" in difference(wrong, right)
    assert "not finite" in difference(right * np.nan, right)
    assert difference(np.arange(3), np.array([0, 1, 3])) == "output 0 differs in 1 of 3 places"


def test_ways_differ_from_the_usual_one() -> None:
    assert others(cpu()) == ["wide", "gpu", "small"]
    assert others(replace(cpu(), vector_width=16)) == ["narrow", "gpu", "small"]
    assert others(replace(cpu(), kind="gpu", images=True)) == ["plain", "cpu", "small"]
    for avoid in ("matmul=unknown", "matmul"):
        with pytest.raises(PlanError, match="Try: handheld doctor --recheck"):
            parsed(avoid)
