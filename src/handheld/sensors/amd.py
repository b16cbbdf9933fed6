"""The sensor of AMD GPUs (amdgpu driver)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from handheld.sensors.base import Channel, Sensor, Unavailable, Value, Where
from handheld.sensors.files import File, opened, optional, unless_all_missing

#: Files under the card's device folder: path, channel, quantity, part, scale. A channel's first readable file is used.
_FILES = (
    ("gpu_busy_percent", "load", "utilisation", "gpu", 1.0),
    ("mem_busy_percent", "memory load", "utilisation", "memory", 1.0),
    ("mem_info_vram_used", "memory used", "memory", "memory", 1.0),
    ("hwmon/hwmon*/power1_average", "power", "power", "gpu", 1e-6),
    ("hwmon/hwmon*/power1_input", "power", "power", "gpu", 1e-6),
    ("hwmon/hwmon*/temp1_input", "temperature", "temperature", "gpu", 1e-3),
    ("hwmon/hwmon*/freq1_input", "clock", "frequency", "gpu", 1.0),
    ("hwmon/hwmon*/freq2_input", "memory clock", "frequency", "memory", 1.0),
)


class AmdGpu(Sensor):
    name = "amd-gpu"
    about = "AMD GPU load, power, memory, clocks and temperature"
    period_s = 0.05
    files = tuple(f"/sys/class/drm/card*/device/{path}" for path, *_ in _FILES)

    def __init__(self, entries: list[tuple[Channel, File, float]]) -> None:
        self.channels = tuple(channel for channel, _, _ in entries)
        self._files = [(file, scale) for _, file, scale in entries]

    @classmethod
    def probe(cls, where: Where) -> AmdGpu:
        cards = [path.parent for path in where.glob("/sys/class/drm/card[0-9]*/device/gpu_busy_percent")]
        if not cards:
            raise Unavailable(
                "there is no /sys/class/drm/card*/device/gpu_busy_percent: no AMD GPU, or not the amdgpu driver"
            )
        opened(where, cards[0] / "gpu_busy_percent", "Try: sudo usermod -aG video,render $USER")
        return cls([entry for index, card in enumerate(cards) for entry in _card(where, index, card)])

    def read(self) -> Sequence[Value]:
        return unless_all_missing([file.value(scale) for file, scale in self._files])


def _card(where: Where, index: int, card: Path) -> list[tuple[Channel, File, float]]:
    entries: dict[str, tuple[Channel, File, float]] = {}
    for pattern, name, quantity, covers, scale in _FILES:
        for path in sorted(card.glob(pattern)):
            file = optional(where, path)
            if file is not None and name not in entries:
                entries[name] = (Channel(f"gpu{index} {name}", quantity, covers=(covers,)), file, scale)
    return list(entries.values())
