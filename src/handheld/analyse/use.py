"""How busy the device, the cores and the memory were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.run import Run

BIN_NS, NOTHING_S = 100_000_000, 1e-3  # a core that worked for less in such a time was idle
OTHERS_NS = 500_000_000  # over which other processes can be told apart


@dataclass(frozen=True, slots=True)
class Utilisation(Record):
    """Shares of the time, and rates, by what was measured; the rest is None or empty."""

    device_busy: float | None = None  # in recorded steps, as all of the device
    device_idle: float | None = None
    gbytes_s: float | None = None  # that ops needed at least
    gflops: float | None = None
    bandwidth_share: float | None = None  # of the device's ceilings
    flops_share: float | None = None
    cores: dict[str, float] = field(default_factory=dict)  # busy
    cores_idle: dict[str, float] = field(default_factory=dict)  # in which they did nothing at all
    others_cores: float | None = None  # that other processes kept busy
    sensors: dict[str, float] = field(default_factory=dict)  # by rail: what the hardware counts

    def to_json(self) -> dict[str, object]:
        """What is known; the sensors' rails are among the rest."""
        found = {name: value for name, value in Record.to_json(self).items() if value is not None}
        del found["sensors"]
        if not self.cores:
            del found["cores"], found["cores_idle"]
        return {**found, **self.sensors}


def utilisation(run: Run) -> Utilisation:
    begin, end = run.warm()
    cores: dict[str, float] = {}
    idle: dict[str, float] = {}
    sensors: dict[str, float] = {}
    bins = np.arange(begin, end, BIN_NS)
    for one in run.channels:
        if one.quantity == "time" and one.counter and one.source == "cpu" and end > begin:
            low, high = np.interp((begin, end), one.t_ns, one.values)
            cores[one.name] = float((high - low) / ((end - begin) * 1e-9))
            if len(bins) > 1:
                rises = np.diff(np.interp(bins, one.t_ns, one.values))
                idle[one.name] = float((rises < NOTHING_S).mean())
        elif one.quantity == "utilisation" and len(one.within(begin, end)):
            sensors[one.rail] = float(one.within(begin, end).mean()) / 100
    others = _others(run, list(cores.values()), begin, end)
    return replace(_device(run), cores=cores, cores_idle=idle, others_cores=others, sensors=sensors)


def _device(run: Run) -> Utilisation:
    """Of the device alone."""
    if not run.periods:
        return Utilisation()
    length = sum(p.length for p in run.periods)
    busy = sum(p.parts.ops + p.parts.copy for p in run.periods)
    rows = {row.id: row for row in run.op_rows}
    ran = [rows[op] for p in run.periods for op in p.ops]
    gbytes_s = sum(row.bytes for row in ran) / (length * 1e-9) * 1e-9
    gflops = sum(row.flops for row in ran) / (length * 1e-9) * 1e-9
    ceilings = run.meta.get("ceilings")
    return Utilisation(
        device_busy=busy / length,
        device_idle=1 - busy / length,
        gbytes_s=gbytes_s,
        gflops=gflops,
        bandwidth_share=gbytes_s * 1e9 / ceilings["bytes_s"] if ceilings else None,
        flops_share=gflops * 1e9 / ceilings["flops"] if ceilings else None,
    )


def _others(run: Run, cores: Sequence[float], begin: int, end: int) -> float | None:
    """Cores that other processes kept busy; None: not known."""
    own = next((s for s in run.channels if (s.source, s.name) == ("process", "cpu time")), None)
    if not cores or own is None or end - begin < OTHERS_NS:
        return None
    low, high = np.interp((begin, end), own.t_ns, own.values)
    return max(sum(cores) - float(high - low) / ((end - begin) * 1e-9), 0.0)
