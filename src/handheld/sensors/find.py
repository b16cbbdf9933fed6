"""Looks for every sensor, and says why a missing one is missing. Plug-ins are found by entry point.

A plug-in's package names its subclass of Sensor in its pyproject.toml:

    [project.entry-points."handheld.sensors"]
    my-meter = "my_package.meter:Meter"

A plug-in that fails is reported like a sensor that is not present.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from handheld.sensors import (
    adreno,
    amd,
    battery,
    cpu,
    hwmon,
    jetson,
    mali,
    memory,
    nvidia,
    pixel,
    rapl,
    raspberry,
    thermal,
    threads,
)
from handheld.sensors.base import Sensor, SensorLost, Unavailable, Value, Where

GROUP = "handheld.sensors"
SOURCES: tuple[type[Sensor], ...] = (
    nvidia.NvidiaPower,
    nvidia.NvidiaState,
    rapl.Rapl,
    jetson.JetsonPower,
    jetson.JetsonGpu,
    jetson.JetsonMemory,
    adreno.Adreno,
    adreno.QualcommMemory,
    mali.MaliExynos,
    mali.MaliPixel,
    mali.MaliMediatek,
    pixel.PixelRails,
    amd.AmdGpu,
    raspberry.RaspberryPi,
    battery.Battery,
    hwmon.Hwmon,
    thermal.Thermal,
    cpu.CpuBusy,
    cpu.CpuClock,
    cpu.CpuIdle,
    memory.ProcessUse,
    memory.ProcessShares,
    memory.SystemMemory,
    threads.ProcessThreads,
)
_READS, _ENOUGH_S = 7, 0.05  # the most readings to time, and the total time after which to stop


@dataclass(frozen=True)
class ProbedSource:
    """The result of looking for one source: its sensor, or the reason why there is none."""

    name: str
    about: str
    reason: str = ""
    sensor: Sensor | None = None
    first: tuple[Value, ...] = ()  # the first reading
    t_s: float = 0.0  # when it was taken, by the monotonic clock
    cost_s: float = 0.0  # the median duration of a few readings


def find(where: Where | None = None) -> list[ProbedSource]:
    """All sources, with those that are present first. The caller must close the sensors."""
    where = where or Where()
    results = [_probed(source, source.name, source.about, where) for source in SOURCES]
    results += [_plugged(point, where) for point in _points()]
    return sorted(results, key=lambda result: result.sensor is None)


def available(where: Where | None = None) -> list[Sensor]:
    """The sensors that are present. The caller must close them."""
    return [found.sensor for found in find(where) if found.sensor is not None]


def plugged_in() -> list[type[Sensor]]:
    """The classes of the plug-ins that can be imported."""
    classes = []
    for point in _points():
        try:
            source = point.load()
        except Exception:  # `find` reports it.
            continue
        if isinstance(source, type) and issubclass(source, Sensor):
            classes.append(source)
    return classes


def _points() -> Iterator[metadata.EntryPoint]:
    yield from sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)


def _plugged(point: metadata.EntryPoint, where: Where) -> ProbedSource:
    about = f"plug-in {point.value}"
    try:
        source = point.load()
    except Exception as error:  # A plug-in may raise anything; it must not stop the others.
        return ProbedSource(point.name, about, f"it cannot be imported: {_text(error)}")
    if not (isinstance(source, type) and issubclass(source, Sensor)):
        return ProbedSource(point.name, about, "it is not a subclass of handheld.sensors.Sensor")
    return _probed(source, getattr(source, "name", point.name), getattr(source, "about", about), where)


def _probed(source: type[Sensor], name: str, about: str, where: Where) -> ProbedSource:
    try:
        sensor = source.probe(where)
    except Unavailable as error:
        return ProbedSource(name, about, str(error))
    except Exception as error:  # Unexpected file contents must not hide the other sensors.
        return ProbedSource(name, about, f"it cannot be opened: {_text(error)}")
    try:
        return _timed(sensor, name, about)
    except SensorLost as error:
        reason = str(error)
    except Exception as error:
        reason = f"it cannot be read: {_text(error)}"
    sensor.close()
    return ProbedSource(name, about, reason)


def _timed(sensor: Sensor, name: str, about: str) -> ProbedSource:
    times: list[float] = []
    while len(times) < _READS and sum(times) < _ENOUGH_S:
        begun = time.monotonic()
        values = tuple(sensor.read())
        times.append(time.monotonic() - begun)
        if not times[1:]:
            first, first_t = values, begun
    if len(first) != len(sensor.channels) or not first:
        raise SensorLost(f"it has {len(sensor.channels)} channels but returns {len(first)} values")
    return ProbedSource(name, about, "", sensor, first, first_t, statistics.median(times))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
