"""`handheld doctor --on TARGET`: every line is about the target, except those that name the host."""

from __future__ import annotations

import pytest

from handheld.cli import doctor, driver_checks, output, probe
from handheld.conformance import run as running
from handheld.drivers.store import Truth
from handheld.measure import ceilings
from helpers.furnished_phone import furnished_phone
from helpers.phones import phones

__all__ = ["furnished_phone", "phones"]
NAME = "adb:R5CT10XYZ"


@pytest.fixture(autouse=True)
def computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are not about the driver."""
    monkeypatch.setattr(probe, "run_in_child", lambda device: "")


def examined(on: str | None) -> tuple[doctor.Report, str]:
    """The report, and what is printed of it on one line."""
    report = doctor.examine(on=on)
    with output.out.capture() as capture:
        doctor.present(report)
    return report, " ".join(capture.get().split())


def test_the_header_is_that_of_the_phone(furnished_phone, monkeypatch):
    monkeypatch.setattr("psutil.sensors_battery", lambda: pytest.fail("the host was asked"), raising=False)
    monkeypatch.setattr("psutil.sensors_temperatures", lambda: pytest.fail("the host was asked"), raising=False)
    monkeypatch.setattr("platform.machine", lambda: "host-cpu")
    monkeypatch.setattr("handheld.cli.doctor.no_pyopencl", lambda: "not here")
    monkeypatch.setattr(ceilings, "stored", lambda caps: None)  # Other tests may have measured them.
    furnished_phone.program("df", "echo head; echo /dev/block/dm-5 9000000 1000000 8000000 12% /data")
    facts, shown = examined("adb")
    assert (facts["target"], facts["model"]) == (NAME, "Google Pixel 7 (GS201, Android 14)")
    assert "host-cpu" in facts["host_system"] and "host-cpu" not in facts["system"]
    assert "host-cpu" not in running._system("adb")  # in the report of --conformance
    assert (facts["battery_percent"], facts["battery_charging"]) == (80, False)
    assert facts["temperature_celsius"] == 41 and facts["storage_free_bytes"] == 8000000 * 1024
    assert facts["storage_folder"].endswith("/data/local/tmp/handheld-runner")
    assert 0 < facts["memory_available_bytes"] < facts["memory_bytes"]
    assert not any("pyopencl" in note for note in facts["notes"])  # The phone does not need it.
    assert f"target {NAME}: Google Pixel 7 (GS201, Android 14) system Linux" in shown
    assert "battery 80%, not charging temperature 41 °C host handheld " in shown
    assert "handheld doctor --ceilings --on adb/" in shown
    for command in ("tune MODEL", "doctor --energy", "doctor --recheck"):
        assert f"handheld {command}" not in shown or f"handheld {command} --on adb/" in shown


def test_a_phone_without_sensors_reports_none_of_the_host(furnished_phone):
    for path in (furnished_phone.folder / "root" / "sys").rglob("*"):
        if path.is_file():
            path.write_text("")
    facts, shown = examined("adb")
    assert facts["battery_percent"] is facts["battery_charging"] is facts["temperature_celsius"] is None
    assert "battery not reported temperature not reported" in shown


def test_the_header_of_this_machine():
    facts, shown = examined(None)
    assert facts["target"] == facts["model"] == "" and facts["system"] == facts["host_system"]
    assert facts["storage_free_bytes"] > 0 and facts["memory_available_bytes"] > 0
    assert shown.startswith("handheld ") and "host handheld" not in shown


def test_a_driver_that_was_just_checked_need_not_compute_again(monkeypatch):
    caps, ran = object(), []
    truth = Truth("gpu", "vendor", "1", "kernels", "2026-11-18", 3.0, 29, True, "", ())
    monkeypatch.setattr(probe, "run_in_child", lambda device: ran.append(device) or "it crashed")
    monkeypatch.setattr(driver_checks, "turned_off", lambda: False)
    monkeypatch.setattr(driver_checks, "known", lambda caps: None)
    monkeypatch.setattr(driver_checks, "check", lambda name, caps, patient: truth)
    assert driver_checks.examine("opencl", caps, again=False) == (truth, "") and not ran
    monkeypatch.setattr(driver_checks, "known", lambda caps: truth)
    assert driver_checks.examine("opencl", caps, again=False) == (truth, "it crashed") and ran == ["opencl"]
