"""Trains workloads of the suite on one batch of their own data: every loss must be finite, and the loss must fall.

    python scripts/check_training.py --on pytorch:cpu,opencl --size small --steps 100
    python scripts/check_training.py --on pytorch:cuda,opencl --size small,paper --minutes 25 --out training.json

A device is `pytorch:cpu` or `pytorch:cuda` (the workload as users write it), or a device of Handheld, such as
`opencl` or `reference:cpu`. A workload passes if every loss is finite and the mean of the last ten is below the
first. EXPECTED says for which updates this does not hold.

Each workload trains in its own process, the cheapest first, and ends after `--limit` seconds. After `--minutes` no
other is started. The results are written to `--out` as they come. A second call with the same file goes on where the
first one stopped: what passed or failed is kept, and what was stopped is trained again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from handheld import suite

LAST = 10  # The losses whose mean is compared with the first.
#: What is expected of an update, if not "falls". The networks of a GAN work against each other: as long as one loss
#: falls, the other may rise.
EXPECTED = {("dcgan", "g"): "finite"}
Losses = dict[str, list[float]]
Row = dict[str, Any]


def train(name: str, size: str, on: str, batch: int | None, steps: int) -> Iterator[dict[str, float]]:
    """The losses of each step by graph."""
    workload = suite.get(name, size=size)
    yield from (_eager if on.startswith("pytorch") else _planned)(workload, on, batch or workload.default_batch, steps)


def _planned(workload: suite.Workload, on: str, batch: int, steps: int) -> Iterator[dict[str, float]]:
    runs = workload.runs(workload.batch(batch))
    step = workload.step(batch, evaluate=False)
    with step.plan(on, graphs=[graph for graph, _ in runs]).start() as trainer:
        for _ in range(steps):
            yield {graph: float(trainer.run(graph, *part)) for graph, part in runs}


def _eager(workload: suite.Workload, on: str, batch: int, steps: int) -> Iterator[dict[str, float]]:
    import torch

    where = on.partition(":")[2] or "cpu"
    modules, updates = workload.parts()
    for module in modules.values():
        module.to(where).train()
    torch.manual_seed(0)  # for dropout
    parts = {graph: tuple(t.to(where) for t in part) for graph, part in workload.runs(workload.batch(batch))}
    optimizers = {update.graph: update.optimizer(modules) for update in updates}
    for _ in range(steps):
        losses = {}
        for update in updates:
            optimizers[update.graph].zero_grad(set_to_none=True)
            loss = update.loss(modules, parts[update.graph])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizers[update.graph].step()
            losses[update.graph] = float(loss.detach())
        yield losses


def verdict(name: str, losses: Losses, steps: int) -> tuple[str, str]:
    """(trains, fails or stopped; why)."""
    for graph, values in losses.items():
        bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
        if bad is not None:
            return "fails", f"{graph}: the loss of step {bad + 1} is {values[bad]}"
    done = min((len(values) for values in losses.values()), default=0)
    if done < steps:
        return "stopped", f"after {done} of {steps} steps"
    for graph, values in losses.items():
        last = values[-LAST:]
        if EXPECTED.get((name, graph), "falls") == "falls" and not sum(last) / len(last) < values[0]:
            return "fails", f"{graph}: the last {len(last)} losses have the mean {sum(last) / len(last):.4g}"
    return "trains", ""


def child(task: Row) -> None:
    """One workload in this process; prints the losses of each step as a line of JSON."""
    warnings.simplefilter("ignore")
    for losses in train(task["name"], task["size"], task["on"], task["batch"], task["steps"]):
        print(json.dumps(losses), flush=True)
        if not all(map(math.isfinite, losses.values())):
            return


def run_child(task: Row, limit_s: float) -> Row:
    """Train in another process for at most `limit_s` seconds. What it has reported by then counts."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", json.dumps(task)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True),
        threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True),
    ]
    for reader in readers:
        reader.start()
    losses: Losses = {}
    out_of_time = False
    while True:
        try:
            line = lines.get(timeout=max(limit_s - (time.monotonic() - begun), 0.01))
        except queue.Empty:
            out_of_time = True
            process.kill()
            break
        if line is None:
            break
        for graph, value in json.loads(line).items():
            losses.setdefault(graph, []).append(value)
    code = process.wait()
    readers[1].join(5)
    status, why = verdict(task["name"], losses, task["steps"])
    if status == "stopped" and not out_of_time:
        last = next((text.strip() for text in reversed(errors) if text.strip()), f"exit code {code}")
        status, why = "fails", f"{why}: {last}"
    return {**task, "status": status, "why": why, "losses": losses, "seconds": round(time.monotonic() - begun, 1)}


def _read(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def cost(name: str, size: str, batch: int | None) -> float:
    """Operations of a forward pass of a batch; what sorts the workloads."""
    from handheld.suite.count import forward_flops

    workload = suite.get(name, size=size)
    return float(forward_flops(workload) * (batch or workload.default_batch))


def tasks(options: argparse.Namespace) -> list[Row]:
    """Everything that the options ask for, the cheapest first."""
    names = options.only.split(",") if options.only else list(suite.WORKLOADS)
    costs = {(name, size): cost(name, size, options.batch) for name in names for size in options.size.split(",")}
    return [
        {"name": name, "size": size, "on": on, "batch": options.batch, "steps": options.steps}
        for name, size in sorted(costs, key=lambda key: costs[key])
        for on in options.on.split(",")
    ]


def same(row: Row, task: Row) -> bool:
    return all(row[key] == value for key, value in task.items())


def write(path: Path, rows: list[Row]) -> None:
    """The whole file or none of it: a run that is killed leaves the last complete one."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


def show(row: Row) -> str:
    def few(values: list[float]) -> str:
        return " ".join(f"{values[i * (len(values) - 1) // 4]:.3g}" for i in range(5))

    losses = "; ".join(few(values) for values in row["losses"].values())
    what = f"{row['name']:18} {row['size']:5} {row['on']:13} {row['status']:9} {row['seconds']:6.0f} s"
    return f"{what}  {losses}  {row['why']}".rstrip()


def check(options: argparse.Namespace) -> int:
    path = Path(options.out)
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    begun, wanted, missing = time.monotonic(), tasks(options), []
    print(f"{'workload':18} {'size':5} {'on':13} {'result':9} {'time':>8}  five of the losses of each update")
    for task in wanted:
        if any(same(row, task) and row["status"] != "stopped" for row in rows):
            continue
        left_s = 60 * options.minutes - (time.monotonic() - begun)
        if left_s <= 0:
            missing.append(task)
            continue
        row = run_child(task, min(options.limit, left_s))
        rows = [*(other for other in rows if not same(other, task)), row]
        write(path, rows)
        print(show(row), flush=True)
    return summary([row for task in wanted for row in rows if same(row, task)], missing, path)


def summary(rows: list[Row], missing: list[Row], path: Path) -> int:
    """Print what did not train. The exit code: 0 if all train, 1 if one fails, 2 if one has not finished."""
    print(f"\n{'on':13} {'size':5} trains fails stopped")
    for on, size in dict.fromkeys((row["on"], row["size"]) for row in rows):
        count = [row["status"] for row in rows if (row["on"], row["size"]) == (on, size)].count
        print(f"{on:13} {size:5} {count('trains'):6} {count('fails'):5} {count('stopped'):7}")
    for row in rows:
        if row["status"] != "trains":
            print(show(row))
    if missing:
        print(f"no time was left for {len(missing)}: {', '.join('/'.join(map(str, m.values())) for m in missing)}")
    print(f"written to {path}; the same command goes on from there")
    failed = any(row["status"] == "fails" for row in rows)
    return 1 if failed else 2 if missing or any(row["status"] == "stopped" for row in rows) else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="pytorch:cpu,opencl", help="devices, separated by commas")
    parser.add_argument("--size", default="small", help="small, paper, or both: small,paper")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", help="some workloads, separated by commas")
    parser.add_argument("--batch", type=int, help="the batch of every workload, instead of its own")
    parser.add_argument("--limit", type=float, default=600, help="the most seconds per workload and device")
    parser.add_argument("--minutes", type=float, default=math.inf, help="the most minutes for everything")
    parser.add_argument("--out", default="training.json", help="the file of the results")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    raise SystemExit(check(options))


if __name__ == "__main__":
    main()
