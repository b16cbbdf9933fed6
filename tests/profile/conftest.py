"""Fixtures of the profile tests: a small step, its plan, its batch, and one shared profile."""

from __future__ import annotations

import numpy as np
import pytest

import handheld
from helpers.profiled import BATCH, make_step


@pytest.fixture(scope="module")
def step() -> handheld.Step:
    return make_step()


@pytest.fixture(scope="module")
def plan(step):
    return step.plan("opencl", graphs=["train"])


@pytest.fixture(scope="module")
def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((BATCH, 3, 16, 16)).astype(np.float32), rng.integers(0, 10, BATCH))


@pytest.fixture(scope="module")
def run(plan, batch, tmp_path_factory):
    """One profile that several tests read."""
    path = tmp_path_factory.mktemp("profile") / "one.run"
    with plan.profile(batch, path, steps=60, idle_s=0.3, settings={"what": "test"}) as run:
        yield run
