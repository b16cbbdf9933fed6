"""Whether what a profile says adds up, on one device, in a given time: one command for all of it.

    python bench/accounts.py [--on opencl] [--only fRM] [--minutes 8] [--out FOLDER]
                             [--ticks 10] [--rounds 3] [--sensor MODULE:CLASS] [--no-planted]
                             [--keep-runs FOLDER]
    python bench/accounts.py --show FOLDER/accounts.json

For each workload:

    time     parts of a step and what no cause explains; the sum of kernel times beside the busy
             time without a profiler. For both, steps are enqueued ahead behind a kernel that holds
             the queue, so that the device never waits for the host: one that finds it idle takes
             longer. The sum in steps as they run is said as well
    memory   planned, allocated, and what the device and the process grew by
    energy   bench/energy.py: ops by two methods, held against the counter where it was held out

and once: two kernels of equal time, PyTorch's own ops on a GPU (`reference:cuda`, `watch`). Everything
is written to FOLDER/accounts.json as soon as it is there, with the time it took; a part that fails
or has no time left says so and the next one goes on. Ends in a table of figures and limits.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import energy
import numpy as np
import pyopencl as cl
import torch
from workloads import STEPS, Entry, captured, chosen

import handheld
from handheld.backends.base import describe
from handheld.backends.opencl.session import OpenCLSession
from handheld.errors import HandheldError
from handheld.profile.profiler import Profiler
from handheld.profile.sampling import Sources, idle, sampled

UNEXPLAINED, BUSY, ENERGY = 0.02, 0.03, 0.10  # limits, as shares
PLAIN_S = 1.5  # of steps without a profiler, before and after
HOLDS, LATE = 20, 4  # times that busy time is measured; that the host may be too late for it
MOST_AHEAD = 700  # launches: drivers hold about a thousand before enqueueing waits
ELSE_S = 40.0  # what a workload takes besides windows, until one has shown it
WINDOWS_S = 40.0  # of windows for energy, at least
PLANTED_S, TORCH_S = 45.0, 20.0  # what the two kernels, and PyTorch's ops, may take
END_S, LATE_S = 8.0, 60.0  # for the end; past the given time it is ended wherever it is

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


# ── all of it, in the time there is ───────────────────────────────────────────────────────────


class Report:
    """What was found so far, in a file at all times."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path = options.out / "accounts.json"
        self.end = time.monotonic() + 60 * options.minutes - END_S
        self.options = options
        self.found: Row = {"workloads": {}, "problems": {}, "seconds": {}}

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def part(self, name: str, into: Row, key: str, run: Callable[[], Any], least_s: float = 1.0) -> None:
        """Runs a part, keeps what it gives, or why it gives nothing."""
        if self.left < least_s:
            self.found["problems"][name] = f"no time: {self.left:.0f} s are left and it needs {least_s:.0f} s"
            print(f"{name}: {self.found['problems'][name]}", flush=True)
            return self.write()
        print(f"{name} ({self.left:.0f} s left)", flush=True)
        begun = time.monotonic()
        try:
            into[key] = run()
        except Exception as error:  # whatever it is, what is there is kept and the rest goes on
            self.found["problems"][name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        self.found["seconds"][name] = time.monotonic() - begun
        return self.write()

    def write(self) -> None:
        whole = json.dumps(plain(self.found), indent=1)
        made = self.path.with_suffix(".part")
        made.write_text(whole + "\n", encoding="utf-8")
        made.replace(self.path)


def plain(value: Any) -> Any:
    """JSON has no infinity: None stands for what is not known."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def everything(options: argparse.Namespace, folder: Path) -> Row:
    """All parts, into the report; `folder` is for run files."""
    options.out.mkdir(parents=True)
    report = Report(options)
    caps = describe(options.on)
    print(f"handheld {handheld.__version__} on {caps.name} ({caps.driver})")
    found = energy.find_sensors(options.sensor)
    found.need_power()
    report.found |= {
        "device": caps.to_json(),
        "torch": torch.__version__,
        "commit": commit(),
        "settings": {k: str(v) for k, v in vars(options).items()},
        "sensors": [one.name for one in found.here],
        "absent": found.absent,
    }
    report.write()
    entries = chosen(options.only)
    for entry in entries:
        row = report.found["workloads"].setdefault(entry.name, {})
        path = folder / f"{entry.letter}-time.run"
        report.part(f"{entry.name}: time", row, "time", lambda e=entry, p=path: times(e, options, found, p), 15.0)
    options.seconds = 0.0
    if not options.no_planted:
        report.part(
            "two kernels",
            report.found,
            "planted",
            lambda: energy.planted(options, found, folder / "planted.run"),
            PLANTED_S,
        )
    besides = max(min(ELSE_S, report.left / len(entries) / 2), 5.0)
    for n, entry in enumerate(entries):
        row = report.found["workloads"][entry.name]
        options.seconds = max((report.left - TORCH_S) / (len(entries) - n) - besides, WINDOWS_S)
        mine = folder / entry.letter
        mine.mkdir()
        before = report.left
        report.part(
            f"{entry.name}: energy in {options.seconds:.0f} s",
            row,
            "energy",
            lambda e=entry, f=mine: energy.compare(e, options, found, f),
            besides + WINDOWS_S,
        )
        besides = max(before - report.left - options.seconds, 5.0)
    report.part("torch", report.found, "torch_ops", lambda: with_torch(found, folder), TORCH_S / 2)
    return report.found


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip()


# ── what is said ──────────────────────────────────────────────────────────────────────────────


def limits(found: Row) -> list[tuple[str, str, bool | None]]:
    """(what, figure, whether it is within its limit)"""
    rows: list[tuple[str, str, bool | None]] = []
    for name, row in found["workloads"].items():
        if "time" in row:
            rows += _times(name, row["time"])
        if "energy" in row:
            rows += _energies(name, row["energy"])
    if found.get("planted"):
        for method in energy.METHODS:
            one = found["planted"][method]
            a, b = (one[k]["joules"] / one[k]["run_s"] for k in ("arithmetic", "memory"))
            same = one["arithmetic"]["run_s"] / one["memory"]["run_s"]
            rows.append(
                (
                    f"two kernels, {method}: W of arithmetic, memory (time {same:.3f})",
                    f"{a:.1f}, {b:.1f}",
                    one["told apart"],
                )
            )
    for name in ("torch", "watch") if found.get("torch_ops") else ():
        one = found["torch_ops"][name]
        rows.append(
            (
                f"{name} on {found['torch_ops']['where']}: steps with times, ops",
                f"{one['recorded']}, {one['ops']}",
                bool(one["recorded"] and one["ops"]),
            )
        )
    return rows


def _times(name: str, one: Row) -> list[tuple[str, str, bool | None]]:
    kernels, held, busy, memory = (one[k] for k in ("kernels_ms", "held_ms", "busy_ms", "memory"))
    same = memory["plan_bytes"] == memory["allocated_bytes"]
    return [
        (f"{name}: unexplained of a step", f"{one['unexplained']:.2%}", abs(one["unexplained"]) <= UNEXPLAINED),
        *(
            [
                (
                    f"{name}: kernels {held:.3f} ms, unprofiled {busy:.3f}",
                    f"{held / busy - 1:+.1%}",
                    abs(held / busy - 1) <= BUSY,
                ),
                (f"{name}: kernels as steps run, {kernels:.3f} ms", f"{kernels / busy - 1:+.1%}", None),
            ]
            if busy and held
            else [(f"{name}: busy time, unprofiled", "not measured", None)]
        ),
        (f"{name}: step {one['plain_ms']:.3f} ms, profiled over it", f"{one['ratio']:.3f}", one["ratio"] <= 1.05),
        (f"{name}: allocated of {memory['plan_bytes']:,} planned", f"{memory['allocated_bytes']:,}", same),
    ]


def _energies(name: str, one: Row) -> list[tuple[str, str, bool | None]]:
    rows: list[tuple[str, str, bool | None]] = []
    for held in (name for name in energy.HELD_OUT if name in one):
        counter = one[held]["joules"]
        plainly = one[held].get("mean power")
        if plainly is not None:
            rows.append((f"{name}: {held}, mean power x time", f"{plainly / counter - 1:+.1%}", None))
        off = {m: one[held][m] / counter - 1 for m in (*energy.METHODS, *energy.TIMED)}
        for m, error in off.items():
            known = plainly is None or m in energy.TIMED  # nothing is asked of these
            rows.append((f"{name}: {held}, {m}", f"{error:+.1%}", None if known else abs(error) <= ENERGY))
        if plainly is not None:
            closer = sum(abs(off[m]) < abs(plainly / counter - 1) for m in energy.METHODS)
            rows.append(
                (
                    f"{name}: {held}, closer than mean power",
                    f"{closer} of {len(energy.METHODS)}",
                    closer == len(energy.METHODS),
                )
            )
    if one["correlation"] is not None:
        rows.append((f"{name}: correlation of {len(one['signatures'])} signatures", f"{one['correlation']:.3f}", None))
    if "problem" in one:
        rows.append((f"{name}: other batch: {one['problem']}", "not measured", False))
    share = one["memory_share"]
    rows.append((f"{name}: memory's share of a step's energy", "no rail" if share is None else f"{share:.1%}", None))
    return rows


def say(found: Row) -> int:
    rows = limits(found)
    print()
    for what, figure, good in rows:
        word = {True: "met", False: "MISSED", None: ""}[good]
        print(f"{what:59} {figure:>14} {word}")
    for name, problem in found["problems"].items():
        print(f"{name}: {problem}")
    missed = sum(good is False for _, _, good in rows)
    print(
        f"\n{sum(good is True for _, _, good in rows)} limits met, {missed} missed, "
        f"{len(found['problems'])} parts without a result"
    )
    return 0 if not found["problems"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="fRM", help="letters, small or large")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it")
    parser.add_argument("--out", type=Path, default=Path("accounts"), help="a new folder")
    parser.add_argument("--profiled", type=float, default=4.0, help="seconds of profiled steps")
    parser.add_argument("--ticks", type=int, default=10, help="of the slowest sensor, a window")
    parser.add_argument("--rounds", type=int, default=3, help="of windows, at least")
    parser.add_argument("--other", type=int, help="the other batch size; half if not given")
    parser.add_argument("--sensor", metavar="MODULE:CLASS", help="this sensor alone, not all")
    parser.add_argument("--no-planted", action="store_true", help="leave the two kernels out")
    parser.add_argument("--keep-runs", type=Path, metavar="FOLDER", help="keep the run files there")
    parser.add_argument("--show", type=Path, metavar="JSON", help="say again what was found")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.show:
        found, folder = json.loads(options.show.read_text()), options.show.parent
    else:
        # a driver that hangs is not waited for: what was found is in the file
        faulthandler.dump_traceback_later(60 * options.minutes + LATE_S, exit=True)
        try:
            with tempfile.TemporaryDirectory() as runs:
                kept = options.keep_runs or Path(runs)
                kept.mkdir(parents=True, exist_ok=True)
                found, folder = plain(everything(options, kept)), options.out
        except (HandheldError, FileExistsError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        faulthandler.cancel_dump_traceback_later()
    done = [row["energy"] for row in found["workloads"].values() if "energy" in row]
    if done:
        energy.plot(done, found["device"]["name"], folder / "accounts.html")
    return say(found)


if __name__ == "__main__":
    sys.path[:0] = [os.getcwd()]  # a --sensor of the folder it is started in
    sys.exit(main())
