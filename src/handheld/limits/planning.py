"""Plans within a memory limit: makes a step smaller until it fits, at the least time, or says what prevents it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory
from handheld.graph.graph import Graph
from handheld.limits.bottleneck import bottleneck
from handheld.limits.ledger import make_ledger
from handheld.limits.parts import DEAR, time_of
from handheld.limits.pieces import COUNTS, WAYS, Pieces, PieceSearch, Way
from handheld.limits.prices import DevicePrices, prices_of
from handheld.limits.repeats import repeats
from handheld.limits.search import TRIES, WORK, Choice, Search
from handheld.plan.fit import Fit, fits_of, more_text, parts_text, pieces_line, spread_out
from handheld.plan.make import Known, make_plan
from handheld.plan.plan import Plan
from handheld.plan.tuning import load_tuning
from handheld.progress import report
from handheld.units import size as size_text

if TYPE_CHECKING:
    from handheld.step import Step

#: Placing tensors leaves gaps, so the first choice may not fit. How often another one is tried.
ROUNDS = 6
#: The smallest plan in pieces: these shares of the smallest one without are tried.
SHARES = (0.55, 0.7, 0.85)
#: How often a plan in pieces is made smaller because it is larger than expected.
PIECE_ROUNDS = 8
#: Shares of the room for which a plan in pieces is looked for: placing tensors leaves gaps.
ROOMS = (1.0, 0.9)
#: A plan of any size, to find out what a step needs.
ROOMY = 1 << 50
#: How the sentence about the smallest limit begins.
SMALLEST = "The smallest limit that was found is "


@dataclass
class Fitting:
    """A step that must fit, on a device with options as for `make_plan`."""

    step: Step
    device: str
    caps: DeviceCaps
    names: Sequence[str]
    options: Mapping[str, Any]
    #: The name of a shipped description, if the device is one.
    description: str = ""

    def __post_init__(self) -> None:
        limit = self.options["memory_limit_bytes"]
        self.available = min(limit or self.caps.global_mem_bytes, self.caps.global_mem_bytes)
        self.roomy = replace(self.caps, global_mem_bytes=ROOMY)
        self._searches: dict[tuple[str, bool], Search] = {}
        self._spread: dict[tuple[str, bool], Graph] = {}
        self._least: dict[bool, Plan] = {}
        self._piece_searches: dict[str, PieceSearch] = {}
        self._made_plans: list[Plan] = []  # those that no other beats in both bytes and time
        self._known = self.known = Known()

    def plan(self, pieces: bool = True) -> Plan:
        """The plan within the limit, with values in pieces only if they are allowed. Raises OutOfMemory that names the
        smallest limit."""
        found = self.within(self.available) if pieces else self.without_pieces(self.available)
        if found is None:
            smallest = self.certain if pieces else self.least_without_pieces
            raise impossible(self, smallest, f"for {more_text(time_of(smallest))}")
        return found

    @functools.cached_property
    def prices(self) -> DevicePrices:
        tuning = load_tuning(self.caps, self.options["tuning"])
        prices = prices_of(self.caps, tuning.choices, self.description)
        return prices if self.options["naive"] else replace(prices, lowerings=self._known.lowerings)

    @functools.cached_property
    def whole(self) -> Plan:
        """The plan without a limit."""
        return self._made({})

    @functools.cached_property
    def names_to_fit(self) -> list[str]:
        """The graphs with a backward pass. Others have nothing to compute again."""
        return [
            name
            for name, entry in self.whole.graphs.items()
            if any(node.origin.phase == "backward" for node in entry.graph.nodes)
        ]

    @functools.cached_property
    def ways(self) -> tuple[bool, ...]:
        """Whether the model's outputs are kept: they are at first, and then not, if there are any."""
        return (True, False) if any(len(self.step.graph(n).outputs) > 1 for n in self.names_to_fit) else (True,)

    def within(self, limit: int) -> Plan | None:
        """The fastest plan of at most `limit` bytes that is found; None if there is none.

        It may be one that was found for a smaller limit. The model's outputs are kept if that costs little. Values are
        computed in pieces only if nothing else meets the limit.
        """
        found = self.without_pieces(limit)
        if found is None:
            report("fitting: computing values in pieces")
            if self._in_pieces(limit) is None:
                self.least_in_pieces  # noqa: B018  # It adds to the plans that were made.
            found = min((plan for plan in self._made_plans if plan.bytes <= limit), key=_rank, default=None)
        return found

    def without_pieces(self, limit: int) -> Plan | None:
        """The same without values that are computed in pieces."""
        if self.whole.bytes <= limit:
            return self.whole
        best: Plan | None = None
        for outputs in self.ways:
            report("fitting")
            if self._within(outputs, limit) is None:
                report("fitting: looking for the smallest plan")
                self.least(outputs)
            made = (plan for plan in self._made_plans if plan.bytes <= limit and not pieces_line(plan.options))
            best = min(made, key=_rank, default=None)
            if best is not None and _rank(best) <= DEAR:
                break
        return best

    def least(self, outputs: bool) -> Plan:
        """The smallest plan that is found, whatever its time."""
        if outputs not in self._least:
            choices = {name: self._search(name, outputs).smallest() for name in self.names_to_fit}
            self._least[outputs] = self._made(self._fits(choices, outputs))
        return self._least[outputs]

    @functools.cached_property
    def reordered(self) -> Plan:
        """The plan in which only the order of the backward pass is another one."""
        return self._made(self._fits({n: self._search(n, True).start for n in self.names_to_fit}, True))

    @property
    def smallest(self) -> Plan:
        """The smallest plan of all that were made."""
        return min((self.certain, *self._made_plans), key=lambda plan: plan.bytes)

    @property
    def least_without_pieces(self) -> Plan:
        """The smallest plan that is found whatever was asked before, if all values are computed as a whole."""
        return min((self.whole, *(self.least(outputs) for outputs in self.ways)), key=lambda plan: plan.bytes)

    @property
    def certain(self) -> Plan:
        """The smallest plan that is found whatever was asked before."""
        return min((self.least_without_pieces, self.least_in_pieces), key=lambda plan: plan.bytes)

    @functools.cached_property
    def least_in_pieces(self) -> Plan:
        """The smallest plan with values in pieces that is found whatever was asked before, or the smallest without."""
        smallest = self.least_without_pieces
        tries = (self._in_pieces(int(smallest.bytes * share), COUNTS[:1]) for share in SHARES)
        return next((plan for plan in tries if plan is not None), smallest)

    def _in_pieces(self, limit: int, counts: Sequence[int] = COUNTS) -> Plan | None:
        """A plan within the limit that computes values in pieces; None if none is found. Of the fewest pieces that are
        enough, it is the one that is predicted to be the fastest."""
        room = limit - self._rest(self.whole, self.ways[-1])
        none: set[int] = set()
        for count, share in itertools.product(counts, ROOMS if room > 0 else ()):
            if count in none:
                continue  # A smaller room is for plans that turned out larger than expected.
            ways = [choices for way in WAYS if (choices := self._choices(int(room * share), count, way))]
            none |= set() if ways else {count}
            for choices in sorted(ways, key=lambda choices: max(pieces.seconds for pieces in choices.values())):
                plan = self._made_in_pieces(choices, room, limit)
                if plan is not None:
                    return plan
        return None

    def _made_in_pieces(self, choices: Mapping[str, Pieces], room: int, limit: int) -> Plan | None:
        """The plan of a choice, with more values in pieces until it meets the limit; None if they are not enough."""
        now = {name: self._piece_search(name).fewer(pieces, room) for name, pieces in choices.items()}
        plan = self._made(self._fits_in_pieces(now, self.ways[-1]))
        for _ in range(PIECE_ROUNDS):
            if plan.bytes <= limit:
                break
            room -= max(plan.bytes - limit, limit // 100)
            found = {name: self._piece_search(name).more(pieces, room) for name, pieces in now.items()}
            known = {name: pieces for name, pieces in found.items() if pieces is not None}
            if len(known) < len(now):
                return None
            if known != now:
                now, plan = known, self._made(self._fits_in_pieces(known, self.ways[-1]))
        if plan.bytes > limit:
            return None
        fewer = {name: self._piece_search(name).fewer(pieces, room) for name, pieces in now.items()}
        other = self._made(self._fits_in_pieces(fewer, self.ways[-1])) if fewer != now else plan
        return other if other.bytes <= limit else plan

    def _choices(self, room: int, count: int, way: Way) -> dict[str, Pieces]:
        """A choice for each graph; none if there is none for one of them."""
        found = {name: self._piece_search(name).within(room, count, way) for name in self.names_to_fit}
        known = {name: pieces for name, pieces in found.items() if pieces is not None}
        return known if len(known) == len(found) else {}

    def _piece_search(self, name: str) -> PieceSearch:
        if name not in self._piece_searches:
            plain = self._search(name, self.ways[-1])
            self._piece_searches[name] = PieceSearch(self._spread[name, self.ways[-1]], plain, self.prices)
        return self._piece_searches[name]

    def _fits_in_pieces(self, found: Mapping[str, Pieces], outputs: bool) -> dict[str, Fit]:
        fits = self._fits({name: pieces.choice for name, pieces in found.items()}, outputs)
        return {
            name: replace(
                fits[name], more=pieces.seconds / self.usual_seconds(name) - 1, thin=pieces.thin, pieces=pieces.count
            )
            for name, pieces in found.items()
        }

    @property
    def seconds(self) -> float:
        """The predicted time of the step without a limit: its ops, one training graph after the other."""
        return sum(map(self.usual_seconds, self.names_to_fit))

    def usual_seconds(self, name: str) -> float:
        """The predicted time of a training graph without a limit."""
        return self._search(name, True).start.outcome.seconds

    def _made(self, fits: Mapping[str, Fit]) -> Plan:
        """A plan that may be larger than the limit. Its options have the limit."""
        options = {**self.options, "memory_limit_bytes": None, "fit": {n: fit.to_json() for n, fit in fits.items()}}
        plan = make_plan(self.step, self.device, self.roomy, self.names, options, self._known)
        wanted = {**options, "memory_limit_bytes": self.options["memory_limit_bytes"]}
        plan = replace(plan, caps=self.caps, options=wanted)
        if not any(_beats(other, plan) for other in self._made_plans):
            self._made_plans = [*(other for other in self._made_plans if not _beats(plan, other)), plan]
        return plan

    def _search(self, name: str, outputs: bool) -> Search:
        if (name, outputs) not in self._searches:
            graph, remade = spread_out(self._graph(name), outputs)
            self._spread[name, outputs] = graph
            self._searches[name, outputs] = Search(make_ledger(graph, self.prices), remade)
        return self._searches[name, outputs]

    def _graph(self, name: str) -> Graph:
        """The graph as the plan without a limit has it: for its precision, and with its state in few bits."""
        whole = self.whole
        graphs, _, _ = self.known.prepared[tuple(self.names)]
        return graphs[list(whole.graphs).index(name)]

    def _within(self, outputs: bool, limit: int) -> Plan | None:
        room = limit - self._rest(self.whole, outputs)
        for turn in range(ROUNDS):
            effort = (WORK // 4, 2) if turn else (WORK, TRIES)  # Later rounds start from a choice that is good.
            choices = {n: self._search(n, outputs).within(room, *effort) for n in self.names_to_fit} if room > 0 else {}
            found = {name: choice for name, choice in choices.items() if choice is not None}
            if not choices or len(found) < len(choices):
                return None
            plan = self._made(self._fits(found, outputs))
            over = plan.bytes - limit
            if over <= 0:
                return plan
            # Less than is missing: the places of other tensors change as well.
            room = max(choice.outcome.peak for choice in found.values()) - max(2 * over, limit // 80)
        return None

    def _fits(self, choices: Mapping[str, Choice], outputs: bool) -> dict[str, Fit]:
        fits = {}
        for name, choice in choices.items():
            search = self._search(name, outputs)
            usual = self.usual_seconds(name)
            dropped = choice.dropped | search.ledger.unread
            fits[name] = Fit(
                tuple(sorted(dropped)),
                outputs,
                choice.outcome.seconds / usual - 1,
                self.whole.bytes,
                repeats(self._spread[name, outputs], search.ledger, dropped, choice.brief, search.start.dropped),
                usual,
                self.prices.source,
                tuple(sorted(choice.brief)),
            )
        return fits

    def _rest(self, plan: Plan, outputs: bool) -> int:
        """The bytes of slots, inputs and outputs."""
        rest = sum(plan.segments[: plan.arena])
        if outputs:
            return rest
        gone = {
            plan.graphs[name].places[shown.view.tensor]
            for name in plan.graphs
            for shown in plan.graphs[name].graph.outputs
            if shown.name != "loss"
        }
        return rest - sum(place.nbytes for place in gone if place.segment < plan.arena)


def _rank(plan: Plan) -> float:
    """The predicted additional time of a plan, and a share that the model's outputs are worth."""
    return time_of(plan) + (0.0 if all(fit.outputs for fit in fits_of(plan.options).values()) else DEAR)


def _beats(one: Plan, other: Plan) -> bool:
    return one.bytes <= other.bytes and _rank(one) <= _rank(other)


def impossible(fitting: Fitting, smallest: Plan, how: str) -> OutOfMemory:
    """The error that names the smallest limit, what prevents less, and `how` it is met."""
    kept = "parameters and optimizer"
    if parts := parts_text(fitting.options):
        how, kept = f"in {parts}", "parameters, optimizer and the sums of gradients"
    state = sum(place.nbytes for place in smallest.state.values())
    rest = smallest.bytes - state - smallest.arena_bytes
    error = OutOfMemory(
        f"the plan needs {size_text(fitting.whole.bytes)} on {fitting.device}, but only "
        f"{size_text(fitting.available)} are available. {SMALLEST}{size_text(smallest.bytes)}, {how}: "
        f"{size_text(state)} of {kept}, {size_text(rest)} of inputs and outputs, and "
        f"{size_text(smallest.arena_bytes)} of values, most of which {bottleneck(smallest)} needs at one time. "
        "Try: a smaller batch",
        fitting.whole.bytes,
        fitting.available,
    )
    error.smallest_bytes = smallest.bytes
    return error
