"""Measures what less memory costs in time: steps under memory limits, and PyTorch's ways to need less.

    python bench/limits.py [--on opencl] [--only resnet50,gpt] [--size small] [--batch N] [--json FILE]

For each workload, limits go from 1.0 down to --least of what the plan needs without a limit. Each plan takes turns
with the plan without a limit, so that other work on the machine disturbs both. PyTorch runs on the same processor, if
it is a CPU: as it is, with torch.utils.checkpoint around the blocks of the model, and compiled with an activation
memory budget, if that works here. Bytes are everything that a step holds: parameters, optimizer state, gradients and
values. Handheld's are those of the plan; PyTorch's are counted from its allocator (bench/memory.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from memory import pytorch_peak
from result_file import Row, device_id, save
from torch import nn
from torch.utils.checkpoint import checkpoint

import handheld
from handheld import suite
from handheld.backends.base import describe
from handheld.errors import OutOfMemory
from handheld.plan.fit import fit_summary
from handheld.plan.plan import Plan
from handheld.step import Step

MIB = 2**20
WORKLOADS = ("resnet50", "densenet100", "mobilenet_v2", "bert_base", "gpt")
#: The contestant that all others are compared with.
PLAIN = "no limit"

Turn = Callable[[int], float]


@dataclass
class Contestant:
    """A way to run the step: its bytes, what it does, and a function that runs so many steps and returns seconds."""

    name: str
    bytes: int
    notes: str
    turn: Turn
    values: int = 0
    predicted: float | None = None


def timed(steps: Callable[[int], Any]) -> Turn:
    def turn(count: int) -> float:
        begun = time.perf_counter()
        steps(count)
        return (time.perf_counter() - begun) / count

    return turn


def planned(name: str, plan: Plan, batch: tuple[Any, ...]) -> tuple[Contestant, Any]:
    """The plan as a contestant, and its trainer, which the caller closes."""
    trainer = plan.start()

    def steps(count: int) -> None:
        loss = None
        for _ in range(count):
            loss = trainer.step(*batch)
        float(loss)  # type: ignore[arg-type]  # waits for the device

    found = fit_summary(plan.options, plan.bytes)
    return Contestant(name, plan.bytes, found["text"], timed(steps), found["values"], 1 + found["more"]), trainer


def limited(step: Step, device: str, shares: list[float], batch: tuple[Any, ...]) -> list[Any]:
    """A copy of the step per plan: without a limit, then within each share of its bytes that can be met."""
    whole = step.copy().plan(device, graphs=["train"], recompute=False)
    plans = [(PLAIN, whole)]
    for share in shares:
        try:
            limit = int(whole.bytes * share)
            plans.append(
                (f"{share:.1f}", step.copy().plan(device, graphs=["train"], memory_limit_bytes=limit, micro_batches=1))
            )
        except OutOfMemory as error:
            least = error.smallest_bytes or whole.bytes
            plans.append((f"smallest, {least / whole.bytes:.2f}", _smallest(step, device, least)))
            break
    return [planned(name, plan, batch) for name, plan in plans]


def _smallest(step: Step, device: str, nbytes: int) -> Plan:
    """A plan of about the smallest size that was found; a search may need a little more the next time."""
    for more in (1.0, 1.02, 1.05, 1.1):
        try:
            return step.copy().plan(device, graphs=["train"], memory_limit_bytes=int(nbytes * more), micro_batches=1)
        except OutOfMemory:
            continue
    raise SystemExit(f"no plan of about {nbytes:,} bytes was found again")


def largest_list(model: nn.Module) -> nn.Module | None:
    """The Sequential or ModuleList with the most children: the blocks of the model."""
    lists = [m for m in model.modules() if isinstance(m, nn.Sequential | nn.ModuleList) and len(m) > 1]
    return max(lists, key=len, default=None)


class Checkpointed(nn.Module):
    """A block whose values are computed again in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *values: Any, **named: Any) -> Any:
        return checkpoint(self.block, *values, use_reentrant=False, **named)


def checkpointed(model: nn.Module) -> str:
    """Wraps the blocks. Returns what was wrapped, or "" if there are none."""
    blocks = largest_list(model)
    if blocks is None:
        return ""
    for module in model.modules():  # What is computed again must not have been overwritten.
        if hasattr(module, "inplace"):
            module.inplace = False
    for name, block in list(blocks.named_children()):
        setattr(blocks, name, Checkpointed(block))
    return f"torch.utils.checkpoint around {len(blocks)} blocks"  # type: ignore[arg-type]


def eager(workload: Any, count: int, how: str, budget: float = 1.0) -> Contestant:
    """PyTorch's step: "plain", "checkpoint" or "budget". Raises any error of PyTorch."""
    torch.manual_seed(0)
    model, loss, optimizer = workload.make()
    batch, notes = workload.batch(count), ""
    if how == "checkpoint":
        notes = checkpointed(model)
        if not notes:
            raise ValueError("the model has no list of blocks to wrap")
    run: Any = model
    if how == "budget":
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = budget
        torch.compiler.reset()
        run, notes = torch.compile(model), f"torch.compile, activation_memory_budget {budget}"

    def value() -> Any:
        return loss(run(*batch[:-1]), batch[-1])

    def steps(number: int) -> None:
        for _ in range(number):
            optimizer.zero_grad()
            value().backward()
            optimizer.step()

    steps(1)
    peak = pytorch_peak([model], [value], [optimizer])
    return Contestant(f"PyTorch {how}", peak, notes, timed(steps))


def pytorch(workload: Any, count: int) -> list[Contestant]:
    """PyTorch's contestants. One that fails is a line with the reason."""
    found = []
    for how, budget in (("plain", 1.0), ("checkpoint", 1.0), ("budget", 0.5)):
        try:
            found.append(eager(workload, count, how, budget))
        except Exception as error:  # Compilers and models fail in their own ways; the reason is shown.
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            print(f"    PyTorch {how}: does not work here: {reason[:160]}", flush=True)
    return found


def take_turns(contestants: list[Contestant], turns: int, steps: int) -> dict[str, list[float]]:
    for contestant in contestants:
        contestant.turn(1)
    times: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for _ in range(turns):
        for contestant in contestants:
            times[contestant.name].append(contestant.turn(steps))
    return times


def measure(name: str, options: argparse.Namespace, shares: list[float]) -> list[dict[str, Any]]:
    workload = suite.get(name, size=options.size)
    count = options.batch or workload.default_batch
    batch = workload.batch(count)
    started = limited(workload.step(count, evaluate=False), options.on, shares, batch)
    contestants = [contestant for contestant, _ in started]
    try:
        contestants += [] if torch.cuda.is_available() or options.no_pytorch else pytorch(workload, count)
        times = take_turns(contestants, options.turns, options.steps)
    finally:
        for _, trainer in started:
            trainer.close()
    first = contestants[0]
    rows = []
    for contestant in contestants:
        # Turns are neighbours in time, so each is compared with the one beside it.
        pairs = zip(times[contestant.name], times[first.name], strict=True)
        ratio = statistics.median(own / plain for own, plain in pairs)
        rows.append(
            {
                "workload": f"{name} {options.size} b{count}",
                "contestant": contestant.name,
                "bytes": contestant.bytes,
                "share": contestant.bytes / first.bytes,
                "ms": 1e3 * statistics.median(times[contestant.name]),
                "ratio": ratio,
                "predicted": contestant.predicted,
                "values": contestant.values,
                "notes": contestant.notes,
                "turns": times[contestant.name],
            }
        )
    return rows


def show(row: dict[str, Any]) -> None:
    predicted = "" if row["predicted"] is None else f"{row['predicted']:9.2f}"
    figures = f"{row['bytes'] / MIB:9.1f} {row['share']:6.2f} {row['ms']:9.1f} {row['ratio']:6.2f} {predicted:>9}"
    print(f"    {row['contestant']:20} {figures} {row['values'] or '':>6}", flush=True)


def result_rows(rows: list[dict[str, Any]], on: str) -> list[Row]:
    caps = describe(on)
    return [
        Row(
            f"{row['workload']}, {row['contestant']}",
            device_id(caps.name, caps.driver),
            row["bytes"] / MIB,
            "MiB",
            row["ratio"],
            PLAIN,
            notes=row["notes"],
            details={"share": row["share"], "ms": row["ms"], "predicted": row["predicted"], "values": row["values"]},
            figures={**row, "torch": torch.__version__},
        )
        for row in rows
    ]


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl", help="the device")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, separated by commas")
    parser.add_argument("--size", default="small", help="small, paper, or a number of pixels")
    parser.add_argument("--batch", type=int, help="batch size; default: the workload's own")
    parser.add_argument("--least", type=float, default=0.2, help="the smallest share of the unlimited bytes")
    parser.add_argument("--turns", type=int, default=5, help="turns per contestant")
    parser.add_argument("--steps", type=int, default=3, help="steps per turn")
    parser.add_argument("--no-pytorch", action="store_true", help="only Handheld's plans")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    count = round((1.0 - options.least) / 0.1)
    shares = [round(1.0 - 0.1 * n, 1) for n in range(1, count + 1)]
    print(f"handheld {handheld.__version__}, PyTorch {torch.__version__}; factors of the time without a limit")
    print(f"    {'':20} {'MiB':>9} {'share':>6} {'ms':>9} {'factor':>6} {'predicted':>9} {'values':>6}")
    rows: list[dict[str, Any]] = []
    for name in options.only.split(","):
        print(name, flush=True)
        found = measure(name, options, shares)
        rows += found
        for row in found:
            show(row)
        if options.json:
            save(options.json, "Memory limits", result_rows(found, options.on))
    return 0


if __name__ == "__main__":
    sys.exit(main())
