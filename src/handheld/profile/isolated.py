"""A second trainer for the windows of equal work, in whose plan every tensor has its own memory.

Running an op again must not overwrite what any op reads, so the plan that trains cannot repeat its ops. The second plan
has the same ops and kernels at other addresses. A few of its steps are recorded, and the run file gets the time of each
op there (`isolated` in `meta`), because joules from its windows hold for the real step only as far as the times agree.
analyse/energy.py scales or drops the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from handheld.analyse.energy import MOST_SCALE, SAME, isolated_ratio
from handheld.analyse.run import open_run
from handheld.errors import HandheldError, OutOfMemory
from handheld.plan.make import make_plan
from handheld.plan.plan import Plan
from handheld.plan.signature import signature
from handheld.profile.profiler import Profiler
from handheld.run.trainer import Trainer
from handheld.store.commands import LAUNCH
from handheld.units import count, size

WARMUP, STEPS = 3, 8  # steps before, and recorded steps
SHOWN = 3  # ops that a note names


@contextlib.contextmanager
def isolated(profiler: Profiler, real: Plan, graph: str, take: Callable[[], Sequence[Any]]) -> Iterator[Trainer | None]:
    """The second trainer, with its inputs on the device and its op times written. None if its plan does not fit into
    memory; a note of the run then says so."""
    try:
        plan = isolated_plan(real, graph)
        trainer = plan.start()
    except OutOfMemory as error:
        profiler.writer.note(
            "no energy windows",
            f"the energy of ops was not measured: with memory of its own for every tensor, the step needs "
            f"{size(error.needed_bytes) if error.needed_bytes else 'too much'}, which does not fit. Everything else "
            "is that of the plan that trains. Try: a smaller --batch",
        )
        yield None
        return
    with trainer:
        seconds = record_ops(trainer, graph, take)
        first = profiler.first_op(graph)
        profiler.writer.meta(
            isolated={
                "graph": graph,
                "plan_bytes": plan.bytes,
                "steps": STEPS,
                "op_ms": {first + node: took * 1e3 for node, took in seconds.items()},
            }
        )
        profiler.writer.commit()
        _note_differences(profiler)
        yield trainer


def isolated_plan(real: Plan, graph: str) -> Plan:
    """The plan of one graph in which every tensor has its own memory. Its ops are those of the real plan, in the same
    order."""
    options = {**real.options, "isolate": True, "memory_limit_bytes": None}
    plan = make_plan(real.step, real.device, real.caps, [graph], options)
    ours, theirs = (
        [signature(node, entry.graph) for node in entry.graph.nodes]
        for entry in (plan.graphs[graph], real.graphs[graph])
    )
    if ours != theirs:
        raise HandheldError(
            "the plan for the energy windows has other ops than the plan that trains, so its joules cannot be "
            "assigned. This is a bug of Handheld. Try: a profile without --energy"
        )
    return plan


def record_ops(trainer: Trainer, graph: str, take: Callable[[], Sequence[Any]]) -> dict[int, float]:
    """The median time of each node in s, over a few steps."""
    for _ in range(WARMUP):
        trainer.run(graph, *take())
    trainer.session.finish()
    ends = []
    with trainer.session.record() as recording:
        for _ in range(STEPS):
            trainer.run(graph, *take())
            ends.append(len(recording))
        trainer.session.finish()
    commands = recording.read()
    times: dict[int, list[float]] = {}
    for start, stop in zip([0, *ends], ends, strict=False):
        step = commands[start:stop]
        launches = step[step["kind"] == LAUNCH]
        sums = np.bincount(launches["op"], weights=(launches["ended"] - launches["started"]) * 1e-9)
        for node in np.unique(launches["op"]).tolist():
            times.setdefault(node, []).append(float(sums[node]))
    return {node: float(np.median(values)) for node, values in times.items()}


def _note_differences(profiler: Profiler) -> None:
    """Write a note about the ops whose times differ between the two plans."""
    with open_run(profiler.path) as run:
        rows = [row for row in run.ops() if row.ms is not None]
        groups = {row.signature: [op.id for op in rows if op.signature == row.signature] for row in rows}
        op_ms = {row.id: row.ms or 0.0 for row in rows}
        ratios = {key: isolated_ratio(run.file, op_ms, ops) for key, ops in groups.items()}
        paths = {row.signature: row.title for row in rows}
    different = {key: ratio for key, ratio in ratios.items() if abs(1 / ratio - 1) > SAME}
    if not different:
        return
    worst = sorted(different, key=lambda key: -abs(np.log(different[key])))[:SHOWN]
    named = ", ".join(f"{paths[key]} {different[key]:.2f}x" for key in worst)
    dropped = sum(not 1 / MOST_SCALE <= ratio <= MOST_SCALE for ratio in different.values())
    profiler.writer.note(
        "isolated",
        f"{count(len(different), 'signature')} of {len(ratios)} {'takes' if len(different) == 1 else 'take'} other "
        f"times in the plan of the energy windows than in the plan that trains ({named}). Their joules are scaled by "
        "time" + (f"; those of {dropped}, which differ more than {MOST_SCALE:g}x, are not used" if dropped else ""),
    )
