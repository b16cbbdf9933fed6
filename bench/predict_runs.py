"""Makes the run files that bench/predict.py needs: workloads of the suite at several batch sizes.

    python bench/predict_runs.py FOLDER [--on opencl] [--size small] [--models a,b] [--batches 4,8,16] [--seconds 3]

A file that exists is not made again. Files are named MODEL-SIZE-BATCH.run. A batch that does not fit the device is
reported and left out. `--batches own` takes the batch size of each workload.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from handheld import suite
from handheld.cli.prepare import capture_example
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.plan.plan import Plan
from handheld.profile.inputs import graphs_in_turn, inputs_for
from handheld.profile.run import profile
from handheld.resolve import open_model
from handheld.step import Step

STEPS = 16


def planned(model: str, size: str, batch: int, caps: DeviceCaps | None = None, on: str = "opencl") -> Plan:
    """The plan of the graphs that a training step runs, for a device of this machine or a described one."""
    step, inputs = captured(model, size, batch)
    return step.plan(on, caps=caps, graphs=list(inputs))


def captured(model: str, size: str, batch: int) -> tuple[Step, dict[str, Any]]:
    """The step of a workload, and the inputs of each graph that a training step runs."""
    spec = open_model(model, size)
    step, _ = capture_example(spec, [batch], 0, None)
    example = spec.example(batch)
    runs = dict(spec.runs(example) or [(name, example) for name in graphs_in_turn(step.graphs, batch)])
    return step, {name: inputs_for(given, step.graphs[name], 0) for name, given in runs.items()}


def make(path: Path, model: str, size: str, batch: int, on: str, seconds: float) -> None:
    """Profile one workload at one batch size for about `seconds`, with at least STEPS steps."""
    step, inputs = captured(model, size, batch)
    names = list(inputs)
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    settings = {"what": model, "size": size, "batch": batch}
    plan = step.plan(on, graphs=names)
    with profile(
        plan,
        inputs[names[0]] if len(names) == 1 else inputs,
        part,
        steps=STEPS,
        seconds=seconds,
        graph=names,
        sensors=False,
        settings=settings,
    ):
        pass
    part.rename(path)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--size", default="small")
    parser.add_argument("--models", default=",".join(suite.WORKLOADS))
    parser.add_argument("--batches", default="4,8,16,32,64")
    parser.add_argument("--seconds", type=float, default=3.0)


def make_all(folder: Path, options: argparse.Namespace) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for model in options.models.split(","):
        own = str(open_model(model, options.size).default_batch)
        for batch in (own if options.batches == "own" else options.batches).split(","):
            path = folder / f"{model}-{options.size}-{batch}.run"
            if path.exists():
                continue
            began = time.monotonic()
            try:
                make(path, model, options.size, int(batch), options.on, options.seconds)
            except HandheldError as error:
                print(f"{path.name}: left out: {error}", file=sys.stderr, flush=True)
                continue
            print(f"{path.name}: {time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    add_options(parser)
    options = parser.parse_args()
    make_all(options.folder, options)


if __name__ == "__main__":
    main()
