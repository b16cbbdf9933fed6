"""Each source on a file tree that reproduces a device: values, units, names and reasons."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from handheld.sensors import (
    adreno,
    amd,
    battery,
    cpu,
    hwmon,
    jetson,
    mali,
    memory,
    pixel,
    rapl,
    raspberry,
    thermal,
    threads,
)
from handheld.sensors.base import UNITS, SensorLost, Unavailable, Where
from handheld.sensors.find import SOURCES, find
from helpers.sensor_trees import FOLDER, grow, put, values

#: tree → source → the expected readings
READINGS = {
    ("rapl-two-packages", rapl.Rapl): {
        "package-0": 240422.366267,
        "package-0 core": 118821.284256,
        "package-10": 240422.366267,
    },
    ("rapl-laptop", rapl.Rapl): {"package-0": 262143.0, "package-0 core": 1.0, "package-0 dram": 2.0, "psys": 3.0},
    ("jetson-tx2", jetson.JetsonPower): {
        "VDD_SYS_GPU": 1.159,
        "VDD_SYS_SOC": 0.917,
        "VDD_4V0_WIFI": 0.019,
        "VDD_IN": 7.583,
        "VDD_SYS_CPU": 1.834,
        "VDD_SYS_DDR": 1.456,
    },
    ("jetson-tx2", jetson.JetsonGpu): {"gpu load": 87.3, "gpu clock": 1.3005e9},
    ("jetson-tx2", jetson.JetsonMemory): {"emc activity": 25.0, "emc clock": 1.866e9},
    ("jetson-tx2", thermal.Thermal): {"GPU-therm": 41.5, "PLL-therm": "the zone is switched off"},
    ("jetson-tx2-old", jetson.JetsonPower): {"VDD_SYS_GPU": 1.159},
    ("jetson-agx-orin", jetson.JetsonPower): {
        "VDD_GPU_SOC": 19.304 * 0.12,
        "VDD_CPU_CV": 19.312 * 0.04,
        "VIN_SYS_5V0": 4.976 * 0.688,
        "VDDQ_VDD2_1V8AO": 4.984 * 0.16,
    },
    ("jetson-agx-orin", jetson.JetsonGpu): {"gpu load": 42.0},
    ("jetson-agx-orin", jetson.JetsonMemory): {"emc activity": 100 * 312e6 / 3199e6, "emc clock": 3.199e9},
    ("jetson-orin-nano", jetson.JetsonPower): {"VDD_IN": 5.04, "VDD_CPU_GPU_CV": 1.0064, "VDD_SOC": 1.5096},
    ("adreno", adreno.Adreno): {"gpu load": 37.0, "gpu clock": 587e6, "gpu temperature": 52.3},
    ("adreno", adreno.QualcommMemory): {"ddr clock": 2.092e9},
    ("adreno-old", adreno.Adreno): {"gpu load": 100 * 250151 / 1000606, "gpu clock": 257e6},
    ("mali-exynos", mali.MaliExynos): {"gpu load": 88.0, "gpu clock": 560e6, "memory clock": 3.172e9},
    ("mali-mediatek", mali.MaliMediatek): {"gpu load": 45.0, "gpu clock": 612e6},
    ("pixel-6", mali.MaliPixel): {"gpu load": 61.0, "gpu clock": 572e6},
    ("pixel-6", pixel.PixelRails): {
        "S10M_VDD_TPU": 5.578756,
        "VSYS_PWR_MODEM": 29.11094,
        "VSYS_PWR_RFFE": 3.166046,
        "S2M_VDD_CPUCL2": 30.203502,
        "S3M_VDD_CPUCL1": 23.377533,
        "S4M_VDD_CPUCL0": 46.356942,
        "S5M_VDD_INT": 10.771876,
        "S1M_VDD_MIF": 21.091363,
        "VSYS_PWR_WLAN_BT": 45.993209,
        "L2S_VDD_AOC_RET": 2.822928,
        "S9S_VDD_AOC": 6.923706,
        "S5S_VDDQ_MEM": 4.658202,
        "S10S_VDD2L": 5.506273,
        "S4S_VDD2H_MEM": 14.254574,
        "S2S_VDD_G3D": 5.31542,
        "VSYS_PWR_DISPLAY": 81.221665,
    },
    ("battery-laptop", battery.Battery): {"BAT0 power": 12.6 * 0.756, "BAT0 level": 98.0},
    ("battery-phone", battery.Battery): {
        "battery power": 4.012 * 0.35,
        "battery charge": 2.967 * 3600,
        "battery temperature": 30.9,
    },
    ("amd-vega", amd.AmdGpu): {
        "gpu0 load": 4.0,
        "gpu0 memory used": 1490378752.0,
        "gpu0 power": 21.0,
        "gpu0 temperature": 41.0,
        "gpu0 clock": 852e6,
    },
    ("raspberry-pi-5", raspberry.RaspberryPi): {
        "3V7_WL_SW": 0.0,
        "3V3_SYS": 0.06245952 * 3.306322,
        "1V8_SYS": 0.1610285 * 1.798289,
        "DDR_VDD2": 0.00780744 * 1.102929,
        "DDR_VDDQ": 0.0,
        "1V1_SYS": 0.1756674 * 1.104394,
        "0V8_SW": 0.3279125 * 0.8025633,
        "VDD_CORE": 10.87674 * 0.8974594,
        "3V3_DAC": 0.0003663 * 3.304942,
        "3V3_ADC": 0.00042735 * 3.302194,
        "0V8_AON": 0.00579975 * 0.7973619,
        "HDMI": 0.0136752 * 5.07056,
    },
    ("linux-arm", threads.ProcessThreads): {"started cpu time": 0.0},
    ("linux-arm", cpu.CpuBusy): {
        "cpu0 busy": (44490 + 19 + 21045 + 1 + 3410) / os.sysconf("SC_CLK_TCK"),
        "cpu1 busy": (47869 + 23 + 16474 + 0 + 46) / os.sysconf("SC_CLK_TCK"),
    },
    ("linux-arm", cpu.CpuClock): {"cpu0 clock": 1.5e9, "cpu1 clock": 6e8},
    ("linux-arm", cpu.CpuIdle): {"cpu0 idle": 3.5, "cpu1 idle": 0.5},
    ("linux-arm", memory.SystemMemory): {
        "available": 4130212 * 1024,
        "free": 391588 * 1024,
        "cached": 3215972 * 1024,
        "swap free": 2097148 * 1024,
    },
    ("linux-arm", memory.ProcessUse): {
        "resident": 443 * os.sysconf("SC_PAGE_SIZE"),
        "shared": 414 * os.sysconf("SC_PAGE_SIZE"),
        "cpu time": 1400 / os.sysconf("SC_CLK_TCK"),
    },
    ("linux-arm", memory.ProcessShares): {
        "resident": 1764 * 1024,
        "proportional": 294 * 1024,
        "private dirty": 116 * 1024,
        "swapped": 0.0,
    },
    ("linux-arm", thermal.Thermal): {"bcm2835_thermal": 49.925, "acpitz": -44.0},
    ("linux-arm", hwmon.Hwmon): {"ina226 power1": 3.125, "ina226 energy1": 987.0, "nvme Composite": 38.85},
}


@pytest.mark.parametrize(("tree", "source"), READINGS, ids=[f"{t}-{s.name}" for t, s in READINGS])
def test_readings(tree, source, tmp_path):
    sensor = source.probe(grow(tree, tmp_path))
    expected = READINGS[tree, source]
    found = values(sensor)
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == (value if isinstance(value, str) else pytest.approx(value)), name
    assert all(channel.unit == UNITS[channel.quantity] for channel in sensor.channels)
    assert values(sensor) == found  # a second reading, from the files that are open now


def test_every_tree_says_where_it_is_from():
    trees = sorted(FOLDER.glob("*.tree"))
    assert {path.stem for path in trees} >= {tree for tree, _ in READINGS}
    for path in trees:
        head = path.read_text(encoding="utf-8").partition("===")[0]
        assert "Source: " in head or "Made from documentation" in head, path.name


def test_every_source_is_tested_on_a_tree_but_nvml():
    tested = {source for _, source in READINGS}
    assert {source.name for source in SOURCES if source not in tested} == {
        "nvidia",
        "nvidia-power",
    }  # NVML is a library and has no files; test_nvidia.py tests it.


# ── what is in what ───────────────────────────────────────────────────────────────────────────


def channels(tree, source, tmp_path):
    return {c.name: c for c in source.probe(grow(tree, tmp_path)).channels}


def test_a_rapl_subzone_is_part_of_its_package_and_psys_of_nothing(tmp_path):
    found = channels("rapl-laptop", rapl.Rapl, tmp_path)
    assert found["package-0 core"].part_of == found["package-0 dram"].part_of == "package-0"
    assert found["package-0"].part_of == found["psys"].part_of == ""
    assert found["package-0 dram"].covers == ("memory",) and found["psys"].covers == ("system",)
    assert found["package-0 dram"].wraps_at == pytest.approx(65712.999613)
    assert all(channel.counter for channel in found.values())


def test_jetson_rails_say_what_they_cover(tmp_path):
    nano = channels("jetson-orin-nano", jetson.JetsonPower, tmp_path / "nano")
    assert nano["VDD_CPU_GPU_CV"].covers == ("gpu", "cpu", "cv")
    assert nano["VDD_CPU_GPU_CV"].part_of == nano["VDD_SOC"].part_of == "VDD_IN"
    tx2 = channels("jetson-tx2", jetson.JetsonPower, tmp_path / "tx2")
    assert tx2["VDD_SYS_DDR"].covers == ("memory",) and tx2["VDD_SYS_GPU"].covers == ("gpu",)
    agx = channels("jetson-agx-orin", jetson.JetsonPower, tmp_path / "agx")
    assert agx["VDDQ_VDD2_1V8AO"].covers == ("memory",)
    assert agx["VIN_SYS_5V0"].covers == ("other",) and not agx["VIN_SYS_5V0"].part_of


def test_pixel_rails_say_what_they_cover(tmp_path):
    found = channels("pixel-6", pixel.PixelRails, tmp_path)
    assert found["S2S_VDD_G3D"].covers == ("gpu",)
    assert {name for name, c in found.items() if c.covers == ("memory",)} == {
        "S1M_VDD_MIF",
        "S5S_VDDQ_MEM",
        "S10S_VDD2L",
        "S4S_VDD2H_MEM",
    }
    assert {name for name, c in found.items() if c.covers == ("cpu",)} == {
        "S2M_VDD_CPUCL2",
        "S3M_VDD_CPUCL1",
        "S4M_VDD_CPUCL0",
    }


# ── batteries ─────────────────────────────────────────────────────────────────────────────────


def test_a_battery_that_charges_has_no_power(tmp_path):
    found = values(battery.Battery.probe(grow("battery-charging", tmp_path)))
    assert "is Charging" in found["BATC power"] and found["BATC level"] == 73.0
    (tmp_path / "sys/class/power_supply/BATC/status").write_text("Discharging\n")
    assert "too small" in values(battery.Battery.probe(Where(tmp_path)))["BATC power"]


def test_a_battery_beside_usb_power_has_no_power(tmp_path):
    found = values(battery.Battery.probe(grow("battery-pixel-3a", tmp_path)))
    assert "is Not charging" in found["battery power"]
    assert found["battery temperature"] == pytest.approx(31.3)


def test_a_current_in_milliamperes_is_refused(tmp_path):
    where = grow("battery-phone", tmp_path)
    put(tmp_path, "sys/class/power_supply/battery/current_now", "-350\n")
    assert "too small for µA" in values(battery.Battery.probe(where))["battery power"]


def test_power_now_goes_before_current_times_voltage(tmp_path):
    where = grow("battery-phone", tmp_path)
    put(tmp_path, "sys/class/power_supply/battery/power_now", "-2500000\n")
    assert values(battery.Battery.probe(where))["battery power"] == pytest.approx(2.5)


# ── what is not there, not allowed, or garbage ────────────────────────────────────────────────


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_an_empty_machine_has_a_reason_for_each(source, tmp_path):
    with pytest.raises(Unavailable) as caught:
        source.probe(Where(tmp_path, pid=4242))
    assert "there is no" in str(caught.value)


@contextlib.contextmanager
def nobody():
    """Runs the block as the user nobody, because root may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("tree", "source", "path", "hint"),
    [
        ("rapl-laptop", rapl.Rapl, "sys/class/powercap/intel-rapl:0/energy_uj", "chmod"),
        ("adreno", adreno.Adreno, "sys/class/kgsl/kgsl-3d0/gpu*", "adb shell"),
        ("mali-exynos", mali.MaliExynos, "sys/kernel/gpu/gpu_busy", "adb shell"),
        ("pixel-6", pixel.PixelRails, "sys/bus/iio/devices/iio:device1/energy_value", "adb root"),
        ("jetson-tx2", jetson.JetsonMemory, "sys/kernel/debug/bpmp/debug/clk/emc/rate", "sudo"),
        ("linux-arm", cpu.CpuBusy, "proc/stat", "adb shell"),
        ("battery-phone", battery.Battery, "sys/class/power_supply", "adb shell"),
    ],
)
def test_no_permission_names_the_file_and_what_to_do(tree, source, path, hint):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)  # so that the user nobody can reach readable files
        where = grow(tree, root)
        with nobody():
            source.probe(where).close()
        closed = list(root.glob(path))
        for one in closed:
            one.chmod(0)
        with nobody(), pytest.raises(Unavailable) as caught:
            source.probe(where)
        for one in closed:
            one.chmod(0o755)
        assert "no permission to" in str(caught.value) and hint in str(caught.value)
        assert any(f"/{one.relative_to(root)}" in str(caught.value) for one in closed)


def test_garbage_in_one_file_is_a_reason_and_the_others_still_count(tmp_path):
    where = grow("jetson-orin-nano", tmp_path)
    sensor = jetson.JetsonPower.probe(where)
    put(tmp_path, "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon1/in2_input", "no idea\n")
    found = values(sensor)
    assert "holds 'no idea', not a number" in found["VDD_CPU_GPU_CV"]
    assert found["VDD_IN"] == pytest.approx(5.04)


def test_garbage_in_every_file_is_a_lost_sensor(tmp_path):
    sensor = rapl.Rapl.probe(grow("rapl-two-packages", tmp_path))
    for path in tmp_path.rglob("energy_uj"):
        path.write_text("")
    with pytest.raises(SensorLost, match="holds nothing"):
        sensor.read()


def test_files_that_go_are_a_lost_sensor_and_one_that_goes_is_a_reason(tmp_path):
    sensor = cpu.CpuClock.probe(grow("linux-arm", tmp_path))
    paths = sorted(tmp_path.rglob("scaling_cur_freq"))
    paths[1].unlink()
    found = values(sensor)
    assert found["cpu0 clock"] == 1.5e9 and "No such file" in found["cpu1 clock"]
    paths[0].unlink()
    with pytest.raises(SensorLost, match="No such file"):
        sensor.read()


def test_a_core_that_goes_offline_is_a_reason(tmp_path):
    sensor = cpu.CpuBusy.probe(grow("linux-arm", tmp_path))
    put(tmp_path, "proc/stat", "cpu  1 2 3 4 5 6 7\ncpu0 100 0 0 0 0 0 0 0 0 0\n")
    assert list(sensor.read()) == [100 / os.sysconf("SC_CLK_TCK"), "cpu1 is offline"]


def test_an_adreno_that_is_off_is_not_busy(tmp_path):
    sensor = adreno.Adreno.probe(grow("adreno-old", tmp_path))
    put(tmp_path, "sys/class/kgsl/kgsl-3d0/gpubusy", "      0       0\n")
    assert values(sensor)["gpu load"] == 0.0
    put(tmp_path, "sys/class/kgsl/kgsl-3d0/gpubusy", "off\n")
    assert "holds 'off'" in values(sensor)["gpu load"]


def test_a_raspberry_pi_without_rails_says_so(tmp_path):
    with pytest.raises(Unavailable, match=r"Command not registered.*Raspberry Pi 5"):
        raspberry.RaspberryPi.probe(grow("raspberry-pi-4", tmp_path))


def test_an_adreno_folder_that_cannot_be_listed_is_read_all_the_same(tmp_path):
    where = grow("adreno", tmp_path)
    folder = tmp_path / "sys/class/kgsl/kgsl-3d0"
    folder.chmod(0o111)  # As SELinux does to apps: the folder cannot be listed, but a known name opens.
    try:
        assert values(adreno.Adreno.probe(where))["gpu load"] == 37.0
    finally:
        folder.chmod(0o755)


# ── this machine ──────────────────────────────────────────────────────────────────────────────


def test_this_machine_is_read_live():
    found = {one.name: one for one in find()}
    assert set(found) >= {source.name for source in SOURCES}
    for one in found.values():
        assert bool(one.reason) != (one.sensor is not None)
        if one.sensor is not None:
            assert one.cost_s > 0 and len(one.first) == len(one.sensor.channels)
    process = dict(zip((c.name for c in found["process"].sensor.channels), found["process"].first, strict=True))
    assert process["resident"] > 5e6 and process["cpu time"] > 0
    assert len(found["cpu"].sensor.channels) == os.cpu_count()


def test_threads_that_a_process_starts_are_counted_also_when_they_have_ended(tmp_path):
    where = grow("linux-arm", tmp_path)
    sensor = threads.ProcessThreads.probe(where)
    assert sensor.read() == [0.0]
    stat = "4300 (a (b) c) R " + " ".join(["0"] * 10) + " 250 50 0 0"
    put(tmp_path, "proc/4242/task/4300/stat", stat)
    assert sensor.read() == [3.0]
    put(tmp_path, "proc/4242/task/4300/stat", stat.replace("250 50", "300 100"))
    put(tmp_path, "proc/4242/task/4301/stat", stat.replace("250 50", "5 5"))
    assert sensor.read() == [pytest.approx(4.1)]
    for name in ("4300", "4301"):
        shutil.rmtree(tmp_path / "proc/4242/task" / name)
    assert sensor.read() == [pytest.approx(4.1)]
    put(tmp_path, "proc/4242/task/4302/stat", "garbage")
    assert sensor.read() == [pytest.approx(4.1)]
    shutil.rmtree(tmp_path / "proc/4242/task")
    with pytest.raises(SensorLost, match="task"):
        sensor.read()
    with pytest.raises(Unavailable, match="there is no /proc/4242/task"):
        threads.ProcessThreads.probe(where)
