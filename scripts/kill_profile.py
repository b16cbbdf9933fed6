"""Kills profiles at random moments and checks that their run files open and are nearly complete.

    python scripts/kill_profile.py [--times 50] [--most 6] [--seed 0] [--folder DIR] [--json]

Each profile runs steps without end in its own process. After every step the process writes the number of
finished steps and the time to shared memory, which outlives it. It is killed with SIGKILL at a random
moment, up to `--most` seconds after its run file appears: sometimes during the start, mostly while steps
run. Then the file must open, and it must contain every step that ended more than a second before the kill.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np

import handheld
from handheld.errors import RunFileError
from handheld.profile.run import profile

LATEST_S = 1.0  # steps that ended in the last second before the kill may be missing
KEPT = 1 << 16  # number of steps whose end times are kept


def work(step_file: str, path: str, ends: Any, count: Synchronized[int]) -> None:
    """Runs in the process that is killed: profiles steps without end."""
    plan = handheld.load(step_file).plan("opencl", graphs=["train"])
    graph = plan.graphs["train"].graph
    batch = tuple(
        np.zeros(graph.tensors[given.tensor].shape, np.float32 if given.torch_dtype.endswith("float32") else np.int64)
        for given in graph.inputs
    )

    def batches() -> Any:
        """Batches without end. When the next batch is requested, the step before it has ended."""
        for done in itertools.count():
            if done:
                ends[(done - 1) % KEPT] = time.monotonic()
            count.value = done
            yield batch

    profile(plan, batches(), path, steps=10**9, idle_s=0.05)


def kill_once(step_file: str, path: Path, after_s: float) -> dict[str, Any]:
    """Starts a profile, kills it, and returns what its run file still contains."""
    context = multiprocessing.get_context("spawn")
    ends, count = context.Array("d", KEPT, lock=False), context.Value("q", 0)
    process = context.Process(target=work, args=(step_file, str(path), ends, count))
    process.start()
    while not path.exists() and process.is_alive():
        time.sleep(0.001)
    time.sleep(after_s)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    process.join()
    done = count.value
    row: dict[str, Any] = {
        "after_s": after_s,
        "steps": done,
        "opened": False,
        "kept": 0,
        "missing_s": None,
        "problem": "",
    }
    if process.exitcode != -signal.SIGKILL:
        return {**row, "problem": f"the profile ended before the kill, with exit code {process.exitcode}"}
    try:
        with handheld.open_run(path) as run:
            kept = len(run.steps())
            run.summary()
            run.findings()
    except RunFileError as error:
        return {**row, "problem": str(error)}
    # How long before the kill did the first missing step end?
    missing = killed - ends[kept % KEPT] if kept < done else 0.0
    return {**row, "opened": True, "kept": kept, "missing_s": missing}


def small_step(path: Path) -> None:
    """Writes the file of a step that takes a few hundred microseconds."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    batch = (torch.randn(16, 32), torch.zeros(16, dtype=torch.int64))
    handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--most", type=float, default=6.0, help="most seconds from the file's appearance to the kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true", help="print one document")
    options = parser.parse_args()
    draw, rows = random.Random(options.seed), []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        step_file = Path(folder) / "small.step"
        small_step(step_file)
        for n in range(options.times):
            row = kill_once(str(step_file), Path(folder) / f"{n}.run", draw.uniform(0, options.most))
            rows.append(row)
            if not options.json:
                print(
                    f"{n:3} after {row['after_s']:5.2f} s: "
                    + (
                        f"{row['kept']} of {row['steps']} steps, {row['missing_s']:.2f} s missing"
                        if row["opened"]
                        else row["problem"]
                    ),
                    flush=True,
                )
    fine = [row for row in rows if row["opened"] and row["missing_s"] <= LATEST_S]
    if options.json:
        print(json.dumps(rows))
    else:
        print(
            f"{len(fine)} of {len(rows)} opened with at most {LATEST_S:g} s missing; most "
            f"{max((r['missing_s'] or 0.0 for r in rows), default=0.0):.2f} s"
        )
    return 0 if len(fine) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
