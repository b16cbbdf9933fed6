"""Counters without their wraps and resets, and rates of counters."""

from __future__ import annotations

from handheld.sensors.base import Channel

#: Upper limits for any device. A faster rise means that the counter was set to a new value.
_LIMIT_PER_S = {"energy": 1e5, "time": 100.0, "charge": 1e4}


class Rising:
    """One counter. `add` returns its value as if it had never wrapped or been reset.

    A counter that falls has wrapped if its `wraps_at` is known and the rise across the wrap is possible in the time.
    Otherwise it was reset, and what it counted in between is unknown: `lost` grows by one, and the value continues
    from where it was.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.lost = 0
        self._raw: float | None = None
        self._base = self._t = 0.0

    def add(self, t_s: float, raw: float) -> float:
        before, span = self._raw, t_s - self._t
        self._raw, self._t = raw, t_s
        if before is None:
            return self._base + raw
        wraps_at = self.channel.wraps_at
        limit = _LIMIT_PER_S.get(self.channel.quantity, float("inf")) * max(span, 1e-3)
        if raw < before:
            if wraps_at is not None and raw + wraps_at - before <= limit:
                self._base += wraps_at
            else:
                self.lost += 1
                self._base += before - raw
        elif raw - before > limit:
            self.lost += 1
            self._base += before - raw
        return self._base + raw


def rate(channel: Channel, t0_s: float, raw0: float, t1_s: float, raw1: float) -> float | None:
    """The rise of a counter per second between two readings, or None if it is unknown.

    Joules become watts; seconds of busy time become a share.
    """
    line = Rising(channel)
    first, last = line.add(t0_s, raw0), line.add(t1_s, raw1)
    return None if line.lost or t1_s <= t0_s else (last - first) / (t1_s - t0_s)
