"""Tests the energy model of a device on ops and models that it was not fitted to.

    python bench/energy_model.py --json FILE [--on opencl] [--models resnet50=8 ...] [--ops-of resnet50 ...]
                                 [--seconds 4] [--energy-seconds 26] [--ticks 10] [--sensor MODULE:CLASS]

    1. calibrates the device as `handheld doctor --energy` does
    2. measures ten ops of the models below alone, beside the model
    3. profiles five models with and without --energy; sums of ops stand beside the counter over an unprofiled run

Models are captured, and their kernels built, in processes of their own before anything is measured. The file is
written after each part.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import handheld
import handheld.profile.run as profile_run
from handheld.analyse.rails import rails
from handheld.backends.base import describe
from handheld.cost.energy import EnergyModel
from handheld.graph.graph import Graph
from handheld.measure import ceilings
from handheld.measure.jobs import alone
from handheld.plan.plan import Plan
from handheld.plan.signature import signature
from handheld.plan.work import flops, nbytes
from handheld.profile import energy_models
from handheld.profile.calibrate import calibrate, calibration_ops
from handheld.profile.inputs import inputs_for
from handheld.profile.profiler import Profiler
from handheld.profile.run import default_graphs
from handheld.profile.sampling import sampled, sources
from handheld.resolve import open_model

#: scripts/make_calibration.py takes no op from these models.
MODELS = {"resnet50": 8, "mobilenet_v2": 16, "vit_tiny": 16, "lstm_lm": 16, "unet": 4}
HELD_OUT = 10
WARM_S = 1.5  # steps before an unprofiled run is measured
Row = dict[str, Any]


def prepare(name: str, batch: int, size: str, device: str, path: Path) -> None:
    """Captures a model into a step file, and builds its kernels so that the driver knows them."""
    step = open_model(name, size).step([batch], 0)
    step.save(path)
    with planned(path, device)[0].start():
        pass


def planned(path: Path, device: str) -> tuple[Plan, tuple[Any, ...]]:
    """The plan of a captured model, and the inputs of its training graph."""
    step = handheld.load(path)
    (graph,) = default_graphs(step.graphs)[:1]
    return step.plan(device, graphs=[graph]), tuple(inputs_for(None, step.graphs[graph], 0))


def held_out(steps: dict[str, Path], count: int) -> list[Graph]:
    """Ops of the models that are not in the calibration, far apart in kind, arithmetic and bytes."""
    known = {signature(graph.nodes[0], graph) for graph in calibration_ops()}
    pool: dict[str, tuple[Graph, tuple[float, float], str]] = {}
    for path in steps.values():
        for graph in handheld.load(path).graphs.values():
            for node in graph.nodes:
                key, work, moved = signature(node, graph), flops(node, graph), nbytes(node, graph)
                if key not in known:
                    at = (math.log2(work + 1e5), math.log2(moved + 1))
                    pool.setdefault(key, (alone(node, graph), at, node.op))
    long = [row for row in pool.values() if max(2 ** row[1][0] / 50, 2 ** row[1][1]) > 1e6]  # for the clock
    rows = long if len(long) >= count else list(pool.values())
    taken = [max(rows, key=lambda row: sum(row[1]))]
    while len(taken) < min(count, len(rows)):
        taken.append(max(rows, key=lambda row: min(apart(row, other) for other in taken)))
    return [graph for graph, _, _ in taken]


def apart(a: tuple[Graph, tuple[float, float], str], b: tuple[Graph, tuple[float, float], str]) -> float:
    return math.dist(a[1], b[1]) + 4.0 * (a[2] != b[2])


def check_ops(model: EnergyModel, ops: list[Graph], device: str, sensors: Any) -> list[Row]:
    """The joules of ops alone, beside the model."""
    measured = calibrate(device, ops=ops, sensors=sensors)
    rows = []
    for rail in measured.rails:
        own = [sample for sample in measured.samples if rail.name in sample.joules]
        said = model.joules(rail.name, [s.effort for s in own], [s.seconds for s in own])
        for sample, value in zip(own, said, strict=True):
            rows.append(
                {
                    "rail": rail.name,
                    **sample.effort.to_json(),
                    "seconds": sample.seconds,
                    "measured": sample.joules[rail.name],
                    "model": value.joules,
                    "inside": value.low_joules <= sample.joules[rail.name] <= value.high_joules,
                    "error": value.joules / sample.joules[rail.name] - 1,
                }
            )
    return rows


def unprofiled(plan: Plan, inputs: tuple[Any, ...], path: Path, seconds: float, sensors: Any) -> Row:
    """Steps without a profiler: their time, and the joules of each rail per step."""
    (graph,) = plan.graphs
    with ExitStack() as stack:
        profiler = stack.enter_context(Profiler(path))
        stack.enter_context(sampled(profiler.writer, sources(sensors)))
        trainer = stack.enter_context(plan.start())

        def steps(length: float) -> tuple[int, int]:
            count, begin = 0, time.monotonic_ns()
            while not count or time.monotonic_ns() < begin + length * 1e9:
                trainer.run(graph, *inputs)
                count += 1
            trainer.session.finish()
            return count, begin

        steps(WARM_S)
        count, begin = steps(seconds)
        end = time.monotonic_ns()
        time.sleep(0.3)  # The rails need a reading after the end.
    with handheld.open_run(path) as run:
        joules = {rail.rail: rail.joules(begin, end) for rail in rails(run.channels)}
    return {
        "step_ms": (end - begin) * 1e-6 / count,
        "joules": {name: value / count for name, value in joules.items() if value is not None},
    }


def profiled(plan: Plan, inputs: tuple[Any, ...], path: Path, options: argparse.Namespace, energy: bool) -> Row:
    budget = options.energy_seconds if energy else None
    began = time.monotonic()
    with plan.profile(
        inputs, path, steps=20, seconds=options.seconds, sensors=options.sensors, energy=energy, energy_s=budget
    ) as run:
        return {
            "step_ms": run.step_ms()[0],
            "bytes": run.meta["allocated_bytes"],
            "peak_bytes": run.memory_summary().peak_bytes,
            "joules": {row.rail: row.joules_step for row in run.energy()},
            "sums": [row.to_json() for row in run.step_joules()],
            "sources": sorted({row.source for row in run.joules()}),
            "no_joules": run.no_joules(),
            "notes": [note.text for note in run.notes()],
            "windows": [
                {"signature": r.signature, "method": r.method, "rail": r.rail, "joules": r.joules, "ops": list(r.ops)}
                for r in run.op_energy()
            ],
            "ops": [row.to_json() for row in run.joules()] if energy else [],
            "wall_s": time.monotonic() - began,
        }


def check_model(name: str, step: Path, folder: Path, options: argparse.Namespace) -> Row:
    plan, inputs = planned(step, options.on)
    bare = unprofiled(plan, inputs, folder / f"{name}-bare.run", options.seconds, options.sensors)
    plain = profiled(plan, inputs, folder / f"{name}.run", options, energy=False)
    row: Row = {"model": name, "unprofiled": bare, "profile": plain}
    row["sums"] = {
        total["rail"]: {
            "sum": total["sum"],
            "ops": total["ops"],
            "gaps": total["gaps"],
            "scale": total["scale"],
            "counter": bare["joules"][total["rail"]],
            "error": total["sum"] / bare["joules"][total["rail"]] - 1,
            "model_error": total["model_sum"] / bare["joules"][total["rail"]] - 1,  # before it was scaled
        }
        for total in plain["sums"]
        if total["rail"] in bare["joules"]
    }
    if options.energy_seconds:
        row["profile --energy"] = profiled(plan, inputs, folder / f"{name}-energy.run", options, energy=True)
    return row


def say(row: Row) -> None:
    for rail, total in row["sums"].items():
        print(f"{row['model']:14} {rail:44} sum {total['sum']:9.4g} J counter {total['counter']:9.4g} J "
              f"{total['error']:+6.1%} (model alone {total['model_error']:+6.1%})", flush=True)  # fmt: skip


def summary(rows: list[Row]) -> Row:
    result: Row = {}
    for rail in dict.fromkeys(row["rail"] for row in rows):
        errors = sorted(abs(row["error"]) for row in rows if row["rail"] == rail)
        result[rail] = {"median": statistics.median(errors), "worst": errors[-1], "count": len(errors)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--runs", type=Path, help="a folder that keeps the run files")
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--size", default="paper")
    parser.add_argument("--models", nargs="*", default=[f"{name}={batch}" for name, batch in MODELS.items()])
    parser.add_argument("--ops-of", nargs="*", help="the models whose ops are held out; default: all of --models")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--energy-seconds", type=float, default=26.0, help="0: no profiles with --energy")
    parser.add_argument("--ticks", type=int, default=10)
    parser.add_argument("--window", type=float, help="seconds of a window of the calibration")
    parser.add_argument("--sensor")
    parser.add_argument("--stored", action="store_true", help="use the stored energy model if there is one")
    parser.add_argument("--few", type=int, help="calibrate with this many ops only")
    parser.add_argument("--prepare", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        name, batch, path = options.prepare
        prepare(name, int(batch), options.size, options.on, Path(path))
        return
    options.sensors = True
    if options.sensor:
        module, _, kind = options.sensor.partition(":")
        options.sensors = (getattr(importlib.import_module(module), kind),)
    profile_run.TICKS = options.ticks
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.runs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure_all(options, folder)


def measure_all(options: argparse.Namespace, folder: Path) -> None:
    began, models = time.monotonic(), dict(item.split("=") for item in options.models)
    result: Row = {"device": describe(options.on).to_json(), "ops": [], "models": []}

    def write() -> None:
        result["seconds"] = time.monotonic() - began
        options.json.write_text(json.dumps(result, indent=1) + "\n")

    steps = {name: folder / f"{name}.step" for name in models}
    call = [sys.executable, __file__, "--json", "-", "--on", options.on, "--size", options.size]
    children = [
        subprocess.Popen([*call, "--prepare", name, str(batch), str(steps[name])]) for name, batch in models.items()
    ]
    if any(child.wait() for child in children):
        sys.exit("a model could not be captured; its error is above")
    print(f"{time.monotonic() - began:.0f} s: captured and built", flush=True)
    caps = describe(options.on)
    model = energy_models.stored(caps)[0] if options.stored else None
    if model is None:
        if ceilings.stored(caps) is None:
            ceilings.measure(options.on)
        few = None if options.few is None else small(options.few)
        model = calibrate(options.on, ops=few, sensors=options.sensors, seconds=options.window)
        energy_models.store(model, caps)
    result["calibration"] = model.to_json()
    result["calibration_held_out"] = {
        rail.name: [float(error) for error in model.held_out(rail.name)] for rail in model.rails
    }
    write()
    print(f"{time.monotonic() - began:.0f} s: calibrated, {len(model.samples)} samples, {model.rails}", flush=True)
    chosen = {name: path for name, path in steps.items() if name in (options.ops_of or models)}
    result["ops"] = check_ops(model, held_out(chosen, HELD_OUT), options.on, options.sensors)
    result["ops_summary"] = summary(result["ops"])
    write()
    print(f"{time.monotonic() - began:.0f} s: ops {result['ops_summary']}", flush=True)
    for name in models:
        result["models"].append(check_model(name, steps[name], folder, options))
        say(result["models"][-1])
        write()
    print(f"{time.monotonic() - began:.0f} s", flush=True)


def small(count: int) -> list[Graph]:
    """Some ops of the calibration with little work, for tests on slow devices."""
    rows = [(flops(g.nodes[0], g) + nbytes(g.nodes[0], g), i, g) for i, g in enumerate(calibration_ops())]
    return [graph for work, _, graph in sorted(rows, reverse=True) if work < 3e7][:count]


if __name__ == "__main__":
    main()
