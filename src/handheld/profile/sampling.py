"""Samples sensors into a run file, from a separate process, while the steps run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from handheld.errors import HandheldError
from handheld.sensors.base import Sensor, Value, Where
from handheld.sensors.find import ProbedSource, find
from handheld.sensors.replay import TargetSampler
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
    powered: bool = False  # whether one of them measures power or energy now
    unread: dict[str, str] = field(default_factory=dict)  # channels of power without a value now, with the reason
    target: str = ""  # the target that they belong to, if not this machine

    def need_power(self) -> None:
        """Raise HandheldError if energy cannot be measured. Called before anything long runs."""
        if self.powered:
            return
        where = self.target or "this machine"
        if self.unread:
            why = "; ".join(f"{channel}: {reason}" for channel, reason in self.unread.items())
            # The cable of adb charges a phone.
            wifi = " and reach it over Wi-Fi (docs/platforms/android.md)" if self.target.startswith("adb") else ""
            raise HandheldError(f"energy cannot be measured on {where} now: {why}{wifi}")
        raise HandheldError(
            f"energy cannot be measured: {where} has no power sensor that can be read. "
            f"Try: handheld doctor{self.target and f' --on {self.target}'}, which says why for each sensor, or an "
            "estimate (handheld profile --estimate-energy)"
        )

    def add(self, probed: ProbedSource) -> None:
        """Add what was found of a source. Its sensor is closed."""
        if probed.sensor is None:
            self.absent[probed.name] = probed.reason
        else:
            self.take(probed.sensor, probed.first)

    def take(self, sensor: Sensor, first: Sequence[Value] = ()) -> None:
        """Add a sensor, and close it. `first` is its first reading, if there was one."""
        self.here.append(type(sensor))
        for channel, value in zip(sensor.channels, first or (0.0,) * len(sensor.channels), strict=True):
            if channel.quantity != "power" and not (channel.quantity == "energy" and channel.counter):
                continue  # The energy that is left in a battery is no counter, and too coarse.
            if isinstance(value, str):
                self.unread[f"{sensor.name}/{channel.name}"] = value
            else:
                self.powered = True
        sensor.close()


def sources(sensors: Sensors = True, where: Where | None = None) -> Sources:
    """Look for all sensors, or for the given ones."""
    result = Sources()
    if sensors is False:
        return result
    for probed in find(where) if sensors is True else ():
        result.add(probed)
    for sensor in () if sensors is True else sensors:
        result.take(sensor.probe(where or Where()))
    return result


@contextlib.contextmanager
def sampled(writer: RunWriter, found: Sources, where: Where | None = None) -> Iterator[None]:
    """Sample these sensors during the context. The run file also gets the reason of each absent sensor."""
    writer.meta(sensors_absent=found.absent)
    writer.commit()
    if not found.here:
        yield
        return
    with summed_up(writer, Sampler(found.here, RunSink(str(writer.path)), where=where)):
        yield


@contextlib.contextmanager
def summed_up(writer: RunWriter, sampler: Sampler | TargetSampler) -> Iterator[None]:
    """Run a sampler during the context, and write what it did and what it cost."""
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
    begun = writer.clock()
    time.sleep(seconds)
    writer.meta(idle_ns=[begun, writer.clock()])
