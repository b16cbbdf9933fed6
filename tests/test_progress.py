"""Stages of a preparation are reported to those who ask, and to nobody else."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.progress import report, reporting


@pytest.fixture(scope="module")
def step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    batch = (torch.randn(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))
    seen: list[tuple[str, int, int]] = []
    with reporting(lambda *words: seen.append(words)):
        captured = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch)
    assert ("capturing train", 0, 0) in seen
    return captured


def test_planning_and_building_are_reported(step, monkeypatch):
    # Other processes would report too, and how much depends on what the driver's folder has. Their test has its own.
    monkeypatch.setenv("HANDHELD_COMPILE_AHEAD", "off")
    stages: list[tuple[str, int, int]] = []
    with reporting(lambda *words: stages.append(words)):
        plan = step.plan("opencl")
    assert stages == [("planning", 0, 0)]
    seen: list[tuple[str, int, int]] = []
    with plan.start(progress=lambda *words: seen.append(words)) as trainer:
        total = seen[0][2]
        assert total >= 3 and seen == [("building", done, total) for done in range(total + 1)]
        assert trainer.session.counters.builds == total
    assert len(stages) == 1, "the listener of a block hears nothing after it"


def test_nothing_is_reported_or_printed_by_default(step, capfd):
    report("nobody listens")
    with step.plan("opencl").start():
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="needs the main thread")
def test_ctrl_c_during_a_build_leaves_the_others_unbuilt(step):
    seen: list[int] = []

    def stop(stage: str, done: int, total: int) -> None:
        seen.append(done)
        if done == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)  # This thread builds the next program only afterwards.

    with pytest.raises(KeyboardInterrupt):
        step.plan("opencl").start(progress=stop, build_threads=1)
    assert seen == [0, 1]
    with step.plan("opencl").start() as trainer:  # The device can be used again.
        assert trainer.session.counters.builds >= 3
