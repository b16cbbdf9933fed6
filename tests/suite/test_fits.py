"""The memory that a step needs, from its plan."""

from __future__ import annotations

import pytest

from handheld import suite
from handheld.device import DeviceCaps
from handheld.suite.count import parameters, trained
from handheld.suite.fits import needed


@pytest.mark.parametrize("name", ["lenet5", "dqn", "m3"])
def test_what_lasts_and_what_grows(name):
    workload = suite.get(name, size="small")
    one, more = needed(workload, 1), needed(workload, 16)
    # parameters, and one momentum or mean square for each trained parameter
    least = 4 * (parameters(workload) + trained(workload))
    inputs = sum(part.numel() * 4 for part in workload.batch(1))
    assert least <= one.lasting_bytes <= least + 2 * inputs + 128 * 64  # The upper bound includes the outputs.
    assert more.lasting_bytes - one.lasting_bytes <= 15 * 2 * inputs + 128 * 64
    assert one.arena_bytes < more.arena_bytes < 16 * one.arena_bytes + 128 * 256
    assert (one.workload, one.size, one.batch) == (name, "small", 1)


def test_it_is_what_a_plan_allocates():
    workload = suite.get("m3", size="small")
    plan = workload.step(4).plan("opencl", caps=DeviceCaps.shipped("mali-g78"), graphs=["train"])
    assert needed(workload, 4, "mali-g78").bytes == plan.bytes
