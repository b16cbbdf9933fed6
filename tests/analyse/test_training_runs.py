"""Runs of trainings, in which other graphs run beside the one that trains."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.analyse.window_times import batch_of, step_blocks, step_ms
from handheld.forecast.rest import rest_of_run
from handheld.store.commands import LAUNCH
from helpers.run_files import MadeRun


def test_the_step_of_a_training_is_that_of_the_graph_that_trains(tmp_path):
    """Evaluation may run far more often. It is neither the step of the run nor a part of it."""
    evaluated = {"graph": "evaluate", "live": {"activation": 32}}
    made = MadeRun(tmp_path / "one.run", ops=[{}, {"phase": "update", "op": "map"}, evaluated])
    for _ in range(30):
        made.steps(1, first=5)
        made.steps(4, graph="evaluate", commands=((LAUNCH, 2, 2.0),), first=5)
    with made.open() as run:
        assert run.graphs == ["evaluate", "train"] and run.training_graphs == ["train"]
        assert run.graph == "train" and run.summary().step_ms == run.step_ms("train")[0]
        assert step_ms(run) == run.step_ms("train")[0]
        assert float(np.median(step_blocks(run))) == pytest.approx(run.step_ms("train")[0], rel=0.01)
        assert rest_of_run(run, 1000).each_s == pytest.approx(run.step_ms("train")[0] * 1e-3)


def test_graphs_that_only_evaluate_are_a_step_if_nothing_trains(tmp_path):
    made = MadeRun(tmp_path / "one.run", ops=[{"graph": "predict"}, {"graph": "evaluate"}])
    made.steps(3, graph="evaluate")
    made.steps(2, graph="predict")
    with made.open() as run:
        assert run.graph == "evaluate" and run.training_graphs == ["evaluate", "predict"]


def test_an_input_without_a_name_is_called_input(tmp_path):
    owners = [["0", "input", 96], ["0.weight", "parameter", 64], ["tokens", "input", 32]]
    made = MadeRun(tmp_path / "one.run", **{"memory.train": {"peak_op": 0, "peak_bytes": 192, "owners": owners}})
    made.steps(5)
    with made.open() as run:
        assert [owner.name for owner in run.memory_summary().owners] == ["input 0", "0.weight", "tokens"]


def test_a_step_in_micro_batches_is_all_its_parts(tmp_path):
    """A batch of 8 in four parts of 2: three that add their gradients, and a last one that updates."""
    parts = [{"graph": "train@2.part.accumulate"}, {"graph": "train@2.part", "phase": "update"}]
    parts[0]["phase"] = "backward"
    divided = MadeRun(tmp_path / "parts.run", ops=parts, plan_options={"parts": {"batch": 8, "size": 2}})
    for _ in range(30):
        divided.steps(3, graph="train@2.part.accumulate", batch=2, commands=((LAUNCH, 0, 2.0),), first=5, every=10**6)
        divided.steps(1, graph="train@2.part", batch=2, commands=((LAUNCH, 1, 3.0),), first=5, every=10**6)
    whole = MadeRun(tmp_path / "whole.run")
    whole.steps(60, commands=((LAUNCH, 0, 9.0),), first=5, every=10**6)
    with divided.open() as a, whole.open() as b:
        assert step_ms(a) == pytest.approx(9.0, rel=0.02)
        assert float(np.median(step_blocks(a))) == pytest.approx(9.0, rel=0.02)
        assert batch_of(a) == batch_of(b) == 8
        assert rest_of_run(a, 100).each_s == pytest.approx(9e-3, rel=0.02)
