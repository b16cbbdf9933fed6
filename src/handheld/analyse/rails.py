"""Power and energy over a window, by rail. A rail is a channel of power or of an energy counter."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from handheld.store.reader import RunFile


@dataclass(frozen=True)
class Series:
    """One channel: times in ns and values; of a counter they only rise."""

    source: str
    name: str
    quantity: str
    unit: str
    counter: bool
    covers: tuple[str, ...]
    part_of: str
    t_ns: np.ndarray
    values: np.ndarray

    @property
    def rail(self) -> str:
        return f"{self.source}/{self.name}"

    def within(self, begin: int, end: int) -> np.ndarray:
        """Values read in the window."""
        return self.values[(self.t_ns >= begin) & (self.t_ns <= end)]

    def ticks(self, begin: int, end: int) -> int:
        """How often the value changed in the window."""
        values = self.within(begin, end)
        return int((np.diff(values) != 0).sum())

    def joules(self, begin: int, end: int) -> float | None:
        """Energy of the window: a counter's difference, or power times time; None where the
        readings do not reach around it."""
        if len(self.t_ns) < 2 or self.t_ns[0] > begin or self.t_ns[-1] < end:
            return None
        if self.counter:
            low, high = np.interp((begin, end), self.t_ns, self.values)
            return float(high - low)
        inside = (self.t_ns > begin) & (self.t_ns < end)
        at = np.concatenate(([begin], self.t_ns[inside], [end])).astype(np.float64)
        watts = np.interp(at, self.t_ns, self.values)
        return float(((watts[1:] + watts[:-1]) / 2 * np.diff(at)).sum() * 1e-9)


def series(file: RunFile) -> list[Series]:
    """Every channel with at least one value."""
    found = []
    for number, source in file.rows("SELECT id, name FROM source ORDER BY id"):
        channels = file.table("SELECT * FROM channel WHERE source=? ORDER BY position", number)
        rows = file.rows("SELECT t_ns, data FROM reading WHERE source=? ORDER BY t_ns", number)
        width = 8 * len(channels)
        rows = [row for row in rows if len(row[1]) == width]
        if not rows:
            continue
        t_ns = np.array([row[0] for row in rows], np.int64)
        data = np.frombuffer(b"".join(row[1] for row in rows), "<f8").reshape(len(rows), -1)
        for one in channels:
            values = data[:, one["position"]]
            here = ~np.isnan(values)
            if here.any():
                found.append(
                    Series(
                        source,
                        one["name"],
                        one["quantity"],
                        one["unit"],
                        bool(one["counter"]),
                        tuple(json.loads(one["covers"])),
                        one["part_of"] or "",
                        t_ns[here],
                        values[here],
                    )
                )
    return found


def rails(channels: list[Series]) -> list[Series]:
    """The channels that say something about energy; where a source has a counter of what it also
    reports as power, the counter."""
    counted = {(s.source, s.covers) for s in channels if s.quantity == "energy"}
    return [
        s for s in channels if s.quantity == "energy" or (s.quantity == "power" and (s.source, s.covers) not in counted)
    ]
