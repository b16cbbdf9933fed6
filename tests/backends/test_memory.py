"""Segments in shared virtual memory, for drivers that compare overlapping sub-buffers at every launch."""

from __future__ import annotations

import numpy as np
import pytest

from handheld import suite
from handheld.backends.opencl import memory


def losses(step) -> list[float]:
    batch = [t.numpy() for t in suite.get("lenet5").batch(8)]
    with step.plan("opencl").start() as trainer:
        got = [float(trainer.run("train", *batch)) for _ in range(4)]
        state = trainer.state_dict()
    return [*got, *(float(np.abs(np.asarray(value, np.float64)).sum()) for value in state.values())]


@pytest.fixture(scope="module")
def step():
    return suite.get("lenet5").step(batch=8, evaluate=False)


def test_training_in_shared_memory_has_the_same_bits(step, monkeypatch):
    plain, made = losses(step), []

    def counted(self, size):
        made.append(in_shared_memory(self, size))
        return made[-1]

    in_shared_memory = memory.Memory._in_shared_memory
    monkeypatch.setattr(memory.Memory, "_in_shared_memory", counted)
    monkeypatch.setattr(memory, "tracks_overlaps", lambda caps: True)
    monkeypatch.setattr(memory, "SHARED", 1.0)
    assert losses(step) == plain
    assert made and None not in made, "PoCL has such memory"


def test_large_plans_have_plain_buffers(step, monkeypatch):
    monkeypatch.setattr(memory, "tracks_overlaps", lambda caps: True)
    monkeypatch.setattr(memory, "SHARED", 0.0)
    monkeypatch.setattr(memory.Memory, "_in_shared_memory", lambda self, size: pytest.fail("it needs too much"))
    losses(step)
