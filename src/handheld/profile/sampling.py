"""Sensors sampled into a run file, from another process, while something else runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from handheld.errors import HandheldError
from handheld.sensors.base import Sensor, Where
from handheld.sensors.find import find
from handheld.sensors.sampler import Sampler
from handheld.sensors.sink import RunSink
from handheld.store.writer import RunWriter

IDLE_S = 1.0  # of nothing before the first step: what the machine takes when it has nothing to do
#: sources that measure power or energy on some machine: why they are not here is worth saying
POWER_SOURCES = ("nvidia-power", "rapl", "jetson-power", "pixel-rails", "amd-gpu", "raspberry-pi", "battery", "hwmon")

#: all sensors that are here (True), none, or these
Sensors = bool | Iterable[type[Sensor]]


@dataclass
class Sources:
    """What was found to sample."""

    here: list[type[Sensor]] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    powered: bool = False  # whether one of them tells power or energy

    def need_power(self) -> None:
        """An error, before anything long runs, if the energy of ops cannot be measured."""
        if not self.powered:
            absent = "; ".join(f"{name}: {self.absent[name]}" for name in POWER_SOURCES if name in self.absent)
            raise HandheldError(
                "energy cannot be measured: no sensor of power is here. "
                + (f"{absent}. " if absent else "")
                + "Try: handheld doctor; or an estimate (--estimate-energy)"
            )


def sources(sensors: Sensors = True, where: Where | None = None) -> Sources:
    """Looks for sensors: all there are, or those that are named."""
    result = Sources()
    if sensors is False:
        return result
    for found in find(where) if sensors is True else ():
        if found.sensor is None:
            result.absent[found.name] = found.reason
        else:
            _take(result, found.sensor)
    for one in () if sensors is True else sensors:
        _take(result, one.probe(where or Where()))
    return result


def _take(result: Sources, sensor: Sensor) -> None:
    result.here.append(type(sensor))
    result.powered |= any(c.quantity in ("power", "energy") for c in sensor.channels)
    sensor.close()


@contextlib.contextmanager
def sampled(writer: RunWriter, found: Sources, where: Where | None = None) -> Iterator[None]:
    """Samples them; those that are not here are in the run with the reason."""
    writer.meta(sensors_absent=found.absent)
    writer.commit()
    if not found.here:
        yield
        return
    sampler = Sampler(found.here, RunSink(str(writer.path)), where=where)
    try:
        with sampler:
            yield
    finally:
        summary = sampler.summary()
        # one that was killed says nothing about what it cost
        writer.meta(
            sampler=None
            if not summary.elapsed_s
            else {
                "elapsed_s": summary.elapsed_s,
                "cpu_share": summary.cpu_share,
                "stretch": summary.stretch,
                "lost": summary.lost,
                "sources": {
                    one.name: {
                        "period_s": one.period_s,
                        "readings": one.readings,
                        "missed": one.missed,
                        "mean_s": one.mean_s,
                        "cpu_share": one.cpu_share,
                    }
                    for one in summary.sources
                },
            }
        )
        if summary.problem:
            writer.note("sampler", summary.problem)


def idle(writer: RunWriter, seconds: float) -> None:
    """Does nothing for a while, so that the run knows what nothing takes."""
    begun = time.monotonic_ns()
    time.sleep(seconds)
    writer.meta(idle_ns=[begun, time.monotonic_ns()])
