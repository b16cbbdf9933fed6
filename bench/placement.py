"""Measures training on two devices of similar speed: two runners with one core each, with one of them alone.

    python bench/placement.py [--only lenet5:512,gpt:32] [--seconds S] [--json FILE]

Each runner is a process of its own with an OpenCL CPU device, and its threads may use one core. The batch is split by
the speeds that `handheld train --on runner+runner` would measure. The pair and one runner take turns, so that other
work on the machine disturbs both. The pair also takes turns with one OpenCL device that has all cores: on a CPU this is
the better choice, and `--on A+B` is for devices that cannot be joined into one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from result_file import Row, device_id, save

from handheld.backends.base import describe
from handheld.placement.pair import start_pair, together
from handheld.profile.inputs import graphs_in_turn, inputs_for
from handheld.profile.turns import stepping, take_turns
from handheld.resolve import open_model
from handheld.run.pair import PairTrainer

MODELS = "lenet5:256,lenet5:512,squeezenet:16,squeezenet:64,gpt:8,gpt:32"


def pin(pair: PairTrainer) -> None:
    """Lets all threads of the first runner use one core, and those of the second another one."""
    cores = sorted(os.sched_getaffinity(0))
    for core, trainer in zip(cores, (pair, pair.second), strict=False):
        for thread in Path(f"/proc/{trainer.session.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


def measure(name: str, batch: int, seconds: float) -> Row:
    step = open_model(name).step([batch], 0)
    graph = graphs_in_turn(step.graphs, batch)[0]
    paired = start_pair(step, ("runner", "runner"), graph, [graph], seconds=seconds, force=True, opened=pin, say=print)
    turns, split, pair = paired.turns, paired.split, paired.trainer
    assert isinstance(pair, PairTrainer)
    inputs = inputs_for(None, step.graph(graph), 0)
    with pair, stepping(step.copy().plan("opencl", graphs=[graph]), {graph: inputs}) as all_cores:
        both = take_turns(all_cores, together(pair, inputs), seconds=seconds)
    caps = describe("runner")
    return Row(
        f"{name}, batch {batch}, two runners of one core",
        device_id(caps.name, caps.driver),
        turns.after_ms,
        "ms",
        ratio=1 / turns.factor,
        against="one runner with one core",
        notes=f"split {split.first} + {split.second}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        details={"gain": turns.factor, "low": turns.low, "high": turns.high, "gain over all cores": both.factor},
        figures={"turns": turns.to_json(), "with one device of all cores": both.to_json()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=MODELS, help="models with their batches")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long two contestants take turns")
    parser.add_argument("--json", help="the result file")
    options = parser.parse_args()
    for entry in options.only.split(","):
        name, _, batch = entry.partition(":")
        row = measure(name, int(batch or 16), options.seconds)
        print(f"{row.what}: {row.details} {row.notes}", flush=True)
        if options.json:
            save(options.json, "Two devices", [row])


if __name__ == "__main__":
    main()
