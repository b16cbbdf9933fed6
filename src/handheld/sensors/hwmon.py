"""The sensor of all other hwmon chips: power, energy and temperature, named by the chip's labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from handheld.sensors.base import Channel, Sensor, Unavailable, Value, Where, distinct
from handheld.sensors.files import File, label, optional, unless_all_missing

#: Chips that another sensor of this folder reads.
_ELSEWHERE = {"ina3221", "amdgpu"}
_KINDS = (
    ("power*_input", "power", 1e-6),
    ("power*_average", "power", 1e-6),
    ("energy*_input", "energy", 1e-6),
    ("temp*_input", "temperature", 1e-3),
)


class Hwmon(Sensor):
    name = "hwmon"
    about = "power, energy and temperature of other chips (hwmon)"
    period_s = 0.1
    files = tuple(
        f"/sys/class/hwmon/hwmon*/{name}"
        for name in ("name", "power*_label", "energy*_label", "temp*_label", *(pattern for pattern, _, _ in _KINDS))
    )

    def __init__(self, entries: list[tuple[File, str, str, float]]) -> None:
        self._files = [(file, scale) for file, _, _, scale in entries]
        self.channels = tuple(
            Channel(name, quantity, counter=quantity == "energy")
            for name, (_, _, quantity, _) in zip(distinct([name for _, name, _, _ in entries]), entries, strict=True)
        )

    @classmethod
    def probe(cls, where: Where) -> Hwmon:
        chips = where.glob("/sys/class/hwmon/hwmon*")
        if not chips:
            raise Unavailable("there is no chip in /sys/class/hwmon")
        entries = [entry for chip in chips for entry in _chip(where, chip)]
        if not entries:
            raise Unavailable(
                "no chip of /sys/class/hwmon reports power, energy or temperature, "
                "except those that another sensor reads"
            )
        return cls(entries)

    def read(self) -> Sequence[Value]:
        return unless_all_missing([file.value(scale) for file, scale in self._files])


def _chip(where: Where, chip: Path) -> list[tuple[File, str, str, float]]:
    chip_name = label(chip / "name", chip.name)
    if chip_name in _ELSEWHERE or where.path(f"/sys/class/power_supply/{chip_name}").exists():
        return []
    entries = []
    for pattern, quantity, scale in _KINDS:
        for path in sorted(chip.glob(pattern)):
            stem, _, kind = path.name.partition("_")
            if kind == "average" and (chip / f"{stem}_input").exists():
                continue
            file = optional(where, path)
            if file is not None:
                entries.append((file, f"{chip_name} {label(chip / f'{stem}_label', stem)}", quantity, scale))
    return entries
