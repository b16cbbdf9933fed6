"""Measures what the default choices lose to tuned ones, for shapes that no tuning record of the package has.

    python bench/held_out.py [--on opencl] [--only vgg16,unet,...] [--seconds 60] [--json FILE]

Every workload of the suite is tuned for `--seconds` into a record of its own. `value` is the time of the default
choice divided by that of the best one: the geometric mean of all shapes whose candidates were all tried. Default and
best variants take turns; a gain below 2% is noise and counts as 1.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from result_file import Row, command_line, device_id, save

from handheld import suite
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.measure.jobs import find_jobs
from handheld.measure.tuner import Tuner
from handheld.plan.precision import prepare
from handheld.plan.tuning import TuningRecord, load_tuning

GOAL, GOAL_WORST = 1.10, 1.30


@dataclass(frozen=True)
class Shape:
    """One shape: how much slower than the best variant the default is, and its best milliseconds in a step."""

    signature: str
    loss: float
    best_ms: float
    choice: str


def shapes(name: str, caps: DeviceCaps, options: argparse.Namespace) -> tuple[list[Shape], int]:
    """The shapes of a workload that were tuned, and the number that no record has."""
    step = suite.get(name, size=options.size).step(evaluate=False)
    known = load_tuning(caps).entries
    graphs, _ = prepare(step, [n for n, graph in step.graphs.items() if graph.writes], caps, "float32")
    jobs = [job for job in find_jobs(graphs, caps) if job.signature not in known]
    with tempfile.TemporaryDirectory() as folder:
        tuner = Tuner(options.on, caps, jobs, TuningRecord.of(caps), Path(folder) / "record.json")
        tuner.run(options.seconds)
        found = []
        for row in tuner.rows():
            entry = row.entry
            if entry is not None and entry.done and entry.default_ms and entry.best_ms:
                loss = entry.default_ms / entry.best_ms
                found.append(Shape(row.signature, loss, row.count * entry.best_ms, str(entry.choice or "default")))
    return found, len(jobs)


def row_of(name: str, found: list[Shape], absent: int, caps: DeviceCaps) -> Row:
    losses = [shape.loss for shape in found]
    worst = max(found, key=lambda shape: shape.loss)
    best_ms = sum(shape.best_ms for shape in found)
    return Row(
        what=name,
        device=device_id(caps.name, caps.driver),
        value=round(geometric_mean(losses), 3),
        command=command_line(),
        goal=f"value <= {GOAL}",
        details={
            "by time": round(sum(shape.loss * shape.best_ms for shape in found) / best_ms, 3),
            "worst": round(worst.loss, 2),
            f"above {GOAL_WORST}": sum(loss > GOAL_WORST for loss in losses),
            "shapes": f"{len(found)} of {absent}",
        },
        figures={"shapes": [[shape.signature, round(shape.loss, 3), shape.choice] for shape in found]},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="vgg16,unet,alexnet,inception_v1,transformer")
    parser.add_argument("--size", default="small")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    caps, rows, every = describe(options.on), [], []
    for name in options.only.split(","):
        found, absent = shapes(name, caps, options)
        if not found:
            print(f"{name}: none of {absent} shapes was tuned in {options.seconds:g} s. Try: a longer --seconds")
            continue
        every += found
        rows.append(row_of(name, found, absent, caps))
        print(f"{name:16} {rows[-1].value:6} {rows[-1].details}", flush=True)
        for shape in sorted(found, key=lambda shape: -shape.loss)[:3]:
            print(f"    {shape.loss:5.2f}  {shape.signature}  {shape.choice}")
        if options.json:
            save(options.json, "Default choices for shapes without a record", rows)
    if every:
        mean = geometric_mean(shape.loss for shape in every)
        print(f"all {len(every)} shapes: {mean:.3f}, worst {max(shape.loss for shape in every):.2f}")


if __name__ == "__main__":
    main()
