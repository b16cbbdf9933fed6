"""Steps that keep less on the device with steps that keep everything: values moved out, frozen parameters streamed, and
optimizer state in 16 and 8 bits.

    python bench/moving.py [--on opencl] [--seconds 5] [--only spill,stream,state] [--json FILE]

Each step takes turns with the step without these means, in one process (`handheld.profile.turns`). `spill` trains
MobileNetV2 within 60% of its memory, without computing values again; `stream` fine-tunes a GPT by LoRA on weights of 4
bits; `state` trains the same GPT with Adam. On devices that share the memory of the host, values and parameters go to a
file. `predicted` is the additional time that the plan promises.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

from result_file import Row, device_id, save

import handheld
from handheld import suite
from handheld.backends.base import describe
from handheld.partial.options import WHOLE, PartialOptions
from handheld.plan.moves import moved_bytes_of, time_of_moves
from handheld.plan.plan import Plan
from handheld.profile.turns import stepping, take_turns
from handheld.resolve import capture_sizes
from handheld.step import Step
from handheld.suite.workload import Workload

MIB = 2**20
WORDS = {"vocabulary": 4096, "width": 256, "layers": 6, "heads": 8, "length": 128}


def captured(workload: Workload, batch: int, part: PartialOptions = WHOLE) -> Step:
    return capture_sizes(workload.make(0), {batch: workload.batch(batch)}, 0, workload.name, partial=part)


def spill(on: str) -> tuple[Any, Plan, dict[str, Plan]]:
    workload = suite.get("mobilenet_v2")
    step = captured(workload, 32)
    whole = step.plan(on, graphs=["train"])
    limit = int(0.6 * whole.bytes)
    plan = step.plan(on, graphs=["train"], memory_limit_bytes=limit, spill=True, recompute=False, micro_batches=1)
    return workload.batch(32), whole, {"MobileNetV2, values moved out": plan}


def stream(on: str) -> tuple[Any, Plan, dict[str, Plan]]:
    workload = suite.get("gpt").with_options(**WORDS)
    step = captured(workload, 4, PartialOptions(lora=8, bits=4))
    whole = step.plan(on, graphs=["train"])
    return workload.batch(4), whole, {"GPT, 4 bits, streamed": step.plan(on, graphs=["train"], stream=True)}


def state(on: str) -> tuple[Any, Plan, dict[str, Plan]]:
    workload = suite.get("gpt").with_options(**WORDS)
    step = captured(workload, 4)
    plans = {f"GPT, state in {bits} bits": step.plan(on, graphs=["train"], state_bits=bits) for bits in (16, 8)}
    return workload.batch(4), step.plan(on, graphs=["train"]), plans


MEANS = {"spill": spill, "stream": stream, "state": state}


def measure(batch: Any, whole: Plan, plans: dict[str, Plan], on: str, seconds: float) -> list[Row]:
    rows, caps = [], describe(on)
    with stepping(whole, {"train": batch}) as usual:
        for name, plan in plans.items():
            with stepping(plan, {"train": batch}) as other:
                turns = take_turns(usual, other, seconds=seconds)
            ratio = turns.after_ms / turns.before_ms
            out, into = moved_bytes_of(plan)
            details = {
                "MiB on the device": plan.bytes / MIB,
                "of the bytes": plan.bytes / whole.bytes,
                "MiB moved per step": (out + into) / MIB,
                "predicted": 1 + time_of_moves(plan.options) if plan.options["moves"] else "—",
                "lowest": 1 / turns.high,
                "highest": 1 / turns.low,
            }
            print(
                f"{name:32} {plan.bytes / MIB:7.1f} MiB ({plan.bytes / whole.bytes:.2f}), "
                f"{(out + into) / MIB:6.1f} MiB moved, time x {ratio:.2f} "
                f"({1 / turns.high:.2f} to {1 / turns.low:.2f}), predicted {details['predicted']}",
                flush=True,
            )
            row = Row(name, device_id(caps.name, caps.driver), turns.after_ms, "ms", ratio, "without", details=details)
            rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default=",".join(MEANS), help="means, with commas between them")
    parser.add_argument("--seconds", type=float, default=5.0, help="per comparison")
    parser.add_argument("--json", help="write all figures here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"handheld {handheld.__version__} on {describe(options.on).name}; times are ratios to the step without")
    rows = list[Row]()
    for name in options.only.split(","):
        if name not in MEANS:
            print(f"there is no {name!r}. Try: {', '.join(MEANS)}", file=sys.stderr)
            return 1
        rows += measure(*MEANS[name](options.on), options.on, options.seconds)
    if options.json:
        save(options.json, "Less on the device", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
