"""Measures the energy model of a device: ops of all families and sizes, each alone for a while.

The ops are in calibration.json (scripts/make_calibration.py chose them from the suite). Each is a graph of its own,
with random inputs. A window of repeated runs gives its joules on every rail; recorded runs give the time in which the
device was busy. What a window takes beyond that is idle time between launches, whose power is measured too.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from handheld.analyse.energy import idle_watts
from handheld.analyse.rails import SETTLED, Series, rails
from handheld.analyse.run import Run, open_run
from handheld.backends.base import describe
from handheld.cost.energy import Effort, EnergyModel, EnergySample, Rail
from handheld.device import DeviceCaps, takes_launches
from handheld.errors import HandheldError
from handheld.graph.check import check
from handheld.graph.codec import from_json
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph
from handheld.kernels.versions import current
from handheld.measure import ceilings
from handheld.plan.launched import main_launch
from handheld.profile.energy import LEAST_S, MOST_S, filled
from handheld.profile.machine import machine_of
from handheld.profile.profiler import Profiler
from handheld.profile.run import update_s
from handheld.profile.sampling import Sensors, idle
from handheld.run.trainer import Trainer
from handheld.sensors.base import Where
from handheld.step import Step
from handheld.store.commands import LAUNCH
from handheld.store.rows import EnergyWindowRow
from handheld.targets.names import on_option

TICKS = 12  # updates of the slowest rail in a window
ROUND_S = 0.005  # the work that is enqueued at once
LONGEST_S = 0.2  # Ops that take longer are left out.
MEMORY_SHARE = 0.4  # share of the device's memory that the ops may use
MOST_GAP = 0.7  # A window in which the device waits for the host for a larger share says too little about its op.
IDLE_S = 1.5
RECORDED = 9
PERIOD = 1_000_003  # Random inputs repeat after so many elements.
LEAST_SHARE = 0.25  # An op takes at least this share of the power between launches.
GAP = "gap"  # the method of the window of waiting

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Timed:
    """An op that is measured: the name of its graph, how it is launched, and the seconds of one run."""

    graph: str
    effort: Effort
    seconds: float


def calibration_ops() -> list[Graph]:
    """The ops, each as a graph of one node."""
    stored = json.loads((Path(__file__).parent / "calibration.json").read_text(encoding="utf-8"))
    return [check(from_json(graph)) for graph in stored["ops"]]


def calibrate(
    device: str = "opencl",
    *,
    ops: Sequence[Graph] | None = None,
    sensors: Sensors = True,
    where: Where | None = None,
    seconds: float | None = None,
    progress: Progress = lambda done, count, what: None,
) -> EnergyModel:
    """Measure the energy model of a device. `ops` replaces the usual ops; `seconds` sets the length of a window. Raises
    HandheldError if there is no power sensor."""
    if not takes_launches(device):
        raise HandheldError(
            f"{device} has no energy model: only OpenCL devices can repeat single ops. Try: --on opencl"
        )
    started, caps = time.monotonic(), describe(device)
    if ceilings.stored(caps) is None:
        raise HandheldError(
            f"an energy model of {device} needs its ceilings, which say what a cache holds; they were not measured. "
            f"Try: handheld doctor --ceilings --energy{on_option(device)}"
        )
    graphs = _fitting(calibration_ops() if ops is None else ops, caps)
    step = Step({}, {}, graphs)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        machine = stack.enter_context(machine_of(device, where))
        found = machine.sources(sensors)
        found.need_power()
        path = Path(folder) / "calibration.run"
        profiler = stack.enter_context(Profiler(path, machine=machine))
        plan = step.plan(device, isolate=True)
        trainer = stack.enter_context(
            plan.start(progress=lambda what, done, count: progress(done, count, "building kernels"))
        )
        stack.enter_context(machine.sampled(profiler.writer, found))
        profiler.attach(trainer)
        idle(profiler.writer, IDLE_S)
        _upload(trainer, graphs)
        ops_timed = (_timed(trainer, name) for name in graphs)
        timed = [op for op in ops_timed if op is not None and op.seconds <= LONGEST_S]
        if len(timed) < 3:
            raise HandheldError("too few ops run on this device for an energy model. Try: another device")
        profiler.writer.commit()
        length = seconds or _window_s(path)
        _windows(profiler, trainer, timed, length, progress)
        time.sleep(2 * length / TICKS)  # The last window needs a reading after its end.
        stack.close()
        with open_run(path) as run:
            return _model(run, caps, timed, time.monotonic() - started)


def _fitting(ops: Sequence[Graph], caps: DeviceCaps) -> dict[str, Graph]:
    """The ops that fit into the device's memory together, the smallest first."""
    left, chosen = MEMORY_SHARE * caps.global_mem_bytes, {}
    sizes = [sum(tensor.nbytes for tensor in graph.tensors.values()) for graph in ops]
    for i in sorted(range(len(ops)), key=lambda i: sizes[i]):
        largest = max(tensor.nbytes for tensor in ops[i].tensors.values())
        if sizes[i] <= left and largest <= caps.max_alloc_bytes:
            left -= sizes[i]
            chosen[f"op{i}"] = replace(ops[i], name=f"op{i}")
    return chosen


def _upload(trainer: Trainer, graphs: Mapping[str, Graph]) -> None:
    """Random values, because power depends on them. 0 and 1 are valid indices for every tensor."""
    draw = np.random.default_rng(0)
    for name, graph in graphs.items():
        for given in graph.inputs:
            tensor = graph.tensors[given.tensor]
            few = min(tensor.size, PERIOD)
            dtype = DTYPES[tensor.dtype]
            values = draw.standard_normal(few, np.float32) if dtype.is_float else draw.integers(0, 2, few)
            array = np.resize(values.astype(dtype.numpy), tensor.shape)
            trainer.session.upload(name, tensor.id, array)
    trainer.session.finish()


def _timed(trainer: Trainer, graph: str) -> Timed | None:
    """The op with its time; None if it takes no time, as an op without launches does."""
    planned = trainer.plan.graphs[graph]
    effort = main_launch(planned.graph.nodes[0], planned.graph, planned.lowered[0])
    if effort is None:
        return None
    seconds = _recorded(trainer, graph)
    return Timed(graph, effort, seconds) if seconds > 0 else None


def _recorded(trainer: Trainer, graph: str) -> float:
    """The median seconds of one run of a graph."""
    trainer.session.run_repeated(graph, {})
    trainer.session.finish()
    ends = []
    with trainer.session.record() as recording:
        for _ in range(RECORDED):
            trainer.session.run_repeated(graph, {})
            ends.append(len(recording))
        trainer.session.finish()
    commands = recording.read()
    took = []
    for start, stop in zip([0, *ends], ends, strict=False):
        part = commands[start:stop]
        launches = part[part["kind"] == LAUNCH]
        took.append(float((launches["ended"] - launches["started"]).sum()) * 1e-9)
    return float(np.median(took))


def _window_s(path: Path) -> float:
    """Long enough for TICKS updates of the slowest rail, and for what a rail averages over."""
    with open_run(path) as run:
        known = rails(run.channels)
        slowest = max((update_s(rail) for rail in known), default=0.0)
        average = max((rail.average_ns * 1e-9 for rail in known), default=0.0)
    return max(min(max(TICKS * slowest, LEAST_S), MOST_S), SETTLED * average + 2 * slowest if average else 0.0)


def _windows(profiler: Profiler, trainer: Trainer, timed: Sequence[Timed], length: float, progress: Progress) -> None:
    """Run all windows: each op alone, and one in which the device mostly waits for the host."""
    session, order = trainer.session, list(timed)
    draw = random.Random(0)
    draw.shuffle(order)
    count = len(order) + 1
    for done, op in enumerate(order):
        progress(done, count, op.effort.op)
        again = int(np.clip(round(ROUND_S / op.seconds), 1, 2048))

        def run(op: Timed = op, again: int = again) -> None:
            session.run_repeated(op.graph, {0: again})

        runs, begin, end = filled(run, session.finish, length, profiler.machine.now_ns)
        profiler.energy_window("alone", op.graph, [profiler.first_op(op.graph)], 0, runs * again, begin, end)
    progress(len(order), count, "idle time between launches")
    shortest = min(timed, key=lambda op: op.seconds)

    def wait() -> None:
        session.run_repeated(shortest.graph, {})
        session.finish()

    runs, begin, end = filled(wait, session.finish, length, profiler.machine.now_ns)
    profiler.energy_window(GAP, shortest.graph, [profiler.first_op(shortest.graph)], 0, runs, begin, end)


# ── the model ─────────────────────────────────────────────────────────────────────────────────


def _model(run: Run, caps: DeviceCaps, timed: Sequence[Timed], took_s: float) -> EnergyModel:
    windows = {(w.method, w.signature): w for w in run.file.table(EnergyWindowRow)}
    (gap,) = (w for (method, _), w in windows.items() if method == GAP)
    known, gaps = [], {}
    for rail in rails(run.channels):
        watts = _watts(rail, gap)
        still = idle_watts(run.file, rail)
        alone = [_watts(rail, windows["alone", op.graph]) for op in timed]
        if watts is None or any(value is None for value in alone) or rail.rail in gaps:
            continue
        gaps[rail.rail] = watts
        known.append(Rail(rail.rail, rail.covers, rail.part_of, still if still is not None else watts, watts))
    if not known:
        raise HandheldError(
            "no power sensor was read often enough for the windows of the calibration. Try: handheld doctor, which "
            "shows how often each sensor is read"
        )
    by_name = {rail.rail: rail for rail in rails(run.channels)}
    samples = []
    for op in timed:
        window = windows["alone", op.graph]
        each = (window.end_ns - window.begin_ns) * 1e-9 / window.runs
        busy = min(op.seconds, each)
        if 1 - busy / each > MOST_GAP:
            continue
        joules = {}
        for kept in known:
            watts = _watts(by_name[kept.name], window) or 0.0
            joules[kept.name] = max(watts * each - kept.gap_watts * (each - busy), LEAST_SHARE * kept.gap_watts * busy)
        samples.append(EnergySample(op.effort, busy, joules))
    if len(samples) < 3:
        raise HandheldError("the device waited for the host in nearly all windows. Try: again on an idle machine")
    model = EnergyModel(
        caps.name,
        caps.driver,
        datetime.date.today().isoformat(),
        took_s,
        caps.compute_units,
        _cache_bytes(caps),
        tuple(known),
        tuple(samples),
        current(caps.kind),
    )
    return replace(model, rails=tuple(_with_deviation(model, rail) for rail in known))


def _with_deviation(model: EnergyModel, rail: Rail) -> Rail:
    """The rail with the usual deviation of held-out samples."""
    errors = np.abs(model.held_out(rail.name))
    return replace(rail, deviation=float(np.clip(np.median(errors) / 0.6745, 0.02, 0.5))) if len(errors) else rail


def _watts(rail: Series, window: EnergyWindowRow) -> float | None:
    joules = rail.joules(window.begin_ns, window.end_ns)
    return None if joules is None else joules / ((window.end_ns - window.begin_ns) * 1e-9)


def _cache_bytes(caps: DeviceCaps) -> int:
    """The largest working set that is read clearly faster than memory, by the ceilings; 0 if there is none."""
    known = ceilings.stored(caps)
    assert known is not None, "calibrate needs them"
    slow = known.memory[-1].copy.median
    return max((m.working_set_bytes for m in known.memory if m.copy.median > 1.8 * slow), default=0)
