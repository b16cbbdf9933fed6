"""Which devices train this round, and how many steps each: pure decisions over what devices report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handheld.errors import HandheldError


@dataclass(frozen=True)
class Select:
    """Limits on the devices of a round. None: no limit. A device that does not report a quantity passes its limit.

    - `battery_floor` (percent): a device below it does not train, unless it is being charged.
    - `thermal_limit` (°C): a hotter device does not train this round.
    - `memory_bytes`: a device whose plan needs more does not train.
    - `round_seconds`: the time that a round may take a device. A slow one gets fewer steps, by its measured speed, and
      ends a round whose time is up. Default: half of the time that the server waits for replies.
    """

    battery_floor: float | None = None
    thermal_limit: float | None = None
    memory_bytes: int | None = None
    round_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.battery_floor is not None and not 0 <= self.battery_floor <= 100:
            raise HandheldError(f"battery_floor is {self.battery_floor}. Try: a percentage from 0 to 100")
        for name in ("thermal_limit", "memory_bytes", "round_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise HandheldError(f"{name} is {value}. Try: a number above 0, or None for no limit")

    def reason_against(self, facts: Mapping[str, Any]) -> str:
        """Why a device with these facts must not train now, or ""."""
        battery, heat, needed = facts.get("battery-percent"), facts.get("celsius"), facts.get("peak-bytes")
        floor = 0.0 if facts.get("charging") else self.battery_floor or 0.0
        if battery is not None and battery < floor:
            return f"its battery is at {battery:g}%, below {floor:g}%"
        if self.thermal_limit is not None and heat is not None and heat > self.thermal_limit:
            return f"it has {heat:.1f} °C, above {self.thermal_limit:g} °C"
        if self.memory_bytes is not None and needed is not None and needed > self.memory_bytes:
            return f"its plan needs {needed:,} bytes, more than {self.memory_bytes:,}"
        return ""

    def steps(self, facts: Mapping[str, Any], epochs: int) -> int | None:
        """The most steps of a device in this round. None: all of its data, because it is fast enough or its speed is
        not known yet."""
        seconds = facts.get("step-seconds")
        if self.round_seconds is None or not seconds:
            return None
        most = max(1, math.floor(self.round_seconds / seconds))
        whole = int(facts.get("batches", 0)) * epochs
        return most if not whole or most < whole else None
