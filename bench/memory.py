"""Compares the device bytes of a planned step with PyTorch's peak for the same step.

    python bench/memory.py [--on opencl] [--only bcde|small|large] [--json FILE] [--plot FILE.html]

PyTorch's peak is the most that its allocator had in use, with parameters and optimizer state: by
CUDA's counter, or on the CPU by the profiler's record of every allocation. Handheld's figure is what
the plan allocates, because it allocates nothing else.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import charts_page
import torch
from result_file import Row, device_id, save
from workloads import Entry, captured, chosen, eager

import handheld
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.report.charts import Axis, Reference, Series, bars

MIB = 2**20


def held(tensors: list[torch.Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)


def pytorch_peak(models: list[Any], losses: list[Any], optimizers: list[Any]) -> int:
    """The most bytes in use during a step, once optimizer state exists."""

    def step() -> None:
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())
    for optimizer in optimizers:
        optimizer.zero_grad()
    state = [t for m in models for t in (*m.parameters(), *m.buffers())]
    state += [t for o in optimizers for s in o.state.values() for t in s.values() if torch.is_tensor(t)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as run:
        step()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return held(state) + peak


def measure(entry: Entry, device: str) -> dict[str, Any]:
    where = "cuda" if torch.cuda.is_available() else "cpu"
    step, runs = captured(entry)
    graphs = [name for name, _ in runs]
    caps = None if device.startswith("opencl") else DeviceCaps.shipped(device)
    where_to = "opencl" if caps else device
    plan = step.plan(where_to, caps=caps, graphs=graphs)
    half = step.plan(where_to, caps=caps, graphs=graphs, precision="half")
    run = eager(entry, where)
    theirs = pytorch_peak(run.models, run.losses, run.optimizers)
    return {
        "model": entry.name,
        "tensors": max(plan.graphs[g].tensor_bytes for g in graphs),
        "arena": plan.arena_bytes,
        "plan": plan.bytes,
        "half": half.bytes,
        "pytorch": theirs,
        "ratio": plan.bytes / theirs,
    }


def result_rows(rows: list[dict[str, Any]], on: str) -> list[Row]:
    caps = describe(on) if on.startswith("opencl") else None
    device = device_id(caps.name, caps.driver) if caps else f"{on} plan"
    return [
        Row(
            row["model"],
            device,
            row["plan"] / MIB,
            "MiB",
            row["ratio"],
            "PyTorch",
            details={
                "all tensors": row["tensors"] / MIB,
                "arena": row["arena"] / MIB,
                "in halves": row["half"] / MIB,
                "PyTorch": row["pytorch"] / MIB,
            },
            figures=row | {"torch": torch.__version__},
        )
        for row in rows
    ]


def plot(rows: list[dict[str, Any]], device: str, path: Path) -> None:
    """A chart with one bar per step, stacked into state and arena, as a share of PyTorch's peak."""
    series = [
        Series("state and batch", [(row["plan"] - row["arena"]) / row["pytorch"] for row in rows]),
        Series("the rest of the step", [row["arena"] / row["pytorch"] for row in rows], colour=0, pale=True),
    ]
    sizes = [f"{row['model']} {row['plan'] / MIB:,.0f} of {row['pytorch'] / MIB:,.0f} MiB" for row in rows]
    title = "Device bytes of a step as a share of PyTorch's peak"
    peak = [Reference(1.0, "PyTorch's peak")]
    chart = bars(title, sizes, series, Axis("share of PyTorch's peak"), stacked=True, references=peak)
    charts_page.write(path, title, device, chart)


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--on", default="opencl", help="opencl, or the name of a shipped description, such as adreno-740"
    )
    parser.add_argument("--only", default="small", help="letters, small or large")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--plot", type=charts_page.html_path, help="write a page with a bar chart here")
    return parser.parse_args()


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    print(f"handheld {handheld.__version__}, PyTorch {torch.__version__}; MiB")
    print(f"{'':24} {'all tensors':>12} {'arena':>8} {'plan':>8} {'PyTorch':>8} {'ratio':>6} {'in halves':>9}")
    rows = []
    for entry in chosen(options.only):
        row = measure(entry, options.on)
        rows.append(row)
        sizes = "".join(
            f"{row[k] / MIB:{w}.1f} " for k, w in (("tensors", 12), ("arena", 8), ("plan", 8), ("pytorch", 8))
        )
        halves = f"{row['half'] / MIB:9.1f}"
        print(f"{entry.name:24} {sizes}{row['ratio']:6.2f} {halves}", flush=True)
    if options.json:
        save(options.json, "Memory", result_rows(rows, options.on))
    if options.plot:
        plot(rows, options.on, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
