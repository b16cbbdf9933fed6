"""The calibration of a device's energy model, with a meter that counts the process's cores."""

from __future__ import annotations

import dataclasses
import json

import pytest

from handheld.backends.base import describe
from handheld.cost.energy import EnergyModel
from handheld.errors import HandheldError
from handheld.graph.ops import OPS
from handheld.kernels.versions import current
from handheld.plan.work import flops, nbytes
from handheld.profile import energy_models
from handheld.profile.calibrate import calibrate, calibration_ops
from helpers.known_ceilings import store_ceilings
from helpers.meters import IDLE_W, Meter

RAIL = "meter/cpu energy"


def few() -> list:
    """Ops that take about a millisecond here."""
    ops = [g for g in calibration_ops() if 1e6 < flops(g.nodes[0], g) + 4 * nbytes(g.nodes[0], g) < 1e8]
    return ops[:: max(len(ops) // 6, 1)][:6]


@pytest.fixture(scope="module")
def model():
    store_ceilings()
    told = []
    found = calibrate("opencl", ops=few(), sensors=(Meter,), seconds=0.5, progress=lambda *what: told.append(what))
    return found, told


def test_a_device_is_calibrated(model):
    found, told = model
    (rail,) = found.rails
    assert rail.name == RAIL and rail.covers == ("cpu",)
    assert rail.idle_watts < IDLE_W + 10
    assert 3 <= len(found.samples) <= 6
    for sample in found.samples:
        assert sample.seconds > 0 and sample.joules[RAIL] > 0 and sample.effort.groups >= 1
    assert {what for _, _, what in told} >= {"idle time between launches"}
    assert EnergyModel.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_profile_stores_the_model_and_gives_joules(model, plan, batch, tmp_path, monkeypatch):
    found, _ = model
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    energy_models.store(found, plan.caps)
    with plan.profile(batch, tmp_path / "one.run", seconds=1.0, idle_s=0.3, sensors=(Meter,)) as run:
        assert {row.id for row in run.joules()} == {row.id for row in run.ops() if row.launches}
        assert all(row.joules > 0 and row.source == "model" for row in run.joules())
        (total,) = run.step_joules()
        assert total.counter > 0 and total.sum > 0


def test_calibration_without_ceilings_says_what_to_do(tmp_path, monkeypatch):
    """Without them the model would take every op as one whose data lies in memory."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    with pytest.raises(HandheldError, match=r"needs its ceilings.*Try: handheld doctor --ceilings --energy"):
        calibrate("opencl", ops=few(), sensors=(Meter,))


def test_a_model_of_other_kernels_is_a_finding(model, plan, batch, tmp_path, monkeypatch):
    found, _ = model
    assert found.cache_bytes > 0 and found.families == current(describe("opencl").kind)
    assert energy_models.stale(found, plan.caps.kind) == ""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    energy_models.store(dataclasses.replace(found, families={**found.families, "contract": 0}), plan.caps)
    with plan.profile(batch, tmp_path / "one.run", seconds=0.5, idle_s=0.1, sensors=(Meter,)) as run:
        (said,) = [item for item in run.findings() if item.kind == "energy model"]
        assert "measured with other kernels of contract, so the joules" in said.text and said.ops
        assert said.text.endswith("Try: handheld doctor --energy")
    older = EnergyModel.from_json({key: value for key, value in found.to_json().items() if key != "families"})
    assert "attention and contract" in energy_models.stale(older, "cpu")


def test_stored_models(model, tmp_path, monkeypatch):
    found, _ = model
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    caps = describe("opencl")
    assert energy_models.stored(caps) == (
        None,
        "the energy model of this device was not measured. Try: handheld doctor --energy",
    )
    path = energy_models.store(found, caps)
    assert energy_models.stored(caps) == (found, "")
    other, reason = energy_models.stored(dataclasses.replace(caps, driver="another 2.0"))
    assert other is None and "another driver" in reason and "another 2.0" in reason
    path.write_text("{}")
    other, reason = energy_models.stored(caps)
    assert other is None and "cannot be read" in reason


def test_a_profile_says_that_the_model_is_of_another_driver(model, plan, batch, tmp_path, monkeypatch):
    found, _ = model
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    older = dataclasses.replace(plan.caps, driver="an older one")
    energy_models.store(dataclasses.replace(found, driver="an older one"), older)
    with plan.profile(batch, tmp_path / "one.run", steps=20, idle_s=0.1, sensors=(Meter,)) as run:
        assert run.joules() == [] and "(an older one;" in run.no_joules()


def test_without_a_sensor_or_an_opencl_device():
    with pytest.raises(HandheldError, match=r"no power sensor.*Try: handheld doctor"):
        calibrate("opencl", sensors=False)
    with pytest.raises(HandheldError, match="Try: --on opencl"):
        calibrate("reference:cpu", sensors=(Meter,))


def test_the_ops_span_families_and_sizes():
    ops = calibration_ops()
    kinds = {graph.nodes[0].op for graph in ops}
    assert 40 <= len(ops) <= 110 and kinds <= set(OPS)
    assert kinds >= {"matmul", "conv", "conv_input", "conv_weight", "map", "reduce", "attention", "attention_grad"}
    sizes = [nbytes(graph.nodes[0], graph) for graph in ops]
    assert min(sizes) < 1e6 and max(sizes) > 1e8  # in caches, and streaming
