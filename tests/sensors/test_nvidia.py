"""The NVIDIA sensors, with a library compiled here that has NVML's interface."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from handheld.sensors import Sampler, Samples
from handheld.sensors.base import SensorLost, Unavailable, Where
from handheld.sensors.nvidia import DEAR_S, NvidiaPower, NvidiaState
from helpers.sensor_trees import values

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Where:
    root = tmp_path_factory.mktemp("nvidia")
    library = root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    source = Path(__file__).parent / "fake_nvml.c"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    return Where(root)


@pytest.fixture
def plays(monkeypatch):
    return lambda role: monkeypatch.setenv("FAKE_NVML", role)


def test_power_by_scope_and_energy(machine, plays):
    plays("h200")
    sensor = NvidiaPower.probe(machine)
    first, second = values(sensor), values(sensor)
    assert list(first) == ["gpu0 energy", "gpu0 power", "gpu0 memory power"]
    assert first["gpu0 power"] == 149.0 and first["gpu0 memory power"] == pytest.approx(35.7)
    assert second["gpu0 energy"] - first["gpu0 energy"] == pytest.approx(1.49)
    energy, _, memory = sensor.channels
    assert energy.counter and energy.unit == "J" and energy.wraps_at is None
    assert memory.covers == ("memory",) and memory.part_of == "gpu0 power"
    sensor.close()


def test_what_takes_long_is_asked_for_less_often(machine, plays):
    plays("slow")
    sensor = NvidiaPower.probe(machine)
    begun = time.monotonic()
    rows = [values(sensor) for _ in range(50)]
    rest = time.monotonic() - begun
    counted = {row["gpu0 energy"] for row in rows}
    assert len(counted) <= 1 + rest / DEAR_S < 50
    assert all(row["gpu0 power"] == 149.0 for row in rows)
    time.sleep(DEAR_S)
    assert values(sensor)["gpu0 energy"] == pytest.approx(max(counted) + 1.49)
    sensor.close()


def test_a_card_without_memory_power_has_an_average(machine, plays):
    plays("a10")
    sensor = NvidiaPower.probe(machine)
    assert [c.name for c in sensor.channels] == ["gpu0 energy", "gpu0 power (1 s average)"]
    assert values(sensor)["gpu0 power (1 s average)"] == 149.0
    assert "gpu0 temperature" not in values(NvidiaState.probe(machine))


def test_load_memory_clocks_and_temperature(machine, plays):
    plays("h200")
    assert values(NvidiaState.probe(machine)) == {
        "gpu0 load": 97.0,
        "gpu0 memory load": 41.0,
        "gpu0 memory used": 5368709120.0,
        "gpu0 clock": 1.98e9,
        "gpu0 memory clock": 3.201e9,
        "gpu0 temperature": 44.0,
    }


@pytest.mark.parametrize(
    ("role", "reason"), [("orin", "jetson"), ("none", "finds no GPU"), ("broken", "Driver Not Loaded.*nvidia-smi")]
)
@pytest.mark.parametrize("source", [NvidiaPower, NvidiaState])
def test_reasons(machine, plays, source, role, reason):
    plays(role)
    with pytest.raises(Unavailable, match=reason):
        source.probe(machine)


@pytest.mark.parametrize("source", [NvidiaPower, NvidiaState])
def test_a_gpu_that_is_lost_is_a_lost_sensor(machine, plays, source):
    plays("h200")
    sensor = source.probe(machine)
    plays("lost")
    with pytest.raises(SensorLost, match="GPU is lost"):
        for _ in range(20):
            sensor.read()


def test_a_gpu_is_sampled(machine, plays, tmp_path):
    plays("h200")
    with Sampler([NvidiaPower, NvidiaState], tmp_path / "gpu.samples", where=machine) as sampler:
        while sampler.summary().sources[1].readings < 2:
            time.sleep(0.02)
    with Samples(tmp_path / "gpu.samples") as samples:
        t_s, joules = samples.series("nvidia-power", "gpu0 energy")
        _, watts = samples.series("nvidia-power", "gpu0 memory power")
        assert np.diff(joules) == pytest.approx(1.49) and watts == pytest.approx(35.7)
        assert len(t_s) == sampler.summary().sources[0].readings and not samples.gaps()
