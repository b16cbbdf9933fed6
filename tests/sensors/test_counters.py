"""Counters that wrap, start again or jump."""

from __future__ import annotations

import pytest

from handheld.sensors.base import Channel
from handheld.sensors.counters import Rising, rate

ENERGY = Channel("package-0", "energy", counter=True, wraps_at=262143.32885)
PLAIN = Channel("gpu0 energy", "energy", counter=True)


def test_a_wrap_goes_over_the_top():
    line = Rising(ENERGY)
    assert line.add(0.0, 262140.0) == 262140.0
    assert line.add(0.1, 1.0) == pytest.approx(262144.32885)
    assert line.add(0.2, 5.0) == pytest.approx(262148.32885)
    assert line.lost == 0


def test_a_counter_that_starts_again_is_no_wrap():
    line = Rising(ENERGY)
    line.add(0.0, 200000.0)
    assert line.add(0.01, 3.0) == 200000.0  # A wrap would mean 62 kJ in 10 ms, which is impossible.
    assert line.add(0.02, 4.0) == 200001.0
    assert line.lost == 1


def test_without_a_range_a_fall_is_a_new_start():
    line = Rising(PLAIN)
    line.add(0.0, 500.0)
    assert line.add(1.0, 10.0) == 500.0 and line.add(2.0, 30.0) == 520.0 and line.lost == 1


def test_a_jump_that_nothing_draws_is_a_new_start():
    line = Rising(PLAIN)
    line.add(0.0, 500.0)
    assert line.add(0.01, 9e9) == 500.0 and line.lost == 1


def test_rates():
    assert rate(PLAIN, 10.0, 100.0, 12.0, 130.0) == 15.0
    assert rate(ENERGY, 0.0, 262143.0, 1.0, 1.0) == pytest.approx(1.32885)
    assert rate(PLAIN, 0.0, 100.0, 1.0, 1.0) is None
    assert rate(PLAIN, 1.0, 100.0, 1.0, 101.0) is None
