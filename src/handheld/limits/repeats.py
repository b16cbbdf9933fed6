"""The computations that a choice of dropped values adds to a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from handheld.graph.graph import Graph, producers
from handheld.limits.ledger import Ledger
from handheld.limits.simulate import computations
from handheld.plan.fit import Repeat


def repeats(graph: Graph, ledger: Ledger, dropped: Set[int], brief: Set[int], usual: Set[int]) -> tuple[Repeat, ...]:
    """What is computed again, largest first, without what a plan without a limit (`usual`) computes again anyway."""
    maker = producers(graph)
    made = Counter(computations(ledger, dropped, brief))
    made.subtract(computations(ledger, usual))
    found = []
    for tensor, times in sorted(made.items()):
        if times <= 0:
            continue
        entry, origin = ledger.entries[tensor], graph.nodes[maker[tensor]].origin
        # What the backward pass does not read would not stay in memory anyway.
        saved = sum(ledger.entries[t].nbytes for t in entry.makes if ledger.entries[t].late >= 0)
        found.append(Repeat(origin.path, origin.torch_op, saved, times * entry.seconds, times))
    return tuple(sorted(found, key=lambda repeat: (-repeat.nbytes, -repeat.seconds)))
