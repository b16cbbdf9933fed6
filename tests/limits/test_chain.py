"""Chains: the dynamic programming finds what trying every choice finds."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from handheld.limits.chain import Chain
from handheld.limits.ledger import Entry, Ledger
from handheld.limits.search import Search
from handheld.limits.simulate import simulate


def chain(sizes: list[int], costs: list[float]) -> Ledger:
    """Value k is made by node k from value k - 1, and read by the node as far from the end as k is from the start."""
    count = len(sizes)
    entries = {
        k: Entry(
            k, sizes[k], k, min(k + 1, count - 1), 2 * count - 1 - k, (k - 1,) if k else (), (k,), costs[k], 0, sizes[k]
        )
        for k in range(count)
    }
    reads = tuple((k,) for k in reversed(range(count)))
    empty = np.zeros(2 * count, np.int64)
    return Ledger(
        count, entries, tuple(range(count)), frozenset(), reads, empty, np.zeros(2 * count + 1, np.int64), {}, 1.0
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_best_choice_is_found(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(4, 9)
    sizes = [chance.randrange(1, 9) << 20 for _ in range(count)]
    ledger = chain(sizes, [chance.uniform(0.1, 2.0) for _ in range(count)])
    every = [
        simulate(ledger, frozenset(dropped))
        for n in range(count + 1)
        for dropped in itertools.combinations(range(count), n)
    ]
    search = Search(ledger, frozenset())
    least = min(outcome.peak for outcome in every)
    assert search.smallest().outcome.peak == least
    for limit in range(least, sum(sizes) + 1, 1 << 20):
        found = search.within(limit)
        assert found is not None and found.outcome.peak <= limit
        best = min(outcome.seconds for outcome in every if outcome.peak <= limit)
        assert found.outcome.seconds == pytest.approx(best)
    assert search.within(least - 1) is None


def test_a_long_chain_needs_memory_like_its_square_root() -> None:
    ledger = chain([1 << 20] * 100, [1.0] * 100)
    search = Search(ledger, frozenset())
    assert search.start.outcome.peak == 100 << 20
    choice = search.smallest()
    assert choice.outcome.peak <= 22 << 20, "2 √100, and one for the value that is being made"
    assert choice.outcome.seconds <= 1.0 + 100


def test_the_chain_alone_is_within_its_own_limit() -> None:
    ledger = chain([1 << 20] * 30, [1.0] * 30)
    for limit in (12 << 20, 16 << 20, 24 << 20):
        dropped = Chain(ledger).best(limit)
        assert dropped is not None and simulate(ledger, dropped).peak <= limit
    assert Chain(ledger).best(4 << 20) is None
