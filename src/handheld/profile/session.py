"""A loop of steps under a profiler, with the machine's sensors sampled beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from handheld.analyse.rails import Series, rails
from handheld.analyse.run import Run, open_run
from handheld.errors import HandheldError
from handheld.plan.plan import Plan
from handheld.profile.energy import LEAST_S, MOST_S, TICKS, measure
from handheld.profile.profiler import Profiler
from handheld.profile.sampling import IDLE_S, idle, sampled
from handheld.run.batch import check_batch
from handheld.run.trainer import Trainer

POWER_SOURCES = ("nvidia-power", "rapl", "battery", "hwmon")
STEPS = 50

Batch = Sequence[Any]


def profile(
    plan: Plan, batches: Batch | Iterable[Batch], path: str | Path, *, steps: int = STEPS,
    graph: str | None = None, sensors: bool = True, energy: bool = False, idle_s: float = IDLE_S,
    progress: Callable[[int, int, str], None] | None = None, **settings: Any,
) -> Run:
    """Runs `steps` steps of a graph and measures them. `batches`: one batch (a tuple of arrays)
    that every step gets, or an iterable of them, whose time to make the next one counts too.
    `energy`: then also windows that tell the energy of each op (takes minutes, and a sensor).
    Leaves the step's state as it was."""
    name = graph or next((n for n in plan.graphs if n.partition("@")[0] == "train"),
                         next(iter(plan.graphs)))
    if name not in plan.graphs:
        raise HandheldError(f"the plan has no graph {name!r}; it has {', '.join(plan.graphs)}")
    if steps < 1:
        raise HandheldError(f"a profile of {steps} steps measures nothing")
    with contextlib.ExitStack() as stack:
        profiler = stack.enter_context(Profiler(path, steps=steps, graph=name, **settings))
        before = {n: v.copy() for n, v in plan.step.values.items()}
        if energy:
            # nothing that an op reads may be overwritten by running it again
            plan = plan.step.plan(plan.device, **{**plan.options, "isolate": True})
        trainer = plan.start()
        stack.callback(_leave, trainer, before)
        profiler.attach(trainer)
        if sensors or energy:
            stack.enter_context(sampled(profiler.writer))
            idle(profiler.writer, idle_s)
        source = _source(plan, name, batches)
        for done in range(steps):
            loss = trainer.run(name, *source())
            if progress:
                progress(done + 1, steps, "step")
        float(loss)
        if energy:
            profiler.flush()
            measure(profiler, trainer, name, _window_s(profiler), progress=progress)
    return open_run(path)


def _window_s(profiler: Profiler) -> float:
    """Long enough for TICKS updates of the slowest rail; an error if there is no rail."""
    with open_run(profiler.path) as run:
        found = {one.rail: one for one in rails(run.channels)}
        if not found:
            absent = "; ".join(f"{k}: {v}" for k, v in run.meta["sensors_absent"].items()
                               if k in POWER_SOURCES)
            raise HandheldError("energy is not measured: no sensor of power is here. " + absent)
        slowest = max(_update_s(one) for one in found.values())
    return min(max(TICKS * slowest, LEAST_S), MOST_S)


def _update_s(one: Series) -> float:
    """The usual time between two values of a channel."""
    at = one.t_ns[1:][np.diff(one.values) != 0]
    return float(np.median(np.diff(at))) * 1e-9 if len(at) > 3 else 0.1


def _leave(trainer: Trainer, before: dict[str, Any]) -> None:
    """Frees the device; the step has the values that it had."""
    trainer.close()
    trainer.plan.step.values.update(before)


def _source(plan: Plan, graph: str, batches: Any) -> Callable[[], Batch]:
    """The next batch each time: the same one, or the iterable's next."""
    made = plan.graphs[graph].graph
    if isinstance(batches, (tuple, list)) and len(batches) == len(made.inputs):
        with contextlib.suppress(HandheldError):
            check_batch(made, tuple(batches))
            return lambda: batches
    if isinstance(batches, (tuple, list)) and not isinstance(batches[0], (tuple, list)):
        check_batch(made, tuple(batches))  # says what is wrong
    iterator = iter(batches)

    def take() -> Batch:
        nonlocal iterator
        try:
            return tuple(next(iterator))
        except StopIteration:
            iterator = iter(batches)
        try:
            return tuple(next(iterator))
        except StopIteration:
            raise HandheldError("the data ended before the profile did, and starts again with "
                                "nothing. Try: fewer steps, or a list of batches") from None

    return take
