"""Chooses values of the forward pass that leave the memory of the device until the backward pass needs them.

A value whose copies fit beside the work of the step costs no time; all of them run one after the other, so `seconds`
plays the step with its copies. The search moves first what helps at the most moments that are too full, per byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph
from handheld.passes.transfer import Gap, Move, movable, move_out
from handheld.plan.memory import GraphMemory, Segments
from handheld.plan.plan import GraphPlan, Plan
from handheld.plan.transfers import BEGIN, END, schedule, transfers

#: B/s where nothing was measured: a file on flash memory or a disk, and host memory behind a bus.
FILE_RATE, HOST_RATE = 500e6, 6e9
#: A smaller value is not worth a copy.
LEAST = 4 << 10
#: How much longer than its copy a move may keep its memory, because copies wait for each other.
SLACK = 2.0


def rate_of(caps: DeviceCaps, folder: str | None, measured: float = 0.0) -> float:
    """The bytes per second of copies to where a plan for this device keeps what it moves."""
    if caps.unified_memory or folder:
        return FILE_RATE
    return measured or HOST_RATE


def rate_text(caps: DeviceCaps, folder: str | None, measured: float = 0.0) -> str:
    rate = rate_of(caps, folder, measured)
    return f"{rate / 1e9:.2g} GB/s{'' if rate == measured else ' assumed'}"


@dataclass
class Spilling:
    """A graph of a plan whose values may be moved. `seconds` are the predicted times of its nodes."""

    plan: Plan
    entry: GraphPlan
    seconds: Sequence[float]
    rate: float

    def __post_init__(self) -> None:
        graph, count = self.entry.graph, len(self.entry.graph.nodes)
        segments = Segments(1 << 62, self.plan.caps.base_align_bytes)
        memory = GraphMemory(graph, self.entry.lowered, self.plan.state, segments, False)
        change = np.zeros(count + 2, np.int64)
        for item in memory.items:
            change[item.start] += item.nbytes
            change[min(item.end, count) + 1] -= item.nbytes
        self.profile = np.cumsum(change)[:count]
        self.gaps = {
            t: gap for t, gap in movable(graph).items() if graph.tensors[t].nbytes >= LEAST and gap.next > gap.last + 1
        }
        self._maker = {t: i for i, node in enumerate(graph.nodes) for t in node.outputs}

    def within(self, room: int) -> tuple[Move, ...] | None:
        """Moves after which the values need at most `room` bytes at any time; None if there are none."""
        chosen, profile = self._chosen(room)
        return self._widened(chosen, profile, room) if int(profile.max(initial=0)) <= room else None

    def smallest(self) -> tuple[Move, ...]:
        """Moves for as little memory as possible."""
        chosen, _ = self._chosen(0)
        return tuple(Move(tensor) for tensor in chosen)

    def _chosen(self, room: int) -> tuple[list[int], np.ndarray]:
        profile, left, chosen = self.profile.copy(), dict(self.gaps), list[int]()
        while left and int(profile.max(initial=0)) > room:
            over = np.maximum(profile - room, 0)
            best = max(left, key=lambda t: (self._use(t, left[t], over), -t))
            if self._use(best, left[best], over) <= 0:
                break
            gap = left.pop(best)
            profile[gap.last + 1 : gap.next] -= self.entry.graph.tensors[best].nbytes
            chosen.append(best)
        return chosen, profile

    def _use(self, tensor: int, gap: Gap, over: np.ndarray) -> float:
        nbytes = self.entry.graph.tensors[tensor].nbytes
        return float(np.minimum(over[gap.last + 1 : gap.next], nbytes).sum()) / nbytes

    def _widened(self, chosen: Sequence[int], profile: np.ndarray, room: int) -> tuple[Move, ...]:
        """The moves, with as much time for their copies as they need and the memory allows."""
        moves, times = [], np.asarray(self.seconds)
        for tensor in sorted(chosen, key=lambda t: -self.gaps[t].next):
            gap, nbytes = self.gaps[tensor], self.entry.graph.tensors[tensor].nbytes
            need, hold, ahead = SLACK * nbytes / self.rate, 0, 0
            first, last = gap.last + 1, gap.next - 1
            while first < last and times[self._maker[tensor] + 1 : first].sum() < need:
                if profile[first] + nbytes > room:
                    break
                profile[first] += nbytes
                first, hold = first + 1, hold + 1
            while last > first and times[last + 1 : gap.next].sum() < need and profile[last] + nbytes <= room:
                profile[last] += nbytes
                last, ahead = last - 1, ahead + 1
            moves.append(Move(tensor, hold, ahead))
        return tuple(sorted(moves))


def step_seconds(graph: Graph, own: Mapping[int, float], rate: float) -> float:
    """The predicted time of a step whose copies run beside its nodes. `own` has the seconds of nodes that compute."""
    known = transfers(graph)
    main = copies = 0.0
    ends: dict[int, float] = {}
    for kind, nodes in schedule(graph):
        if kind == BEGIN:
            copies = max(copies, main) + known[nodes[0]].nbytes / rate
            ends[nodes[0]] = copies
        elif kind == END:
            main = max(main, ends.get(nodes[0], 0.0))
        else:
            main += sum(own.get(node, 0.0) for node in nodes)
    return max(main, copies)


def after_moves(graph: Graph, moves: Sequence[Move], seconds: Sequence[float], rate: float) -> float:
    """The predicted time of a step with these moves; `seconds` are those of the nodes without them."""
    moved = move_out(graph, moves)
    rest = iter(seconds)
    own = {i: next(rest) for i in range(len(moved.nodes)) if i not in transfers(moved)}
    return step_seconds(moved, own, rate)
