"""How busy the device, the cores and the memory were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.run import Run

BIN_NS, NOTHING_S = 100_000_000, 1e-3  # A core was idle in a bin if it was busy for less than NOTHING_S.
MOST_BINS = 1_000_000  # A run of more than a day has longer bins.
OTHERS_NS = 500_000_000  # the shortest time over which the load of other processes can be measured


@dataclass(frozen=True, slots=True)
class Utilisation(Record):
    """Shares of the time, and rates. Values that were not measured are None or empty."""

    device_busy: float | None = None  # share of recorded steps in which the device ran ops or copies
    device_idle: float | None = None
    gbytes_s: float | None = None  # the least that the ops needed
    gflops: float | None = None
    bandwidth_share: float | None = None  # share of the device's ceiling
    flops_share: float | None = None
    cores: dict[str, float] = field(default_factory=dict)  # busy share per core
    cores_idle: dict[str, float] = field(default_factory=dict)  # share in which the core did nothing at all
    others_cores: float | None = None  # cores that other processes kept busy
    sensors: dict[str, float] = field(default_factory=dict)  # per channel: the load that the hardware reports

    def to_json(self) -> dict[str, object]:
        """Only known values; the sensors become keys next to the other fields."""
        values = {name: value for name, value in Record.to_json(self).items() if value is not None}
        del values["sensors"]
        if not self.cores:
            del values["cores"], values["cores_idle"]
        return {**values, **self.sensors}


def bins(begin: int, end: int) -> np.ndarray:
    """The edges of bins of BIN_NS from `begin` to `end`."""
    return np.arange(begin, end, max(BIN_NS, (end - begin) // MOST_BINS), dtype=np.int64)


def utilisation(run: Run) -> Utilisation:
    begin, end = run.warm()
    cores: dict[str, float] = {}
    idle: dict[str, float] = {}
    sensors: dict[str, float] = {}
    at = bins(begin, end)
    for channel in run.channels:
        if channel.quantity == "time" and channel.counter and channel.source == "cpu" and end > begin:
            low, high = np.interp((begin, end), channel.t_ns, channel.values)
            cores[channel.name] = float((high - low) / ((end - begin) * 1e-9))
            if len(at) > 1:
                rises = np.diff(np.interp(at, channel.t_ns, channel.values))
                idle[channel.name] = float((rises < NOTHING_S).mean())
        elif channel.quantity == "utilisation" and len(channel.within(begin, end)):
            sensors[channel.rail] = float(channel.within(begin, end).mean()) / 100
    others = _others(run, list(cores.values()), begin, end)
    return replace(_device(run), cores=cores, cores_idle=idle, others_cores=others, sensors=sensors)


def _device(run: Run) -> Utilisation:
    """The values of the device, without cores and sensors."""
    if not run.periods:
        return Utilisation()
    length = sum(p.length for p in run.periods)
    busy = sum(p.parts.ops + p.parts.copy for p in run.periods)
    rows = {row.id: row for row in run.op_rows}
    ran = [rows[op] for p in run.periods for op in p.ops]
    # A run whose ops all have no work is one that does not know it, such as an imported trace.
    gbytes_s = sum(row.bytes for row in ran) / length or None
    gflops = sum(row.flops for row in ran) / length or None
    ceilings = run.meta.get("ceilings")
    return Utilisation(
        device_busy=busy / length,
        device_idle=1 - busy / length,
        gbytes_s=gbytes_s,
        gflops=gflops,
        bandwidth_share=gbytes_s * 1e9 / ceilings["bytes_s"] if ceilings and gbytes_s else None,
        flops_share=gflops * 1e9 / ceilings["flops"] if ceilings and gflops else None,
    )


def _others(run: Run, cores: Sequence[float], begin: int, end: int) -> float | None:
    """The number of cores that other processes kept busy, or None if not known."""
    own = next((s for s in run.channels if (s.source, s.name) == ("process", "cpu time")), None)
    if not cores or own is None or end - begin < OTHERS_NS:
        return None
    low, high = np.interp((begin, end), own.t_ns, own.values)
    return max(sum(cores) - float(high - low) / ((end - begin) * 1e-9), 0.0)
