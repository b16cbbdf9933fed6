"""Plans whose values leave the memory of the device, for users who allow it (`spill=True`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from handheld.errors import OutOfMemory
from handheld.graph.graph import transfer_of
from handheld.limits.parts import time_of
from handheld.limits.planning import Fitting, impossible
from handheld.limits.spilling import Spilling, after_moves, rate_of, rate_text
from handheld.passes.transfer import Move, move_out
from handheld.plan.make import make_plan
from handheld.plan.moves import moved_values, place_text
from handheld.plan.plan import Plan
from handheld.plan.transfers import moved_bytes
from handheld.progress import report
from handheld.units import count

#: Placing tensors leaves gaps, so the first choice may not fit. How often another one is tried.
ROUNDS = 8


def plan_with_moves(fitting: Fitting, recompute: bool, pieces: bool = True) -> Plan:
    """The plan within the limit that is predicted to be the fastest: one that moves values out and back, or one that
    computes values again if that is allowed. If neither is enough, it does both, and then computes values in pieces."""
    moving = Moving(fitting)
    again = fitting.without_pieces(fitting.available) if recompute else None
    found = [plan for plan in (again, moving.within(fitting.whole)) if plan is not None]
    bases = (lambda: fitting.reordered, *((lambda: fitting.least_without_pieces,) if recompute else ()))
    for base in bases if not found else ():
        plan = moving.within(base())
        if plan is not None:
            return plan
    in_pieces = fitting.within(fitting.available) if recompute and pieces and not found else None
    if in_pieces is not None:
        return in_pieces
    if not found:
        raise moving.impossible([base() for base in bases])
    return min(found, key=time_of)


class Moving:
    """The search for moves, for a step that must fit."""

    def __init__(self, fitting: Fitting) -> None:
        self._fitting = fitting

    def within(self, base: Plan) -> Plan | None:
        """The plan with moves that fits; None if none was found."""
        report("fitting: moving values out of the device")
        limit, graphs = self._fitting.available, self._graphs(base)
        room = limit - sum(base.segments[: base.arena])
        for _ in range(ROUNDS):
            found = {name: spilling.within(room) for name, spilling in graphs.items()}
            moves = {name: chosen for name, chosen in found.items() if chosen is not None}
            if len(moves) < len(found):
                break
            plan = self._made(base, graphs, moves)
            if plan.bytes <= limit:
                return plan
            room -= max(plan.bytes - limit, limit // 100)
        plan = self.smallest(base)
        return plan if plan.bytes <= limit else None

    def smallest(self, base: Plan) -> Plan:
        """The plan that moves whatever helps."""
        graphs = self._graphs(base)
        return self._made(base, graphs, {name: spilling.smallest() for name, spilling in graphs.items()})

    def impossible(self, bases: Sequence[Plan]) -> OutOfMemory:
        """The error that names the smallest limit."""
        fitting = self._fitting
        smallest = min((*map(self.smallest, bases), *bases), key=lambda plan: plan.bytes)
        moved = count(moved_values(smallest.options), "value")
        return impossible(fitting, smallest, f"with {moved} moved out of the device")

    def _graphs(self, base: Plan) -> dict[str, Spilling]:
        graphs, rate = {}, self._rate
        for name in self._fitting.names_to_fit:
            entry = base.graphs[name]
            graph = entry.graph
            own = [i for i, node in enumerate(graph.nodes) if not transfer_of(graph, node)]
            prices = self._fitting.prices([graph.nodes[i] for i in own], graph)
            seconds = dict(zip(own, (price.seconds for price in prices), strict=True))
            graphs[name] = Spilling(base, entry, [seconds.get(i, 0.0) for i in range(len(graph.nodes))], rate)
        return graphs

    @property
    def _rate(self) -> float:
        return rate_of(self._fitting.caps, self._folder, self._measured)

    @property
    def _folder(self) -> str | None:
        folder: str | None = self._fitting.options.get("spill_to")
        return folder

    @property
    def _measured(self) -> float:
        return self._fitting.prices.times.rates.transfer_bytes_s

    def _made(self, base: Plan, graphs: dict[str, Spilling], moves: dict[str, tuple[Move, ...]]) -> Plan:
        """The plan with these moves. It may be larger than the limit; its options have the limit."""
        fitting = self._fitting
        text = rate_text(fitting.caps, self._folder, self._measured)
        more, moved = 0.0, 0
        for name, chosen in moves.items():
            spilling = graphs[name]
            graph, usual = spilling.entry.graph, fitting.usual_seconds(name)
            own = [s for s, n in zip(spilling.seconds, graph.nodes, strict=True) if not transfer_of(graph, n)]
            more = max(more, after_moves(graph, chosen, own, self._rate) / usual - 1)
            moved = max(moved, moved_bytes(move_out(graph, chosen))[0])
        facts: dict[str, Any] = {
            "graphs": {name: [list(move) for move in chosen] for name, chosen in moves.items()},
            "more": more,
            "bytes": moved,
            "bytes_before": fitting.whole.bytes,
            "where": place_text(base),
            "rate": text,
        }
        options = {**base.options, "memory_limit_bytes": None, "moves": facts}
        plan = make_plan(fitting.step, fitting.device, fitting.roomy, fitting.names, options, fitting.known)
        wanted = {**options, "memory_limit_bytes": fitting.options["memory_limit_bytes"]}
        return replace(plan, caps=fitting.caps, options=wanted)
