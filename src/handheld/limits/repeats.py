"""The computations that a choice of dropped values adds to a step."""

from __future__ import annotations

from collections.abc import Set

from handheld.graph.graph import Graph, producers
from handheld.limits.ledger import Ledger
from handheld.plan.fit import Repeat


def repeats(graph: Graph, ledger: Ledger, dropped: Set[int], usual: Set[int]) -> tuple[Repeat, ...]:
    """What is computed again, largest first, without what a plan without a limit (`usual`) computes again anyway."""
    maker = producers(graph)
    made = computed_again(ledger, dropped) - computed_again(ledger, usual | ledger.unread)
    found = []
    for tensor in sorted(made):
        entry, origin = ledger.entries[tensor], graph.nodes[maker[tensor]].origin
        # What the backward pass does not read would not stay in memory anyway.
        saved = sum(ledger.entries[t].nbytes for t in entry.makes if ledger.entries[t].late >= 0)
        found.append(Repeat(origin.path, origin.torch_op, saved, entry.seconds))
    return tuple(sorted(found, key=lambda repeat: (-repeat.nbytes, -repeat.seconds)))


def computed_again(ledger: Ledger, dropped: Set[int]) -> frozenset[int]:
    """The dropped values that the backward pass needs, one per computation."""
    made: dict[int, int] = {}  # value -> the value for which it was computed
    stack = [t for reads in ledger.reads for t in reads if t in dropped]
    while stack:
        tensor = stack.pop()
        if tensor in made:
            continue
        entry = ledger.entries[tensor]
        made.update(dict.fromkeys(entry.makes, tensor))
        made[tensor] = tensor
        stack += [t for t in entry.needs if t in dropped]
    return frozenset(made.values())
