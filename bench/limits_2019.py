"""Plans the sixteen models of the 2019 study at batch 64 and paper size under a memory limit. Nothing runs.

    nice python bench/limits_2019.py [--only vgg19,bert_base] [--limit-gb 6] [--json FILE]

The device is the shipped description of an Adreno 740, with as much memory as the limit: the phone that was described
offers 3.9 GB of its memory, and phones with more memory offer more. GB are 10^9 bytes. Times are predicted
(docs/cost.md). Every plan is proved by plan/verify.py. Planning time is that of the CPU, from the captured step to the
plan.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

from result_file import Row, save

from handheld import suite
from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory
from handheld.limits.planning import Fitting
from handheld.plan.fit import fit_summary, fits_of
from handheld.plan.plan import Plan
from handheld.plan.verify import verify
from handheld.run.planning import requested
from handheld.step import Step
from handheld.studies.liu2019 import ALL

DEVICE, BATCH = "adreno-740", 64


def fitting_of(step: Step, graphs: list[str], limit: int) -> Fitting:
    """What decides about a plan of these graphs within the limit."""
    caps = replace(DeviceCaps.shipped(DEVICE), global_mem_bytes=limit)
    request = requested(step, "opencl", caps=caps, graphs=graphs, memory_limit_bytes=limit)
    return Fitting(step, request.device, request.caps, request.names, request.options, DEVICE)


def seconds_of(fitting: Fitting, plan: Plan) -> float:
    """The predicted time of a step: its training graphs, one after the other."""
    fits = fits_of(plan.options)
    usual = {name: fitting.usual_seconds(name) for name in fitting.names_to_fit}
    return sum(seconds * (1 + (fits[name].more if name in fits else 0.0)) for name, seconds in usual.items())


def measure(name: str, limit: int) -> dict[str, Any]:
    workload = suite.get(name, size="paper")
    step = workload.step(BATCH, evaluate=False)
    graphs = [graph for graph, _ in workload.runs(workload.batch(1))]
    begun = time.process_time()
    fitting = fitting_of(step, graphs, limit)
    why, smallest = "", None
    try:
        plan = fitting.plan()
    except OutOfMemory as error:
        plan, why, smallest = fitting.smallest, str(error), error.smallest_bytes
    planning = time.process_time() - begun
    verify(plan)
    return {
        "bytes": plan.bytes,
        "bytes_without": fitting.whole.bytes,
        "seconds": seconds_of(fitting, plan),
        "seconds_without": fitting.seconds,
        "nodes": sum(len(entry.graph.nodes) for entry in fitting.whole.graphs.values()),
        "planning_s": planning,
        "fit": fit_summary(plan.options, plan.bytes),
        "source": fitting.prices.source,
        "why": why,
        "smallest": smallest,
    }


def row_of(name: str, found: dict[str, Any], limit: int) -> Row:
    ratio = found["seconds"] / found["seconds_without"]
    fits = found["bytes_without"] <= limit
    return Row(
        f"{name} b{BATCH}",
        f"{DEVICE} plan",
        found["bytes"] / 1e6,
        "MB",
        ratio,
        "no limit",
        notes=found["why"] or ("" if fits else found["fit"]["text"]),
        goal=f"value <= {limit / 1e6:g}",
        details={
            "MB, no limit": found["bytes_without"] / 1e6,
            "ms": 1e3 * found["seconds"],
            "ms, no limit": 1e3 * found["seconds_without"],
            "more %": round(100 * (ratio - 1), 1),
            "nodes": found["nodes"],
            "planning s": found["planning_s"],
        },
        figures=found,
    )


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ALL), help="workloads, separated by commas")
    parser.add_argument("--limit-gb", type=float, default=6.0, help="the limit in 10^9 bytes")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    limit = round(options.limit_gb * 1e9)
    print(f"{'':14} {'MB':>9} {'no limit':>9} {'ms':>9} {'no limit':>9} {'more':>6} {'nodes':>6} {'CPU s':>6}")
    for name in options.only.split(","):
        found = measure(name, limit)
        row = row_of(name, found, limit)
        figures = row.details
        print(
            f"{name:14} {row.value:9,.0f} {figures['MB, no limit']:9,.0f} {figures['ms']:9,.0f} "
            f"{figures['ms, no limit']:9,.0f} {figures['more %']:5}% {figures['nodes']:6} {figures['planning s']:6.1f}",
            flush=True,
        )
        if found["why"]:
            print(f"    {found['why']}", flush=True)
        if options.json:
            save(options.json, "Sixteen models of 2019 under 6 GB", [row])
    return 0


if __name__ == "__main__":
    sys.exit(main())
