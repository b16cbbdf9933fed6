"""Compares the native runner with the Python backend: results, step times, and the host's cost per launch.

    python bench/runner.py [--on opencl] [--only abc|small|large] [--steps 5] [--rounds 9] [--seconds 1.0]

Both open the same plan, on the device `--on` and on the runner of this machine for the same device. First each runs
`--steps` steps from the same state; after every step the losses and all slots must be equal bit for bit. Then they
take turns, so that other work on the machine disturbs both equally. A turn is as many steps as fill `--seconds`; it
ends when its last loss is on the host.

    ratio       runner divided by Python; the ratio of the medians over the turns
    us/py       the host's time per launch in us: enqueueing one step on an empty queue, divided by its launches,
    us/run      the fastest of some steps. For Python the call of `Session.run`; for the runner what it measures itself.
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

#: Steps that are enqueued on an empty queue, to time the host alone.
ENQUEUED = 30


class Contestant:
    """A started plan, with its batches as arrays."""

    def __init__(self, step: handheld.Step, runs: list[tuple[str, tuple[Any, ...]]], device: str) -> None:
        self.trainer = step.copy().plan(device).start()
        self.runs = [(name, [np.asarray(part) for part in batch]) for name, batch in runs]

    def turn(self, steps: int) -> list[float]:
        """Runs steps and returns the losses of the last graph."""
        losses = []
        for _ in range(steps):
            for name, batch in self.runs:
                loss = self.trainer.run(name, *batch)
            losses.append(loss)
        return [float(loss) for loss in losses]

    def state(self) -> dict[str, np.ndarray]:
        return {name: self.trainer.session.read_slot(name) for name in self.trainer.session.plan.slots}

    def launch_us(self) -> float:
        """The host's time per launch."""
        session, name = self.trainer.session, self.runs[0][0]
        launches, times = session.plan.graphs[name].launches, []
        for _ in range(ENQUEUED):
            session.finish()
            session.step_times()
            begun = time.perf_counter_ns()
            session.run(name)
            took = time.perf_counter_ns() - begun
            seen = session.step_times()
            times.append((took if seen is None else int(seen.end_ns[-1] - seen.begin_ns[-1])) / 1e3)
        session.finish()
        return min(times) / launches  # Other work on the machine only adds to it.


def first_difference(python: Contestant, runner: Contestant, steps: int) -> str:
    """Runs steps on both and compares them bit by bit. Returns what differed first, or an empty text."""
    for step in range(1, steps + 1):
        if np.float32(python.turn(1)).tobytes() != np.float32(runner.turn(1)).tobytes():
            return f"the loss of step {step}"
        want, got = python.state(), runner.state()
        for name, value in want.items():
            if value.tobytes() != got[name].tobytes():
                return f"{name} after step {step}"
    return ""


def compared(entry: Entry, options: argparse.Namespace) -> dict[str, Any]:
    """Equality, times and costs of one workload."""
    step, runs = captured(entry)
    python, runner = Contestant(step, runs, options.on), Contestant(step, runs, options.runner)
    differs = first_difference(python, runner, options.steps)
    started = time.perf_counter()
    python.turn(2)
    count = max(2, round(2 * options.seconds / (time.perf_counter() - started)))
    times: dict[str, list[float]] = {"python": [], "runner": []}
    for n in range(options.rounds):
        order = [("python", python), ("runner", runner)]
        for name, one in order if n % 2 else reversed(order):
            started = time.perf_counter()
            one.turn(count)
            times[name].append((time.perf_counter() - started) / count * 1e3)
    ratios = [b / a for a, b in zip(times["python"], times["runner"], strict=True)]
    quarter = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    medians = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    row = {
        "workload": entry.name,
        "equal": not differs,
        "equal_steps": options.steps if not differs else 0,
        "differs": differs,
        **medians,
        "ratio": medians["runner_ms"] / medians["python_ms"],
        "spread": quarter[2] - quarter[0],
        "launches": sum(g.launches for n, g in python.trainer.session.plan.graphs.items() if n in dict(runs)),
        "python_launch_us": python.launch_us(),
        "runner_launch_us": runner.launch_us(),
        "steps": count * options.rounds,
    }
    python.trainer.close()
    runner.trainer.close()
    return row


def shown(row: dict[str, Any]) -> str:
    return (
        f"{row['workload']:24} {'equal' if row['equal'] else 'DIFFERENT':9} {row['python_ms']:9.3f} "
        f"{row['runner_ms']:9.3f} {row['ratio']:6.3f} ±{row['spread']:.3f} {row['launches']:5} "
        f"{row['python_launch_us']:7.2f} {row['runner_launch_us']:7.2f}"
    )


def rows_of(rows: list[dict[str, Any]], options: argparse.Namespace) -> list[Row]:
    caps = describe(options.on)
    device, command = device_id(caps.name, caps.driver), command_line()
    return [
        Row(
            what=f"runner {row['workload']}",
            device=device,
            value=round(row["runner_ms"], 4),
            unit="ms",
            ratio=round(row["ratio"], 4),
            against="python backend",
            command=command,
            goal="ratio <= 1.0",
            details={
                "equal bits": f"{row['equal_steps']} steps" if row["equal"] else f"no: {row['differs']}",
                "launches": row["launches"],
                "us per launch": round(row["runner_launch_us"], 3),
                "us per launch, pyopencl": round(row["python_launch_us"], 3),
            },
            figures=row,
        )
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--runner", default="", help="the runner's device (default: runner, and the name after --on)")
    parser.add_argument("--only", default="small")
    parser.add_argument("--steps", type=int, default=5, help="steps that are compared")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    options = parser.parse_args()
    options.runner = options.runner or options.on.replace("opencl", "runner", 1)
    warnings.simplefilter("ignore")
    print(
        f"{'':24} {'bits':9} {'python ms':>9} {'runner ms':>9} {'ratio':>6}        {'n':>5} {'us/py':>7} {'us/run':>7}"
    )
    rows = []
    for entry in chosen(options.only):
        rows.append(compared(entry, options))
        print(shown(rows[-1]), flush=True)
        if options.json:
            save(options.json, "The native runner", rows_of(rows, options))
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    print(f"geometric mean of {len(rows)}: {mean:.3f}")
    if not all(row["equal"] for row in rows):
        sys.exit("results differ")


if __name__ == "__main__":
    main()
