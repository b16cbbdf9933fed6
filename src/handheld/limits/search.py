"""Finds the values to drop for a memory limit: the choice of the chain, improved on the graph itself.

A search ends by the work that it has done and not by a clock, so it finds the same choice on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Set
from dataclasses import dataclass

from handheld.limits.chain import Chain
from handheld.limits.ledger import Ledger
from handheld.limits.simulate import Outcome, simulate

#: How much work one limit may take: a simulation costs the number of values and nodes that it looks at. This is about
#: a second of a CPU.
WORK = 1_000_000
#: How many limits of the chain are tried for one limit.
TRIES = 5
#: A known choice that needs at least this share of a limit is improved, and the chain is not asked again.
NEAR = 0.97


@dataclass(frozen=True)
class Choice:
    """The values to drop, and what the step then needs."""

    dropped: frozenset[int]
    outcome: Outcome


class Search:
    """Searches for one graph. `start` is what the plan without a limit drops."""

    def __init__(self, ledger: Ledger, start: Set[int]) -> None:
        self.ledger = ledger
        self.chain = Chain(ledger)
        self.start = Choice(frozenset(start), simulate(ledger, start))
        self.seen: list[Choice] = [self.start]

    def within(self, limit: int, work: int = WORK, tries: int = TRIES) -> Choice | None:
        """The fastest choice found whose peak is at most `limit`; None if there is none."""
        if self.start.outcome.peak <= limit:
            return self.start
        if not any(limit * NEAR <= choice.outcome.peak <= limit for choice in self.seen):
            self._ask_chain(limit, tries)
        best = min(self.seen, key=lambda choice: _score(choice.outcome, limit))
        best = self._improve(best, limit, work)
        return best if best.outcome.peak <= limit else None

    def smallest(self, work: int = WORK) -> Choice:
        """The choice with the smallest peak that was found, whatever its time."""
        low, high = 0, self.start.outcome.peak
        for _ in range(2 * TRIES):
            middle = (low + high) // 2
            low, high = (middle, high) if self._of_chain(middle) is None else (low, middle)
        return self._improve(min(self.seen, key=lambda choice: _score(choice.outcome, 0)), 0, work)

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
        self.seen.append(Choice(dropped, simulate(self.ledger, dropped)))
        return self.seen[-1]

    def _improve(self, choice: Choice, limit: int, work: int) -> Choice:
        """Drops or keeps single values as long as that helps: first to meet the limit, then to take less time."""
        entries = self.ledger.entries
        order = sorted(self.ledger.choices, key=lambda t: -entries[t].seconds)
        left = max(work // (len(entries) + len(self.ledger.fixed)), 1)
        since = 0  # simulations since the last one that was better
        for tensor in itertools.islice(itertools.cycle(order), left):
            dropped = choice.dropped ^ {tensor}
            outcome = simulate(self.ledger, dropped)
            since += 1
            if _score(outcome, limit) < _score(choice.outcome, limit):
                choice, since = Choice(dropped, outcome), 0
            elif since >= len(order):
                break
        self.seen.append(choice)
        return choice


def _score(outcome: Outcome, limit: int) -> tuple[int, float]:
    return max(outcome.peak - limit, 0), outcome.seconds
