"""Runs windows of repeated equal work, from which analyse/energy.py computes the energy of each op.

Identical steps say nothing about their parts, because the shares of time never vary. So one op signature at a time is
run `extra` more times inside otherwise normal steps (slope), and alone (alone). There are several rounds, each in
random order. Each window is long enough for TICKS updates of the slowest rail. Running an op again overwrites
nothing that it reads, because these windows run in a plan that gives every tensor its own memory (isolated.py).
Windows of whole steps (step) run before, in the plan that trains.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from handheld.analyse.energy import STEP
from handheld.analyse.ops import OpTime
from handheld.analyse.run import Run, open_run
from handheld.errors import HandheldError
from handheld.profile.profiler import Profiler
from handheld.run.trainer import Trainer

TICKS = 20  # updates of the slowest rail in every window
LEAST_S, MOST_S = 0.5, 5.0  # shortest and longest window
SETTLE = 0.1  # The same work runs before each window, for this share of its length.
ROUNDS, LEAST_ROUNDS, MOST_ROUNDS = 3, 2, 10
NAMED = 24  # how many signatures get their own windows; all others are the "rest of" their phase
RESTS = 3  # the largest number of such rests: one per phase
NAMED_SHARE = 0.98  # Named signatures cover this share of the time of ops; the others are the rest.
MORE = 1.0  # The extra runs take about this many times the time of a step.
MOST_EXTRA = 4096


@dataclass(frozen=True)
class Work:
    """Ops that are repeated together."""

    signature: str
    nodes: tuple[int, ...]
    seconds: float  # the time of one run of all of them


def works(run: Run, graph: str, first: int, most: int = NAMED) -> list[Work]:
    """The signatures, the longest first. The shortest ones, and all beyond the first `most`, are combined into the
    rest of their phase."""
    by: dict[str, list[OpTime]] = {}
    rows = [row for row in run.ops() if row.graph == graph and row.launches]
    if not rows or any(row.ms is None for row in rows):
        raise HandheldError("no step was recorded, so the times of ops are not known. Try: more --steps")
    for row in rows:
        by.setdefault(row.signature, []).append(row)
    groups = sorted(by.items(), key=lambda item: -_ms(item[1]))
    total = _ms(rows)
    named: list[Work] = []
    rest: dict[str, list[OpTime]] = {}
    for key, group in groups:
        done = sum(w.seconds for w in named) * 1e3
        if len(named) < most and done < NAMED_SHARE * total:
            named.append(_work(key, group, first))
        else:
            for row in group:
                rest.setdefault(f"rest of {row.phase}", []).append(row)
    return [*named, *(_work(key, group, first) for key, group in rest.items())]


def _work(key: str, rows: list[OpTime], first: int) -> Work:
    return Work(key, tuple(sorted(row.id - first for row in rows)), _ms(rows) * 1e-3)


def _ms(rows: list[OpTime]) -> float:
    return sum(row.ms or 0.0 for row in rows)


def measure(
    profiler: Profiler,
    trainer: Trainer,
    graph: str,
    window_s: float,
    *,
    budget_s: float | None = None,
    least_rounds: int = LEAST_ROUNDS,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Run the windows. The trainer's plan must give every tensor its own memory, and its inputs must already be on the
    device. `budget_s` is the approximate time for all windows: to meet it, the number of named signatures and of rounds
    is changed, but at least `least_rounds` are run."""
    session = trainer.session
    session.run_repeated(graph, {})  # A device that cannot repeat ops fails here, before anything is measured.
    profiler.writer.commit()
    first = profiler.first_op(graph)
    whole_s = (1 + SETTLE) * window_s
    rounds, most = affordable(whole_s, budget_s, least_rounds)
    with open_run(profiler.path) as run:
        todo = works(run, graph, first, most)
        if budget_s is not None:
            rounds = int(np.clip(budget_s // (windows(len(todo)) * whole_s), least_rounds, MOST_ROUNDS))
        parts = run.parts()
        step_s = (parts.ms if parts else sum(w.seconds for w in todo) * 1e3) * 1e-3
    plans: list[tuple[str, Work | None]] = []
    draw = random.Random(seed)
    for _ in range(rounds):
        order: list[tuple[str, Work | None]] = [("slope", None), ("slope", None)]
        order += [(method, work) for work in todo for method in ("slope", "alone")]
        draw.shuffle(order)
        plans += order
    count = len(trainer.plan.graphs[graph].graph.nodes)
    for done, (method, work) in enumerate(plans):
        if progress:
            progress(done, len(plans), work.signature if work else "steps")
        extra, again = 0, 1
        repeats: dict[int, int] = {}
        if work is not None:
            # About as long as a step, so that the host's work between two rounds is spread over many runs.
            again = int(np.clip(round(MORE * step_s / max(work.seconds, 1e-7)), 1, MOST_EXTRA))
            repeats = (
                {node: again if node in work.nodes else 0 for node in range(count)}
                if method == "alone"
                else dict.fromkeys(work.nodes, 1 + again)
            )
            extra, again = (0, again) if method == "alone" else (again, 1)
        runs, begin, end = filled(
            lambda repeats=repeats: session.run_repeated(graph, repeats),  # type: ignore[misc]
            session.finish,
            window_s,
            profiler.machine.now_ns,
        )
        ids = [first + node for node in work.nodes] if work else []
        profiler.energy_window(method, work.signature if work else "", ids, extra, runs * again, begin, end)


def measure_steps(
    profiler: Profiler,
    trainer: Trainer,
    step: Callable[[], object],
    window_s: float,
    *,
    budget_s: float | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Run windows of whole steps in the plan that trains. Raises HandheldError if the budget is too small for the
    windows of ops that follow."""
    rounds, _ = affordable((1 + SETTLE) * window_s, budget_s)
    observer, trainer.observer = trainer.observer, None  # These steps are not part of the profile.
    for done in range(rounds):
        if progress:
            progress(done, rounds, "steps")
        profiler.energy_window(
            STEP, "", [], 0, *filled(step, trainer.session.finish, window_s, profiler.machine.now_ns)
        )
    trainer.observer = observer


def windows(count: int) -> int:
    """The number of windows in a round that measures `count` signatures: one of whole steps of the plan that trains,
    two of steps of the other plan, and two per signature."""
    return 3 + 2 * count


def affordable(window_s: float, budget_s: float | None, rounds: int = LEAST_ROUNDS) -> tuple[int, int]:
    """The number of rounds, and of signatures that get their own windows, within the budget. Raises HandheldError
    if the budget is too small for one signature."""
    if budget_s is None:
        return ROUNDS, NAMED
    count = int((budget_s / (rounds * window_s) - windows(0)) // 2) - RESTS
    if count < 1:
        least = windows(1 + RESTS) * rounds * window_s
        raise HandheldError(
            f"measuring the energy of ops takes at least {least:.0f} s here (the slowest sensor needs "
            f"windows of {window_s:.2g} s), but the limit is {budget_s:g} s. Try: a larger energy_s (--energy-seconds)"
        )
    return rounds, min(count, NAMED)


def filled(
    run: Callable[[], object], finish: Callable[[], None], seconds: float, now_ns: Callable[[], int] = time.monotonic_ns
) -> tuple[int, int, int]:
    """Repeat `run` for one window and return (runs, begin, end), by the clock of the machine that runs it. The same
    work runs for a while before it, because sensors lag, and clocks and power need time to settle."""

    def fill(length_s: float) -> tuple[int, int]:
        runs, begin = 0, now_ns()
        while not runs or now_ns() - begin < length_s * 1e9:
            run()
            runs += 1
        finish()
        return runs, begin

    fill(SETTLE * seconds)
    runs, begin = fill(seconds)
    return runs, begin, now_ns()
