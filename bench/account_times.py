"""Times of bench/accounts.py: parts of a step, busy time without a profiler, PyTorch's own ops."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import torch
from workloads import STEPS, Entry, captured

import handheld
from handheld.backends.opencl.session import OpenCLSession
from handheld.errors import HandheldError
from handheld.profile.profiler import Profiler
from handheld.profile.sampling import Sources, idle, sampled

PLAIN_S = 1.5  # of steps without a profiler, before and after
HOLDS, LATE = 20, 4  # times that busy time is measured; that the host may be too late for it
MOST_AHEAD = 700  # launches: drivers hold about a thousand before enqueueing waits
Row = dict[str, Any]


# ── time and memory ───────────────────────────────────────────────────────────────────────────


def times(entry: Entry, options: argparse.Namespace, found: Sources, path: Path) -> Row:
    """A run with a profiler, and beside it what the same kernels take without one."""
    step, runs = captured(entry)
    (graph, tensors), *_ = runs
    batch = [t.numpy() for t in tensors]
    plan = step.plan(options.on, graphs=[graph])

    def steps(seconds: float) -> float:
        """ms a step."""
        count, begun = 0, time.perf_counter()
        while not count or time.perf_counter() - begun < seconds:
            loss = trainer.run(graph, *batch)
            count += 1
        float(loss)
        return (time.perf_counter() - begun) / count * 1e3

    with contextlib.ExitStack() as stack:
        profiler = stack.enter_context(Profiler(path))
        stack.enter_context(sampled(profiler.writer, found))
        time.sleep(0.5)  # so that memory was read before the plan is there
        trainer = stack.enter_context(plan.start())
        profiler.attach(trainer)
        trainer.observer = None
        for _ in range(3):
            steps(0)
        idle(profiler.writer, 0.5)
        before = steps(PLAIN_S)
        trainer.observer = profiler
        profiled = steps(options.profiled)
        trainer.observer = None
        plain = (before + steps(PLAIN_S)) / 2
        busy, held = ahead(trainer.session, graph), ahead_timed(trainer.session, graph)
        profiler.flush()
    with handheld.open_run(path) as run:
        return {
            "plain_ms": plain,
            "profiled_ms": profiled,
            "ratio": profiled / plain,
            "busy_ms": busy,
            "held_ms": held,
            **account(run, graph),
        }


def account(run: Any, graph: str) -> Row:
    parts, summary = run.parts(graph), run.summary().to_json()
    if parts is None:
        raise HandheldError("no step was recorded whole")
    return {
        "parts": parts.to_json(),
        "kernels_ms": parts.forward + parts.backward + parts.update,
        "unexplained": parts.unexplained / parts.ms,
        "launches": summary["launches"],
        "recorded": summary["recorded"],
        "clock_error_us": summary["clock_error_us"],
        "clock_drift_ppm": summary["clock_drift_ppm"],
        "utilisation": summary["utilisation"],
        "memory": summary["memory"],
        "overhead": summary["overhead"],
        "findings": [f.text for f in run.findings()],
        "notes": [note.text for note in run.notes()],
    }


def ahead(session: OpenCLSession, graph: str) -> float | None:
    """ms that a step's kernels take on a queue without times, when all of them are there; None if
    the driver does not take so many at once."""

    def waited(count: int) -> float:
        begun = time.perf_counter()
        session.queue.finish()
        return (time.perf_counter() - begun) / count * 1e3

    return _held(session, graph, waited)


def ahead_timed(session: OpenCLSession, graph: str) -> float | None:
    """The sum of their own times, on a queue that keeps them."""
    with session.record() as recording:

        def summed(count: int) -> float:
            session.queue.finish()
            commands = recording.read()
            return float((commands["ended"] - commands["started"]).sum()) / count * 1e-6

        return _held(session, graph, summed, recording.clear)


def _held(
    session: OpenCLSession, graph: str, take: Callable[[int], float], forget: Callable[[], None] = lambda: None
) -> float | None:
    """The median of what `take` makes of steps that were all enqueued before the first began."""
    queue, plan = session.queue, session.plan.graphs[graph]
    nodes = range(len(plan.graph.nodes))
    count = max(1, MOST_AHEAD // max(plan.launches, 1))
    hold = holder(queue)

    def enqueue() -> None:
        for _ in range(count):
            for node in nodes:
                session.run_node(graph, node)
        queue.flush()

    session.finish()
    begun = time.perf_counter()
    enqueue()
    host_s = time.perf_counter() - begun
    session.finish()
    rounds = held_for(hold, queue, 2 * host_s + 1e-3)
    found: list[float] = []
    late = 0
    while len(found) < HOLDS and late < LATE:
        forget()
        free = hold(rounds)
        enqueue()
        if free.command_execution_status == cl.command_execution_status.COMPLETE:
            queue.finish()  # the host was too slow, or was held up: this says nothing
            late, rounds, count = late + 1, 2 * rounds, max(count // 2, 1)
            continue
        free.wait()
        found.append(take(count))
    return float(np.median(found)) if len(found) >= HOLDS // 2 else None


def holder(queue: Any) -> Callable[[int], Any]:
    """A kernel of one work-item that takes as long as it is told."""
    text = """
__kernel void hold(__global float* y, const int rounds) {
  float a = y[0];
  for (int i = 0; i < rounds; i++) a = a * 0.999f + 0.5f;
  y[0] = a;
}"""
    kernel = cl.Kernel(cl.Program(queue.context, text).build(), "hold")
    y = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
    cl.enqueue_fill_buffer(queue, y, np.float32(0), 0, 64)

    def run(rounds: int) -> Any:
        kernel.set_args(y, np.int32(rounds))
        event = cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        queue.flush()
        return event

    return run


def held_for(hold: Callable[[int], Any], queue: Any, seconds: float) -> int:
    """Rounds for at least so long."""
    hold(1)  # the first time is longer
    queue.finish()
    rounds = 1000
    while rounds < 2**30:
        begun = time.perf_counter()
        hold(rounds)
        queue.finish()
        if time.perf_counter() - begun >= seconds:
            return rounds
        rounds *= 2
    return rounds


# ── PyTorch's own ops ─────────────────────────────────────────────────────────────────────────


def with_torch(found: Sources, folder: Path, steps: int = 40) -> Row:
    """`reference:cuda` (else `reference:cpu`) and `watch`: ops with times on one clock."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    entry = next(one for one in STEPS if one.workload == "lenet5")
    step, runs = captured(entry)
    (graph, tensors), *_ = runs
    with step.plan(f"reference:{where}", graphs=[graph]).profile(
        tuple(t.numpy() for t in tensors),
        folder / "torch.run",
        steps=steps,
        graph=graph,
        sensors=tuple(found.here),
        idle_s=0.1,
    ) as run:
        row: Row = {"where": where, "torch": sums(run)}
    from workloads import single

    model, loss, optimizer, (x, y) = single(entry)
    model.to(where)
    x, y = x.to(where), y.to(where)
    with handheld.watch(model, folder / "watch.run", sensors=tuple(found.here), idle_s=0.1) as seen:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            seen.step()
    with handheld.open_run(folder / "watch.run") as run:
        row["watch"] = sums(run)
    return row


def sums(run: Any) -> Row:
    parts = run.parts()
    return {
        "step_ms": run.summary().step_ms,
        "recorded": len(run.timed),
        "ops": sum(row.ms is not None for row in run.ops()),
        "clock_error_us": run.clock.error_ns * 1e-3,
        "unexplained": parts.unexplained / parts.ms if parts else None,
        "phases_ms": {row.phase: row.ms for row in run.phases()},
    }
