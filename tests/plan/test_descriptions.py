"""Every shipped description says where its values come from, and models of the suite can be planned for it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from handheld import suite
from handheld.device import DeviceCaps
from handheld.step import Step

FIELDS = {f.name for f in dataclasses.fields(DeviceCaps)} - {"vector_width", "features", "avoid"}


def test_every_value_is_seen_or_assumed() -> None:
    sources = DeviceCaps.sources()
    assert sorted(sources) == DeviceCaps.names() and len(sources) >= 12
    for name, row in sources.items():
        assert set(row["seen"]) | set(row["assumed"]) >= FIELDS, name
        assert not set(row["seen"]) & set(row["assumed"]), name
        assert row["sources"] or not row["seen"], name


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return [suite.get(name).step(batch=2, evaluate=False) for name in ("lenet5", "lstm_lm", "transformer")]


@pytest.mark.parametrize("device", DeviceCaps.names())
def test_models_are_planned_for_every_description(device: str, steps: list[Step]) -> None:
    caps = DeviceCaps.shipped(device)
    for step in steps:
        plan = step.plan(device, caps=caps)
        assert max(plan.segments) <= caps.max_alloc_bytes
        launches = [launch for g in plan.graphs.values() for low in g.lowered for launch in low.launches]
        assert launches and all(math.prod(launch.local_size) <= caps.max_work_group for launch in launches)
