"""Memory and time of a graph for a choice of dropped values, without making the graph.

Moments count the nodes of the graph and the computations that are added to its backward pass.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from handheld.limits.ledger import Ledger


class Outcome(NamedTuple):
    """The most bytes at one time (without slots, inputs and outputs), and the seconds of a step."""

    peak: int
    seconds: float


@dataclass(frozen=True)
class _Added:
    """The computations that a choice adds, in their order: for each, the node before which it runs and its scratch
    bytes. The k-th added computation before node n has the moment n + k."""

    before: np.ndarray
    workspace: np.ndarray
    #: Entry -> the number of the computation that makes it again, and of the last one that reads it.
    made: dict[int, int]
    read: dict[int, int]
    seconds: float


def simulate(ledger: Ledger, dropped: Set[int]) -> Outcome:
    """What a step needs if these values are dropped, and those that the backward pass never reads."""
    gone = dropped | ledger.unread
    added = _added(ledger, gone)
    return Outcome(int(_profile(ledger, gone, added).max(initial=0)), added.seconds)


def _added(ledger: Ledger, dropped: Set[int]) -> _Added:
    """Walks through the backward pass: a dropped value is computed again before the first node that reads it."""
    entries, made, read = ledger.entries, dict[int, int](), dict[int, int]()
    before: list[int] = []
    workspace: list[int] = []
    seconds = ledger.seconds
    for node, tensor in ledger.first_reads:
        if tensor not in dropped or tensor in made:
            continue
        stack = [tensor]
        while stack:
            entry = entries[stack[-1]]
            if entry.tensor in made:
                stack.pop()
                continue
            missing = [t for t in entry.needs if t in dropped and t not in made]
            if missing:
                stack += missing
                continue
            number = len(before)
            for t in entry.needs:
                read[t] = number
            for t in entry.makes:
                made[t] = number
            before.append(node)
            workspace.append(entry.workspace)
            seconds += entry.seconds
    return _Added(np.array(before, np.int64), np.array(workspace, np.int64), made, read, seconds)


def _profile(ledger: Ledger, dropped: Set[int], added: _Added) -> np.ndarray:
    """The bytes at each moment."""
    columns, nodes, count = ledger.columns, len(ledger.fixed), len(added.before)
    # The moments of nodes and of added computations. A node comes after what is added before it.
    more = np.zeros(nodes + 1, np.int64)
    np.add.at(more, added.before, 1)
    at_node = np.arange(nodes) + np.cumsum(more)[:nodes]
    at_added = added.before + np.arange(count)
    place = columns.place
    late = np.where(columns.late >= 0, at_node[columns.late], -1)  # when the backward pass reads each entry last
    last, ends_late = late.copy(), columns.late >= 0
    if added.read:
        where = np.fromiter((place[t] for t in added.read), np.int64, len(added.read))
        again = at_added[np.fromiter(added.read.values(), np.int64, len(added.read))]
        ends_late[where] &= late[where] > again
        last[where] = np.maximum(late[where], again)
    change, less = np.zeros(nodes + count + 1, np.int64), np.zeros(nodes + count + 1, np.int64)
    np.add.at(change, columns.born, columns.nbytes)
    gone = np.fromiter((t in dropped for t in place), bool, len(place))
    early = gone | (last < columns.early)
    end = np.where(early, columns.early, last)
    np.subtract.at(change, end + 1, columns.nbytes)
    np.add.at(less, end, np.where(early, columns.taken_early, np.where(ends_late, columns.taken_late, 0)))
    if added.made:
        where = np.fromiter((place[t] for t in added.made), np.int64, len(added.made))
        born = at_added[np.fromiter(added.made.values(), np.int64, len(added.made))]
        until = np.maximum(last[where], born)
        np.add.at(change, born, columns.nbytes[where])
        np.subtract.at(change, until + 1, columns.nbytes[where])
        np.add.at(less, until, np.where(ends_late[where], columns.taken_late[where], 0))
    total: np.ndarray = np.cumsum(change)[: nodes + count] - less[: nodes + count]
    total[at_node] += ledger.fixed
    total[at_added] += ledger.between[added.before] + added.workspace
    return total
