"""The payload of a run's page equals the run, is bounded, and says what is missing."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.report import run_conditions, run_traces
from handheld.report.document import embedded
from handheld.report.run_payload import run_payload
from handheld.sensors.base import Channel
from helpers.large_runs import large_run
from helpers.run_files import MadeRun

KNOWN = {
    "flops": 1e9,
    "bytes_s": 1e9,
    "memory": [[1 << 14, 1e10], [1 << 26, 1e9]],
    "launch_device_s": 1e-5,
    "to_device_bytes_s": 1e10,
    "to_device_latency_s": 1e-5,
    "to_host_bytes_s": 1e10,
    "to_host_latency_s": 1e-5,
}


def test_tables_equal_the_run(tmp_path):
    with large_run(tmp_path / "one.run", ops=40, steps=30) as run:
        payload, ops, parts = run_payload(run), run.ops(), run.parts()
    packed = payload["ops"]["columns"]
    paths = payload["ops"]["texts"]["path"]
    assert [paths[n] for n in packed["path"]] == [op.path for op in ops]
    assert packed["ms"] == pytest.approx([op.mean_ms for op in ops], rel=1e-4)
    busy = parts.forward + parts.backward + parts.update
    assert sum(packed["ms"]) == pytest.approx(busy, rel=1e-3)
    assert sum(packed["share"]) == pytest.approx(busy / parts.ms, rel=1e-3), "shares are of the whole step"
    graph = payload["graphs"][0]
    assert sum(graph["parts"].values()) == pytest.approx(parts.ms, rel=1e-3) and graph["parts_ms"] == pytest.approx(
        parts.ms, rel=1e-4
    )
    assert sum(payload["answer"]["bounds"][0]["shares"].values()) == pytest.approx(1, abs=1e-3)


def test_recorded_commands_keep_their_times(tmp_path):
    with large_run(tmp_path / "one.run", ops=20, steps=10) as run:
        kept, timed, begin = run_traces.recorded(run), {s.step: s for s in run.timed}, run.span()[0]
    for row in kept:
        commands = timed[row["step"]].commands
        assert np.diff(row["started"]).tolist() == np.diff(commands["started"]).tolist()
        assert row["origin"] + row["started"][0] * 1e-6 == pytest.approx(
            (commands["started"][0] - begin) * 1e-6, abs=1e-3
        )
    assert {row["label"] for row in kept} >= {"typical", "slowest", "fastest"}


def test_a_long_run_is_bounded(tmp_path):
    with large_run(tmp_path / "one.run", ops=1000, steps=100) as run:
        payload = run_payload(run)
    commands = sum(len(row["kind"]) for row in payload["recorded"])
    assert len(payload["recorded"]) <= run_traces.MOST_STEPS and commands <= run_traces.MOST_COMMANDS
    assert sum(len(row["t"]) for row in payload["sensors"]) <= run_traces.MOST_POINTS
    assert len(embedded(payload)) < 2_000_000


def test_the_power_of_a_slow_counter_is_steady(tmp_path):
    """A counter of 400 W that ticks every 100 ms and is read every 20 ms neither stands still nor jumps."""
    made = MadeRun(tmp_path / "one.run")
    made.steps(400)
    made.source(
        "board",
        [Channel("rail", "energy", counter=True, covers=("gpu",))],
        20,
        lambda s: [400 * (int(s * 10 + 50) / 10)],
    )
    with made.open() as run:
        (trace,) = run_traces.sensors(run)
    assert (trace["quantity"], trace["unit"]) == ("power", "W") and len(trace["v"]) > 10
    assert min(trace["v"]) > 340 and max(trace["v"]) < 460
    assert np.mean(trace["v"]) == pytest.approx(400, rel=0.02)


def test_a_counter_that_stands_still_has_no_trace(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(100)
    made.source("board", [Channel("rail", "energy", counter=True, covers=("gpu",))], 20, lambda s: [7.0])
    with made.open() as run:
        assert run_traces.sensors(run) == []


def test_the_folder_of_the_user_is_not_on_the_page(tmp_path):
    made = MadeRun(tmp_path / "one.run", settings={"what": "mine", "folder": "/home/somebody/secret", "batch": 8})
    made.steps(30)
    with made.open() as run:
        payload = run_payload(run)
    assert "somebody" not in embedded(payload) and ("batch", "8") in dict(payload["conditions"]["groups"])["Settings"]


def test_what_is_missing_has_a_reason(tmp_path):
    with MadeRun(tmp_path / "one.run").open() as run:
        payload = run_payload(run)
    assert payload["no_ops"] and payload["energy"]["why"] and payload["ceilings"]["why"] and payload["cores"]["why"]
    assert payload["recorded"] == [] and payload["sensors"] == []


@pytest.mark.parametrize(("others", "said"), ((0.76, "other processes used 76% of the processors"), (0.0, "")))
def test_ceilings_that_are_too_low_are_said_at_the_tiles_and_the_roofline(tmp_path, others, said):
    made = MadeRun(tmp_path / "one.run", ceilings={**KNOWN, "others": others})
    made.steps(20)
    with made.open() as run:
        payload = run_payload(run)
    for text in (payload["answer"]["ceilings_low"], payload["ceilings"]["low"]):
        assert said in text and bool(text) is bool(said)


def test_nested_settings_are_words(tmp_path):
    repeat = {"model": "mine.py:make", "size": None, "steps": 200, "half": False, "none": {}, "folder": "/home/me"}
    made = MadeRun(tmp_path / "one.run", settings={"repeat": repeat})
    made.steps(20)
    with made.open() as run:
        groups = dict(run_conditions.conditions(run)["groups"])
    assert dict(groups["Settings"])["repeat"] == "model: mine.py:make, steps: 200, half: no"
