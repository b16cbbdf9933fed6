"""Runs op cases on Oclgrind, with each tensor in its own memory. scripts/oclgrind starts this module.

    PYTHONPATH=tests python -m cases.under_oclgrind [--sample N] [--seed S] [--only TEXT] [--halves]
                                                    [--variants N] [--shard I/N]

Oclgrind writes invalid accesses and data races to its log. This module prints the cases that it ran and
exits with 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys

import numpy as np

from handheld.backends.base import describe
from handheld.conformance.cases import CASES
from handheld.conformance.check import Held, captured, differences, reference, run_plan
from handheld.conformance.variants import DESCRIPTIONS, Variants, described, in_shard
from handheld.passes import half

#: cases with more work than this take too long in a simulator that runs one instruction at a time
LIMIT = 60_000
#: the allowed difference of a result; the simulator's functions are less exact
LOOSE = 1e-3
HALF_LOOSE = 2e-2  # several roundings of 2^-11 in a row


def work(step) -> int:
    """Roughly the number of points that all kernels of a step visit."""
    graph = step.graphs["case"]
    total = 0
    for node in graph.nodes:
        shape = node.attrs.get("shape", ())
        inner = node.inputs[0].shape[-1] if node.op == "matmul" else 1
        if node.op.startswith("conv"):
            inner = int(np.prod(node.inputs[1].shape[1:]))
        if node.op.startswith("attention"):
            q, k = (view.shape for view in node.inputs[int(node.op.endswith("grad")) :][:2])
            shape, inner = (*q, k[2]), 4
        if node.op.startswith("ctc"):
            logp, targets = (view.shape for view in node.inputs[int(node.op.endswith("grad")) :][:2])
            shape, inner = (*logp[:2], 2 * targets[1] + 1), 4
        total += int(np.prod(shape)) * inner * (64 if node.op == "sort" else 1)
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--halves", action="store_true", help="store all tensors between nodes as f16")
    parser.add_argument(
        "--variants",
        type=int,
        default=0,
        metavar="N",
        help="also N variants per case and description, chosen by the seed",
    )
    parser.add_argument("--shard", default="1/1", help="run one part, such as 1/4")
    options = parser.parse_args()
    half.LEAST = 1
    precision, limit = ("half", HALF_LOOSE) if options.halves else ("float32", LOOSE)
    chance = random.Random(options.seed)
    names = [n for n in CASES if options.only in n and in_shard(n, options.shard)]
    if options.sample:
        names = chance.sample(names, min(options.sample, len(names)))
    caps = describe("opencl:oclgrind")
    ran = skipped = wrong = tried = 0
    for name in names:
        held = Held(CASES[name])
        step = captured(held, name)
        if work(step) > LIMIT:
            skipped += 1
            continue
        want, start = reference(held), dict(step.values)
        # The default kernels of convolutions depend on the width of vectors, too.
        for kind in ("cpu", "gpu", "wide") if "conv" in name else ("cpu", "gpu"):
            own = described(caps, kind) if kind == "wide" else dataclasses.replace(caps, kind=kind)
            step.values.update(start)
            plan = step.plan("opencl:oclgrind", caps=own, isolate=True, precision=precision)
            for found in differences(run_plan(plan, held), want, limit):
                wrong += 1
                print(f"WRONG {name} ({kind}): {found}")
        for kind in DESCRIPTIONS if options.variants else ():
            case = Variants(CASES[name], "opencl:oclgrind", described(caps, kind), True, LOOSE)
            turns = chance.sample(range(case.turns), min(options.variants, case.turns))
            tried += len(turns)
            for found in case.wrong(turns):
                wrong += 1
                print(f"WRONG {name} ({kind}): {found}")
        ran += 1
        print(f"ran {name}", flush=True)
    print(
        f"{ran} cases ran on both kinds of device and {tried} times with other variants, "
        f"{skipped} too large, {wrong} wrong"
    )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
