"""Devices that only cost: what they answer, and where their costs come from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from handheld.errors import HandheldError
from handheld.federated.model import arrays_of, mark
from handheld.federated.select import Select
from handheld.federated.virtual import Kind, measured_kinds, predicted_kind, virtual_client
from helpers.federated import BATCH, LoopGrid, make_data, make_step
from helpers.rounds import outcomes, started, state_in, visits


def test_a_fleet_of_virtual_devices_costs_and_learns_nothing(tmp_path: Path) -> None:
    step = make_step()
    kinds = (Kind("slow", 2.0, 3.0, 1000), Kind("quick", 0.5, None, 2000))
    fleet = [virtual_client(mark(step), kinds, batch=BATCH, samples=20, battery=False) for _ in range(8)]
    record = started(LoopGrid(*fleet), tmp_path, rounds=2, local_epochs=2)
    assert outcomes(record) == [["trained"] * 8] * 2
    assert {visit.device for one in record.rounds for visit in one.visits} == {"slow", "quick"}
    for visit in visits(record.rounds[-1]):
        seconds, joules, peak = (2.0, 3.0, 1000) if visit.device == "slow" else (0.5, None, 2000)
        assert 10 <= visit.samples <= 60 and visit.samples == visit.steps * BATCH and visit.loss is None
        assert visit.seconds is not None and seconds / 3 < visit.seconds / visit.steps < seconds * 3
        assert visit.joules == (None if joules is None else joules * visit.steps) and visit.peak_bytes == peak
    for name, array in arrays_of(step).items():
        np.testing.assert_allclose(state_in(tmp_path / "1")[name], array, rtol=1e-6)
    assert visits(record.rounds[0])[0].seconds == visits(record.rounds[1])[0].seconds, "always the same device"


def test_virtual_devices_get_fewer_steps_rest_and_send_less(tmp_path: Path) -> None:
    kinds = [Kind("slow", 2.0, 3.0)]
    fleet = [virtual_client(mark(make_step()), kinds, batch=BATCH, samples=20) for _ in range(8)]
    select = Select(battery_floor=40, round_seconds=5.0)
    record = started(LoopGrid(*fleet), tmp_path, rounds=2, select=select, compress="int8")
    first, second = record.rounds
    assert first.passed_over and all("its battery is at" in why for why in first.passed_over.values())
    assert len(first.visits) == 8 - len(first.passed_over) and all(visit.trained for visit in first.visits)
    assert max(visit.seconds or 0 for visit in second.visits) <= 5.0  # Its speed is known from the first round.
    assert 0 < second.visits[0].up_bytes < sum(array.nbytes for array in arrays_of(make_step()).values())


def test_training_empties_the_battery_of_a_virtual_device(tmp_path: Path) -> None:
    """100 J; a round of five steps costs 5 J of them, of whatever the device had at first."""
    kinds = [Kind("phone", 2.0, joules_step=1.0, battery_joules=100.0)]
    fleet = [virtual_client(mark(make_step()), kinds, batch=BATCH, samples=20) for _ in range(2)]
    record = started(LoopGrid(*fleet), tmp_path, rounds=40)
    mine = [visit for one in record.rounds for visit in one.visits if visit.node == "11"]
    trained = [visit for visit in mine if visit.trained]
    drained = [(visit.battery_percent or 0.0) + sum(one.joules or 0.0 for one in trained[: n + 1]) for n, visit in
               enumerate(trained)]  # fmt: skip
    assert max(drained) - min(drained) < 1e-6, "the charge falls by what was spent"
    assert len(trained) < len(mine) and mine[-1].outcome == "its battery is empty"
    assert (trained[-1].battery_percent or 0.0) < 1.0


def test_the_clock_of_virtual_devices_is_simulated(tmp_path: Path) -> None:
    kinds = [Kind("board", 1000.0, 3.0)]
    fleet = [virtual_client(mark(make_step()), kinds, batch=BATCH, samples=20) for _ in range(3)]
    record = started(LoopGrid(*fleet), tmp_path, rounds=2, test=lambda: make_data(0, 2)[1], timeout=1e9)
    first, second = (one for one in record.rounds if one.number)
    assert second.seconds - first.seconds == max(visit.seconds or 0.0 for visit in second.visits) > 1000
    assert (second.server_seconds or 1e9) < 1000 and record.rounds[0].seconds < 1000
    assert any("devices are virtual" in note for note in record.notes)
    written = json.loads((tmp_path / "1" / "federated.json").read_text())
    assert written["protocols"]["quality_under_budget"]["seconds"][-1]["amount"] == second.seconds


def test_kinds_of_devices(tmp_path: Path) -> None:
    kind = predicted_kind(make_step(), BATCH, "adreno-740")
    assert kind.name == "adreno-740" and kind.step_seconds > 0 and kind.peak_bytes and kind.joules_step is None
    with pytest.raises(HandheldError, match="needs kinds of device"):
        virtual_client("model", [], batch=BATCH)
    case = {"workload": "mlp", "size": "small", "device": "opencl", "batch": 8}
    rows = [
        {**case, "key": "a", "status": "trained", "step_ms": 2.0, "joules_sample": 0.5, "peak_bytes": 77},
        {**case, "key": "b", "status": "failed", "step_ms": None},
        {**case, "key": "c", "batch": 9, "status": "trained", "step_ms": 3.0},
    ]
    (tmp_path / "bench.json").write_text(json.dumps({"format": 1, "settings": {}, "cases": [], "devices": {}}))
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert measured_kinds(tmp_path, "mlp", 8) == (Kind("opencl", 2e-3, 4.0, 77),)
    with pytest.raises(HandheldError, match="no finished run of lenet5 at batch 8"):
        measured_kinds(tmp_path, "lenet5", 8)
    watts = predicted_kind(make_step(), BATCH, "adreno-740", watts=4.0)
    assert watts.joules_step == pytest.approx(4.0 * watts.step_seconds)


def test_kinds_of_a_fleet(tmp_path: Path) -> None:
    """The devices of a fleet's folder keep their names; another size is another workload."""
    case = {"workload": "mlp", "device": "opencl", "batch": 8, "status": "trained", "peak_bytes": 77}
    for name, step_ms in (("pixel", 2.0), ("pi", 5.0)):
        rows = [{**case, "key": "a", "size": "small", "step_ms": step_ms}]
        rows += [{**case, "key": "b", "size": "paper", "step_ms": 90.0}] if name == "pi" else []
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.json").write_text(
            json.dumps({"format": 1, "settings": {}, "cases": [], "devices": {}})
        )
        (tmp_path / name / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    devices = {name: {"state": "done", "target": "opencl"} for name in ("pixel", "pi")}
    (tmp_path / "fleet.json").write_text(json.dumps({"format": 1, "what": "bench", "devices": devices}))
    with pytest.raises(HandheldError, match=r"mlp in the sizes paper, small. Try: size='paper'"):
        measured_kinds(tmp_path, "mlp", 8)
    kinds = measured_kinds(tmp_path, "mlp", 8, "small", battery_joules=50.0)
    assert kinds == (Kind("pixel", 2e-3, None, 77, 1.0, 50.0), Kind("pi", 5e-3, None, 77, 1.0, 50.0))
    with pytest.raises(HandheldError, match="no finished run of mlp of size tiny at batch 8"):
        measured_kinds(tmp_path, "mlp", 8, "tiny")
