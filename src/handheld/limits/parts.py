"""Micro-batches: a batch in parts, for a memory limit that computing values again cannot meet, or only more slowly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from handheld.callers import warn_user
from handheld.device import DeviceCaps
from handheld.errors import CaptureError, OutOfMemory, PlanError
from handheld.graph.graph import transfer_of
from handheld.limits.prices import DevicePrices
from handheld.limits.spilling import rate_of, step_seconds
from handheld.plan.fit import fits_of
from handheld.plan.make import make_plan
from handheld.plan.moves import time_of_moves
from handheld.plan.plan import Plan
from handheld.run.batch import batch_sizes
from handheld.run.parts import Parts
from handheld.run.planning import Request
from handheld.run.sizes import rows
from handheld.step import Step
from handheld.units import count as count_of

#: Makes a plan of graphs of a step: as `make_plan`.
Make = Callable[[Step, str, DeviceCaps, Sequence[str], Mapping[str, Any]], Plan]
#: A plan that takes longer by more than this share is compared with others that give up something: the outputs of the
#: training step, or whole batches.
DEAR = 0.03


def why_whole(step: Step) -> str:
    """Why the batches of a step cannot be divided without another update; "" if they can."""
    if step.code is None:
        return "a step file cannot be divided, because the code of its model is not there"
    try:
        norms = step.code.batch_norms()
        step.code.kind_of_loss()
    except CaptureError as error:
        return str(error)
    return f"{count_of(norms, 'batch norm')} would see fewer samples" if norms else ""


@dataclass(frozen=True)
class Splitting:
    """A request whose training step may run in micro-batches."""

    request: Request

    def __post_init__(self) -> None:
        sizes = {rows(self.request.step.graph(name)): name for name in self._train_names()}
        if len(sizes) != 1:
            raise PlanError("the plan has no training step of one batch size to divide into micro-batches")

    @property
    def batch(self) -> int:
        return rows(self.request.step.graph(self._train_names()[0]))

    def _train_names(self) -> list[str]:
        names = self.request.names
        return [name for name in ("train", *batch_sizes(names, "train").values()) if name in names]

    def why_not(self) -> str:
        """Why micro-batches would not give the same update; "" if they would."""
        if any(name.endswith(".accumulate") for name in self.request.names):
            return "gradients are accumulated over several batches already"
        return why_whole(self.request.step)

    def plan(self, count: int, make: Make = make_plan) -> Plan:
        """The plan with `count` micro-batches. Raises OutOfMemory, or PlanError if they are not possible.

        `make` makes the plan of their graphs, as `make_plan` does; it may compute values again.
        """
        return self.adopted(self.trial(count, make))

    def trial(self, count: int, make: Make = make_plan) -> Plan:
        """The same plan, of a step of its own: graphs for parts need more slots, and the user's step gets them only if
        the plan is used (`adopted`)."""
        batch, own = self.batch, self.request.step
        if not 1 < count <= batch:
            raise PlanError(f"a batch of {batch} cannot be divided into {count} micro-batches. Try: 2 to {batch}")
        if own.code is None or any(name.endswith(".accumulate") for name in self.request.names):
            raise PlanError(f"the step cannot run in micro-batches: {self.why_not()}")
        try:
            parts = Parts(batch, -(-batch // count), own.code.kind_of_loss())
            trial = Step(own.slots, own.values, own.graphs, own.meta)
            trial.code, trial.added = own.code, dict(own.added)
            names, options = self._graphs(trial, parts), {**self.request.options, "parts": parts.to_json()}
            return make(trial, self.request.device, self.request.caps, names, options)
        except CaptureError as error:
            raise PlanError(f"the step cannot run in micro-batches: {error}") from None

    def adopted(self, plan: Plan) -> Plan:
        """A plan of `trial` for the user's step."""
        facts = plan.options["parts"]
        names = self._graphs(self.request.step, Parts(facts["batch"], facts["size"], facts["loss"]))
        return make_plan(self.request.step, self.request.device, self.request.caps, names, plan.options)

    def _graphs(self, step: Step, parts: Parts) -> list[str]:
        """Adds the graphs of a part to a step. Returns the names of all graphs of the plan."""
        assert step.code is not None
        name = step.code.add_part(step, parts.size)
        others = [self._other(step, n, parts) for n in self.request.names if n not in self._train_names()]
        return [name, f"{name}.accumulate", *others]

    def _other(self, step: Step, name: str, parts: Parts) -> str:
        """A graph of the evaluation or the prediction for as many samples as a part has.

        A trainer runs it several times for a batch. If the results of parts cannot be joined, it stays as it is.
        """
        graph, kind = step.graph(name), name.partition("@")[0]
        outputs = [shown for shown in graph.outputs if shown.name != "loss"]
        whole = rows(graph) != parts.batch or any(shown.view.shape[:1] != (parts.batch,) for shown in outputs)
        if kind not in ("evaluate", "predict") or whole or parts.loss != "mean" or step.code is None:
            return name
        return step.code.add(step, kind, parts.size)

    def counts(self) -> Iterator[int]:
        """The numbers of micro-batches to try: 2, 4, 8 and so on, and one for each sample."""
        count = 2
        while count < self.batch:
            yield count
            count *= 2
        if self.batch > 1:
            yield self.batch

    def fastest(self, whole: Plan, seconds: float, prices: DevicePrices, make: Make) -> Plan:
        """The plan that is predicted to take the least time, of a step of its own. Raises OutOfMemory about the number
        of micro-batches with the smallest limit if none fits."""
        best, smallest = None, None
        for count in self.counts():
            try:
                plan = told(self.trial(count, make), whole, seconds, prices)
            except OutOfMemory as error:
                smallest = min((e for e in (smallest, error) if e is not None), key=smallest_of)
                continue
            if best is not None and time_of(plan) >= time_of(best):
                break
            best = plan
            if not fits_of(plan.options):
                break  # More micro-batches only take longer.
        if best is None:
            raise smallest or OutOfMemory("a batch of 1 has no parts")
        return best


def smallest_of(error: OutOfMemory) -> float:
    """The smallest limit that an error names."""
    return error.smallest_bytes or error.needed_bytes or math.inf


def told(plan: Plan, whole: Plan, seconds: float, prices: DevicePrices) -> Plan:
    """The plan whose options also say what its micro-batches cost: for `fit_text`."""
    facts: dict[str, Any] = dict(plan.options["parts"])
    parts = Parts(facts["batch"], facts["size"], facts["loss"])
    with_sums, last = f"{parts.graph}.accumulate", parts.graph
    own = (parts.count - 1) * _seconds(plan, with_sums, prices) + _seconds(plan, last, prices)
    facts |= {"more": own / seconds - 1, "bytes_before": whole.bytes}
    return replace(plan, options={**plan.options, "parts": facts})


def _seconds(plan: Plan, name: str, prices: DevicePrices) -> float:
    """The predicted time of a graph. Copies between the device and the host run beside its nodes."""
    graph = plan.graphs[name].graph
    own = [i for i, node in enumerate(graph.nodes) if not transfer_of(graph, node)]
    found = prices([graph.nodes[i] for i in own], graph)
    rate = rate_of(plan.caps, plan.options.get("spill_to"), prices.times.rates.transfer_bytes_s)
    return step_seconds(graph, dict(zip(own, (price.seconds for price in found), strict=True)), rate)


def time_of(plan: Plan) -> float:
    """The predicted additional time of a plan, as a share of the step."""
    fits = [fit.more for fit in fits_of(plan.options).values()]
    longer = max((*fits, time_of_moves(plan.options)))
    return float((plan.options.get("parts") or {}).get("more", longer))


def warn_norms(splitting: Splitting, plan: Plan) -> None:
    """Warns if micro-batches change what batch norms see."""
    code, facts = splitting.request.step.code, plan.options["parts"]
    norms = code.batch_norms() if code is not None else 0
    if norms:
        who = f"{count_of(norms, 'batch norm')} {'sees' if norms == 1 else 'see'}"
        warn_user(
            f"{who} {facts['size']} samples instead of {facts['batch']}, so the update is not that of the whole batch"
        )
