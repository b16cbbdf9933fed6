"""Checks which models can be captured and trained with PyTorch's results. README.md says what is compared.

python coverage/run.py                       # every library that is installed
python coverage/run.py --only gpt2,resnet    # names that contain one of these
python coverage/run.py --group huggingface --json out.json --jobs 4
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch
from check import Result, try_family
from family import Family
from libraries import families

STEPS = 2


def results_of(chosen: list[Family], device: str, steps: int, jobs: int) -> Iterator[Result]:
    """The results of the families as they arrive, from `jobs` processes."""
    if jobs == 1:
        yield from (try_family(family, device, steps) for family in chosen)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=one_thread) as pool:
        waiting = [pool.submit(try_named, f.group, f.name, device, steps) for f in chosen]
        yield from (done.result() for done in as_completed(waiting))


def one_thread() -> None:
    torch.set_num_threads(1)


def try_named(group: str, name: str, device: str, steps: int) -> Result:
    """`try_family` for another process, which finds the family by its name."""
    return try_family(next(f for f in families([group]) if f.name == name), device, steps)


def row(result: Result) -> str:
    """One line of the table."""
    extra = f"  {result.note or result.dropout}" if result.verdict != "ok" else ""
    baked = f"  baked in: {len(result.baked)}" if result.baked else ""
    return (
        f"{result.name:34} {result.verdict:11} {result.nodes:6} {result.launches:6} "
        f"{result.programs:5} {result.paths:6.1%} {result.exact:8.1e} {result.worst:8.1e} "
        f"{result.torch_worst:8.1e} {result.flips:5} "
        f"{result.capture_s:6.1f} {result.total_s:6.1f}{baked}{extra}"
    )


HEADER = (
    f"{'family':34} {'verdict':11} {'nodes':>6} {'launch':>6} {'progs':>5} {'paths':>6} "
    f"{'exact':>8} {'worst':>8} {'torch':>8} {'flips':>5} {'capt s':>6} {'all s':>6}"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names that contain one of these, comma-separated")
    parser.add_argument("--group", default="", help="plain, huggingface, timm, pytorchcv; comma-separated")
    parser.add_argument("--on", default="opencl", help="the device")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("--json", type=Path, help="also write the results here, after each model")
    given = parser.parse_args()
    wanted = [w for w in given.only.split(",") if w]
    chosen = [
        f
        for f in families([g for g in given.group.split(",") if g])
        if not wanted or any(w == f.name if w in f.name.split() else w in f.name for w in wanted)
    ]
    if given.list:
        print("\n".join(f"{f.group:12} {f.name}" for f in chosen))
        return 0
    results: list[Result] = []
    print(HEADER)
    for result in results_of(chosen, given.on, given.steps, given.jobs):
        results.append(result)
        print(row(result), flush=True)
        if given.json:
            given.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    tried = [r for r in results if r.verdict != "skipped"]
    good = [r for r in tried if r.verdict == "ok"]
    print(
        f"{len(good)} of {len(tried)} families ok; "
        + ", ".join(f"{sum(r.verdict == v for r in tried)} {v}" for v in ("differs", "unsupported", "error", "dropout"))
    )
    return 0 if len(good) == len(tried) else 1


if __name__ == "__main__":
    raise SystemExit(main())
