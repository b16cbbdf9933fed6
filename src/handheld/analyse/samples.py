"""What a run tells about the cost of ops: the samples that the time model of a device is fitted to (cost/)."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from handheld.analyse import timeline
from handheld.analyse.stats import steady, step_times, warm_up_end
from handheld.analyse.window_times import step_ms
from handheld.cost.samples import Moved, OpSample, StepSample, Timed
from handheld.cost.work import Work
from handheld.store.rows import OpRow

if TYPE_CHECKING:
    from handheld.analyse.run import Run

#: Which part of the times counts, in percent: the median, or fewer if other processes made most of them longer.
QUIET, DISTURBED = 50.0, 10.0
#: A part of a run needs this many steps and seconds to predict another part. Step times are means over 50 ms.
FEWEST, SHORTEST_S = 4, 0.2
#: The parts of a run after which the rest of it is predicted, to see how well that works.
CUTS = (0.25, 0.5, 0.75)


def work_of(row: OpRow) -> Work:
    return Work(row.op, row.signature, row.variant, row.launches, row.flops, row.bytes)


def kind_of(run: Run) -> str:
    """The kind of the run's device (cpu, gpu), or "" if it is not known."""
    return str((run.meta.get("caps") or {}).get("kind", ""))


def disturbed(run: Run) -> bool:
    """Whether other processes took so much of the processors that times on a CPU are too long."""
    others = run.others()
    return kind_of(run) != "gpu" and others is not None and others.busy


def op_samples(run: Run) -> list[OpSample]:
    """The time of every recorded op. Empty if no step was recorded."""
    noisy = disturbed(run)
    at = DISTURBED if noisy else QUIET
    times = timeline.op_times(run.timed)
    seconds = {op: float(np.percentile(ns, at)) * 1e-9 for op, ns in times.items()}
    return [OpSample(work_of(row), seconds[row.id], noisy) for row in run.op_rows if seconds.get(row.id, 0.0) > 0]


def step_sample(run: Run) -> StepSample | None:
    """One training step: all graphs that take turns. None if steps or ops were not timed, or if the ops were timed on
    another plan than the steps."""
    launches, host = run.launches(), run.host()
    graphs = run.graphs
    recorded = timeline.op_times(run.timed)
    rows = [row for row in run.op_rows if row.graph in graphs]
    if launches is None or host is None or not rows or any(row.id not in recorded for row in rows):
        return None
    seconds = [_step_s(run, graph) for graph in graphs]
    if None in seconds:
        return None
    at = DISTURBED if disturbed(run) else QUIET
    as_measured = timed(run)
    per_graph = 1.0 / len(graphs)  # Per-step figures of a run count each graph as a step.
    turns = len(graphs)
    return StepSample(
        model=model_of(run),
        batch=int((run.meta.get("settings") or {}).get("batch") or run.steps()[0].batch or 0),
        precision=str((run.meta.get("plan_options") or {}).get("precision", "float32")),
        works=tuple(work_of(row).key for row in rows),
        seconds=float(sum(s for s in seconds if s is not None)),
        ops_s=float(sum(np.percentile(recorded[row.id], at) for row in rows)) * 1e-9,
        launches=sum(row.launches for row in rows),
        enqueue_s=launches.enqueue_us * 1e-6,
        gap_s=(launches.between_us or 0.0) * 1e-6,
        host_s=host.other_ms * 1e-3 * turns,
        moved=tuple(
            Moved(t.kind, t.bytes, t.per_step / per_graph, t.ms * 1e-3) for t in run.transfers() if t.per_step > 0
        ),
        bytes=int(run.meta.get("plan_bytes") or 0),
        weights=max((row.live.get("parameter", 0) for row in rows), default=0),
        disturbed=disturbed(run),
        timed=(as_measured,) if as_measured else (),
    )


def _step_s(run: Run, graph: str) -> float | None:
    """The time of a graph's step; of the fastest tenth if other processes disturbed the run."""
    _, times, stretches = step_times(run.steps(), graph)
    if not len(times) or not disturbed(run):
        ms = run.step_ms(graph)[0]
        return None if ms is None else ms * 1e-3
    warm = warm_up_end(times)
    return float(np.percentile(steady(times[warm:], stretches[warm:]), DISTURBED)) * 1e-9


def _steady_s(run: Run, graph: str) -> np.ndarray:
    """The times of all steps after warm-up, in s."""
    _, times, stretches = step_times(run.steps(), graph)
    warm = warm_up_end(times)
    return steady(times[warm:], stretches[warm:]) * 1e-9 if len(times) > warm else np.zeros(0)


def next_steps(run: Run, cuts: tuple[float, ...] = CUTS) -> list[float]:
    """The errors of predicting the later steps of this run from its first part, for each cut."""
    errors = []
    for graph in run.training_graphs:
        values = _steady_s(run, graph)
        for cut in cuts:
            n = int(len(values) * cut)
            parts = (values[:n], values[n:])
            if all(len(part) >= FEWEST and part.sum() >= SHORTEST_S for part in parts):
                errors.append(abs(float(np.median(values[:n])) / float(np.median(values[n:])) - 1))
    return errors


def timed(run: Run) -> Timed | None:
    """The time of a step as `handheld profile` reports it. None if the run has no step times."""
    ms = step_ms(run)
    if ms is None:
        return None
    return Timed(run.path.name, ms * 1e-3, disturbed(run), tuple(next_steps(run)))


def model_of(run: Run) -> str:
    """The name of the model that ran; if it has none, one that follows from its ops."""
    name = (run.meta.get("settings") or {}).get("what")
    if name:
        return str(name)
    text = "\n".join(f"{row.op} {row.path} {row.phase}" for row in run.op_rows)
    return f"model-{zlib.crc32(text.encode()):08x}"
