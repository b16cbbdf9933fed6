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
from helpers.federated import BATCH, LoopGrid, make_step
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
