"""What `handheld doctor` prints about sensors."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from handheld.backends.opencl import devices as opencl_devices
from handheld.cli import output, sensing
from handheld.cli.main import app
from helpers.sensor_trees import grow


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(sensing, "APART_S", 0.01)


def shown(sensors) -> str:
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(output.grid(sensing.rows(sensors)))
    return console.file.getvalue()


def words(sensors) -> str:
    return " ".join(shown(sensors).split())


def test_each_sensor_with_a_live_reading_or_the_reason(tmp_path):
    sensors = sensing.examine(grow("linux-arm", tmp_path))
    data = {one["name"]: one for one in sensors}
    assert [one["available"] for one in sensors] == sorted(
        (one["available"] for one in sensors), reverse=True
    )  # Available sensors come first.
    clock = data["cpu-clock"]["channels"][0]
    assert (clock["value"], clock["unit"], clock["rate"]) == (1.5e9, "Hz", None)
    busy = data["cpu"]["channels"][0]
    assert busy["counter"] and busy["rate"] == 0.0 and busy["unit"] == "s"
    assert data["cpu"]["period_s"] == 0.01 and data["cpu"]["cost_s"] > 0
    assert data["adreno"]["reason"].startswith("there is no /sys/class/kgsl")
    text = words(sensors)
    assert "cpu0 clock 1.50 GHz, cpu1 clock 600 MHz (every 100 ms" in text
    assert "ina226 power1 3.12 W, ina226 energy1 0 W, nvme Composite 39 °C" in text
    assert "adreno no: there is no /sys/class/kgsl/kgsl-3d0" in text
    assert max(map(len, shown(sensors).splitlines())) <= 80


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("jetson-tx2", "VDD_SYS_GPU … VDD_SYS_DDR 0.019 W to 7.58 W"),
        ("jetson-tx2", "PLL-therm not read: the zone is switched off"),
        ("pixel-6", "S10M_VDD_TPU … VSYS_PWR_DISPLAY 0 W"),
        ("adreno", "gpu load 37%, gpu clock 587 MHz, gpu temperature 52 °C"),
        ("battery-charging", "BATC power not read: the battery's status is Charging"),
        ("battery-phone", "battery power 1.4 W, battery charge 2,967 mAh"),
        ("raspberry-pi-5", "3V7_WL_SW … HDMI 0 W to 9.76 W"),
    ],
)
def test_readings_in_words(tree, expected, tmp_path):
    sensors = sensing.examine(grow(tree, tmp_path))
    assert expected in words(sensors)
    json.dumps(sensors, allow_nan=False)


def test_doctor_lists_the_sensors_of_this_machine(monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.setattr(opencl_devices, "devices", lambda: [])
    monkeypatch.setenv("COLUMNS", "80")
    report = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    data = {one["name"]: one for one in report["sensors"]}
    assert data["process"]["channels"][0]["value"] > 5e6 and data["memory"]["available"]
    lines = CliRunner().invoke(app, ["doctor"]).stdout
    assert "resident" in lines and "mali-mediatek" in lines
