"""`handheld doctor`."""

from __future__ import annotations

import json

import pytest

import handheld
from handheld.backends.opencl import devices as opencl_devices
from handheld.cli import probe
from handheld.errors import DeviceError

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
