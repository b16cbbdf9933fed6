"""Compares the ways of a batch into memory that a device shares with its host: mapped, or staged and copied.

    python bench/inputs.py [--on runner] [--rounds 9] [--seconds 0.5] [--json FILE]

The runner reads an input straight into the device's memory if the device is idle, and stages it otherwise (auto). The
same plan runs with auto, always staged and always mapped. All must have the same losses, bit for bit. Then they take
turns, so that other work on the machine disturbs them equally. There are two loops: one reads the loss after every
step, so that the device is idle when the next input comes; the other runs ahead. The ratio is that of the medians over
the turns, auto to staged. The last column is the share of inputs that auto has mapped. `--on` also takes
`ssh:user@host` and `adb`; then the batch crosses the connection first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from result_file import Row, command_line, device_id, save
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.backends.base import describe
from handheld.backends.runner.wire import INPUT_WAYS
from handheld.run.trainer import Trainer

Batch = tuple[np.ndarray, ...]
#: Name, images per batch and pixels per side. The model does little, so that the way of the input counts.
SIZES = (("0.25 MiB", 1, 256), ("4 MiB", 4, 512), ("32 MiB", 8, 1024))


def light(images: int, side: int) -> tuple[handheld.Step, Batch]:
    """A step that reads its input once and computes next to nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(side // 8), nn.Flatten(), nn.Linear(64, 5))
    batch = torch.randn(images, 1, side, side), torch.randint(0, 5, (images,))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False)
    return step, (batch[0].numpy(), batch[1].numpy())


def heavy() -> tuple[handheld.Step, Batch]:
    """A step whose input is small beside its work: convolutions over 1.5 MiB."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Linear(16, 5))
    batch = torch.randn(32, 3, 64, 64), torch.randint(0, 5, (32,))
    step = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.01), batch, evaluate=False)
    return step, (batch[0].numpy(), batch[1].numpy())


def waiting(trainer: Trainer, batch: Batch, steps: int) -> float:
    for _ in range(steps):
        loss = float(trainer.run("train", *batch))
    return loss


def ahead(trainer: Trainer, batch: Batch, steps: int) -> float:
    for _ in range(steps):
        loss = trainer.run("train", *batch)
    return float(loss)


Loop = Callable[[Trainer, Batch, int], float]
LOOPS: dict[str, Loop] = {"waiting": waiting, "ahead": ahead}


def compared(name: str, step: handheld.Step, batch: Batch, loop: str, options: argparse.Namespace) -> dict[str, Any]:
    run = LOOPS[loop]
    trainers = {way: step.copy().plan(options.on).start(inputs=way) for way in INPUT_WAYS}
    try:
        losses = {way: waiting(trainer, batch, 3) for way, trainer in trainers.items()}
        begin = time.perf_counter()
        run(trainers["auto"], batch, 5)
        count = max(2, round(5 * options.seconds / (time.perf_counter() - begin)))
        times: dict[str, list[float]] = {way: [] for way in trainers}
        mapped = 0
        for _ in range(options.rounds):
            for way, trainer in trainers.items():
                session: Any = trainer.session  # that of the runner
                before, begin = session.input_ways()[0], time.perf_counter()
                run(trainer, batch, count)
                times[way].append((time.perf_counter() - begin) / count * 1e3)
                mapped += session.input_ways()[0] - before if way == "auto" else 0
    finally:
        for trainer in trainers.values():
            trainer.close()
    return {
        "what": name,
        "loop": loop,
        "equal": len(set(losses.values())) == 1,
        "mapped_share": mapped / (options.rounds * count),
        "ms": {way: statistics.median(own) for way, own in times.items()},
    }


def rows_of(rows: list[dict[str, Any]], options: argparse.Namespace) -> list[Row]:
    caps = describe(options.on)
    return [
        Row(
            what=f"input of {row['what']}, {row['loop']}, {way}",
            device=device_id(caps.name, caps.driver),
            value=round(row["ms"][way], 4),
            unit="ms",
            ratio=round(row["ms"][way] / row["ms"]["staged"], 4),
            against="staged",
            command=command_line(),
            details={"equal bits": "yes" if row["equal"] else "no", "mapped by auto": f"{row['mapped_share']:.0%}"},
            figures=row,
        )
        for row in rows
        for way in ("auto", "mapped")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="runner")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if not describe(options.on).unified_memory:
        sys.exit(f"{options.on} has its own memory: inputs are always staged")
    print(f"{'input':18} {'loop':8} {'bits':9} {'staged ms':>9} {'mapped':>8} {'auto':>8} {'ratio':>6} {'mapped':>6}")
    rows = []
    subjects = [(name, *light(images, side)) for name, images, side in SIZES] + [("1.5 MiB, more work", *heavy())]
    for name, step, batch in subjects:
        for loop in LOOPS:
            row = compared(name, step, batch, loop, options)
            rows.append(row)
            ms, bits = row["ms"], "equal" if row["equal"] else "DIFFERENT"
            print(
                f"{name:18} {loop:8} {bits:9} {ms['staged']:9.3f} {ms['mapped']:8.3f} {ms['auto']:8.3f} "
                f"{ms['auto'] / ms['staged']:6.3f} {row['mapped_share']:6.0%}",
                flush=True,
            )
            if options.json:
                save(options.json, "Ways of inputs", rows_of(rows, options))
    if not all(row["equal"] for row in rows):
        sys.exit("results differ")


if __name__ == "__main__":
    main()
