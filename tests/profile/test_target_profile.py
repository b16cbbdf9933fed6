"""Profiles of a stand-in phone: its clock, sensors and facts, with the real runner and sensor files that change."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import handheld
from handheld.backends.runner.observe import observed
from handheld.cli import sensing
from handheld.errors import HandheldError, TargetLost
from handheld.profile.machine import need_power
from handheld.profile.training import recorded
from helpers.furnished_phone import furnished_phone
from helpers.phones import Phone, phones
from helpers.sensor_trees import put

__all__ = ["furnished_phone", "phones"]
PROPERTIES = {"manufacturer": "Google", "model": "Pixel 7", "soc": "GS201", "android": "14"}


@pytest.fixture
def phone(furnished_phone: Phone) -> Phone:
    return furnished_phone


@pytest.fixture
def heating(phone) -> Iterator[None]:
    """The phone gets warmer while the steps run."""
    stop = threading.Event()

    def heat() -> None:
        for n in range(10_000):
            put(phone.folder / "root", "sys/class/thermal/thermal_zone0/temp", str(40000 + n))
            if stop.wait(0.005):
                return

    thread = threading.Thread(target=heat)
    thread.start()
    yield
    stop.set()
    thread.join()


def test_a_run_file_of_a_phone(phone, heating, step, batch, tmp_path):
    plan = step.plan("adb", graphs=["train"])
    before = time.monotonic_ns()
    with plan.profile(batch, tmp_path / "phone.run", steps=60, idle_s=0.5) as run:
        after, meta = time.monotonic_ns(), run.meta
        assert (meta["status"], meta["target"], meta["device"]) == ("complete", phone.name, "adb")
        assert PROPERTIES.items() <= meta["machine"].items() and meta["machine"]["cores"] == os.cpu_count()
        assert meta["machine"]["memory_bytes"] > 0 and meta["host"]["system"] == "Linux"
        clock = meta["clock"]  # The stand-in runs on this machine, so the two clocks are one.
        assert clock["of"] == phone.name and abs(clock["ahead_ns"]) <= clock["error_ns"] < 50e6
        assert before < meta["begun_monotonic_ns"] < meta["started_ns"] < after
        steps = run.steps()
        assert len(steps) == 60 and before < steps[0].begin_ns and steps[-1].end_ns < after
        assert all(a.begin_ns <= a.end_ns <= b.begin_ns for a, b in itertools.pairwise(steps))
        assert sum(s.recorded for s in steps) >= 4 and all(row.ms for row in run.ops() if row.launches)
        channels = {(c.source, c.name): c for c in run.channels}
        celsius = channels["thermal", "gpu"]
        assert celsius.values[-1] > celsius.values[0] >= 40.0
        assert set(channels["battery", "battery power"].values) == {2.0}
        assert channels["process", "resident"].values.max() > 20e6, "the process is the runner with its driver"
        assert "NVML" in meta["sensors_absent"]["nvidia"] and meta["sampler"]["sources"]["cpu"]["readings"] > 10
        begin, end = meta["idle_ns"]
        assert end - begin == pytest.approx(0.5e9, rel=0.2) and end < steps[0].begin_ns
        assert run.summary().overhead.sampler is not None


def test_the_same_ops_are_timed_as_with_the_python_backend(phone, step, batch, tmp_path):
    timed = []
    for device in ("adb", "opencl"):
        path = tmp_path / f"{device}.run"
        with step.plan(device, graphs=["train"]).profile(batch, path, steps=20, sensors=False) as run:
            timed.append({(row.id, row.signature) for row in run.ops() if row.ms})
    assert timed[0] == timed[1] and timed[0]


def test_a_lost_connection_keeps_what_was_measured(phone, step, batch, tmp_path):
    plan, path = step.plan("adb", graphs=["train"]), tmp_path / "lost.run"

    def batches() -> Iterator[tuple[np.ndarray, ...]]:
        for n in range(10_000):
            if n == 60:
                with handheld.open_run(path) as run:
                    own = {c.name for c in run.channels}
                assert own
                for process in Path("/proc").glob("[0-9]*"):
                    command = (process / "cmdline").read_bytes() if (process / "cmdline").exists() else b""
                    if str(phone.folder).encode() in command and b"serve" in command:
                        os.kill(int(process.name), signal.SIGKILL)
            time.sleep(0.01)
            yield batch

    with pytest.raises(TargetLost, match=phone.name):
        plan.profile(batches(), path, steps=200, idle_s=0.3)
    with handheld.open_run(path) as run:
        assert run.meta["status"] == "failed: TargetLost"
        assert 10 <= len(run.steps()) <= 62
        assert len(next(c for c in run.channels if c.source == "cpu").t_ns) > 20


def test_a_training_on_a_phone_is_recorded(phone, step, batch, tmp_path):
    path = tmp_path / "train.run"
    plan = step.copy().plan("adb", graphs=["train"])
    with plan.start() as trainer, recorded(path, {"what": "test"}, trainer=trainer) as record:
        record.attach(trainer)
        trainer.fit([batch] * 5, epochs=2, callbacks=[record])
    with handheld.open_run(path) as run:
        assert run.meta["target"] == phone.name and len(run.steps()) == 10 and len(run.training_steps()) == 10
        assert {c.source for c in run.channels} >= {"battery", "thermal", "process"}


def test_doctor_reads_the_sensors_of_a_phone(phone):
    facts = {sensor["name"]: sensor for sensor in sensing.examine_on("adb")}
    assert facts["adreno"]["available"] and facts["adreno"]["channels"][0]["value"] == 50.0
    assert facts["cpu"]["channels"][0]["rate"] is not None and 0 < facts["cpu"]["cost_s"] < 0.1
    assert not facts["nvidia"]["available"] and phone.name in facts["nvidia"]["reason"]


def test_energy_needs_a_power_sensor_of_the_phone(phone):
    need_power("adb")
    shutil.rmtree(phone.folder / "root" / "sys" / "class" / "power_supply")
    with pytest.raises(HandheldError, match=f"{phone.name} has no power sensor .* handheld doctor --on {phone.name}"):
        need_power("adb")


def test_energy_is_not_measured_on_a_phone_that_charges(phone):
    """The cable of adb charges it. This must be said before minutes of measuring, not after."""
    put(phone.folder / "root", "sys/class/power_supply/battery/status", "Charging")
    put(phone.folder / "root", "sys/class/power_supply/battery/energy_now", "9000000")
    text = f"on {phone.name} now: battery/battery power: .* status is Charging.*Try: unplug the charger and .* Wi-Fi"
    with pytest.raises(HandheldError, match=text):
        need_power("adb")


def test_a_phone_that_is_gone_is_lost(phone):
    with observed("adb") as machine:
        os.killpg(machine._link.pid, signal.SIGKILL)
        with pytest.raises(TargetLost, match=phone.name):
            for _ in range(100):
                machine.clock_ns()
                time.sleep(0.01)
