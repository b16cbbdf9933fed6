"""Sensors sampled into a run file, from another process, while something else runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from handheld.sensors.find import find
from handheld.sensors.sampler import Sampler
from handheld.sensors.sink import RunSink
from handheld.store.writer import RunWriter

IDLE_S = 1.0  # of nothing before the first step: what the machine takes when it has nothing to do


@contextlib.contextmanager
def sampled(writer: RunWriter) -> Iterator[None]:
    """All sensors that are here; those that are not are in the run with the reason."""
    here, absent = [], {}
    for found in find():
        if found.sensor is None:
            absent[found.name] = found.reason
        else:
            here.append(type(found.sensor))
            found.sensor.close()
    writer.meta(sensors_absent=absent)
    writer.commit()
    if not here:
        yield
        return
    sampler = Sampler(here, RunSink(str(writer.path)))
    try:
        with sampler:
            yield
    finally:
        summary = sampler.summary()
        writer.meta(sampler={
            "elapsed_s": summary.elapsed_s, "cpu_share": summary.cpu_share, "lost": summary.lost,
            "sources": {one.name: {"period_s": one.period_s, "readings": one.readings,
                                   "missed": one.missed, "mean_s": one.mean_s,
                                   "cpu_share": one.cpu_share} for one in summary.sources}})
        if summary.problem:
            writer.note("sampler", summary.problem)


def idle(writer: RunWriter, seconds: float) -> None:
    """Does nothing for a while, so that the run knows what nothing takes."""
    begun = time.monotonic_ns()
    time.sleep(seconds)
    writer.meta(idle_ns=[begun, time.monotonic_ns()])
