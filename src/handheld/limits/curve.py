"""Time over memory: what a step costs under smaller and smaller limits, and the largest batch for a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from handheld.errors import PlanError
from handheld.limits.means import FittedSizes
from handheld.limits.parts import Splitting, time_of, told
from handheld.limits.planning import Fitting
from handheld.plan.fit import fits_of
from handheld.plan.plan import Plan
from handheld.run.fitting import Largest, Probe, Sizes, largest
from handheld.run.planning import Request

Say = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """A plan for a limit: its bytes, their share of the plan without a limit, the predicted time of the step and its
    factor, and how many values are computed again. `outputs` says whether the model's outputs are kept, and
    `micro_batches` in how many parts a batch runs."""

    limit_bytes: int
    bytes: int
    share: float
    seconds: float
    factor: float
    values: int
    outputs: bool
    micro_batches: int = 1


@dataclass(frozen=True)
class Curve:
    """The points from no limit to the smallest that can be met. `source` says how times are known.

    `divided` are those with micro-batches and nothing computed again, or `why_whole` says why there are none.
    """

    points: tuple[Point, ...]
    source: str
    divided: tuple[Point, ...] = ()
    why_whole: str = ""


def curve(fitting: Fitting, count: int, say: Say) -> Curve:
    """About `count` points at equal distances."""
    say("planning without a limit")
    whole = fitting.whole
    say("looking for the smallest plan")
    least = fitting.least_without_pieces
    plans = {whole.bytes: whole}
    limits = [whole.bytes - n * (whole.bytes - least.bytes) // (count - 1) for n in range(1, count - 1)]
    for number, limit in enumerate(reversed(limits), 2):  # A larger limit may take the plan of a smaller one.
        say(f"fitting into {limit / 2**20:,.1f} MiB, {number} of {count}")
        found = fitting.within(limit)
        if found is not None:
            plans[limit] = found
    plans[least.bytes] = least
    step_s = fitting.seconds
    points = _falling([_point(limit, plan, whole, step_s) for limit, plan in plans.items()])
    divided, why = _divided(fitting, say)
    return Curve(points, fitting.prices.source, divided, why)


def _divided(fitting: Fitting, say: Say) -> tuple[tuple[Point, ...], str]:
    """Points with 2, 4, … micro-batches, as long as each needs less memory than the one before."""
    request = Request(fitting.step, fitting.device, fitting.roomy, list(fitting.names), dict(fitting.options))
    whole, seconds = fitting.whole, fitting.seconds
    try:
        splitting = Splitting(replace(request, options={**request.options, "memory_limit_bytes": None}))
    except PlanError as error:
        return (), str(error)
    why = splitting.why_not()
    found: list[Point] = []
    for count in () if why else splitting.counts():
        say(f"planning {count} micro-batches")
        plan = told(splitting.trial(count), whole, seconds, fitting.prices)
        if plan.bytes >= (found[-1].bytes if found else whole.bytes):
            break
        factor = 1 + time_of(plan)
        share = plan.bytes / whole.bytes
        found.append(Point(plan.bytes, plan.bytes, share, seconds * factor, factor, 0, True, count))
    return tuple(found), why


def _point(limit: int, plan: Plan, whole: Plan, step_s: float) -> Point:
    fits = fits_of(plan.options)
    factor = 1 + max((fit.more for fit in fits.values()), default=0.0)
    values = sum(len(fit.repeats) for fit in fits.values())
    outputs = all(fit.outputs for fit in fits.values())
    return Point(limit, plan.bytes, plan.bytes / whole.bytes, step_s * factor, factor, values, outputs)


def _falling(points: list[Point]) -> tuple[Point, ...]:
    """The points without those that another one beats: fewer bytes in less time. The largest plan comes first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.bytes, p.seconds)):
        if not kept or (point.bytes > kept[-1].bytes and point.seconds < kept[-1].seconds):
            kept.append(point)
    whole = max(points, key=lambda p: p.bytes)  # What the others are compared with.
    return tuple(reversed(kept if whole in kept else [*kept, whole]))


def largest_as_it_is(sizes: Sizes, known: Probe, seconds: float, say: Say) -> Largest:
    """The largest batch whose plan fits without computing anything again."""
    return _largest(sizes, known, seconds, say, "largest batch as it is")


def largest_fitted(sizes: FittedSizes, known: Probe, start: int, seconds: float, say: Say) -> Largest:
    """The largest batch that fits if values may be computed again. `known` is the smallest plan of the step's own batch
    and `start` a batch that fits anyway."""
    more = [Probe(start, None, True)] if start and start != known.batch else []
    return _largest(sizes, known, seconds, say, "largest batch with values computed again", more)


def _largest(
    sizes: Sizes, known: Probe, seconds: float, say: Say, what: str, more: list[Probe] | None = None
) -> Largest:
    def probe(batch: int) -> Probe:
        say(f"{what}: {batch:,}")
        return sizes.probe(batch)

    if sizes.step.code is None:
        tried = [known, *(probe(batch) for batch in sizes.own() if batch != known.batch)]
        fits = max((entry.batch for entry in tried if entry.fits), default=0)
        return Largest(fits, False, tuple(sorted(tried, key=lambda entry: entry.batch)))
    start = [sizes.empty] if sizes.state_bytes <= sizes.available else []
    return largest(probe, [*start, *(more or []), known], sizes.available, seconds)
