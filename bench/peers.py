"""Whole training steps against PyTorch: ratios of step times from one run.

    python bench/peers.py [--on opencl] [--only abc|small|large] [--against eager,compile]
                          [--rounds 15] [--seconds 0.3] [--json FILE] [--plot FILE]

Contestants take turns, so that what else the machine does falls on all of them alike. A turn is
as many steps as fill `--seconds`; every step takes its batch from host memory; a turn ends when
its last loss is on the host. Ratios are ours / theirs of the medians over the turns: below 1,
Handheld is faster. On an NVIDIA device PyTorch runs on CUDA with TF32 off, else on the CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from workloads import Entry, captured, chosen, eager

import handheld
from handheld.backends.base import describe

Turn = Callable[[int], None]


def ours(entry: Entry, device: str) -> tuple[Turn, dict[str, Any]]:
    started = time.perf_counter()
    step, runs = captured(entry)
    plan = step.plan(device, graphs=[name for name, _ in runs])
    trainer = plan.start()
    batches = [(name, [t.numpy() for t in batch]) for name, batch in runs]
    launches = sum(len(n.launches) for g in plan.graphs.values() for n in g.lowered)

    def turn(steps: int) -> None:
        for _ in range(steps):
            for name, batch in batches:
                loss = trainer.run(name, *batch)
        float(loss)

    turn(1)
    first = time.perf_counter() - started
    return turn, {"launches": launches, "first_step_s": first, "plan_bytes": plan.bytes}


def theirs(entry: Entry, where: str, compiled: bool) -> Turn:
    run = eager(entry, where, compiled)

    def turn(steps: int) -> None:
        for _ in range(steps):
            loss = run.step()
        float(loss.detach())

    turn(1)
    return turn


def compare(entry: Entry, options: argparse.Namespace, where: str) -> dict[str, Any]:
    turn, facts = ours(entry, options.on)
    contestants: dict[str, Turn] = {"handheld": turn}
    for name in options.against:
        contestants[name] = theirs(entry, where, name == "compile")
    counts, times = {}, {name: [] for name in contestants}
    for name, turn in contestants.items():
        turn(2)
        started = time.perf_counter()
        turn(1)
        counts[name] = max(1, round(options.seconds / (time.perf_counter() - started)))
    for _ in range(options.rounds):
        for name, turn in contestants.items():
            started = time.perf_counter()
            turn(counts[name])
            times[name].append((time.perf_counter() - started) / counts[name])
    result: dict[str, Any] = {"workload": entry.name, **facts}
    for name, found in times.items():
        quarter = statistics.quantiles(found, n=4) if len(found) > 1 else [found[0]] * 3
        result[f"{name}_ms"] = 1e3 * statistics.median(found)
        result[f"{name}_spread"] = (quarter[2] - quarter[0]) / statistics.median(found)
    for name in options.against:
        result[f"ratio_{name}"] = result["handheld_ms"] / result[f"{name}_ms"]
    return result


def plot(rows: list[dict[str, Any]], against: list[str], path: str) -> None:
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(9, 4))
    width = 0.8 / len(against)
    for i, name in enumerate(against):
        values = [row[f"ratio_{name}"] for row in rows]
        axes.bar([k + i * width for k in range(len(rows))], values, width, label=f"/ {name}")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [row["workload"] for row in rows], rotation=30, ha="right")
    axes.set_ylabel("step time, Handheld / PyTorch")
    axes.legend()
    plt.tight_layout()
    plt.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="small", help="letters, small or large")
    parser.add_argument("--against", default="eager", type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--plot", help="write a bar chart of the ratios here (needs matplotlib)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    caps = describe(options.on)
    where = "cuda" if torch.cuda.is_available() and "NVIDIA" in caps.vendor else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(caps.compute_units if caps.kind == "cpu" else os.cpu_count() or 1)
    print(f"handheld {handheld.__version__} on {caps.name} ({caps.driver})")
    print(f"PyTorch {torch.__version__} on {where}, {torch.get_num_threads()} threads; ms a step, "
          "median (quartile range / median)")
    heads = "".join(f"{name:>18} {'ratio':>6}" for name in options.against)
    print(f"{'':26} {'launches':>8} {'handheld':>18}{heads}")
    rows = []
    for entry in chosen(options.only):
        row = compare(entry, options, where)
        rows.append(row)
        cells = f"{entry.name:26} {row['launches']:8} "
        cells += f"{row['handheld_ms']:10.2f} ({row['handheld_spread']:4.0%})"
        for name in options.against:
            cells += f"{row[name + '_ms']:10.2f} ({row[name + '_spread']:4.0%}) "
            cells += f"{row['ratio_' + name]:6.2f}"
        print(cells, flush=True)
    for name in options.against:
        logs = [math.log(row[f"ratio_{name}"]) for row in rows]
        mean = math.exp(sum(logs) / len(logs))
        worst = max(rows, key=lambda row: float(row[f"ratio_{name}"]))
        print(f"handheld / {name}: geometric mean {mean:.2f}, worst "
              f"{worst[f'ratio_{name}']:.2f} ({worst['workload']})")
    if options.json:
        facts = {"device": caps.to_json(), "torch": torch.__version__, "where": where}
        Path(options.json).write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    if options.plot:
        plot(rows, options.against, options.plot)


if __name__ == "__main__":
    sys.exit(main())
