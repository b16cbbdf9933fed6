"""Compares ways to train a part of a model with training all of it: time, bytes and joules of a step.

    python bench/partial.py [--on opencl] [--only mobilenet_v2,gpt] [--rounds N] [--json FILE]

The ways are: everything, the last layer (in GPT the last block), all biases, LoRA of rank 8, LoRA on weights of 4 bits,
and a sparse choice within three quarters of the bytes of everything. They take turns in one process, round by round;
the time of a way is its 10th percentile. Bytes are what the plan of a training step allocates. Joules are those of all
rails that are not part of another one, where the machine has a power sensor.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from result_file import Row, device_id, save

import handheld
from handheld import suite
from handheld.backends.base import describe
from handheld.errors import HandheldError
from handheld.partial.options import PartialOptions
from handheld.plan.plan import Plan
from handheld.profile.machine import need_power
from handheld.profile.turns import FAST, stepping
from handheld.resolve import capture_sizes
from handheld.suite.workload import Workload

MIB = 2**20
#: The share of the bytes of a whole step that the sparse choice may use.
SPARSE = 0.75
ENERGY_S = 10.0


@dataclass(frozen=True)
class Model:
    """A workload with its batch size, and the pattern of what `last` trains."""

    workload: Workload
    batch: int
    last: tuple[str, ...]
    about: str


def models() -> dict[str, Model]:
    words = {"vocabulary": 4096, "width": 256, "layers": 6, "heads": 8, "length": 128}
    gpt = suite.get("gpt").with_options(**words)
    return {
        "mobilenet_v2": Model(suite.get("mobilenet_v2", "paper"), 8, ("head",), "224x224, batch 8"),
        "gpt": Model(gpt, 4, ("blocks.5", "norm"), "6 layers of 256, 4 x 128 tokens"),
    }


def ways(model: Model, full_bytes: int) -> dict[str, PartialOptions]:
    return {
        "last": PartialOptions(model.last),
        "biases": PartialOptions(("biases",)),
        "LoRA": PartialOptions(lora=8),
        "LoRA, 4 bits": PartialOptions(lora=8, bits=4),
        "sparse": PartialOptions((f"sparse:{int(SPARSE * full_bytes)}",)),
    }


def planned(model: Model, way: PartialOptions, on: str) -> Plan:
    parts, example = model.workload.make(0), model.workload.batch(model.batch)
    step = capture_sizes(parts, {model.batch: example}, 0, model.workload.name, partial=way)
    return step.plan(on, graphs=["train"])


def in_turns(plans: dict[str, Plan], batch: Any, rounds: int) -> dict[str, float]:
    """Milliseconds per step of each way."""
    times: dict[str, list[float]] = {name: [] for name in plans}
    with contextlib.ExitStack() as stack:
        runs: dict[str, Callable[[int], float]] = {}
        for name, plan in plans.items():
            runs[name] = stack.enter_context(stepping(plan, {"train": batch}))
        for number in range(rounds):
            order = list(runs) if number % 2 else list(reversed(runs))
            for name in order:
                times[name].append(runs[name](1) * 1e3)
    return {name: float(np.percentile(each, FAST)) for name, each in times.items()}


def joules(plan: Plan, batch: Any) -> float:
    """Joules per step."""
    with (
        tempfile.TemporaryDirectory() as folder,
        plan.profile(batch, Path(folder) / "one.run", graph="train", seconds=ENERGY_S) as run,
    ):
        rails = [row.joules_step for row in run.energy() if not row.estimate and not row.part_of]
    return sum(value or 0.0 for value in rails)


def measure(name: str, model: Model, on: str, rounds: int, power: bool) -> list[dict[str, Any]]:
    full = planned(model, PartialOptions(), on)
    plans = {"everything": full} | {way: planned(model, o, on) for way, o in ways(model, full.bytes).items()}
    batch = model.workload.batch(model.batch)
    ms = in_turns(plans, batch, rounds)
    return [
        {
            "model": name,
            "about": model.about,
            "way": way,
            "trained": plan.step.trained_count(),
            "parameters": plan.step.parameter_count(),
            "ms": ms[way],
            "bytes": plan.bytes,
            "joules": joules(plan, batch) if power else None,
            "ms_ratio": ms[way] / ms["everything"],
            "bytes_ratio": plan.bytes / full.bytes,
            "rounds": rounds,
        }
        for way, plan in plans.items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\n{rows[0]['model']} ({rows[0]['about']})")
    print(f"{'':14} {'trained':>10} {'ms/step':>9} {'':>6} {'MiB':>8} {'':>6} {'J/step':>8}")
    for row in rows:
        energy = "—" if row["joules"] is None else f"{row['joules']:.3g}"
        print(
            f"{row['way']:14} {row['trained']:10,} {row['ms']:9.1f} {row['ms_ratio']:6.2f} {row['bytes'] / MIB:8.1f} "
            f"{row['bytes_ratio']:6.2f} {energy:>8}",
            flush=True,
        )


def result_rows(rows: list[dict[str, Any]], on: str) -> list[Row]:
    caps = describe(on)
    return [
        Row(
            f"{row['model']} {row['way']}",
            device_id(caps.name, caps.driver),
            row["ms"],
            "ms",
            row["ms_ratio"],
            "everything",
            details={
                "trained": row["trained"],
                "MiB": row["bytes"] / MIB,
                "of everything's bytes": row["bytes_ratio"],
                "J per step": row["joules"] if row["joules"] is not None else "no power sensor",
            },
            figures=row,
        )
        for row in rows
    ]


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="mobilenet_v2,gpt", help="models, with commas between them")
    parser.add_argument("--rounds", type=int, default=10, help="steps of each way that are timed")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    print(f"handheld {handheld.__version__} on {describe(options.on).name}; ratios are to everything")
    try:
        need_power(options.on)
        power = True
    except HandheldError as error:
        power = False
        print(f"joules are not measured: {error}")
    known, rows = models(), list[dict[str, Any]]()
    for name in options.only.split(","):
        if name not in known:
            print(f"there is no model {name!r}. Try: {', '.join(known)}", file=sys.stderr)
            return 1
        found = measure(name, known[name], options.on, options.rounds, power)
        show(found)
        rows += found
    if options.json:
        save(options.json, "Partial training", result_rows(rows, options.on))
    return 0


if __name__ == "__main__":
    sys.exit(main())
