"""Compares the planned memory of training steps at paper size with a limit.

    python scripts/check_memory.py [--workloads unfit|all|names] [--batch 1,16,64] [--line 8] [--run 1]

"unfit" are the six models that liu2019 could not train on 8 GB. `--line` is the limit in GB. `--run BATCH`
also runs two real steps of each on `--on`, if this machine has twice the memory they need.
"""

from __future__ import annotations

import argparse
import time

import psutil

from handheld import suite
from handheld.suite.fits import Need, needed


def names(text: str) -> list[str]:
    if text == "all":
        return list(suite.WORKLOADS)
    tagged = [name for name, workload in suite.WORKLOADS.items() if text in workload.tags]
    return tagged or text.split(",")


def real(workload: suite.Workload, need: Need, on: str) -> str:
    """Runs two steps; returns a line with their losses and the time of the second."""
    step = workload.step(need.batch, evaluate=False)
    batch = workload.runs(workload.batch(need.batch))
    with step.plan(on, graphs=[graph for graph, _ in batch]).start() as trainer:
        losses = [float(trainer.run(graph, *part)) for graph, part in batch]
        started = time.perf_counter()
        losses += [float(trainer.run(graph, *part)) for graph, part in batch]
        taken = time.perf_counter() - started
    return (
        f"    ran at batch {need.batch} on {on}: {trainer.plan.bytes / 1e9:.2f} GB, losses "
        f"{', '.join(f'{loss:.3f}' for loss in losses)}, second step {taken:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="unfit")
    parser.add_argument("--size", default="paper")
    parser.add_argument("--batch", default="1,16,64")
    parser.add_argument("--line", type=float, default=8, metavar="GB")
    parser.add_argument("--run", type=int, metavar="BATCH")
    parser.add_argument("--on", default="opencl")
    options = parser.parse_args()
    batches = [int(word) for word in options.batch.split(",")]
    print(
        f"| workload | lasting | {' | '.join(f'batch {n}' for n in batches)} | largest under "
        f"{options.line:g} GB |\n|---|{'---:|' * (len(batches) + 2)}"
    )
    for name in names(options.workloads):
        workload = suite.get(name, size=options.size)
        needs = [needed(workload, n) for n in batches]
        under = [need for need in needs if need.bytes <= options.line * 1e9]
        cells = [f"{need.bytes / 1e9:.2f} GB" + ("" if need in under else " ✗") for need in needs]
        print(
            f"| {name} | {needs[0].lasting_bytes / 1e9:.2f} GB | {' | '.join(cells)} | "
            f"{max((need.batch for need in under), default='none')} |",
            flush=True,
        )
        if options.run is None:
            continue
        need = needed(workload, options.run)
        room = psutil.virtual_memory().available / 2
        print(
            real(workload, need, options.on)
            if need.bytes <= room
            else f"    not run at batch {need.batch}: {need.bytes / 1e9:.2f} GB are needed, but half "
            f"of this machine's free memory is {room / 1e9:.2f} GB",
            flush=True,
        )


if __name__ == "__main__":
    main()
