"""Compares recorded steps with plain launches: results and step times.

    python bench/recording.py [--on opencl] [--way khr|qcom] [--only abc|small|large] [--rounds 9] [--seconds 1.0]
                              [--json FILE]

Both start from the same state. After three steps (a step is recorded at its second run), losses and all slots must be
equal bit for bit. Then they take turns, so that other work on the machine disturbs both equally. A turn is as many
steps as fill `--seconds`; it ends when its last loss is on the host. The ratio is that of the medians over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from typing import Any

import numpy as np
from result_file import Row, command_line, device_id, save
from workloads import Entry, captured, chosen

import handheld
from handheld.backends.base import describe
from handheld.backends.opencl.devices import find
from handheld.backends.opencl.record import submitter_for
from handheld.run.trainer import Trainer

Runs = list[tuple[str, tuple[Any, ...]]]


def started(step: handheld.Step, options: argparse.Namespace, way: str) -> Trainer:
    return step.copy().plan(options.on).start(submitter=submitter_for(find(options.on).device, way))


def turn(trainer: Trainer, runs: Runs, steps: int) -> list[float]:
    """Runs steps and returns the losses of the last graph."""
    losses = []
    for _ in range(steps):
        for name, batch in runs:
            loss = trainer.run(name, *batch)
        losses.append(loss)
    return [float(loss) for loss in losses]


def state(trainer: Trainer) -> dict[str, bytes]:
    return {name: trainer.session.read_slot(name).tobytes() for name in trainer.session.plan.slots}


def compared(entry: Entry, options: argparse.Namespace) -> dict[str, Any]:
    step, given = captured(entry)
    runs: Runs = [(name, tuple(np.asarray(part) for part in batch)) for name, batch in given]
    with started(step, options, "off") as plain, started(step, options, options.way) as recorded:
        equal = turn(plain, runs, 3) == turn(recorded, runs, 3) and state(plain) == state(recorded)
        begin = time.perf_counter()
        turn(plain, runs, 3)
        count = max(1, round(3 * options.seconds / (time.perf_counter() - begin)))
        times: dict[str, list[float]] = {"plain": [], "recorded": []}
        for _ in range(options.rounds):
            for name, trainer in (("plain", plain), ("recorded", recorded)):
                begin = time.perf_counter()
                turn(trainer, runs, count)
                times[name].append((time.perf_counter() - begin) / count * 1e3)
        launches = sum(graph.launches for name, graph in plain.session.plan.graphs.items() if name in dict(runs))
    medians = {name: statistics.median(own) for name, own in times.items()}
    ratio = medians["recorded"] / medians["plain"]
    return {"workload": entry.name, "equal": equal, **medians, "ratio": ratio, "launches": launches}


def rows_of(rows: list[dict[str, Any]], options: argparse.Namespace) -> list[Row]:
    caps = describe(options.on)
    return [
        Row(
            what=f"recorded ({options.way}) {row['workload']}",
            device=device_id(caps.name, caps.driver),
            value=round(row["recorded"], 4),
            unit="ms",
            ratio=round(row["ratio"], 4),
            against="plain launches",
            command=command_line(),
            details={"equal bits": "yes" if row["equal"] else "no", "launches": row["launches"]},
            figures=row,
        )
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--way", default="khr", choices=("khr", "qcom"))
    parser.add_argument("--only", default="small")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'':24} {'bits':9} {'plain ms':>9} {'recorded':>9} {'ratio':>6} {'n':>5}")
    rows = []
    for entry in chosen(options.only):
        row = compared(entry, options)
        rows.append(row)
        bits = "equal" if row["equal"] else "DIFFERENT"
        print(
            f"{row['workload']:24} {bits:9} {row['plain']:9.3f} {row['recorded']:9.3f} {row['ratio']:6.3f} "
            f"{row['launches']:5}",
            flush=True,
        )
        if options.json:
            save(options.json, "Recorded steps", rows_of(rows, options))
    if not all(row["equal"] for row in rows):
        sys.exit("results differ")


if __name__ == "__main__":
    main()
