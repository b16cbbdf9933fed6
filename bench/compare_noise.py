"""Measures how often `handheld compare` finds a difference that is none, and whether it finds one that is there.

    python bench/compare_noise.py [--on opencl] [--model lenet5] [--batch 64] [--tries 20] [--seconds 10]
                                  [--slower 0.1] [--out FOLDER] [--json FILE]

Every run is a process of its own. Plain runs and runs with one slowed op take turns. A try compares two neighbours:
two plain runs, in which nothing may be found, or a plain and a slowed run, in which the slowed op must be found. The
op is really slower: a `Submitter` launches a share of its work groups a second time, right after the op.

    false         tries with two plain runs in which an op or the step was reported as slower or faster
    found         tries with a slowed op in which this op was reported as slower
    others        tries with a slowed op in which another op was reported too
    calm          tries in which other processes held at most a tenth of the cores in both runs
    slowed to     the slowed op, measured by its own events: median over the tries

Run files that already exist in FOLDER are used again, so that an interrupted measurement can be continued.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from result_file import Row, device_id, save

import handheld
from handheld import suite
from handheld.analyse.compare import SLOWER, Pair, compare
from handheld.analyse.judge import unequal_load
from handheld.backends.base import describe
from handheld.backends.opencl.submit import Bound, Enqueuer, Notes, Work
from handheld.plan.work import flops
from handheld.profile.inputs import inputs_for
from handheld.profile.profiler import Profiler

if TYPE_CHECKING:
    import pyopencl as cl

REPEATABLE = ("conv", "conv_input", "conv_weight", "matmul")  # ops that may run twice: they overwrite no input
GROUPS = 10  # The slowed op has at least this many work groups, so that a tenth of them can be repeated.
CALM = 0.1  # Tries on a machine that is busier than this are counted separately.
WARM_UP_S = 1.0  # Frequencies and caches settle before the run file begins.


class Slower(Enqueuer):
    """Runs a share of the work groups of one node again."""

    def __init__(self, node: int, share: float) -> None:
        super().__init__()
        self.node, self.share = node, share

    def submit(self, queue: cl.CommandQueue, work: Work, notes: Notes | None) -> cl.Event | None:
        launches: list[Bound] = []
        for launch in work.launches:
            launches.append(launch)
            if launch.node == self.node:
                launches.append(part_of(launch, self.share))
        return super().submit(queue, Work(None, tuple(launches)), notes)


def part_of(launch: Bound, share: float) -> Bound:
    """The same launch with a share of its work groups, taken from the dimension that has most."""
    groups = [size // local for size, local in zip(launch.global_size, launch.local_size, strict=True)]
    longest = max(range(len(groups)), key=lambda axis: groups[axis])
    fewer = max(round(groups[longest] * share), 1)
    sizes = list(launch.global_size)
    sizes[longest] = fewer * launch.local_size[longest]
    return launch._replace(global_size=tuple(sizes))


def one_run(options: argparse.Namespace) -> None:
    """Profile the step for some seconds, with an op that is slowed if one is given."""
    step = handheld.load(options.step)
    plan = step.plan(options.on, graphs=["train"])
    batch = inputs_for(None, step.graphs["train"], 0)
    submitter = Slower(options.node, options.slower) if options.node is not None else None
    with plan.start(submitter=submitter) as trainer:
        begun = time.monotonic()
        while time.monotonic() - begun < WARM_UP_S:
            trainer.run("train", *batch)
        with Profiler(options.run, settings={"what": options.model, "batch": options.batch}) as profiler:
            profiler.attach(trainer)
            begun = time.monotonic()
            while time.monotonic() - begun < options.seconds:
                loss = trainer.run("train", *batch)
            profiler.writer.meta(loss=float(loss))


def captured(options: argparse.Namespace) -> Path:
    """The step file that every run loads."""
    path = Path(options.out) / f"{options.model}.step"
    if not path.exists():
        suite.get(options.model).step(options.batch, evaluate=False).save(path)
    return path


def slowest(step: Path, on: str) -> int:
    """The node to slow: the convolution or product with the most arithmetic whose groups can be divided."""
    graph_plan = handheld.load(step).plan(on, graphs=["train"]).graphs["train"]
    candidates = []
    for number, (node, lowered) in enumerate(zip(graph_plan.graph.nodes, graph_plan.lowered, strict=True)):
        groups = [math.prod(launch.global_size) // math.prod(launch.local_size) for launch in lowered.launches]
        if node.op in REPEATABLE and len(groups) == 1 and groups[0] >= GROUPS:
            candidates.append((flops(node, graph_plan.graph), number))
    return max(candidates)[1]


def measured(options: argparse.Namespace, step: Path, name: str, node: int | None) -> Path:
    """A run file of this name: measured now in another process, unless it exists."""
    path = Path(options.out) / f"{name}.run"
    if path.exists():
        return path
    partial = path.with_suffix(".part")
    for old in Path(options.out).glob(f"{partial.name}*"):
        old.unlink()
    words = [sys.executable, __file__, "--worker", "--step", str(step), "--run", str(partial), "--on", options.on]
    words += ["--model", options.model, "--batch", str(options.batch), "--seconds", str(options.seconds)]
    words += ["--slower", str(options.slower), *(["--node", str(node)] if node is not None else [])]
    subprocess.run(words, check=True)
    partial.rename(path)
    return path


@dataclass(frozen=True)
class Try:
    """One comparison of two neighbouring runs."""

    pair: Pair
    calm: bool
    node: int

    @property
    def names(self) -> list[str]:
        """Everything that was reported as slower or faster."""
        pair = self.pair
        named = [f"op {row.title}" for row in pair.ops if row.differs]
        named += [f"module {row.path}" for row in pair.modules if row.differs]
        whole = (("step", pair.step), ("all ops", pair.device))
        return named + [name for name, timing in whole if timing is not None and timing.differs]

    @property
    def slowed(self) -> float:
        return next(row.beyond for row in self.pair.ops if row.id_a == self.node)

    @property
    def found(self) -> bool:
        return any(row.id_a == self.node and row.verdict == SLOWER for row in self.pair.ops)

    @property
    def others(self) -> bool:
        return any(row.id_a != self.node and row.differs for row in self.pair.ops)


def attempt(a: Path, b: Path, node: int) -> Try:
    with handheld.open_run(a) as first, handheld.open_run(b) as second:
        loads = [others.share if (others := run.others()) else 0.0 for run in (first, second)]
        return Try(compare([first, second]).pairs[0], max(loads) <= CALM and unequal_load(*loads) <= CALM, node)


def measure(options: argparse.Namespace) -> tuple[list[Try], list[Try]]:
    """The tries with two plain runs, and those with a slowed op."""
    step = captured(options)
    node = slowest(step, options.on)
    same, slowed = [], []
    before = measured(options, step, "plain-0", None)
    for number in range(options.tries):
        slow = measured(options, step, f"slow-{number}", node)
        plain = measured(options, step, f"plain-{number + 1}", None)
        same.append(attempt(before, plain, node))
        slowed.append(attempt(before, slow, node))
        print(f"{number + 1:3d}  {said(same[-1]):40}  {said(slowed[-1])}", flush=True)
        before = plain
    return same, slowed


def said(one: Try) -> str:
    return f"{'calm' if one.calm else 'busy'}  {', '.join(one.names) or 'nothing'}"


def rows(options: argparse.Namespace, same: list[Try], slowed: list[Try]) -> list[Row]:
    caps = describe(options.on)
    what, device = f"{options.model} b{options.batch}", device_id(caps.name, caps.driver)
    calm = [one for one in slowed if one.calm]
    return [
        Row(
            f"{what}: two equal runs",
            device,
            sum(bool(one.names) for one in same),
            "false",
            goal=f"value <= {options.tries // 20}",
            details={"tries": len(same), "calm": sum(one.calm for one in same), "seconds": options.seconds},
            figures={"named": [one.names for one in same]},
        ),
        Row(
            f"{what}: one op slowed by {options.slower:.0%}",
            device,
            sum(one.found for one in slowed),
            "found",
            details={
                "tries": len(slowed),
                "calm": len(calm),
                "found in calm": sum(one.found for one in calm),
                "others": sum(one.others for one in slowed),
                "slowed to": round(statistics.median(one.slowed for one in slowed), 3),
                "seconds": options.seconds,
            },
            figures={"named": [one.names for one in slowed], "ratios": [round(one.slowed, 4) for one in slowed]},
        ),
    ]


def main() -> None:
    options = arguments()
    if options.worker:
        one_run(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        options.out = options.out or folder
        Path(options.out).mkdir(parents=True, exist_ok=True)
        found = rows(options, *measure(options))
    for row in found:
        print(f"{row.what}: {row.value} {row.unit}; {', '.join(f'{k} {v}' for k, v in row.details.items())}")
    if options.json:
        save(options.json, "Comparing runs", found)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--slower", type=float, default=0.1, help="by which share the op is slowed")
    parser.add_argument("--out", help="folder of the run files (default: a temporary one)")
    parser.add_argument("--json", help="add the figures to this file")
    for word, kind in (("--step", str), ("--run", str), ("--node", int)):
        parser.add_argument(word, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
