"""Measures the cost of profiling: profiled step time divided by unprofiled, also for PyTorch's profiler.

    python bench/overhead.py [--on opencl] [--only abc|small|large] [--rounds 9] [--seconds 1.5]
                             [--no-torch] [--json FILE] [--plot FILE.html]

One trainer alternates between turns with a profiler and sensors and turns without, so that other work on
the machine disturbs both equally. A turn is as many steps as fill `--seconds`; it ends when its last loss
is on the host. The profiler stays open over all of its turns, as it does over a run, and records as many
windows of steps as its budget allows. PyTorch's profiler runs over whole turns of the same model in eager
mode (CPU activity, and CUDA's on a GPU).

    ratio      the ratio of the medians over the turns
    ±          the range of the middle half of the ratios of single turns
    windows    how many windows were recorded

The ratio of processor times, printed at the end, is less disturbed by other work on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import charts_page
import psutil
import torch
from workloads import Entry, captured, chosen, eager

import handheld
from handheld.backends.base import describe
from handheld.profile.profiler import Profiler
from handheld.profile.sampling import sampled, sources
from handheld.report.charts import Axis, Reference, Series, bars

TARGET = 1.05

Turn = Callable[[int], None]


def interleaved(plain: Turn, other: Turn, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of both in ms per step, and their ratio."""
    plain(2)
    started = time.perf_counter()
    plain(2)
    count = max(1, round(2 * options.seconds / (time.perf_counter() - started)))
    times: dict[str, list[float]] = {"plain": [], "profiled": []}
    spent: dict[str, list[float]] = {"plain": [], "profiled": []}  # processor time
    ratios = []
    for n in range(options.rounds):
        order = (("plain", plain), ("profiled", other))
        for name, turn in order if n % 2 else reversed(order):
            started, processor = time.perf_counter(), time.process_time()
            turn(count)
            times[name].append((time.perf_counter() - started) / count * 1e3)
            spent[name].append(time.process_time() - processor)
        ratios.append(times["profiled"][-1] / times["plain"][-1])
    medians = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    quarter = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        **medians,
        "steps": count * options.rounds,
        "spread": quarter[2] - quarter[0],
        "processor_ratio": (statistics.median(spent["profiled"]) / statistics.median(spent["plain"])),
        "ratio": medians["profiled_ms"] / medians["plain_ms"],
    }


def ours(entry: Entry, options: argparse.Namespace, folder: str) -> dict[str, Any]:
    step, runs = captured(entry)
    plan = step.plan(options.on, graphs=[name for name, _ in runs])
    batches = [(name, [t.numpy() for t in batch]) for name, batch in runs]
    path = Path(folder) / f"{entry.letter}.run"
    with plan.start() as trainer, Profiler(path) as profiler, contextlib.ExitStack() as stack:
        profiler.attach(trainer)
        trainer.observer = None

        def plain(steps: int) -> None:
            for _ in range(steps):
                for name, batch in batches:
                    loss = trainer.run(name, *batch)
            float(loss)

        def profiled(steps: int) -> None:
            trainer.observer = profiler
            try:
                plain(steps)
            finally:
                trainer.observer = None

        stack.enter_context(sampled(profiler.writer, sources()))
        begun = time.monotonic()
        row = interleaved(_paused(plain, profiler), profiled, options)
        elapsed = time.monotonic() - begun
        profiler.flush()
    with handheld.open_run(path) as run:
        sampler, parts = run.meta["sampler"], run.parts()
        # The sampler was stopped during the plain turns.
        awake = elapsed / (row["steps"] * row["profiled_ms"] * 1e-3)
        return {
            **row,
            "windows": len({one.window for one in run.timed}),
            "recorded": len(run.timed),
            "unexplained": parts.unexplained / parts.ms if parts else None,
            "sampler_share": sampler["cpu_share"] * awake,
            "sampler_sources": {name: one["cpu_share"] * awake for name, one in sampler["sources"].items()},
        }


def _paused(turn: Turn, profiler: Profiler) -> Turn:
    """A turn during which the sampling process is stopped. The profiler's recording budget skips this time."""

    def run(steps: int) -> None:
        children = [
            child for child in psutil.Process().children() if "handheld.sensors.child" in " ".join(child.cmdline())
        ]
        for child in children:
            child.send_signal(signal.SIGSTOP)
        begun = time.monotonic_ns()
        try:
            turn(steps)
        finally:
            profiler.windows.skip(time.monotonic_ns() - begun)
            for child in children:
                child.send_signal(signal.SIGCONT)

    return run


def theirs(entry: Entry, options: argparse.Namespace, where: str) -> dict[str, Any]:
    """PyTorch's own profiler on the same model, in eager mode."""
    run = eager(entry, where)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if where == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def plain(steps: int) -> None:
        for _ in range(steps):
            loss = run.step()
        float(loss.detach())

    def profiled(steps: int) -> None:
        with torch.profiler.profile(activities=activities):
            plain(steps)

    return interleaved(plain, profiled, options)


def plot(rows: list[dict[str, Any]], device: str, path: Path) -> None:
    named = {"ratio": "handheld", "torch_ratio": "torch.profiler"}
    series = [Series(name, [row.get(key) for row in rows]) for key, name in named.items()]
    title = "Step time, profiled divided by not profiled"
    names = [row["workload"] for row in rows]
    goal = [Reference(TARGET, f"{TARGET:g}")]
    charts_page.write(path, title, device, bars(title, names, series, Axis("ratio"), references=goal))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="small", help="letters, small or large")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds per turn")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch's profiler out")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--plot", type=charts_page.html_path, help="write a page with a bar chart of the ratios here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    caps = describe(options.on)
    where = "cuda" if torch.cuda.is_available() and "NVIDIA" in caps.vendor else "cpu"
    torch.set_num_threads(caps.compute_units if caps.kind == "cpu" else os.cpu_count() or 1)
    print(f"handheld {handheld.__version__} on {caps.name}; PyTorch {torch.__version__} on {where}")
    print(
        f"{'':26} {'plain ms':>9} {'profiled':>9} {'ratio':>6} {'±':>5} {'windows':>7} "
        f"{'sampler':>7} {'torch.profiler':>14}"
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for entry in chosen(options.only):
            row = {"workload": entry.name, **ours(entry, options, folder)}
            if not options.no_torch:
                row |= {f"torch_{k}": v for k, v in theirs(entry, options, where).items()}
            rows.append(row)
            other = f"{row['torch_ratio']:14.2f}" if "torch_ratio" in row else ""
            print(
                f"{entry.name:26} {row['plain_ms']:9.3f} {row['profiled_ms']:9.3f} "
                f"{row['ratio']:6.3f} {row['spread']:5.2f} {row['windows']:7} "
                f"{row['sampler_share']:7.1%} {other}",
                flush=True,
            )
            if options.json:  # Written after each row, so that a failure later loses nothing.
                facts = {"device": caps.to_json(), "torch": torch.__version__, "where": where}
                Path(options.json).write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    print(
        "sampler, share of a core by source (of the last workload): "
        + ", ".join(f"{name} {share:.2%}" for name, share in rows[-1]["sampler_sources"].items())
    )
    print(
        "processor time of the process, profiled / unprofiled: "
        + ", ".join(f"{row['workload']} {row['processor_ratio']:.3f}" for row in rows)
    )
    over = [row["workload"] for row in rows if row["ratio"] > TARGET]
    print(f"over {TARGET}: {', '.join(over) or 'none'}")
    if options.plot:
        plot(rows, caps.name, options.plot)


if __name__ == "__main__":
    sys.exit(main())
