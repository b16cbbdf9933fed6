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

PLAIN_S = 1.5  # seconds of steps without a profiler, before and again after the profiled steps
HOLDS, LATE = 20, 4  # measurements of busy time; attempts that may fail because the host was too slow
MOST_AHEAD = 700  # launches; drivers queue about a thousand before an enqueue blocks
Row = dict[str, Any]


# ── time and memory ───────────────────────────────────────────────────────────────────────────


def times(entry: Entry, options: argparse.Namespace, sensors: Sources, path: Path) -> Row:
    """Times of a workload with a profiler, and the busy time of the same kernels without one."""
    step, runs = captured(entry)
    (graph, tensors), *_ = runs
    batch = [t.numpy() for t in tensors]
    plan = step.plan(options.on, graphs=[graph])

    def steps(seconds: float) -> float:
        """Milliseconds per step."""
        count, begun = 0, time.perf_counter()
        while not count or time.perf_counter() - begun < seconds:
            loss = trainer.run(graph, *batch)
            count += 1
        float(loss)
        return (time.perf_counter() - begun) / count * 1e3

    with contextlib.ExitStack() as stack:
        profiler = stack.enter_context(Profiler(path))
        stack.enter_context(sampled(profiler.writer, sensors))
        time.sleep(0.5)  # Memory is sampled before the plan allocates any.
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
    """Milliseconds per step that the kernels take on a queue that keeps no times, with all of them enqueued
    in advance. None if the driver does not accept that many launches at once."""

    def waited(count: int) -> float:
        begun = time.perf_counter()
        session.queue.finish()
        return (time.perf_counter() - begun) / count * 1e3

    return _held(session, graph, waited)


def ahead_timed(session: OpenCLSession, graph: str) -> float | None:
    """Milliseconds per step as the sum of the kernels' own times, on a queue that keeps them."""
    with session.record() as recording:

        def summed(count: int) -> float:
            session.queue.finish()
            commands = recording.read()
            return float((commands["ended"] - commands["started"]).sum()) / count * 1e-6

        return _held(session, graph, summed, recording.clear)


def _held(
    session: OpenCLSession, graph: str, take: Callable[[int], float], forget: Callable[[], None] = lambda: None
) -> float | None:
    """The median of `take(steps)` over steps that were all enqueued before the first one began.

    A blocking kernel keeps the queue busy while the host enqueues. `forget` runs before each attempt.
    """
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
    samples: list[float] = []
    late = 0
    while len(samples) < HOLDS and late < LATE:
        forget()
        free = hold(rounds)
        enqueue()
        if free.command_execution_status == cl.command_execution_status.COMPLETE:
            queue.finish()  # The queue was free before the host was done, so this attempt does not count.
            late, rounds, count = late + 1, 2 * rounds, max(count // 2, 1)
            continue
        free.wait()
        samples.append(take(count))
    return float(np.median(samples)) if len(samples) >= HOLDS // 2 else None


def holder(queue: Any) -> Callable[[int], Any]:
    """Enqueues a kernel of one work-item that runs a given number of rounds; returns its event."""
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
    """The number of rounds that keep the queue busy for at least `seconds`."""
    hold(1)  # The first launch takes longer.
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


def with_torch(sensors: Sources, folder: Path, steps: int = 40) -> Row:
    """Profiles `reference:cuda` (without CUDA `reference:cpu`) and `handheld.watch`: do ops have times?"""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    entry = next(one for one in STEPS if one.workload == "lenet5")
    step, runs = captured(entry)
    (graph, tensors), *_ = runs
    with step.plan(f"reference:{where}", graphs=[graph]).profile(
        tuple(t.numpy() for t in tensors),
        folder / "torch.run",
        steps=steps,
        graph=graph,
        sensors=tuple(sensors.here),
        idle_s=0.1,
    ) as run:
        row: Row = {"where": where, "torch": sums(run)}
    from workloads import single

    model, loss, optimizer, (x, y) = single(entry)
    model.to(where)
    x, y = x.to(where), y.to(where)
    with handheld.watch(model, folder / "watch.run", sensors=tuple(sensors.here), idle_s=0.1) as seen:
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
