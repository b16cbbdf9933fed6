"""The joules of every op, from a planted energy model and planted windows."""

from __future__ import annotations

import json

import pytest

from handheld.analyse.joules import energy_model
from handheld.cli import run_joules
from handheld.cost.energy import Effort, EnergyModel, EnergySample, Rail
from handheld.errors import RunFileError
from handheld.sensors.base import Channel
from helpers.run_files import MS, START, MadeRun, rising

BOARD, MEMORY = "meter/gpu0 energy", "meter/gpu0 memory power (1 s average)"
CHANNELS = [
    Channel("gpu0 energy", "energy", counter=True, covers=("gpu",)),
    Channel("gpu0 memory power (1 s average)", "power", covers=("memory",), part_of="gpu0 energy"),
]
#: kernel -> watts on the board and in memory; the ops take 6 and 3 ms
WATTS = {"conv": (100.0, 10.0), "conv_input": (400.0, 20.0)}
GAP = (50.0, 5.0)


def model() -> EnergyModel:
    """Two ops whose power is known, at several sizes."""
    samples = []
    for op, (board, memory) in WATTS.items():
        for times in (0.5, 1.0, 2.0):
            effort = Effort(op, op, int(1000 * times), int(2000 * times), 1, 8, 512)
            seconds = (0.006 if op == "conv" else 0.003) * times
            samples.append(EnergySample(effort, seconds, {BOARD: board * seconds, MEMORY: memory * seconds}))
    rails = (Rail(BOARD, ("gpu",), "", 40.0, GAP[0], 0.05), Rail(MEMORY, ("memory",), "gpu0 energy", 5.0, GAP[1], 0.05))
    return EnergyModel("made up", "1", "2026-01-01", 60.0, 8, 0, rails, tuple(samples))


SIZES = {"0": ["conv", 8, 512], "1": ["conv_input", 8, 512]}


@pytest.fixture
def made(tmp_path) -> MadeRun:
    return MadeRun(
        tmp_path / "one.run",
        idle_ns=[START - 1500 * MS, START - 500 * MS],
        energy_model=model().to_json(),
        launch_sizes=SIZES,
    )


def watts(t: float) -> tuple[float, float]:
    """A step of 9.2 ms: 6 ms conv, 3 ms conv_input, the rest gaps."""
    if t < 0:
        return GAP
    at = t % 0.009164
    return WATTS["conv"] if at < 0.006 else WATTS["conv_input"] if at < 0.009 else GAP


def with_meter(made: MadeRun) -> None:
    energy = rising(lambda t: watts(t)[0], step=0.0005)
    mean = (10.0 * 6 + 20.0 * 3 + 5.0 * 0.164) / 9.164
    made.source("meter", CHANNELS, 20, lambda t: [energy(t), mean if t > 1 else 5.0 + max(t, 0) * (mean - 5)])


def test_every_op_has_joules_with_an_interval(made):
    made.steps(300)
    with_meter(made)
    with made.open() as run:
        rows = {(row.id, row.rail): row for row in run.joules()}
        assert set(rows) == {(op, rail) for op in (0, 1) for rail in (BOARD, MEMORY)}
        assert rows[0, BOARD].joules == pytest.approx(0.6, rel=0.05)
        assert rows[1, BOARD].joules == pytest.approx(1.2, rel=0.05)
        assert rows[1, MEMORY].joules == pytest.approx(0.06, rel=0.05)
        for row in rows.values():
            assert row.source == "model" and 0 < row.low_joules < row.joules < row.high_joules
        assert run.no_joules() == ""


def test_the_sum_stands_beside_the_sensor_on_each_rail(made):
    made.steps(400)
    with_meter(made)
    with made.open() as run:
        board, memory = run.step_joules()
        assert (board.rail, memory.rail, memory.part_of) == (BOARD, MEMORY, "gpu0 energy")
        assert board.sum == board.ops + board.gaps and board.gaps > 0
        assert board.counter == pytest.approx(1.81, rel=0.05)
        assert board.model_sum == pytest.approx(board.counter, rel=0.05)
        assert board.measured_share == 0 and board.misfit == ""


def with_other_power(made: MadeRun, factor: float) -> None:
    energy = rising(lambda t: watts(t)[0] * factor, step=0.0005)
    made.source("meter", CHANNELS[:1], 20, lambda t: [energy(t)])


def test_the_models_ops_add_up_to_the_sensor(made):
    """All ops take 0.85 times what the model says: it is scaled, and says so."""
    made.steps(400)
    with_other_power(made, 0.85)
    with made.open() as run:
        board, memory = run.step_joules()
        assert board.scale == pytest.approx(0.85, rel=0.04) and board.sum == pytest.approx(board.counter)
        assert board.model_sum == pytest.approx(1.81, rel=0.05)
        rows = {(row.id, row.rail): row for row in run.joules()}
        assert rows[1, BOARD].joules == pytest.approx(0.85 * 1.2, rel=0.06)
        assert rows[1, BOARD].low_joules < rows[1, BOARD].joules < rows[1, BOARD].high_joules
        assert sum(row.joules for row in run.joules() if row.rail == BOARD) == pytest.approx(board.ops)
        assert memory.scale == 1 and memory.counter is None  # no sensor of this rail


def test_a_model_that_does_not_fit_is_not_scaled(made):
    made.steps(400)
    with_other_power(made, 2.5)
    with made.open() as run:
        board = run.step_joules()[0]
        assert board.scale == 1 and board.sum == board.model_sum
        (note,) = (n for n in run.notes() if n.kind == "energy model")
        assert "does not fit" in note.text and "Try: handheld doctor --energy" in note.text


def test_windows_replace_the_model_where_they_are_narrow(made):
    made.steps(20)
    made.steps(0)
    made.window("alone", "sig0", [0], 0, 100, 2.0)
    made.window("alone", "sig0", [0], 0, 100, 2.0)
    made.window("alone", "sig0", [0], 0, 100, 2.0)
    made.source("meter", CHANNELS[:1], 20, rising_pair())
    with made.open() as run:
        rows = {(row.id, row.rail): row for row in run.joules()}
        assert rows[0, BOARD].source == "alone"
        assert rows[0, BOARD].joules == pytest.approx(70 * 0.02, rel=0.02)
        assert rows[1, BOARD].source == "model"  # no window measured it
        assert rows[0, MEMORY].source == "model"
        assert (rows[0, BOARD].unused, rows[0, BOARD].unused_joules) == ("model", pytest.approx(0.6, rel=0.05))
        assert rows[1, BOARD].unused == "" and "unused_joules" not in rows[1, BOARD].to_json()
        (said,) = [line for line in run_joules.lines(run) if "both figures" in line]
        assert said == "for 1 op with both figures, windows are used and the model would say 0.43 times as much"


def test_a_window_that_is_too_wide_stays_beside_the_model(made):
    made.steps(20)
    for seconds in (0.2, 2.0, 6.0):  # the same number of runs
        made.window("alone", "sig0", [0], 0, 100, seconds)
    made.source("meter", CHANNELS[:1], 20, rising_pair())
    with made.open() as run:
        row = next(row for row in run.joules() if (row.id, row.rail) == (0, BOARD))
        assert row.source == "model" and row.unused == "alone" and row.unused_joules is not None
        assert any("the model is used and windows, too wide, would say" in line for line in run_joules.lines(run))


def rising_pair():
    energy = rising(lambda t: 70.0, step=0.001)
    return lambda t: [energy(t)]


def test_an_op_with_another_rank_by_energy_is_a_finding(made):
    made.writer.put("op", 2, "train", 2, "conv", "aten.conv", "forward", "tail", "sig2", "default", 1, 1000, 2000, "{}")
    made.writer.meta(launch_sizes={**SIZES, "2": ["conv", 8, 512]})
    made.steps(40, commands=((0, 0, 6.0), (0, 2, 5.0), (0, 1, 3.0)))
    with made.open() as run:
        (found,) = (f for f in run.findings() if f.kind == "energy rank")
        assert found.ops[0] == 1 and "number 1 by energy and 3 by time" in found.text


def test_equal_ranks_are_no_finding(made):
    made.steps(40, commands=((0, 1, 6.0), (0, 0, 3.0)))
    with made.open() as run:
        assert not [f for f in run.findings() if f.kind == "energy rank"]


def test_why_there_are_none(tmp_path):
    for i, (meta, reason) in enumerate(
        [
            ({}, "was not measured. Try: handheld doctor --energy"),
            ({"no_energy_model": "was measured with another driver. Try: again"}, "another driver"),
            ({"energy_model": model().to_json()}, "does not store how ops are launched"),
            ({"sensors_absent": {"rapl": "no"}}, "no power sensor that can be read"),
        ]
    ):
        made = MadeRun(tmp_path / f"{i}.run", **meta)
        made.steps(20)
        with made.open() as run:
            assert run.joules() == [] and run.step_joules() == [] and reason in run.no_joules()


def test_a_damaged_model_is_an_error(tmp_path):
    for i, change in enumerate(({"rails": [{"name": 1}]}, {"samples": [{}]}, {"compute_units": 0})):
        made = MadeRun(tmp_path / f"{i}.run", energy_model={**model().to_json(), **change})
        made.steps(5)
        with pytest.raises(RunFileError, match="energy_model"):
            made.open()
    other = MadeRun(tmp_path / "version.run", energy_model={**model().to_json(), "version": 99})
    other.steps(5)
    with other.open() as run:
        assert energy_model(run) is None and "Try" in run.no_joules()


def test_the_model_survives_the_file(made):
    made.steps(5)
    with made.open() as run:
        assert energy_model(run) == EnergyModel.from_json(json.loads(json.dumps(model().to_json())))
