"""Compares the profile of a runner with that of the Python backend: times of steps and of ops, as ratios.

    python bench/runner_profile.py --model lenet5 --on runner --out runner_profile.json

The two profiles follow each other, so other work on the machine changes the ratios. Very short ops scatter.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from handheld.analyse.run import Run
from handheld.cli.data_options import PLAIN
from handheld.cli.prepare import capture_example
from handheld.resolve import open_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--on", default="runner")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spec = open_model(options.model, None)
    step, _ = capture_example(spec, [spec.default_batch], 0, None, PLAIN)
    batch = spec.example(spec.default_batch)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for device in (options.on, "opencl"):
            path = Path(folder) / f"{len(found)}.run"
            with step.plan(device, graphs=["train"]).profile(batch, path, steps=options.steps) as run:
                found[device] = measured(run)
    ours, theirs = found[options.on], found["opencl"]
    shared = sorted(set(ours["ops"]) & set(theirs["ops"]))
    ratios = np.array([ours["ops"][op] / theirs["ops"][op] for op in shared])
    result = {
        "model": options.model,
        "device": options.on,
        "step_ms": {device: facts["step_ms"] for device, facts in found.items()},
        "step_ratio": ours["step_ms"] / theirs["step_ms"],
        "ops": len(shared),
        "op_ratio": dict(zip(("p10", "median", "p90"), np.percentile(ratios, (10, 50, 90)).tolist(), strict=True)),
        "all_ops_ratio": sum(ours["ops"].values()) / sum(theirs["ops"].values()),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text)


def measured(run: Run) -> dict[str, Any]:
    return {"step_ms": run.step_ms("train")[0], "ops": {row.id: row.ms for row in run.ops() if row.ms}}


if __name__ == "__main__":
    main()
