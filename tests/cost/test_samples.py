"""Tables of samples: stored and read back, bounded, one entry per op; held-out errors come from them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from handheld.cost import samples as module
from handheld.cost import step as overheads
from handheld.cost.heldout import HeldOut, another_device, another_model, other_batches
from handheld.cost.rates import Rates
from handheld.cost.samples import Moved, OpSample, Samples, StepSample
from helpers.costs import RATES, law, matmul

ENQUEUE, GAP = 1.6e-4, 1e-6


def step_of(table: Samples, model: str, batch: int, width: int, layers: int = 6) -> None:
    """Adds a measured step: products whose first size is the batch."""
    works = [matmul(batch, width << (i % 3), width) for i in range(layers)]
    ops = [OpSample(work, law(work)) for work in works]
    ops_s, moved = sum(op.seconds for op in ops), (Moved("upload", 4 * batch * width, 1.0, 2e-6),)
    seconds = max(ops_s + layers * GAP + 2e-6, layers * ENQUEUE)
    keys = tuple(op.work.key for op in ops)
    step = StepSample(model, batch, "float32", keys, seconds, ops_s, layers, ENQUEUE, GAP, 0.0, moved, 1, 4 * width)
    table.add(ops, [step])


@pytest.fixture(scope="module")
def table() -> Samples:
    made = Samples("one", "driver 1", "gpu", RATES, {"contract": 1})
    for number, width in enumerate((64, 96, 128, 192, 256, 320, 512, 640)):
        for batch in (4, 8, 16, 32, 64):
            step_of(made, f"model {number}", 16 * batch, width)
    return made


def test_a_table_is_the_same_after_it_was_stored(table: Samples):
    again = Samples.from_json(json.loads(json.dumps(table.to_json())))
    assert again.to_json() == table.to_json() and again.rates == RATES and again.models == table.models


@pytest.mark.parametrize("damage", ["version", "ops", "steps", "rates"])
def test_a_damaged_table_is_refused(table: Samples, damage: str):
    data = json.loads(json.dumps(table.to_json()))
    changed = {"version": 99, "ops": data["ops"][:3], "steps": [{"model": "x"}], "rates": {"flops": -1, "memory": []}}
    data[damage] = changed[damage]
    with pytest.raises((KeyError, IndexError, TypeError, ValueError)):
        Samples.from_json(data)


def test_an_undisturbed_time_counts_more_and_a_shorter_one_among_disturbed():
    work, table = matmul(8, 8, 8), Samples("one", "1")
    key = work.key

    def add(seconds: float, disturbed: bool) -> float:
        step = StepSample("m", 8, "float32", (key,), seconds, seconds, 1, 0.0, 0.0, 0.0, disturbed=disturbed)
        table.add([OpSample(work, seconds, disturbed)], [step])
        assert len(table.steps) == 1 and table.steps[0].seconds == table.ops[key].seconds
        return table.ops[key].seconds

    assert [add(3.0, True), add(2.0, True), add(9.0, True), add(5.0, False), add(1.0, True)] == [3, 2, 2, 5, 5]


def test_the_oldest_steps_are_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_STEPS", 3)
    table = Samples("one", "1")
    for width in (16, 32, 64, 128, 256):
        step_of(table, f"m{width}", 8, width)
    assert table.models == ["m128", "m256", "m64"] and all("x16 " not in key for key in table.ops)


def test_overheads_are_found(table: Samples):
    found = overheads.fit(table, RATES)
    assert found.gap_s == pytest.approx(GAP, rel=0.3)
    waits = [s for s in table.steps if s.seconds > 1.1 * (s.ops_s + 6 * GAP)]
    assert waits, "some steps wait for the host"
    for step in table.steps:
        assert found.step_s(step.ops_s, step.launches, step.moved) == pytest.approx(step.seconds, rel=0.15)


def test_models_and_batches_that_were_held_out_are_predicted(table: Samples):
    models = HeldOut.of("another_model", [c.error for c in another_model(table, RATES)])
    assert models is not None and models.cases == 40 and models.median < 0.12 and models.p90 < 0.3
    batches = HeldOut.of("other_batches", [c.error for c in other_batches(table, RATES, (128, 512))])
    assert batches is not None and batches.cases == 24 and batches.median < 0.05 and batches.p90 < 0.12


def test_a_faster_device_is_predicted_from_its_ceilings(table: Samples):
    fast = Rates(4e12, tuple((size, 4 * rate) for size, rate in RATES.memory), launch_s=RATES.launch_s)
    for case in another_device(table, fast, table, RATES):
        assert case.ops < -0.3  # Everything but the launches takes a quarter of the time.


def test_an_interval_covers_the_error():
    error = HeldOut("another_model", 10, 0.1, 0.25)
    assert error.interval(100.0) == (80.0, 125.0) and HeldOut.from_json(error.to_json()) == error
    assert HeldOut.of("x", []) is None and np.isfinite(error.median)
