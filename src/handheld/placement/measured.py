"""Chooses between devices by measuring: a few steps on each, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from handheld.profile.inputs import inputs_for
from handheld.profile.turns import stepping, take_turns
from handheld.step import Step
from handheld.store.record import Record

#: How long two devices take turns.
SECONDS = 2.0


@dataclass(frozen=True)
class Rival(Record):
    """A device that was measured against the best one so far, which took `ms` beside it."""

    device: str
    ms: float
    against: str
    against_ms: float


def fastest(
    step: Step,
    devices: Sequence[str],
    graphs: Sequence[str],
    *,
    seed: int = 0,
    seconds: float = SECONDS,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> tuple[str, list[Rival]]:
    """The device that is fastest, measured on random batches, and what was measured. The first device stays unless
    another one is faster. `options` are those of `step.plan`; the state of the step does not change."""
    best, found = devices[0], []
    inputs = {name: inputs_for(None, step.graph(name), seed) for name in graphs}
    with contextlib.ExitStack() as stack:

        def opened(device: str) -> Callable[[int], float]:
            say(f"building the step for {device}")
            return stack.enter_context(
                stepping(step.plan(device, graphs=list(graphs), micro_batches=1, **options), inputs)
            )

        run = opened(best)
        for device in devices[1:]:
            other = opened(device)
            say(f"measuring {best} and {device} in turns")
            turns = take_turns(run, other, seconds=seconds)
            found.append(Rival(device, turns.after_ms, best, turns.before_ms))
            if turns.factor > 1:
                best, run = device, other
    return best, found
