"""Counters that wrap or start again, made into one rising line; and rates."""

from __future__ import annotations

from handheld.sensors.base import Channel

#: more than any device this runs on: a step beyond it is a counter that was set, not one that ran
_LIMIT_PER_S = {"energy": 1e5, "time": 100.0, "charge": 1e4}


class Rising:
    """One counter. `add` gives its value as if it had never wrapped or started again.

    A counter that falls has wrapped if it says where it wraps and the way over the top is possible
    in the time; otherwise it was set anew, and what it counted in between is not known: `lost`
    grows, and the line goes on from where it was.
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
    """What a counter did in a second between two readings; None where that cannot be known.

    Joules become watts; seconds become a share of the time.
    """
    line = Rising(channel)
    first, last = line.add(t0_s, raw0), line.add(t1_s, raw1)
    return None if line.lost or t1_s <= t0_s else (last - first) / (t1_s - t0_s)
