"""The time to plan large graphs within a memory limit. Nothing runs.

    nice python bench/planner.py [--json FILE]

The device is the shipped description of an Adreno 740. The limit leaves half of the memory that values
have in the plan without one. The time
is that of one CPU (`time.process_time`), from the captured step to the plan, which plan/verify.py has proved. Another
load of the machine does not count.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass

from result_file import Row, save

from handheld import suite
from handheld.device import DeviceCaps
from handheld.limits.means import Allowed, plan_within
from handheld.limits.planning import Fitting
from handheld.plan.fit import fit_text
from handheld.run.planning import requested

DEVICE, SHARE, MOST_S = "adreno-740", 0.5, 10


@dataclass(frozen=True)
class Subject:
    """A workload of the suite, changed so that its graph is large."""

    name: str
    batch: int
    options: dict[str, int]


SUBJECTS = (Subject("resnet152", 8, {}), Subject("gpt", 4, {"layers": 60}))


def measure(subject: Subject) -> Row:
    step = suite.get(subject.name, **subject.options).step(subject.batch, evaluate=False)
    request = requested(step, "opencl", caps=DeviceCaps.shipped(DEVICE), graphs=["train"], memory_limit_bytes=None)
    whole = Fitting(step, "opencl", request.caps, request.names, request.options, DEVICE).whole
    options = {**request.options, "memory_limit_bytes": whole.bytes - int(whole.arena_bytes * (1 - SHARE))}
    begun = time.process_time()
    plan = plan_within(Fitting(step, "opencl", request.caps, request.names, options, DEVICE), Allowed(micro_batches=1))
    seconds = time.process_time() - begun
    nodes = len(whole.graphs["train"].graph.nodes)
    changed = "".join(f", {value} {key}" for key, value in subject.options.items())
    return Row(
        f"{subject.name} b{subject.batch}{changed}",
        f"{DEVICE} plan",
        seconds,
        "s",
        notes=fit_text(plan.options, plan.bytes),
        goal=f"value <= {MOST_S}",
        details={"nodes": nodes, "MiB": plan.bytes / 2**20, "MiB, no limit": whole.bytes / 2**20},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write all figures here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for subject in SUBJECTS:
        rows.append(measure(subject))
        found = rows[-1]
        print(f"{found.what}: {found.details['nodes']} nodes, {found.value:.1f} s; {found.notes}", flush=True)
    if options.json:
        save(options.json, "Planning within a memory limit", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
