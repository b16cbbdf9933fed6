"""Compares two steps that take turns in one process: on a shared machine only such a comparison holds.

Each round times both, one right after the other and each first in half of the rounds. Other work on the machine only
makes a turn slower, so fast turns count: the 10th percentile. The interval comes from drawing the rounds again with
replacement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from handheld.plan.plan import Plan
from handheld.store.record import Record

TURN_S, LEAST_STEPS = 0.03, 2  # a turn: seconds, and steps at least
LEAST_ROUNDS, MOST_ROUNDS = 8, 300
FAST = 10.0  # percentile of the turns
WARM_STEPS = 3
RESAMPLED, LEVEL = 2000, 95.0  # for the interval: draws with replacement, and percent


@dataclass(frozen=True, slots=True)
class Turns(Record):
    """Milliseconds per step of both, and how many times faster the second one is per sample."""

    before_ms: float
    after_ms: float
    factor: float
    low: float
    high: float
    rounds: int


@contextlib.contextmanager
def stepping(plan: Plan, inputs: Mapping[str, Any]) -> Iterator[Callable[[int], float]]:
    """A function that runs a number of steps and returns their seconds. `inputs` maps each graph of a step to its
    batch. The steps run on a copy of the state."""
    with dataclasses.replace(plan, step=plan.step.copy()).start() as trainer:

        def run(steps: int) -> float:
            begun = time.perf_counter()
            for _ in range(steps):
                for name, batch in inputs.items():
                    trainer.run(name, *((batch,) if isinstance(batch, Mapping) else batch))
            trainer.session.finish()
            return time.perf_counter() - begun

        run(WARM_STEPS)
        yield run


def take_turns(
    before: Callable[[int], float], after: Callable[[int], float], samples: float = 1.0, seconds: float = 6.0
) -> Turns:
    """Time both in turns for about `seconds`. A step of `after` covers `samples` times the samples of `before`."""
    each_s = [_each_s(run) for run in (before, after)]
    counts = [max(round(TURN_S / max(each, 1e-6)), LEAST_STEPS) for each in each_s]
    round_s = sum(count * each for count, each in zip(counts, each_s, strict=True))
    rounds = int(np.clip(seconds / round_s, LEAST_ROUNDS, MOST_ROUNDS))
    times = np.zeros((rounds, 2))
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            times[i, which] = (before, after)[which](counts[which]) / counts[which]
    drawn = np.random.default_rng(0).integers(0, rounds, (RESAMPLED, rounds))
    first, second = np.percentile(times, FAST, axis=0)
    faster = np.percentile(times[drawn], FAST, axis=1)  # of each draw: before, after
    low, high = np.percentile(samples * faster[:, 0] / faster[:, 1], (50 - LEVEL / 2, 50 + LEVEL / 2))
    return Turns(
        float(first) * 1e3, float(second) * 1e3, float(samples * first / second), float(low), float(high), rounds
    )


def _each_s(run: Callable[[int], float]) -> float:
    return min(run(LEAST_STEPS), run(LEAST_STEPS)) / LEAST_STEPS
