"""Finds the largest batch that fits a device, by making plans for other batch sizes.

The code of a step captures it for other batch sizes (frontend/sizes.py). A step file has no code; then only its own
batch sizes are tried.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handheld.device import DeviceCaps
from handheld.errors import CaptureError, OutOfMemory
from handheld.plan.make import make_plan
from handheld.plan.plan import Plan
from handheld.run.batch import batch_sizes
from handheld.run.sizes import rows
from handheld.step import Step
from handheld.units import size as size_text

#: How long the search for an error message may take. One plan that has begun is still finished.
SECONDS = 5.0
#: No larger batch is tried.
MOST = 1 << 20


@dataclass(frozen=True)
class Probe:
    """One batch size: the bytes of its plan, if they are known, and whether it fits. `why` is the reason if not."""

    batch: int
    nbytes: int | None
    fits: bool
    why: str = ""


@dataclass(frozen=True)
class Largest:
    """The largest batch that fits, or 0 if none does. All probes are in `tried`, smallest batch first."""

    batch: int
    #: Whether the search ended because the next larger batch does not fit, and not because of the time.
    exact: bool
    tried: tuple[Probe, ...]

    @property
    def monotone(self) -> bool:
        """Whether a larger batch needed more memory wherever two were tried. The search assumes this."""
        known = [probe.nbytes for probe in self.tried if probe.nbytes is not None]
        return all(less <= more for less, more in itertools.pairwise(known))


def largest(
    probe: Callable[[int], Probe], known: Sequence[Probe], available: int, seconds: float, clock: Any = time.monotonic
) -> Largest:
    """Search by probing, from what is already known, for about `seconds`.

    Memory grows nearly in a straight line with the batch, so the next batch is where the line through two known ones
    meets the available memory. Every third one halves the range instead, and without two known ones it is doubled.
    """
    tried = {entry.batch: entry for entry in known}
    end, turn = clock() + seconds, 0
    while True:
        good = max((b for b, entry in tried.items() if entry.fits), default=0)
        bad = min((b for b, entry in tried.items() if not entry.fits and b > good), default=None)
        exact = bad == good + 1
        if exact or good >= MOST or clock() >= end:
            return Largest(good, exact, tuple(tried[batch] for batch in sorted(tried)))
        batch = _next(tried, good, bad, available, turn)
        tried[batch] = probe(batch)
        turn += 1


def _next(tried: Mapping[int, Probe], good: int, bad: int | None, available: int, turn: int) -> int:
    low, high = good + 1, MOST if bad is None else bad - 1
    line = _on_line(tried, available)
    if bad is None:
        # One more than the line allows: if that does not fit, only few are left.
        return min(max(line + 1, low), 64 * low, high) if line is not None else min(max(2 * good, low), high)
    if line is None or turn % 3 == 2:
        return (low + high) // 2
    return min(max(line, low), high)


def _on_line(tried: Mapping[int, Probe], available: int) -> int | None:
    """The batch at which the straight line through the two probes nearest to the limit meets it."""
    known = sorted(
        ((entry.batch, entry.nbytes) for entry in tried.values() if entry.nbytes is not None),
        key=lambda pair: abs(pair[1] - available),
    )[:2]
    if len(known) < 2 or known[0][1] == known[1][1]:
        return None
    (b0, n0), (b1, n1) = known
    return int(b0 + (available - n0) * (b1 - b0) / (n1 - n0))


class Sizes:
    """Plans of a step for other batch sizes, with the same device, graphs and options."""

    #: The samples of the test set, if it is known: its last, smaller batch has an evaluation graph of its own.
    test_samples = 0

    def __init__(
        self, step: Step, device: str, caps: DeviceCaps, names: Sequence[str], options: Mapping[str, Any]
    ) -> None:
        # A step of its own: graphs and constants of other batch sizes are not the user's.
        self.step = Step(step.slots, step.values, step.graphs, step.meta)
        self.step.code, self.step.added = step.code, dict(step.added)
        self.device, self.caps, self.options = device, caps, options
        graphs = {name: rows(step.graph(name)) for name in names}
        self.batch = max(graphs.values(), default=0)
        #: Graphs of another batch size than the others, such as a prediction for one sample, stay as they are.
        self.fixed = [name for name, count in graphs.items() if count != self.batch]
        self.kinds = list(
            dict.fromkeys(
                name.partition("@")[0].removesuffix(".accumulate")
                for name, count in graphs.items()
                if count == self.batch
            )
        )

    @property
    def available(self) -> int:
        limit = self.options["memory_limit_bytes"]
        return min(limit or self.caps.global_mem_bytes, self.caps.global_mem_bytes)

    @property
    def state_bytes(self) -> int:
        """The bytes of the slots, which do not depend on the batch."""
        return sum(value.nbytes for value in self.step.values.values())

    @property
    def empty(self) -> Probe:
        """A batch of no samples, which needs the state alone: where the search starts."""
        return Probe(0, self.state_bytes, True)

    def own(self) -> list[int]:
        """The batch sizes that the step itself has for all its kinds of graphs."""
        if not self.kinds:
            return []
        found = [{**batch_sizes(self.step.graphs, kind), **self._unnamed(kind)} for kind in self.kinds]
        return sorted(set(found[0]).intersection(*found[1:]))

    def _unnamed(self, kind: str) -> dict[int, str]:
        return {rows(self.step.graphs[kind]): kind} if kind in self.step.graphs else {}

    def names(self, batch: int) -> list[str]:
        """The graphs for a batch size; those that the step does not have are captured. Raises CaptureError."""
        found = list(self.fixed)
        for kind in self.kinds:
            own = {**batch_sizes(self.step.graphs, kind), **self._unnamed(kind)}
            name = own.get(batch)
            if name is None:
                if self.step.code is None:
                    raise CaptureError(f"the step has no graph {kind!r} for a batch of {batch}, and no code to make it")
                name = self.step.code.add(self.step, kind, batch)
            found += [n for n in (name, f"{name}.accumulate") if n in self.step.graphs or n in self.step.added]
        rest = self.test_samples % batch
        if rest and "evaluate" in self.kinds and self.step.code is not None:
            with contextlib.suppress(CaptureError):  # The training loop fills up that batch instead.
                found.append(self.step.code.add(self.step, "evaluate", rest))
        return found

    def plan(self, batch: int, caps: DeviceCaps | None = None, *, unlimited: bool = False) -> Plan:
        """The plan for a batch size. Raises OutOfMemory, or CaptureError if the code does not run with it."""
        options = {**self.options, "memory_limit_bytes": None} if unlimited else self.options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # They were shown when the step was captured.
            return make_plan(self.step, self.device, caps or self.caps, self.names(batch), options)

    def probe(self, batch: int) -> Probe:
        try:
            return Probe(batch, self.plan(batch).bytes, True)
        except OutOfMemory as error:
            return Probe(batch, error.needed_bytes, False, str(error))
        except CaptureError as error:
            return Probe(batch, None, False, str(error))


def with_largest(
    error: OutOfMemory, sizes: Sizes, seconds: float = SECONDS, known: Sequence[Probe] = ()
) -> OutOfMemory:
    """The same error, which also says which batch would fit. The search takes about `seconds`; `known` is where it may
    start."""
    text = str(error).removesuffix(". Try: a smaller batch")
    if sizes.step.code is None:
        return _of_file(error, text, sizes)
    if sizes.state_bytes > sizes.available:
        state = f"the state alone (parameters, optimizer) has {size_text(sizes.state_bytes)}"
        least = error.smallest_bytes or sizes.caps.global_mem_bytes + 1
        more = "a device with more memory"
        if least <= sizes.caps.global_mem_bytes:
            more = f"a limit of {size_text(least)} or more"
        return error.again(f"{text}. No batch fits: {state}. Try: {more}, or a smaller model", None)
    needed = error.smallest_bytes or error.needed_bytes
    start = [sizes.empty, *known, Probe(sizes.batch, needed, False)]
    found = largest(sizes.probe, start, sizes.available, seconds)
    above = next(probe.batch for probe in found.tried if not probe.fits)
    if not found.batch:
        more = "No batch fits" if found.exact else f"Batches from {above} do not fit, and smaller ones were not tried"
        return error.again(f"{text}. {more}. Try: precision='half', or a smaller model", None)
    most = f"The largest batch that fits is {found.batch}"
    if not found.exact:
        most = f"A batch of {found.batch} fits and {above} does not; {seconds:g} s were too short for others"
    return error.again(f"{text}. {most}. Try: a batch of {found.batch}", found.batch)


def _of_file(error: OutOfMemory, text: str, sizes: Sizes) -> OutOfMemory:
    """What a step without code can say: which of its own batch sizes fit."""
    own = [batch for batch in sizes.own() if batch < sizes.batch]
    fits = [batch for batch in own if sizes.probe(batch).fits]
    if fits:
        shown = ", ".join(map(str, fits))
        return error.again(f"{text}. Of its other batches, {shown} fit. Try: a batch of {fits[-1]}", fits[-1])
    less = f"none of its other batches fits ({', '.join(map(str, own))})" if own else "it has no smaller batch"
    return error.again(
        f"{text}. A step file has only the batches that it was packaged with, and {less}. "
        "Try: handheld package --batch N with a smaller N, where the model's code is",
        None,
    )
