"""The sensor of the energy counters of Intel and AMD processors (RAPL), through /sys/class/powercap.

A zone `intel-rapl:N` is a package or the platform (psys). A zone `intel-rapl:N:M` is a part of it: core, uncore or
dram. Never add a part to its whole, or psys to a package. Counters wrap at `max_energy_range_uj`, after minutes to
hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from handheld.sensors.base import Channel, Sensor, Value, Where, distinct
from handheld.sensors.files import File, absent, label, opened, optional, unless_all_missing

_HINT = (
    "Only root may read it. Try: sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj (lasts until the "
    "next start of the machine)"
)
_COVERS = {"psys": ("system",), "core": ("cpu",), "uncore": ("gpu",), "dram": ("memory",)}


class Rapl(Sensor):
    name = "rapl"
    about = "Intel and AMD processor energy (RAPL)"
    period_s = 0.01  # The counters change every millisecond.
    files = (
        "/sys/class/powercap/intel-rapl:*/name",
        "/sys/class/powercap/intel-rapl:*/energy_uj",
        "/sys/class/powercap/intel-rapl:*/max_energy_range_uj",
    )

    def __init__(self, files: list[File], channels: list[Channel]) -> None:
        self._files, self.channels = files, tuple(channels)

    @classmethod
    def probe(cls, where: Where) -> Rapl:
        # The pattern leaves out intel-rapl-mmio, which lists the same packages again.
        zones = where.glob("/sys/class/powercap/intel-rapl:*")
        if not zones:
            raise absent(
                where,
                "/sys/class/powercap",
                (
                    "there is no /sys/class/powercap/intel-rapl:*: another kind of processor, a "
                    "virtual machine, or a kernel without intel_rapl_msr"
                ),
            )
        names = dict(
            zip(
                (zone.name for zone in zones),
                distinct([label(zone / "name", zone.name) for zone in zones]),
                strict=True,
            )
        )
        files, channels = [], []
        for zone in zones:
            files.append(opened(where, zone / "energy_uj", _HINT))
            channels.append(_channel(where, zone, names))
        return cls(files, channels)

    def read(self) -> Sequence[Value]:
        return unless_all_missing([file.value(1e-6) for file in self._files])


def _channel(where: Where, zone: Path, names: dict[str, str]) -> Channel:
    kind, parent = label(zone / "name"), names.get(zone.name.rpartition(":")[0], "")
    wraps = optional(where, zone / "max_energy_range_uj")
    return Channel(
        f"{parent} {kind}" if parent else names[zone.name],
        "energy",
        counter=True,
        covers=_COVERS.get(kind, ("cpu package",)),
        part_of=parent,
        wraps_at=wraps.number(1e-6) if wraps else None,
    )
