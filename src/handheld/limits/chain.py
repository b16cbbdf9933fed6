"""The best choice of values to drop if the values of a graph formed a chain, by dynamic programming.

The values have the order in which the forward pass makes them. At a *cut* after value i, the value i stays in memory,
and so does every earlier value that a later one is computed from (the input of a residual block, for example). Between
two cuts everything else is dropped, and is computed again together when the backward pass gets there:

    forward    1 ── 2 ── (3) ── (4) ── 5 ──          cuts after 2 and 5: the values that stay up to 2, and
    backward            ◄── 3' 4' ──                 3' and 4' are in memory at that time

For every cut, the ways to get there are kept that no other beats both in bytes that stay and in seconds, up to a number
(`ways_of`). For a chain the result is the least time within the limit in which no value is computed more than twice.
For other graphs it is a good start (`search`).
"""

from __future__ import annotations

import numpy as np

from handheld.limits.ledger import Ledger

#: The most and the fewest ways to a cut that are kept. The product of ways and values is at most WORK.
WAYS, FEWEST, WORK = 192, 48, 40_000


class Chain:
    """The choices of a ledger as a chain. Position 0 is the start of the step, 1 … n are the choices, and n + 1 is the
    turning point. There is always a cut at both ends."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        entries = [ledger.entries[t] for t in ledger.choices]
        self.count = len(entries)
        self.bytes = np.array([0, *(entry.nbytes for entry in entries), 0], np.int64)
        self.less = np.array([0, *(entry.less for entry in entries), 0], np.int64)
        closures = [_closure(ledger, entry.tensor) for entry in entries]
        self.seconds = np.array([0.0, *(seconds for seconds, _ in closures), 0.0])
        position = {t: k for k, t in enumerate(ledger.choices, 1)}
        #: The last value that is computed from each.
        self.needed = np.zeros(self.count + 2, np.int64)
        for k, (_, needs) in enumerate(closures, 1):
            for t in needs:
                self.needed[position[t]] = max(self.needed[position[t]], k)
        self._set_times(ledger)
        self.forward = self._forward()
        self.inside, self.more, self.cost = self._between_cuts()

    def _set_times(self, ledger: Ledger) -> None:
        """When the backward pass reads each value first and last. The start of the step is read last of all."""
        first: dict[int, int] = {}
        for n, reads in enumerate(ledger.reads):
            for tensor in reads:
                first.setdefault(tensor, ledger.turn + n)
        end = len(ledger.fixed)
        self.first = [end, *(first[t] for t in ledger.choices), ledger.turn]
        self.last = [end, *(ledger.entries[t].late for t in ledger.choices), ledger.turn - 1]

    def _forward(self) -> np.ndarray:
        """For cuts [i, j]: the most bytes in the forward pass between them, without what stays up to i."""
        ledger, size = self.ledger, self.count + 2
        change = np.zeros(ledger.turn + 2, np.int64)
        for entry in ledger.entries.values():
            change[entry.born] += entry.less
            change[entry.early + 1] -= entry.less
        total = np.cumsum(change)[: ledger.turn] + ledger.fixed[: ledger.turn]
        born = [-1, *(ledger.entries[t].born for t in ledger.choices), ledger.turn - 1]
        early = [-1, *(ledger.entries[t].early for t in ledger.choices), -1]
        forward = np.zeros((size, size), np.int64)
        for i in range(size - 1):
            rest = total.copy()
            rest[: early[i] + 1] -= self.less[i]  # It is counted as one that stays.
            rest[: born[i] + 1] = 0
            forward[i] = np.maximum.accumulate(rest)[np.maximum(born, 0)]
        return forward

    def _between_cuts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For cuts [i, j]: the most bytes in the backward pass between them, without what stays up to i; the bytes that
        stay in addition because of the cut j; and the seconds to compute the values between them again."""
        size = self.count + 2
        inside, more = np.zeros((size, size), np.int64), np.zeros((size, size), np.int64)
        cost = np.zeros((size, size))
        for j in range(1, size):
            total = self.ledger.fixed.astype(np.int64).copy()
            total[self.ledger.turn : self.last[j] + 1] += self.bytes[j]
            start, stays, seconds = self.first[j], int(self.bytes[j]), 0.0
            again = len(total)  # when the first of the values between the cuts is computed again
            for i in range(j - 1, -1, -1):
                inside[i, j] = total[start : max(self.first[i], start + 1)].max(initial=0)
                more[i, j], cost[i, j] = stays, seconds
                if self.needed[i] > j:
                    stays += int(self.bytes[i])
                    total[start : self.last[i] + 1] += self.bytes[i]
                else:
                    again = min(again, self.first[i])
                    seconds += float(self.seconds[i])
                    total[again : self.last[i] + 1] += self.less[i]
        return inside, more, cost

    def best(self, limit: int) -> frozenset[int] | None:
        """The values to drop for the least time within the limit; None if there is no such choice."""
        size, room = self.count + 2, limit - np.maximum(self.inside, self.forward)
        most = ways_of(self.count)
        ways = _Table(size, most)
        for j in range(1, size):
            # The bytes that stay up to each earlier cut, if the bytes between the two cuts leave room for them.
            cut, way = np.nonzero(ways.bytes[:j] <= room[:j, j, None])
            if len(cut):
                stay = ways.bytes[cut, way] + self.more[cut, j]
                seconds = ways.seconds[cut, way] + self.cost[cut, j]
                kept = _best(stay, seconds, most, limit)
                ways.put(j, stay[kept], seconds[kept], cut[kept], way[kept])
        if not ways.counts[-1]:
            return None
        cuts, j, at = [], size - 1, ways.counts[-1] - 1  # The last way has the most bytes and the fewest seconds.
        while j:
            j, at = int(ways.cut[j, at]), int(ways.way[j, at])
            cuts.append(j)
        return self._dropped(cuts)

    def _dropped(self, cuts: list[int]) -> frozenset[int]:
        stay = set(cuts)
        for cut in cuts:
            stay |= {k for k in range(1, cut) if self.needed[k] > cut}
        return frozenset(t for k, t in enumerate(self.ledger.choices, 1) if k not in stay)


class _Table:
    """Ways to each cut: the bytes that stay, the seconds so far, and the cut before with the number of the way to it.
    The start has one way. A place without a way has more bytes than any limit."""

    def __init__(self, size: int, most: int) -> None:
        self.bytes = np.full((size, most), np.iinfo(np.int64).max)
        self.seconds = np.zeros((size, most))
        self.cut, self.way = np.zeros((size, most), np.int32), np.zeros((size, most), np.int32)
        self.counts = [0] * size
        self.put(0, *(np.zeros(1, np.int64) for _ in range(4)))

    def put(self, j: int, stay: np.ndarray, seconds: np.ndarray, cut: np.ndarray, way: np.ndarray) -> None:
        count = self.counts[j] = len(stay)
        self.bytes[j, :count], self.seconds[j, :count] = stay, seconds
        self.cut[j, :count], self.way[j, :count] = cut, way


def ways_of(count: int) -> int:
    """How many ways to a cut are kept. A long chain keeps fewer, because the work grows with the square of its
    length."""
    return min(max(WORK // max(count, 1), FEWEST), WAYS)


def _best(stay: np.ndarray, seconds: np.ndarray, most: int, limit: int) -> np.ndarray:
    """The numbers of the ways that no other beats, by rising bytes and falling seconds. If there are too many, the
    fastest of each range of bytes is kept; all ranges up to the limit have the same length."""
    order = np.lexsort((seconds, stay))
    ordered = seconds[order]
    better = np.ones(len(order), bool)
    better[1:] = ordered[1:] < np.minimum.accumulate(ordered)[:-1]
    kept = order[better]
    if len(kept) > most:
        ranges = stay[kept] * most // (limit + 1)
        kept = kept[np.append(ranges[1:] != ranges[:-1], True)]
    return kept


def _closure(ledger: Ledger, tensor: int) -> tuple[float, set[int]]:
    """The time to compute a value again if all other choices are in memory, and the choices that this reads."""
    seconds, needs, stack, seen = 0.0, set(), [tensor], {tensor}
    while stack:
        entry = ledger.entries[stack.pop()]
        seconds += entry.seconds
        for need in entry.needs:
            if need not in ledger.unread:
                needs.add(need)
            elif need not in seen:
                seen.add(need)
                stack.append(need)
    return seconds, needs
