"""Finds the values to drop for a memory limit: the choice of the chain, improved on the graph itself.

A search ends by the work that it has done and not by a clock, so it finds the same choice on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from handheld.limits.chain import Chain
from handheld.limits.ledger import NONE, Ledger
from handheld.limits.simulate import Outcome, Profile, profile, simulate

#: How much work one limit may take: a simulation costs the number of values and nodes that it looks at. This is about
#: a second of a CPU.
WORK = 1_000_000
#: How many limits of the chain are tried for one limit.
TRIES = 5
#: A known choice that needs at least this share of a limit is improved, and the chain is not asked again.
NEAR = 0.97


#: For the smallest plan, limits are tried that are smaller by this share each.
SMALLER = 0.05


@dataclass(frozen=True)
class Choice:
    """The values to drop, those of them that are brief, and what the step then needs."""

    dropped: frozenset[int]
    outcome: Outcome
    brief: frozenset[int] = NONE


class Search:
    """Searches for one graph. `start` is what the plan without a limit drops."""

    def __init__(self, ledger: Ledger, start: Set[int]) -> None:
        self.ledger = ledger
        self.chain = Chain(ledger)
        self.start = self._choice(frozenset(start))
        self.seen: list[Choice] = [self.start]
        self._cost = len(ledger.entries) + len(ledger.fixed)  # of a simulation

    def _choice(self, dropped: frozenset[int], brief: frozenset[int] = NONE) -> Choice:
        return Choice(dropped, simulate(self.ledger, dropped, brief), brief)

    def within(self, limit: int, work: int = WORK, tries: int = TRIES) -> Choice | None:
        """The fastest choice found whose peak is at most `limit`; None if there is none."""
        if self.start.outcome.peak <= limit:
            return self.start
        if not any(limit * NEAR <= choice.outcome.peak <= limit for choice in self.seen):
            self._ask_chain(limit, tries)
        best = min(self.seen, key=lambda choice: _score(choice.outcome, limit))
        if best.outcome.peak > limit:
            best = self._meet(best, limit, work)
        best = self._improve(best, limit, work)
        return best if best.outcome.peak <= limit else None

    def smallest(self, work: int = WORK) -> Choice:
        """The choice with the smallest peak that was found, whatever its time. It does not depend on what was asked
        before, so that a limit that an error names is met later."""
        before, self.seen = self.seen, [self.start]
        try:
            return self._smallest(work)
        finally:
            self.seen = before + self.seen

    def _smallest(self, work: int) -> Choice:
        low, high = 0, self.start.outcome.peak
        for _ in range(2 * TRIES):
            middle = (low + high) // 2
            low, high = (middle, high) if self._of_chain(middle) is None else (low, middle)
        best = min(self.seen, key=lambda choice: _score(choice.outcome, 0))
        best = self._improve(best, 0, work // 2)
        for _ in range(2 * TRIES):
            smaller = self._meet(best, int(best.outcome.peak * (1 - SMALLER)), work // 4)
            if smaller.outcome.peak >= best.outcome.peak:
                break
            best = smaller
        return best

    def _ask_chain(self, limit: int, tries: int) -> None:
        """The chain is a model of the graph, so the limit that it needs to meet the real one may be another."""
        low, high = limit // 2, limit * 3 // 2
        for n in range(tries):
            middle = (low + high) // 2 if n else limit
            choice = self._of_chain(middle)
            if choice is None or choice.outcome.peak <= limit:
                low = middle
                if choice is not None and choice.outcome.peak >= limit * NEAR:
                    return
            else:
                high = middle

    def _of_chain(self, limit: int) -> Choice | None:
        dropped = self.chain.best(limit)
        if dropped is None:
            return None
        self.seen.append(self._choice(dropped))
        return self.seen[-1]

    def _meet(self, choice: Choice, limit: int, work: int) -> Choice:
        """Lowers the highest peak, again and again, by the change that costs least per byte, until the limit is met or
        nothing helps."""
        now = profile(self.ledger, choice.dropped, choice.brief)
        left = work // self._cost
        while now.total.max() > limit and left > 0:
            moves = self._moves(now, int(now.total.argmax()), choice)
            left -= len(moves)
            over, best = _over(now, limit), None
            for dropped, brief in moves:
                then = profile(self.ledger, dropped, brief)
                gain = over - _over(then, limit)
                if gain > 0:
                    rate = gain / max(then.added.seconds - now.added.seconds, 1e-9)
                    if best is None or rate > best[0]:
                        best = rate, dropped, brief, then
            if best is None:
                break
            _, dropped, brief, now = best
            choice = Choice(dropped, Outcome(int(now.total.max()), now.added.seconds), brief)
            self.seen.append(choice)
        return min((c for c in self.seen if c.dropped), key=lambda c: _score(c.outcome, limit), default=choice)

    def _moves(self, now: Profile, at: int, choice: Choice) -> list[tuple[frozenset[int], frozenset[int]]]:
        """The changes of a choice that may free memory at a moment: values there that can be dropped, or be brief."""
        added, seen = now.added, set[int]()
        moves = []
        for k in np.flatnonzero((now.copy_born < at) & (now.copy_end >= at)):
            tensor = added.entry[k]
            if added.stays[k] and tensor in choice.dropped and tensor not in choice.brief | seen:
                moves.append((choice.dropped, choice.brief | {tensor}))
                seen.add(tensor)
        entries = list(self.ledger.columns.place)
        able = self.ledger.able
        for k in np.flatnonzero((now.born <= at) & (now.end >= at)):
            tensor = entries[k]
            if tensor in able and tensor not in choice.dropped:
                moves.append((choice.dropped | {tensor}, choice.brief))
                moves.append((choice.dropped | {tensor}, choice.brief | {tensor}))
        return moves

    def _improve(self, choice: Choice, limit: int, work: int) -> Choice:
        """Drops or keeps single values as long as that helps: first to meet the limit, then to take less time."""
        entries = self.ledger.entries
        order = sorted(self.ledger.choices, key=lambda t: -entries[t].seconds)
        left = max(work // self._cost, 1)
        since = 0  # values since the last one that was better
        for tensor in itertools.islice(itertools.cycle(order), left):
            since += 1
            for dropped, brief in _others(choice, tensor):
                other = self._choice(dropped, brief)
                if _score(other.outcome, limit) < _score(choice.outcome, limit):
                    choice, since = other, 0
                    break
            if since >= len(order):
                break
        self.seen.append(choice)
        return choice


def _others(choice: Choice, tensor: int) -> list[tuple[frozenset[int], frozenset[int]]]:
    """The choice with something else done to one value."""
    if tensor not in choice.dropped:
        return [(choice.dropped | {tensor}, choice.brief)]
    kept = choice.dropped - {tensor}, choice.brief - {tensor}
    return [kept, (choice.dropped, choice.brief - {tensor})] if tensor in choice.brief else [kept]


def _over(found: Profile, limit: int) -> float:
    """By how much a limit is exceeded, over all moments."""
    over = np.maximum(found.total - limit, 0).astype(np.float64)
    return float((over * over).sum())


def _score(outcome: Outcome, limit: int) -> tuple[int, float]:
    return max(outcome.peak - limit, 0), outcome.seconds
