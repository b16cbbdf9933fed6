"""Runs of trainings, in which other graphs run beside the one that trains."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.analyse.window_times import step_blocks, step_ms
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
