"""Sensors of a target: its files, read by the runner's own code, give what they give on this machine."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handheld.errors import SensorError, TargetLost
from handheld.sensors import Samples, SqliteSink, adreno, battery, cpu, memory, rapl, thermal
from handheld.sensors.base import Sensor
from handheld.sensors.find import SOURCES
from handheld.sensors.mirror import Mirror
from handheld.sensors.replay import Replay, TargetSampler
from handheld.sensors.wire import found_files, records
from helpers.native_files import NativeMachine, compiled
from helpers.sensor_trees import grow, put, values
from sensors.test_sources import READINGS

NOT_BY_FILES = {"nvidia-power", "nvidia", "raspberry-pi", "process-threads"}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("native"))


@pytest.fixture
def machine(library, tmp_path) -> Iterator[Callable[..., NativeMachine]]:
    """Makes a machine whose files lie under a folder."""
    made = []

    def make(root: Path, pid: int = 4242) -> NativeMachine:
        made.append(NativeMachine(library, root, pid))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("tree", "source"), READINGS, ids=lambda value: getattr(value, "name", value))
def test_the_readings_of_a_tree_are_those_of_this_machine(machine, tmp_path, tree, source):
    if source.name in NOT_BY_FILES:
        pytest.skip("files are not enough for this source")
    here = grow(tree, tmp_path)
    with Mirror(machine(tmp_path)) as mirror:
        sensor = mirror.probe(source)
        assert [c.name for c in sensor.channels] == [c.name for c in source.probe(here).channels]
        assert {
            k: v.replace(str(tmp_path), "") if isinstance(v, str) else v for k, v in values(source.probe(here)).items()
        } == {k: mirror.shown(v) if isinstance(v, str) else v for k, v in values(sensor).items()}


def test_every_source_says_which_files_it_reads_or_what_else_it_needs():
    assert {source.name for source in SOURCES if not source.files} == NOT_BY_FILES
    assert all(source.needs != Sensor.needs for source in SOURCES if not source.files)
    assert all(pattern.startswith("/") and "[" not in pattern for source in SOURCES for pattern in source.files)


def test_absent_sources_have_a_reason(machine, tmp_path):
    put(tmp_path, "proc/stat", "cpu  1 0 1 1 0 0 0\ncpu0 1 0 1 1 0 0 0\nintr 5\n")
    with Mirror(machine(tmp_path)) as mirror:
        found = {source.name: source for source in mirror.find()}
        assert found["cpu"].sensor is not None
        assert "no /sys/class/kgsl/kgsl-3d0" in found["adreno"].reason
        assert found["nvidia"].reason == (
            "it is read through a library (NVML), which cannot be done on ssh:me@box: there, only files are read"
        )
        assert str(mirror.root) not in " ".join(source.reason for source in found.values())
    assert not mirror.root.exists()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; those of pytest belong to one user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without permission")
def test_no_permission_is_that_of_the_target(library, open_folder):
    root = open_folder
    grow("pixel-6", root)
    for path in root.rglob("energy_value"):
        path.chmod(0)
    put(root, "sys/class/power_supply/battery/type", "Battery").parent.parent.chmod(0o700)
    put(root, "sys/class/kgsl/kgsl-3d0/gpubusy", "50 100").parent.chmod(0o711)
    os.seteuid(65534)
    try:
        machine = NativeMachine(library, root)
        with Mirror(machine) as mirror:
            reasons = {source.name: source.reason for source in mirror.find()}
            assert reasons["pixel-rails"].startswith("no permission to read /sys/bus/iio/devices/iio:device")
            assert reasons["battery"].startswith("no permission to list /sys/class/power_supply. ")
            assert values(mirror.probe(adreno.Adreno))["gpu load"] == 50.0
        machine.close()
    finally:
        os.seteuid(0)


# ── sampling ──────────────────────────────────────────────────────────────────────────────────


def phone(root: Path) -> None:
    """A phone with a GPU, a battery, a thermal zone and a counter that wraps."""
    put(root, "sys/class/kgsl/kgsl-3d0/gpubusy", "50 100   ")
    put(root, "sys/class/thermal/thermal_zone0/type", "gpu")
    put(root, "sys/class/thermal/thermal_zone0/temp", "40000 ")
    for name, content in (
        ("type", "Battery"),
        ("status", "Charging   "),
        ("current_now", "500000"),
        ("voltage_now", "4000000"),
    ):
        put(root, f"sys/class/power_supply/battery/{name}", content)
    for name, content in (("name", "package-0"), ("energy_uj", "999000  "), ("max_energy_range_uj", "1000000")):
        put(root, f"sys/class/powercap/intel-rapl:0/{name}", content)


def sampling(mirror: Mirror, file: Path, *sources: type[Sensor]) -> TargetSampler:
    periods = {source.name: 0.01 for source in sources}
    return TargetSampler(mirror, sources, SqliteSink(str(file)), periods)


def test_samples_of_a_phone_whose_files_change(machine, tmp_path):
    root, file = tmp_path / "phone", tmp_path / "samples"
    phone(root)
    with Mirror(machine(root)) as mirror:
        begun = time.monotonic()
        with sampling(mirror, file, adreno.Adreno, battery.Battery, thermal.Thermal, rapl.Rapl) as sampler:
            time.sleep(0.1)
            put(root, "sys/class/thermal/thermal_zone0/temp", "55000")
            put(root, "sys/class/power_supply/battery/status", "Discharging")
            put(root, "sys/class/powercap/intel-rapl:0/energy_uj", "1000")
            time.sleep(0.1)
            (root / "sys/class/kgsl/kgsl-3d0/gpubusy").unlink()
            time.sleep(0.1)
        ended = time.monotonic()
    with Samples(file) as samples:
        t_s, celsius = samples.series("thermal", "gpu")
        assert (celsius[0], celsius[-1]) == (40.0, 55.0) and begun < t_s[0] < t_s[-1] < ended
        assert 20 <= len(t_s) <= 32 and all(t_s[1:] > t_s[:-1])
        _, joules = samples.series("rapl", "package-0")
        assert joules[-1] - joules[0] == pytest.approx(0.002)  # across the wrap
        _, watts = samples.series("battery", "battery power")
        assert set(watts) == {2.0}
        gaps = {(gap["source"], gap["channel"]): gap for gap in samples.gaps()}
        assert "Charging" in gaps["battery", "battery power"]["reason"] and gaps["battery", "battery power"]["to_ns"]
        lost = gaps["adreno", None]
        assert lost["reason"] == "/sys/class/kgsl/kgsl-3d0/gpubusy: No such file or directory" and lost["to_ns"] is None
        rows = {row["name"]: row for row in samples.sources()}
        assert (
            rows["thermal"]["readings"] >= 20 and 0 < rows["thermal"]["wall_s"] < 0.3 and rows["thermal"]["cpu_s"] > 0
        )
    summary = sampler.summary()
    assert not summary.problem and summary.elapsed_s == pytest.approx(0.3, abs=0.2) and 0 < summary.cpu_share < 0.5


def test_a_sensor_that_comes_back_ends_its_gap(machine, tmp_path):
    root, file = tmp_path / "phone", tmp_path / "samples"
    phone(root)
    busy = root / "sys/class/kgsl/kgsl-3d0/gpubusy"
    with Mirror(machine(root)) as mirror, sampling(mirror, file, adreno.Adreno):
        busy.rename(tmp_path / "away")
        time.sleep(0.1)
        (tmp_path / "away").rename(busy)
        time.sleep(0.5)
    with Samples(file) as samples:
        (gap,) = samples.gaps()
        assert gap["to_ns"] > gap["from_ns"]


def test_the_process_and_the_cores_are_those_of_the_target(machine, tmp_path):
    file = tmp_path / "samples"
    with (
        Mirror(machine(Path("/"), os.getpid())) as mirror,
        sampling(mirror, file, cpu.CpuBusy, memory.ProcessUse, memory.SystemMemory),
    ):
        time.sleep(0.2)
    with Samples(file) as samples:
        assert samples.series("process", "resident")[1][-1] > 10e6
        assert len(samples.series("cpu", "cpu0 busy")[1]) > 5


def test_a_lost_connection_keeps_what_was_fetched(machine, tmp_path):
    root, file = tmp_path / "phone", tmp_path / "samples"
    phone(root)
    phone_machine = machine(root)

    def lost() -> bytes:
        raise TargetLost("ssh:me@box: the connection ended")

    with Mirror(phone_machine) as mirror, sampling(mirror, file, thermal.Thermal) as sampler:
        time.sleep(0.6)
        phone_machine.samples = phone_machine.stop_sampling = lost
    assert sampler.summary().problem.startswith("no more sensor readings: ")
    with Samples(file) as samples:
        assert len(samples.series("thermal", "gpu")[0]) > 10


def test_a_full_ring_drops_readings_and_says_so(machine, tmp_path):
    put(tmp_path, "proc/meminfo", "MemFree: 1 kB\n" + "x" * 60_000)
    with Mirror(machine(tmp_path)) as mirror:
        replay = Replay(mirror, [memory.SystemMemory], {"memory": 0.0005})
        mirror.machine.sample(replay.wanted())
        until = time.monotonic() + 20.0
        while not replay.status.dropped and time.monotonic() < until:
            replay.feed(mirror.machine.samples())
            for n in range(300):  # Nobody fetches what is read meanwhile.
                put(tmp_path, "proc/meminfo", f"MemFree: {n} kB\n")
                time.sleep(0.001)
        replay.feed(mirror.machine.stop_sampling())
    assert replay.status.dropped > 0
    assert any("readings were lost" in gap.reason for gap in replay.sources[0].gaps)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\1\0\0\0", b"is cut off"),
        (b"\xff\xff\xff\xff", b"more than 4,096 files"),
        (b"\1\0\0\0" + b"\0" * 16, b"must begin with /"),
        (b"\1\0\0\0" + b"\0\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0/a", b"longer than 0"),
        (b"\1\0\0\0" + b"\0\0\0\0\1\0\0\0\1\0\0\0\xff\0\0\0/a", b"is cut off"),
    ],
)
def test_a_damaged_list_is_refused(machine, tmp_path, data, text):
    assert text in (machine(tmp_path).start(data) or b"")


def test_the_sampler_ends_with_the_runner(library, tmp_path):
    reading, writing = os.pipe()  # The sampler holds the other end open as long as it lives.
    runner = os.fork()
    if runner == 0:
        NativeMachine(library, tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    os.waitpid(runner, 0)
    assert select.select([reading], [], [], 10.0)[0] and os.read(reading, 1) == b""
    os.close(reading)


def test_cut_answers_are_errors():
    for data in (b"abc", b"\1\0\0\0\5\0\0\0/a"):
        with pytest.raises(SensorError, match="cut off"):
            found_files(data)
        with pytest.raises(SensorError, match="cut off"):
            list(records(data))
