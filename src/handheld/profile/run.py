"""A loop of steps under a profiler, with the machine's sensors sampled beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from handheld.analyse.estimate import Estimate
from handheld.analyse.rails import Series, rails
from handheld.analyse.run import Run, open_run
from handheld.analyse.stats import AHEAD
from handheld.errors import HandheldError
from handheld.plan.plan import Plan
from handheld.profile.energy import LEAST_S, MOST_S, TICKS, measure
from handheld.profile.profiler import Profiler
from handheld.profile.sampling import IDLE_S, Sensors, idle, sampled, sources
from handheld.profile.windows import WARMUP
from handheld.run.batch import check_batch
from handheld.sensors.base import Where

STEPS = 50

Batch = Sequence[Any]
#: told after each step and each window of equal work: how many are done, of how many, and what
Progress = Callable[[int, int, str], None]


def profile(
    plan: Plan,
    batches: Batch | Iterable[Batch] | Mapping[str, Any],
    path: str | Path,
    *,
    steps: int = STEPS,
    seconds: float | None = None,
    graph: str | Sequence[str] | None = None,
    wait: int = 0,
    warmup: int = WARMUP,
    active: int | None = None,
    sensors: Sensors = True,
    where: Where | None = None,
    energy: bool = False,
    energy_s: float | None = None,
    estimate: Estimate | None = None,
    idle_s: float = IDLE_S,
    progress: Progress | None = None,
    **settings: Any,
) -> Run:
    """Runs `steps` steps and measures them.

    `batches` is one batch (a tuple of arrays) that every step gets, or an iterable of batches,
    whose time to make the next one counts too. `seconds`: `steps` is the least, and more are run
    until so much time has passed since the device had finished the first. `graph` names the graph
    to run, or several that a step runs in turn (a GAN's `d` and `g`; then `batches` says by name
    what each gets). `sensors`: all that are here, none, or these classes, looked for at `where`.
    `energy`: then also windows that tell the energy of each op, for about `energy_s` seconds;
    `estimate`: what a device is said to take, for estimates. It works on a copy of the step's
    state."""
    names = _checked(plan, graph, steps, energy)
    found = sources(sensors, where)
    takes = [_feed(plan, name, batches if len(names) == 1 else _of(batches, name, names)) for name in names]
    plan = dataclasses.replace(plan, step=plan.step.copy())
    if energy:
        found.need_power()
        # nothing that an op reads may be overwritten by running it again
        plan = plan.again(isolate=True)
    with contextlib.ExitStack() as stack:
        profiler = stack.enter_context(
            Profiler(
                path, wait=wait, warmup=warmup, active=active, estimate=estimate, steps=steps, graphs=names, **settings
            )
        )
        stack.enter_context(sampled(profiler.writer, found, where))
        trainer = stack.enter_context(plan.start())
        profiler.attach(trainer)
        if found.here:
            idle(profiler.writer, idle_s)
        turns = list(zip(names, takes, strict=True))
        for done in until(steps, seconds):
            for name, take in turns:
                loss = trainer.run(name, *take())
            if progress:
                progress(done, max(steps, done), "step")
        profiler.writer.meta(loss=float(loss))
        if energy:
            profiler.flush()
            measure(profiler, trainer, names[0], _window_s(profiler.path), budget_s=energy_s, progress=progress)
    return open_run(path)


def _checked(plan: Plan, graph: str | Sequence[str] | None, steps: int, energy: bool) -> list[str]:
    """The graphs that a step runs, in turn."""
    if steps < 1:
        raise HandheldError(f"a profile of {steps} steps measures nothing")
    names = [graph] if isinstance(graph, str) else list(graph or default_graphs(plan.graphs))
    unknown = [name for name in names if name not in plan.graphs]
    if unknown:
        raise HandheldError(f"the plan has no graph {unknown[0]!r}; it has {', '.join(plan.graphs)}")
    if energy and len(names) > 1:
        raise HandheldError(f"the energy of ops is measured for one graph at a time: say which of {', '.join(names)}")
    return names


def until(steps: int, seconds: float | None) -> Iterator[int]:
    """1, 2, ...: so many steps, or, with `seconds`, these at least and until that much time has
    passed since the first had ended."""
    begun = None
    for done in itertools.count(1):
        yield done
        if done == AHEAD:  # the host is no further ahead: the first step has ended
            begun = time.monotonic()
        if done >= steps and (seconds is None or (begun is not None and time.monotonic() - begun >= seconds)):
            return


def default_graphs(graphs: Iterable[str]) -> list[str]:
    """The graph that trains; without one, all of them in turn, but those that only look."""
    train = [name for name in graphs if name.partition("@")[0] == "train"]
    looks = ("evaluate", "predict")
    return train[:1] or [n for n in graphs if n.partition("@")[0] not in looks] or list(graphs)


def _of(batches: Any, name: str, names: Sequence[str]) -> Any:
    if not isinstance(batches, Mapping) or name not in batches:
        raise HandheldError(
            f"a step runs {', '.join(names)} in turn: batches should be a "
            f"dictionary with one for each, and {name!r} has none"
        )
    return batches[name]


def _window_s(path: Path) -> float:
    """Long enough for TICKS updates of the slowest rail."""
    with open_run(path) as run:
        slowest = max((update_s(one) for one in rails(run.channels)), default=0.0)
    return min(max(TICKS * slowest, LEAST_S), MOST_S)


def update_s(one: Series) -> float:
    """The usual time between two values of a channel."""
    at = one.t_ns[1:][np.diff(one.values) != 0]
    return float(np.median(np.diff(at))) * 1e-9 if len(at) > 3 else 0.1


def _feed(plan: Plan, graph: str, batches: Any) -> Callable[[], Batch]:
    """The next batch each time: the same one, or the iterable's next."""
    made = plan.graphs[graph].graph
    if isinstance(batches, Mapping):
        check_batch(made, (batches,))
        return lambda: (batches,)
    if isinstance(batches, (tuple, list)) and len(batches) == len(made.inputs):
        with contextlib.suppress(HandheldError):
            check_batch(made, tuple(batches))
            return lambda: batches
    if isinstance(batches, (tuple, list)) and not (batches and isinstance(batches[0], (tuple, list, Mapping))):
        check_batch(made, tuple(batches))  # says what is wrong
    iterator = iter(batches)

    def take() -> Batch:
        nonlocal iterator
        try:
            return _tuple(next(iterator))
        except StopIteration:
            iterator = iter(batches)
        try:
            return _tuple(next(iterator))
        except StopIteration:
            raise HandheldError(
                "the data ended before the profile did, and starts again with "
                "nothing. Try: fewer steps, or a list of batches"
            ) from None

    return take


def _tuple(batch: Any) -> Batch:
    return (batch,) if isinstance(batch, Mapping) else tuple(batch)
