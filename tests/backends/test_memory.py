"""Segments in shared virtual memory, for drivers that compare overlapping sub-buffers at every launch."""

from __future__ import annotations

import pytest

from handheld import suite
from handheld.backends.opencl import memory
from handheld.plan import quirks


def losses() -> list[float]:
    workload = suite.get("m1")
    batch = [t.numpy() for t in workload.batch(8)]
    with workload.step(batch=8, evaluate=False).plan("opencl").start() as trainer:
        return [float(trainer.run("train", *batch)) for _ in range(6)]


def test_training_in_shared_memory_has_the_same_bits(monkeypatch):
    plain, made = losses(), []

    def counted(self, size):
        made.append(in_shared_memory(self, size))
        return made[-1]

    in_shared_memory = memory.Memory._in_shared_memory
    monkeypatch.setattr(memory.Memory, "_in_shared_memory", counted)
    monkeypatch.setattr(quirks, "tracks_overlaps", lambda caps: True)
    monkeypatch.setattr(quirks, "SHARED", 1.0)
    assert losses() == plain
    assert made and None not in made, "PoCL has such memory"


def test_large_plans_have_plain_buffers(monkeypatch):
    monkeypatch.setattr(quirks, "tracks_overlaps", lambda caps: True)
    monkeypatch.setattr(quirks, "SHARED", 0.0)
    monkeypatch.setattr(memory.Memory, "_in_shared_memory", lambda self, size: pytest.fail("it needs too much"))
    losses()
