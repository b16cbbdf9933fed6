"""`handheld doctor`."""

from __future__ import annotations

import json
from functools import partial

import pytest

import handheld
from handheld.backends.opencl import devices as opencl_devices
from handheld.cli import energy_model, probe
from handheld.cost.energy import EnergyModel
from handheld.drivers import check as checking
from handheld.errors import DeviceError
from handheld.measure import ceilings
from handheld.plan.work import flops
from handheld.profile.calibrate import Progress, calibrate, calibration_ops
from handheld.profile.machine import ThisMachine
from handheld.profile.sampling import sources
from helpers.known_ceilings import store_ceilings
from helpers.meters import Meter

# ── doctor ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def one_device(monkeypatch):
    found = opencl_devices.devices()[:1]
    monkeypatch.setattr(opencl_devices, "devices", lambda: found)
    return found[0]


def test_doctor_computes_something(run, one_device):
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    (device,) = report["devices"]
    assert device["passed"] and device["name"] == f"opencl:{one_device.name}"
    assert handheld.DeviceCaps.from_json(device["caps"]).name == one_device.caps.name
    assert report["memory_available_bytes"] > 0 and report["packages"]["numpy"]


def test_doctor_on_a_terminal(run, one_device, monkeypatch):
    monkeypatch.setattr(probe, "run_in_child", lambda device: "")
    lines = run("doctor").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("PASS" in line for line in lines)


def test_doctor_says_what_fails(run, one_device, monkeypatch):
    monkeypatch.setattr(probe, "run_in_child", lambda device: "the driver crashed (signal 11)")
    result = run("doctor")
    assert result.exit_code == 1 and "FAIL the driver crashed" in result.stdout


def test_doctor_without_any_device(run, monkeypatch):
    monkeypatch.setattr(opencl_devices, "devices", lambda: [])
    result = run("doctor")
    assert result.exit_code == 1 and "no OpenCL device" in result.stdout

    def broken() -> list[object]:
        raise DeviceError("no OpenCL platform: none. Try: pip install pocl-binary-distribution")

    monkeypatch.setattr(opencl_devices, "devices", broken)
    assert "no OpenCL platform" in run("doctor").stdout


def test_the_probe_notices_a_wrong_result():
    assert probe.run("reference:cpu") == ""
    assert "wrong result" in probe.run("null")
    assert "unknown device" in probe.run("toaster")


def test_the_probe_does_not_wait_for_the_check_of_the_driver(monkeypatch):
    def check(*_: object) -> None:
        raise AssertionError("the driver was checked")

    monkeypatch.setattr(checking, "check", check)
    monkeypatch.setattr(checking, "known", lambda caps: None)
    monkeypatch.setenv(checking.VARIABLE, "on")
    assert probe.run("opencl") == ""


def test_doctor_energy_needs_a_power_sensor(run, monkeypatch):
    """Nothing is measured, and the error says what to do."""
    monkeypatch.setattr(ThisMachine, "sources", lambda self, sensors: sources(sensors=False))
    result = run("doctor", "--energy")
    assert result.exit_code == 1 and "no power sensor" in result.stderr and "Try: handheld doctor" in result.stderr


def test_doctor_measures_and_shows_the_energy_model(run, one_device, monkeypatch, tmp_path):
    """The real calibration with few ops and a meter; the result is stored and shown, also as JSON."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    monkeypatch.setattr("handheld.cli.doctor.need_power", lambda on: None)
    monkeypatch.setattr(probe, "run_in_child", lambda device: "")
    ops = [g for g in calibration_ops() if 1e6 < flops(g.nodes[0], g) < 5e7][:5]
    few = partial(calibrate, ops=ops, sensors=(Meter,), seconds=0.3)
    monkeypatch.setattr(energy_model, "calibrate", few)
    measured = []
    monkeypatch.setattr(ceilings, "measure", lambda *words: measured.append(words[0]) or store_ceilings())
    result = run("doctor", "--energy")
    assert result.exit_code == 0 and "model measured" in result.stdout and "between launches" in result.stdout
    assert measured == [f"opencl:{one_device.name}"], "the ceilings come first if they are not known"
    (device,) = json.loads(run("doctor", "--json").stdout)["devices"]
    assert device["energy"]["rails"][0]["name"] == "meter/cpu energy" and device["no_energy"] == ""


def test_doctor_energy_keeps_nothing_half_done(run, one_device, monkeypatch, tmp_path):
    """Ctrl-C during the windows of the real calibration stores no model."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    ops = [g for g in calibration_ops() if 1e6 < flops(g.nodes[0], g) < 5e7][:5]

    def interrupted(name: str, progress: Progress) -> EnergyModel:
        def stop(done: int, count: int, what: str) -> None:
            progress(done, count, what)
            if done == 2 and "building" not in what:
                raise KeyboardInterrupt

        return calibrate(name, ops=ops, sensors=(Meter,), seconds=0.1, progress=stop)

    monkeypatch.setattr(energy_model, "calibrate", interrupted)
    store_ceilings()
    with pytest.raises(KeyboardInterrupt):
        energy_model.measure(f"opencl:{one_device.name}", one_device.caps)
    assert not (tmp_path / "energy").exists()
