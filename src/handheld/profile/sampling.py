"""Samples sensors into a run file, from a separate process, while the steps run."""

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

#: All sensors that are present (True), none (False), or these.
Sensors = bool | Iterable[type[Sensor]]


@dataclass
class Sources:
    """The sensors that can be sampled, and the reasons why others are absent."""

    here: list[type[Sensor]] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    powered: bool = False  # whether one of them measures power or energy

    def need_power(self) -> None:
        """Raise HandheldError if energy cannot be measured. Called before anything long runs."""
        if not self.powered:
            raise HandheldError(
                "energy cannot be measured: this machine has no power sensor that can be read. "
                "Try: handheld doctor, which says why for each sensor, or an estimate "
                "(handheld profile --estimate-energy)"
            )


def sources(sensors: Sensors = True, where: Where | None = None) -> Sources:
    """Look for all sensors, or for the given ones."""
    result = Sources()
    if sensors is False:
        return result
    for probed in find(where) if sensors is True else ():
        if probed.sensor is None:
            result.absent[probed.name] = probed.reason
        else:
            _take(result, probed.sensor)
    for sensor in () if sensors is True else sensors:
        _take(result, sensor.probe(where or Where()))
    return result


def _take(result: Sources, sensor: Sensor) -> None:
    result.here.append(type(sensor))
    result.powered |= any(c.quantity in ("power", "energy") for c in sensor.channels)
    sensor.close()


@contextlib.contextmanager
def sampled(writer: RunWriter, found: Sources, where: Where | None = None) -> Iterator[None]:
    """Sample these sensors during the context. The run file also gets the reason of each absent sensor."""
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
        # A sampler that was killed did not report its cost.
        writer.meta(
            sampler=None
            if not summary.elapsed_s
            else {
                "elapsed_s": summary.elapsed_s,
                "cpu_share": summary.cpu_share,
                "stretch": summary.stretch,
                "lost": summary.lost,
                "sources": {
                    source.name: {
                        "period_s": source.period_s,
                        "readings": source.readings,
                        "missed": source.missed,
                        "mean_s": source.mean_s,
                        "cpu_share": source.cpu_share,
                    }
                    for source in summary.sources
                },
            }
        )
        if summary.problem:
            writer.note("sampler", summary.problem)


def idle(writer: RunWriter, seconds: float) -> None:
    """Sleep, and note the time, so that the run file holds the idle power."""
    begun = time.monotonic_ns()
    time.sleep(seconds)
    writer.meta(idle_ns=[begun, time.monotonic_ns()])
