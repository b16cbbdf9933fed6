"""Memory and time of a graph for a choice of dropped values, without making the graph.

Moments count the nodes of the graph and the computations that are added to its backward pass. A computation that is
added makes *copies* of dropped values; a brief value may have several (passes/again.py).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from handheld.limits.ledger import NONE, Ledger


class Outcome(NamedTuple):
    """The most bytes at one time (without slots, inputs and outputs), and the seconds of a step."""

    peak: int
    seconds: float


@dataclass
class Added:
    """The computations that a choice adds, in their order: the values, the nodes before which they run, and their
    scratch bytes. The k-th added computation before node n has the moment n + k."""

    seconds: float
    values: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    workspace: list[int] = field(default_factory=list)
    #: Per copy: the entry, the numbers of the computation that makes it and of the last one that reads it, and whether
    #: it stays until the last node of the backward pass that reads the entry.
    entry: list[int] = field(default_factory=list)
    born: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    stays: list[bool] = field(default_factory=list)
    #: Kept entry -> the number of the last computation that reads it.
    kept: dict[int, int] = field(default_factory=dict)


class Profile(NamedTuple):
    """The bytes at each moment, and when each entry and each copy is in memory: its first and its last moment."""

    total: np.ndarray
    born: np.ndarray
    end: np.ndarray
    copy_born: np.ndarray
    copy_end: np.ndarray
    added: Added


def simulate(ledger: Ledger, dropped: Set[int], brief: Set[int] = NONE) -> Outcome:
    """What a step needs if these values are dropped, and those that the backward pass never reads."""
    found = profile(ledger, dropped, brief)
    return Outcome(int(found.total.max(initial=0)), found.added.seconds)


def computations(ledger: Ledger, dropped: Set[int], brief: Set[int] = NONE) -> list[int]:
    """The values that are computed again, one per computation."""
    return _added(ledger, dropped | ledger.unread, brief).values


def _added(ledger: Ledger, dropped: Set[int], brief: Set[int]) -> Added:
    """Walks through the backward pass: a dropped value is computed again before the first node that reads it."""
    entries, copy_of = ledger.entries, dict[int, int]()  # entry -> its copy that is in memory
    added = Added(ledger.seconds)
    fresh: list[int] = []  # the brief values that were made for the current node
    current = -1
    for node, tensor in ledger.first_reads:
        if node != current:
            _forget(fresh, copy_of, added, ledger.first_read, current)
            current = node
        if tensor not in dropped or tensor in copy_of:
            continue
        stack = [tensor]
        while stack:
            entry = entries[stack[-1]]
            if entry.tensor in copy_of:
                stack.pop()
                continue
            missing = [t for t in entry.needs if t in dropped and t not in copy_of]
            if missing:
                stack += missing
                continue
            number = len(added.before)
            for t in entry.needs:
                if t in copy_of:
                    added.read[copy_of[t]] = number
                else:
                    added.kept[t] = number
            for t in entry.makes:
                if t in dropped:
                    copy_of[t] = len(added.entry)
                    if t in brief:
                        fresh.append(t)
                added.entry.append(t)
                added.born.append(number)
                added.read.append(-1)
                added.stays.append(t in dropped)
            added.values.append(entry.tensor)
            added.before.append(node)
            added.workspace.append(entry.workspace)
            added.seconds += entry.seconds
    _forget(fresh, copy_of, added, ledger.first_read, current)
    return added


def _forget(fresh: list[int], copy_of: dict[int, int], added: Added, first: dict[int, int], node: int) -> None:
    """Forgets the brief values that were made for a node but are not read by it."""
    for tensor in fresh:
        if first.get(tensor) != node and tensor in copy_of:
            added.stays[copy_of.pop(tensor)] = False
    fresh.clear()


def profile(ledger: Ledger, dropped: Set[int], brief: Set[int] = NONE) -> Profile:
    """The bytes at each moment for a choice."""
    gone = dropped | ledger.unread
    added = _added(ledger, gone, brief)
    columns, nodes, count = ledger.columns, len(ledger.fixed), len(added.before)
    before = np.array(added.before, np.int64)
    # The moments of nodes and of added computations. A node comes after what is added before it.
    more = np.bincount(before, minlength=nodes + 1)
    at_node = np.arange(nodes) + np.cumsum(more)[:nodes]
    at_added = before + np.arange(count)
    place = columns.place
    late = np.where(columns.late >= 0, at_node[columns.late], -1)  # when the backward pass reads each entry last
    last, ends_late = late.copy(), columns.late >= 0
    if added.kept:
        where = np.fromiter((place[t] for t in added.kept), np.int64, len(added.kept))
        again = at_added[np.fromiter(added.kept.values(), np.int64, len(added.kept))]
        ends_late[where] &= late[where] > again
        last[where] = np.maximum(late[where], again)
    change, less = np.zeros(nodes + count + 1, np.int64), np.zeros(nodes + count + 1, np.int64)
    dropped_now = np.fromiter((t in gone for t in place), bool, len(place))
    early = dropped_now | (last < columns.early)
    end = np.where(early, columns.early, last)
    nbytes = np.where(dropped_now, columns.less, columns.nbytes)
    np.add.at(change, columns.born, nbytes)
    np.subtract.at(change, end + 1, nbytes)
    taken = np.where(early, columns.taken_early, np.where(ends_late, columns.taken_late, 0))
    np.add.at(less, end, np.where(nbytes < columns.nbytes, 0, taken))
    born = until = np.zeros(0, np.int64)
    if added.entry:
        where = np.fromiter((place[t] for t in added.entry), np.int64, len(added.entry))
        born = at_added[np.array(added.born, np.int64)]
        numbers = np.array(added.read, np.int64)
        read = np.where(numbers >= 0, at_added[numbers], -1)
        stays = np.array(added.stays) & (columns.late[where] >= 0)
        until = np.maximum(np.maximum(born, read), np.where(stays, late[where], -1))
        np.add.at(change, born, columns.less[where])
        np.subtract.at(change, until + 1, columns.less[where])
        takes = stays & (late[where] > read) & (columns.less == columns.nbytes)[where]
        np.add.at(less, until, np.where(takes, columns.taken_late[where], 0))
    total: np.ndarray = np.cumsum(change)[: nodes + count] - less[: nodes + count]
    total[at_node] += ledger.fixed
    total[at_added] += ledger.between[before] + np.array(added.workspace, np.int64)
    return Profile(total, columns.born, end, born, until, added)
