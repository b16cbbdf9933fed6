"""Measures how a step grows with the batch, the depth and the length of a sequence, beside PyTorch.

    python bench/growth.py [--on opencl] [--only batch,depth,length] [--rounds 9] [--seconds 0.05] [--json FILE]

    batch     ResNet-18 on images of 64x64, batch 1 to 256
    depth     ResNet-18 to ResNet-152 on images of 32x32, batch 8
    length    a GPT of 2 layers, width 128, batch 1, 128 to 4,096 tokens

Handheld and PyTorch take turns; a time is that of the fastest turn, because other programs only make turns slower.
`others` is the number of cores that they held meanwhile. `capture` and `plan` are the seconds of each before
the first step. `bytes` is the memory of the plan: its state, and what the step needs at most.
`python scripts/draw_growth.py` draws docs/images/growth.svg from the file.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from result_file import Row, device_id, save

from handheld import suite
from handheld.backends.base import describe
from handheld.measure.load import Load
from handheld.suite.workload import Workload

BATCHES, DEPTHS, LENGTHS = (1, 4, 16, 64, 256), (18, 34, 50, 101, 152), (128, 256, 512, 1024, 2048, 4096)
PAUSE = 0.03  # seconds; threads that spin for more work stop meanwhile

Steps = Callable[[int], None]


def points(only: list[str]) -> Iterator[tuple[str, int, Workload, int]]:
    """The axis, the value on it, the workload and its batch."""
    if "batch" in only:
        for batch in BATCHES:
            yield "batch", batch, suite.get("resnet18", size=64, classes=10), batch
    if "depth" in only:
        for depth in DEPTHS:
            yield "depth", depth, suite.get("resnet18", size="small", depth=depth), 8
    if "length" in only:
        for length in LENGTHS:
            yield "length", length, suite.get("gpt", size="small", layers=2, length=length), 1


def ours(workload: Workload, batch: int, device: str) -> tuple[Steps, dict[str, float]]:
    begun = time.perf_counter()
    step = workload.step(batch, evaluate=False)
    captured = time.perf_counter()
    plan = step.plan(device)
    planned = time.perf_counter()
    trainer = plan.start()
    arrays = [tensor.numpy() for tensor in workload.batch(batch)]

    def steps(count: int) -> None:
        for _ in range(count):
            loss = trainer.run("train", *arrays)
        float(loss)

    return steps, {"capture s": captured - begun, "plan s": planned - captured, "bytes": plan.bytes}


def pytorch(workload: Workload, batch: int) -> Steps:
    model, loss, optimizer = workload.make()
    x, y = workload.batch(batch)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
        float(value.detach())

    return steps


def fastest(contestants: list[Steps], rounds: int, seconds: float) -> list[float]:
    """Seconds per step of each."""
    counts = []
    for steps in contestants:
        steps(1)
        begun = time.perf_counter()
        steps(1)
        counts.append(max(1, round(seconds / (time.perf_counter() - begun))))
    times: list[list[float]] = [[] for _ in contestants]
    for _ in range(rounds):
        for steps, count, spent in zip(contestants, counts, times, strict=True):
            time.sleep(PAUSE)
            begun = time.perf_counter()
            steps(count)
            spent.append((time.perf_counter() - begun) / count)
    return [min(spent) for spent in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="batch,depth,length")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.05, help="seconds of a turn")
    parser.add_argument("--json", help="write all figures here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    caps = describe(options.on)
    torch.set_num_threads(caps.compute_units)
    rows = []
    for axis, value, workload, batch in points(options.only.split(",")):
        steps, facts = ours(workload, batch, options.on)
        load = Load()
        mine, theirs = fastest([steps, pytorch(workload, batch)], options.rounds, options.seconds)
        others = load.so_far()
        row = Row(
            f"{axis} {value}",
            device_id(caps.name, caps.driver),
            1e3 * mine,
            "ms",
            ratio=mine / theirs,
            against="PyTorch",
            details={"peer ms": 1e3 * theirs, **facts, "others": None if others is None else round(others.cores, 1)},
        )
        rows.append(row)
        shown = "  ".join(f"{name} {figure:.4g}" for name, figure in row.details.items() if figure is not None)
        print(f"{row.what:12} {row.value:8.2f} ms  ratio {row.ratio:.2f}  {shown}", flush=True)
        if options.json:
            save(options.json, "Growth", rows)


if __name__ == "__main__":
    main()
