"""Runs a loop of steps under a profiler while the machine's sensors are sampled."""

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
from handheld.forecast.store import remember
from handheld.plan.plan import Plan
from handheld.profile.energy import LEAST_S, MOST_S, TICKS, measure, measure_steps
from handheld.profile.isolated import isolated
from handheld.profile.machine import Machine, machine_of
from handheld.profile.profiler import Profiler
from handheld.profile.sampling import Sensors, Sources, idle
from handheld.profile.windows import IDLE_S, WARMUP
from handheld.run.batch import check_batch
from handheld.run.trainer import Loss, Trainer
from handheld.sensors.base import Where

STEPS = 50

Batch = Sequence[Any]
#: Called with (number done, total, text) for steps and for windows of equal work.
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
    code: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Run `steps` steps of a copy of the step's state, measure them and return the opened run file.

    - `batches`: one batch (a tuple of arrays) for every step, or an iterable, whose time is then measured too.
    - `seconds`: run at least `steps` steps, and go on until this time has passed since the first step ended.
    - `graph`: the graph to run, or several that each step runs in turn; then `batches` maps each name to its batches.
    - `sensors`: True for all, False for none, or sensor classes. They look at `where`.
    - `energy`: afterwards, also run windows that measure the energy of each op, for about `energy_s` seconds.
    - `estimate`: the watts of the device, for estimates of energy.
    - `code`: the folder whose git state is stored. `settings`: facts about the run that are stored with it.
    """
    names = _checked(plan, graph, steps, energy)
    takes = [_feed(plan, name, batches if len(names) == 1 else _of(batches, name, names)) for name in names]
    plan = dataclasses.replace(plan, step=plan.step.copy())
    facts = {"steps": steps, "graphs": names, **(settings or {})}
    kept: dict[str, Any] = {"code": code, "estimate": estimate, "settings": facts}
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(machine_of(plan.device, where))
        found = _found(machine, sensors, energy)
        profiler = stack.enter_context(Profiler(path, wait=wait, warmup=warmup, active=active, machine=machine, **kept))
        stack.enter_context(machine.sampled(profiler.writer, found))
        with plan.start() as trainer:
            profiler.attach(trainer)
            if found.here:
                idle(profiler.writer, idle_s)

            def step() -> Loss:
                return [trainer.run(name, *take()) for name, take in zip(names, takes, strict=True)][-1]

            for done in until(steps, seconds):
                loss = step()
                if progress:
                    progress(done, max(steps, done), "step")
            profiler.writer.meta(loss=float(loss))
            window_s = _steps_energy(profiler, trainer, step, energy_s, progress) if energy else None
        if window_s is not None:  # The first trainer is closed now: there may not be enough memory for both.
            _ops_energy(profiler, trainer.plan, names[0], takes[0], window_s, energy_s, progress)
    return _remembered(open_run(path), plan)


def _found(machine: Machine, sensors: Sensors, energy: bool) -> Sources:
    found = machine.sources(sensors)
    if energy:
        found.need_power()
    return found


def _remembered(run: Run, plan: Plan) -> Run:
    """Add the run to the samples of its device, unless its plan is not one that trains."""
    if not (plan.options.get("isolate") or plan.options.get("naive")):
        remember(run)
    return run


def _steps_energy(
    profiler: Profiler, trainer: Trainer, step: Callable[[], object], budget_s: float | None, progress: Progress | None
) -> float:
    """Measure the energy of whole steps. Returns the length of a window in s."""
    profiler.flush()
    window_s = _window_s(profiler.path)
    measure_steps(profiler, trainer, step, window_s, budget_s=budget_s, progress=progress)
    return window_s


def _ops_energy(
    profiler: Profiler,
    real: Plan,
    graph: str,
    take: Callable[[], Batch],
    window_s: float,
    budget_s: float | None,
    progress: Progress | None,
) -> None:
    with isolated(profiler, real, graph, take) as trainer:
        if trainer is not None:
            measure(profiler, trainer, graph, window_s, budget_s=budget_s, progress=progress)


def _checked(plan: Plan, graph: str | Sequence[str] | None, steps: int, energy: bool) -> list[str]:
    """The names of the graphs that each step runs in turn. Raises HandheldError if the arguments do not fit."""
    if steps < 1:
        raise HandheldError(f"a profile needs at least 1 step, not {steps}")
    names = [graph] if isinstance(graph, str) else list(graph or default_graphs(plan.graphs))
    unknown = [name for name in names if name not in plan.graphs]
    if unknown:
        raise HandheldError(f"the plan has no graph {unknown[0]!r}; it has {', '.join(plan.graphs)}")
    if energy and len(names) > 1:
        raise HandheldError(f"the energy of ops is measured for one graph at a time. Try one of: {', '.join(names)}")
    return names


def until(steps: int, seconds: float | None) -> Iterator[int]:
    """Yield 1, 2, ... up to `steps`. With `seconds`, continue until this time has passed since the first step ended."""
    begun = None
    for done in itertools.count(1):
        yield done
        if done == AHEAD:  # The host cannot be further ahead of the device, so the first step has ended.
            begun = time.monotonic()
        if done >= steps and (seconds is None or (begun is not None and time.monotonic() - begun >= seconds)):
            return


def default_graphs(graphs: Iterable[str]) -> list[str]:
    """The graph that trains; if there is none, all graphs except those that do not change the state."""
    train = [name for name in graphs if name.partition("@")[0] == "train"]
    read_only = ("evaluate", "predict")
    return train[:1] or [n for n in graphs if n.partition("@")[0] not in read_only] or list(graphs)


def _of(batches: Any, name: str, names: Sequence[str]) -> Any:
    if not isinstance(batches, Mapping) or name not in batches:
        raise HandheldError(
            f"a step runs {', '.join(names)} in turn, so batches must be a "
            f"dictionary with an entry for each; {name!r} has none"
        )
    return batches[name]


def _window_s(path: Path) -> float:
    """A window length that is long enough for TICKS updates of the slowest rail."""
    with open_run(path) as run:
        slowest = max((update_s(rail) for rail in rails(run.channels)), default=0.0)
    return min(max(TICKS * slowest, LEAST_S), MOST_S)


def update_s(channel: Series) -> float:
    """The median time between two changes of a channel's value."""
    at = channel.t_ns[1:][np.diff(channel.values) != 0]
    return float(np.median(np.diff(at))) * 1e-9 if len(at) > 3 else 0.1


def _feed(plan: Plan, graph: str, batches: Any) -> Callable[[], Batch]:
    """A function that returns the next batch: always the same one, or the next of the iterable."""
    planned = plan.graphs[graph].graph
    if isinstance(batches, Mapping):
        check_batch(planned, (batches,))
        return lambda: (batches,)
    if isinstance(batches, (tuple, list)) and len(batches) == len(planned.inputs):
        with contextlib.suppress(HandheldError):
            check_batch(planned, tuple(batches))
            return lambda: batches
    if isinstance(batches, (tuple, list)) and not (batches and isinstance(batches[0], (tuple, list, Mapping))):
        check_batch(planned, tuple(batches))  # Raises the error that explains what is wrong.
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
                "the data ended before the profile, and cannot be read a second time. "
                "Try: fewer steps, or a list of batches"
            ) from None

    return take


def _tuple(batch: Any) -> Batch:
    return (batch,) if isinstance(batch, Mapping) else tuple(batch)
