"""The energy model: fitted to samples of a device with known physics, and asked about other ops."""

from __future__ import annotations

import json

import numpy as np
import pytest

from handheld.cost.energy import Effort, EnergyModel, EnergySample, Rail, non_negative

CHIP, MEMORY = "gpu/energy", "gpu/memory"
UNITS = 64


def watts(effort: Effort, seconds: float) -> tuple[float, float]:
    """The physics of a made-up device: chip and memory."""
    busy = min(effort.groups / UNITS, 1.0)
    memory = 20 + 15e-12 * effort.bytes / seconds
    kind = 1.3 if effort.kernel == "depthwise" else 1.0
    return kind * (80 + 60 * busy + 6e-12 * effort.flops / seconds + 50e-12 * effort.bytes / seconds), memory


def effort(draw: np.random.Generator) -> tuple[Effort, float]:
    """An op at random, and its seconds."""
    kernel = str(draw.choice(["contract", "depthwise", "map"]))
    flops, moved = (int(10 ** draw.uniform(6, 11)), int(10 ** draw.uniform(5, 8.5)))
    groups = int(2 ** draw.uniform(2, 13))
    busy = min(groups / UNITS, 1.0)  # A part of the device reaches a part of its rates.
    seconds = max(flops / busy / 30e12, moved / busy / 3e12, 1e-5) * draw.uniform(1.2, 4)
    return Effort("map" if kernel == "map" else "conv", kernel, flops, moved, 1, groups, 128 * groups), seconds


def made(count: int, noise: float = 0.0, seed: int = 0) -> EnergyModel:
    draw = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        work, seconds = effort(draw)
        chip, memory = (value * draw.normal(1, noise) for value in watts(work, seconds))
        samples.append(EnergySample(work, seconds, {CHIP: chip * seconds, MEMORY: memory * seconds}))
    rails = (Rail(CHIP, ("gpu",), "", 70.0, 75.0, 0.03), Rail(MEMORY, ("memory",), CHIP, 20.0, 20.0, 0.03))
    return EnergyModel("made up", "1.0", "2026-01-01", 60.0, UNITS, 0, rails, tuple(samples))


@pytest.mark.parametrize("rail", [CHIP, MEMORY])
def test_ops_that_were_not_measured(rail):
    model, draw = made(60, noise=0.02), np.random.default_rng(99)
    asked = [effort(draw) for _ in range(200)]
    said = model.joules(rail, [work for work, _ in asked], [seconds for _, seconds in asked])
    real = np.array([watts(*one)[rail == MEMORY] * one[1] for one in asked])
    errors = np.abs(np.array([value.joules for value in said]) / real - 1)
    assert np.median(errors) < 0.05 and errors.max() < 0.35
    inside = np.mean(
        [value.low_joules <= joules <= value.high_joules for value, joules in zip(said, real, strict=True)]
    )
    assert inside > 0.85
    assert all(0 < value.low_joules < value.joules < value.high_joules for value in said)


def test_far_from_all_samples_the_interval_is_wide():
    model = made(60)
    near = model.samples[0]
    odd = Effort("sort", "sort_blocks", 0, 1000, 40, 1, 64)
    known, unknown = model.joules(CHIP, [near.effort, odd], [near.seconds, 0.5])
    assert unknown.high_joules / unknown.joules > 1.3 > known.high_joules / known.joules


def test_json_and_what_is_not_a_model():
    model = made(5)
    data = json.loads(json.dumps(model.to_json()))
    assert EnergyModel.from_json(data) == model
    assert model.joules("another rail", [model.samples[0].effort], [1.0]) == []
    for wrong in (
        {},
        {**data, "version": 99},
        {**data, "samples": []},
        {**data, "rails": [{}]},
        {**data, "samples": [1]},
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            EnergyModel.from_json(wrong)


def test_weights_are_never_negative():
    draw = np.random.default_rng(1)
    terms = draw.random((30, 4))
    found = non_negative(terms, terms @ np.array([1.0, 0.0, 2.0, 0.5]))
    assert found == pytest.approx([1.0, 0.0, 2.0, 0.5], abs=1e-6)
    assert (non_negative(terms, -np.ones(30)) == 0).all()
