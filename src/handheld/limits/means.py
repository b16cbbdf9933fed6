"""A plan within a memory limit by the means that are allowed: `Step.plan`.

A batch stays whole if values that are computed again, or that leave the device, meet the limit soon enough. Otherwise
it may run in micro-batches, if these give the same update.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from handheld.callers import warn_user
from handheld.device import DeviceCaps
from handheld.errors import CaptureError, OutOfMemory, PlanError
from handheld.limits.moving import plan_with_moves
from handheld.limits.parts import DEAR, Make, Splitting, smallest_of, time_of, told, warn_norms
from handheld.limits.planning import SMALLEST, Fitting
from handheld.limits.prices import DevicePrices
from handheld.plan.fit import fit_text
from handheld.plan.make import check_memory
from handheld.plan.plan import Plan
from handheld.run.fitting import SECONDS, Probe, Sizes, largest, with_largest
from handheld.run.planning import Request, requested
from handheld.step import Step

#: How long the search for the largest batch may take, for an error message.
LARGEST_S = 10.0
#: The end of an error about a whole batch, which is replaced if more is known.
TRY = ". Try: a smaller batch"


@dataclass(frozen=True)
class Allowed:
    """What a plan may do to fit. `micro_batches` is a number of parts, or None: any number with the same update, unless
    the plan must stay as it is (without `recompute`)."""

    recompute: bool = True
    spill: bool = False
    micro_batches: int | None = None

    def plan(self, fitting: Fitting, pieces: bool = True) -> Plan:
        """The plan within the limit, without a look at micro-batches. Raises OutOfMemory."""
        whole = fitting.whole
        if whole.bytes <= fitting.available:
            return whole
        if not (self.recompute or self.spill) or fitting.options["isolate"]:
            check_memory(whole, fitting.options["memory_limit_bytes"])
        return plan_with_moves(fitting, self.recompute, pieces) if self.spill else fitting.plan(pieces)

    def maker(self, fitting: Fitting) -> Make:
        """Makes plans of other graphs of the same step within the same limit."""

        def make(step: Step, device: str, caps: DeviceCaps, names: Sequence[str], options: Mapping[str, Any]) -> Plan:
            other = Fitting(step, device, caps, names, options, fitting.description)
            other.prices = fitting.prices
            return self.plan(other, pieces=False)

        return make


def plan_fitting(
    step: Step,
    device: str,
    *,
    recompute: bool = True,
    micro_batches: int | None = None,
    spill: bool = False,
    **options: Any,
) -> Plan:
    """`Step.plan`: a plan as it is if it fits; otherwise one that is made smaller by what is allowed."""
    request = requested(step, device, **options)
    if request.options["spill_to"] and not (spill or request.options["stream"]):
        raise PlanError("spill_to says where, but nothing leaves the device. Try: with spill=True or stream=True")
    allowed = Allowed(recompute, spill, micro_batches)
    fitting = Fitting(request.step, request.device, request.caps, request.names, request.options)
    try:
        plan = plan_within(fitting, allowed)
    except OutOfMemory as error:
        if micro_batches not in (None, 1):
            raise
        raise _with_largest(error, request, fitting, allowed) from None
    made_smaller = micro_batches in (None, 1) and fit_text(plan.options, plan.bytes)
    if made_smaller and request.options["memory_limit_bytes"] is None:
        warn_user(
            f"the plan is made smaller to fit into the memory of {plan.device}: {made_smaller}. Try: a smaller batch"
        )
    return plan


def plan_within(fitting: Fitting, allowed: Allowed) -> Plan:
    """The fastest plan that is found within the limit, or within the memory of the device. Raises OutOfMemory that
    names the smallest limit and what prevents less."""
    if allowed.micro_batches not in (None, 1):
        return _divided(fitting, allowed, allowed.micro_batches)
    if fitting.whole.bytes <= fitting.available:  # It raises an error if one tensor is too large for the device.
        return fitting.whole
    in_parts = (
        allowed.micro_batches is None and allowed.recompute and fitting.names_to_fit and not fitting.options["isolate"]
    )
    try:
        plan = allowed.plan(fitting, pieces=not in_parts)
    except OutOfMemory:
        if in_parts:
            return _in_parts_or_pieces(fitting, allowed)
        raise
    if in_parts and time_of(plan) > DEAR:
        with suppress(PlanError):
            return _in_parts(fitting, allowed, time_of(plan))
    return plan


def plan_of_batch(sizes: Sizes, batch: int, allowed: Allowed, description: str = "") -> Plan:
    """The same for another batch size. Raises CaptureError if the code does not run with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They were shown when the step was captured.
        names = sizes.names(batch)
        step = Step(sizes.step.slots, sizes.step.values, sizes.step.graphs, sizes.step.meta)
        step.code, step.added = sizes.step.code, dict(sizes.step.added)  # Micro-batches add slots.
        return plan_within(Fitting(step, sizes.device, sizes.caps, names, sizes.options, description), allowed)


def _in_parts_or_pieces(fitting: Fitting, allowed: Allowed) -> Plan:
    """The plan with micro-batches for a limit that whole batches do not meet, or else one with values in pieces. Raises
    the error with the smaller limit, or with the reason why there are no micro-batches."""
    try:
        return _in_parts(fitting, allowed)
    except (OutOfMemory, PlanError) as found:
        why = found
    try:
        return allowed.plan(fitting)
    except OutOfMemory as error:
        raise _with_parts(error, why) from None


def _with_parts(error: OutOfMemory, why: Exception) -> OutOfMemory:
    """The error about whole batches, with what is known about micro-batches."""
    text = str(error)
    if not isinstance(why, OutOfMemory):
        return error.again(f"{text.removesuffix(TRY)}. No micro-batches: {why}", None)
    _, found, tail = str(why).partition(SMALLEST)
    if not found or smallest_of(why) >= smallest_of(error):
        return error
    smallest = error.again(f"{text.partition('. ')[0]}. {found}{tail}", None)
    smallest.smallest_bytes = why.smallest_bytes
    return smallest


def _in_parts(fitting: Fitting, allowed: Allowed, most: float = math.inf) -> Plan:
    """The fastest plan with micro-batches that give the same update. Raises PlanError that says why there are none that
    add a smaller share of time than `most`, or OutOfMemory about the smallest one."""
    splitting = _splitting(fitting)
    why = splitting.why_not()
    if why:
        raise PlanError(why)
    plan = splitting.fastest(fitting.whole, fitting.seconds, fitting.prices, allowed.maker(fitting))
    if time_of(plan) >= most:
        raise PlanError("micro-batches take longer")
    return splitting.adopted(plan)


def _splitting(fitting: Fitting) -> Splitting:
    names, options = list(fitting.names), dict(fitting.options)
    return Splitting(Request(fitting.step, fitting.device, fitting.caps, names, options))


def _divided(fitting: Fitting, allowed: Allowed, count: int) -> Plan:
    """The plan with so many micro-batches, which the user asked for."""
    splitting, whole, seconds = _splitting(fitting), fitting.whole, fitting.seconds
    try:
        plan = splitting.plan(count, allowed.maker(fitting))
    except OutOfMemory as error:
        raise error.again(f"{str(error).removesuffix(TRY)}. Try: more micro-batches", None) from None
    warn_norms(splitting, plan)
    return told(plan, whole, seconds, fitting.prices)


def _with_largest(error: OutOfMemory, request: Request, fitting: Fitting, allowed: Allowed) -> OutOfMemory:
    """The same error, which also says which batch would fit. One that fits as it is is quickly found, and the search
    for a larger one starts from it."""
    if not (allowed.recompute or allowed.spill) or error.smallest_bytes is None:
        return request.with_largest(error)
    arguments = request.step, request.device, request.caps, request.names, request.options
    plain, known = Sizes(*arguments), []
    if plain.step.code is not None and plain.state_bytes <= plain.available:
        start = [plain.empty, Probe(plain.batch, error.needed_bytes, False)]
        found = largest(plain.probe, start, plain.available, SECONDS)
        known = [Probe(found.batch, None, True)] if found.batch else []
    sizes = FittedSizes(*arguments)
    sizes.prices = fitting.prices
    return with_largest(error, sizes, LARGEST_S, known)


def smallest_plan(fitting: Fitting, available: int) -> Plan:
    """A plan that fits, or the smallest one, with all values computed as a whole."""
    if fitting.whole.bytes <= available:
        return fitting.whole
    least = fitting.least(True)
    return least if least.bytes <= available else fitting.least_without_pieces


class FittedSizes(Sizes):
    """Plans for other batch sizes that may compute values again. A probe is about the smallest plan of its batch."""

    #: Prices take seconds to make, and do not depend on the batch.
    prices: DevicePrices | None = None

    def probe(self, batch: int) -> Probe:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # They were shown when the step was captured.
                names = self.names(batch)
                fitting = Fitting(self.step, self.device, self.caps, names, self.options)
                if self.prices is not None:
                    fitting.prices = self.prices
                smallest = smallest_plan(fitting, self.available)
        except OutOfMemory as error:  # One tensor is too large for an allocation.
            return Probe(batch, None, False, str(error))
        except CaptureError as error:
            return Probe(batch, None, False, str(error))
        return Probe(batch, smallest.bytes, smallest.bytes <= self.available)
