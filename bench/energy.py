"""Measures the energy of ops by two methods, and tests both on held-out work and on two known kernels.

    python bench/energy.py [--on opencl] [--only b] [--seconds 120] [--other 16]
                           [--rounds 2] [--ticks 20] [--sensor MODULE:CLASS]
                           [--json FILE] [--plot FILE.html]

For each workload, windows of equal work give the energy of each op signature by two methods: the slope
over extra runs within normal steps, and running the op alone (about `--seconds` in total). The sum over
ops is compared with the rail's counter for the step itself and for two pieces of held-out work:

    the forward pass alone
    another batch size       each op's energy above idle power is scaled by its work there;
                             idle power times the whole time is added

Mean power x time, which knows no ops, is the guess to beat. Then two kernels that take the same time, one
bound by arithmetic and one by memory, are measured as a step of two ops. `timed` multiplies each method's
watts by the times that ops have in the step instead of the times they have when repeated. All joules are
those of the named rail, idle power included.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import charts_page
import numpy as np
from energy_table import METHODS, Row, plot, say, say_planted
from equal_kernels import equal_kernels, rounds
from workloads import Entry, captured, chosen

import handheld
from handheld.analyse.energy import idle_watts, interval
from handheld.analyse.ops import OpTime
from handheld.analyse.rails import Series, rails
from handheld.analyse.run import Run
from handheld.backends.base import describe
from handheld.errors import HandheldError
from handheld.profile.energy import LEAST_ROUNDS, LEAST_S, MOST_S, TICKS, filled, measure
from handheld.profile.profiler import Profiler
from handheld.profile.run import update_s
from handheld.profile.sampling import Sources, idle, sampled, sources
from handheld.store.rows import EnergyWindowRow

#: rounds of windows: held-out work of the workload, of the other batch size, the two kernels
ROUNDS, OTHER_ROUNDS, PLANTED_ROUNDS = 5, 8, 6
STEPS, STEPS_S = 30, 2.0  # at least this many steps and seconds before the windows
HELD = "held out"
Keyed = dict[tuple[Any, ...], OpTime]


# ── a workload ────────────────────────────────────────────────────────────────────────────────


def record(entry: Entry, options: argparse.Namespace, sensors: Sources, path: Path, everything: bool) -> str:
    """Records a run of a workload with energy windows: of all ops (`everything`), or only of whole steps."""
    step, runs = captured(entry)
    (graph, batch), *_ = runs
    plan = step.plan(options.on, graphs=[graph], isolate=True)
    with ExitStack() as stack:
        profiler = stack.enter_context(Profiler(path))
        stack.enter_context(sampled(profiler.writer, sensors))
        trainer = stack.enter_context(plan.start())
        profiler.attach(trainer)
        idle(profiler.writer, 1.5)
        inputs, done, until = [t.numpy() for t in batch], 0, time.monotonic() + STEPS_S
        while done < STEPS or time.monotonic() < until:  # long enough for several windows with op times
            loss = trainer.run(graph, *inputs)
            done += 1
        float(loss)
        profiler.flush()
        with handheld.open_run(path) as run:
            window_s = window_of(run, options.ticks)
        session, nodes = trainer.session, plan.graphs[graph].graph.nodes
        forward = {i: int(node.origin.phase == "forward") for i, node in enumerate(nodes)}

        def held(name: str, repeats: dict[int, int]) -> None:
            runs, begin, end = filled(lambda: session.run_repeated(graph, repeats), session.finish, window_s)
            profiler.energy_window(HELD, name, [i for i, n in repeats.items() if n], 0, runs, begin, end)

        if everything:
            measure(
                profiler,
                trainer,
                graph,
                window_s,
                budget_s=options.seconds,
                least_rounds=options.rounds,
                progress=progress,
            )
            if sys.stderr.isatty():
                print(file=sys.stderr)
        for _ in range(ROUNDS if everything else OTHER_ROUNDS):
            held("step", {})
            if everything:
                held("forward", forward)
    return graph


def progress(done: int, count: int, what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{done + 1}/{count} windows", end="", file=sys.stderr, flush=True)


def window_of(run: Run, ticks: int = TICKS) -> float:
    """Seconds per window: long enough for `ticks` updates of the main rail and of all rails of its source."""
    main = main_rail(run)
    related = [rail for rail in rails(run.channels) if rail.source == main.source]
    return min(max(ticks * max(map(update_s, related)), LEAST_S), MOST_S)


def ledger(run: Run, method: str, rail: str) -> dict[int, tuple[float, float]]:
    """Op -> (J, s) per run: the energy of its signature, divided among the signature's ops by their times."""
    times = {row.id: row.ms for row in run.ops() if row.ms is not None}
    shares = {}
    for row in run.op_energy():
        if (row.method, row.rail) == (method, rail):
            whole = sum(times.get(op, 0.0) for op in row.ops) or 1.0
            for op in row.ops:
                part = times.get(op, 0.0) / whole
                shares[op] = (row.joules * part, row.run_s * part)
    return shares


def held_out(run: Run, rail: Series, name: str) -> tuple[float, float, float]:
    """Held-out work per run: J, half of its confidence interval, and s."""
    rows = run.file.table(EnergyWindowRow, "WHERE method=? AND signature=?", HELD, name)
    joules, seconds = [], []
    for row in rows:
        value = rail.joules(row.begin_ns, row.end_ns)
        if value is not None:
            joules.append(value / row.runs)
            seconds.append((row.end_ns - row.begin_ns) * 1e-9 / row.runs)
    if not joules:
        raise HandheldError(f"no readings of {rail.rail} lie before and after the windows of {name}")
    mean, half = interval(joules)
    return mean, half, float(np.mean(seconds))


def compare(entry: Entry, options: argparse.Namespace, sensors: Sources, folder: Path) -> Row:
    first, second = folder / "first.run", folder / "second.run"
    record(entry, options, sensors, first, True)
    other, problem = options.other or max(entry.batch // 2, 1), ""
    try:
        record(replace(entry, batch=other), options, sensors, second, False)
    except Exception as error:  # The results of the first run are kept.
        problem = f"{type(error).__name__}: {error}"
    with handheld.open_run(first) as run:
        rail = main_rail(run)
        step_j, step_half, step_s = held_out(run, rail, "step")
        mean_w = step_j / step_s
        phase = {row.id: row.phase for row in run.ops()}
        row: Row = {
            "workload": entry.name,
            "rail": rail.rail,
            "other_batch": other,
            "idle_watts": idle_watts(run.file, rail),
            "watts": mean_w,
            "step": {"joules": step_j, "half": step_half, "seconds": step_s},
        }
        sums = {m: ledger(run, m, rail.rail) for m in METHODS}
        row["step"] |= {m: sum(j for j, _ in sums[m].values()) for m in METHODS}
        joules, half, seconds = held_out(run, rail, "forward")
        row["forward"] = {"joules": joules, "half": half, "seconds": seconds, "mean power": mean_w * seconds}
        for m in METHODS:
            row["forward"][m] = sum(j for op, (j, _) in sums[m].items() if phase[op] == "forward")
        timed = keyed(run)
        ahead = {key: r for key, r in timed.items() if r.phase == "forward"}
        row["step"] |= by_power(timed, timed, sums, mean_w, step_s)
        row["forward"] |= by_power(timed, ahead, sums, mean_w, seconds)
        row |= agreement(run, rail.rail)
        row["seconds_by"] = {m: sum(s for _, s in sums[m].values()) for m in METHODS}
        row["memory_share"] = memory_share(run, rail)
        if problem:
            return {**row, "problem": problem}
        with handheld.open_run(second) as small:
            row["other batch"] = other_batch(run, small, main_rail(small), sums, mean_w, row["idle_watts"])
    return row


def other_batch(run: Run, small: Run, rail: Series, sums: dict[str, Any], mean_w: float, idle_w: float | None) -> Row:
    """Predicts the joules of a step at the other batch size and compares them with the counter.

    Each op's joules above idle power are scaled by its work at the other batch size. Idle power counts over
    the whole step, because a device that waits for the host, or is not full, takes longer without doing more.
    Ops are matched by their origin. An op that exists only at the other batch size gets the mean of its phase.
    """
    if idle_w is None:
        raise HandheldError(
            f"no readings of {rail.rail} lie before and after the idle time, so the energy above idle power is unknown"
        )
    joules, half, seconds = held_out(small, rail, "step")
    here, there = keyed(run), keyed(small)
    row: Row = {
        "joules": joules,
        "half": half,
        "seconds": seconds,
        "mean power": mean_w * seconds,
        "ops": len(there),
        "unmatched": len(there.keys() - here.keys()),
    }
    for m in METHODS:
        above = {op: (joules - idle_w * took, took) for op, (joules, took) in sums[m].items()}
        row[m] = idle_w * seconds
        for key, r in there.items():
            if key in here and here[key].id in above:
                row[m] += above[here[key].id][0] * more_work(here[key], r)
            else:
                row[m] += phase_rate(here, above, r.phase) * (r.ms or 0.0)
    return row | by_power(here, there, sums, mean_w, seconds)


def more_work(here: OpTime, there: OpTime) -> float:
    """The ratio of an op's work: by its arithmetic, or by its bytes if it has none."""
    before, after = (here.flops, there.flops) if here.flops else (here.bytes, there.bytes)
    return after / before if before else 1.0


def by_power(here: Keyed, there: Keyed, sums: dict[str, Any], mean_w: float, seconds: float) -> Row:
    """Each method's watts per op, multiplied by the op times in the step `there`.

    This is also right where a repeated op finds its inputs in a cache and takes less time.
    """
    whole = sum(r.ms or 0.0 for r in there.values())
    sums_timed = {}
    for m in METHODS:
        watts = {}
        for key, r in here.items():
            joules, took = sums[m].get(r.id, (0.0, 0.0))
            watts[key] = joules / took if joules > 0 and took > 0 else mean_w
        mean = sum(watts.get(key, mean_w) * (r.ms or 0.0) for key, r in there.items()) / whole
        sums_timed[f"{m} timed"] = mean * seconds
    return sums_timed


def keyed(run: Run) -> Keyed:
    """Ops that have a time, by their origin; the last part of the key numbers ops with the same origin."""
    ops: Keyed = {}
    for row in sorted(run.ops(), key=lambda r: r.position):
        if row.ms:
            key = (row.op, row.source, row.phase, row.path)
            again = sum(other[:-1] == key for other in ops)
            ops[(*key, again)] = row
    return ops


def phase_rate(here: Keyed, joules: dict[int, tuple[float, float]], phase: str) -> float:
    """J per ms of the ops of a phase; of all ops if the phase has none."""
    rows = [r for r in here.values() if r.phase == phase and r.id in joules] or [
        r for r in here.values() if r.id in joules
    ]
    return sum(joules[r.id][0] for r in rows) / sum(r.ms or 0.0 for r in rows)


def agreement(run: Run, rail: str) -> Row:
    """How well the two methods agree: each signature by both, and the correlations."""
    by = {m: {r.signature: r for r in run.op_energy() if (r.method, r.rail) == (m, rail)} for m in METHODS}
    names = [name for name in by["slope"] if name in by["alone"]]
    pairs = np.array([[by[m][name]["joules"] for m in METHODS] for name in names])
    ranks = pairs.argsort(axis=0).argsort(axis=0)
    whole = len(names) > 2
    return {
        "signatures": [
            {
                "signature": name,
                **{
                    m: {k: by[m][name][k] for k in ("joules", "low_joules", "high_joules", "ticks", "run_s")}
                    for m in METHODS
                },
            }
            for name in names
        ],
        "correlation": float(np.corrcoef(pairs.T)[0, 1]) if whole else None,
        "rank_correlation": float(np.corrcoef(ranks.T)[0, 1]) if whole else None,
    }


def main_rail(run: Run) -> Series:
    """The rail for all comparisons: the GPU's if it has one, a whole before a part, a counter before power."""
    return min(rails(run.channels), key=lambda rail: ("gpu" not in rail.covers, bool(rail.part_of), not rail.counter))


def memory_share(run: Run, rail: Series) -> float | None:
    """Memory's share of the energy of a step; None if memory has no rail."""
    for other in rails(run.channels):
        if "memory" in other.covers and other.rail != rail.rail:
            return held_out(run, other, "step")[0] / held_out(run, rail, "step")[0]
    return None


# ── two kernels of equal time ─────────────────────────────────────────────────────────────────


def planted(options: argparse.Namespace, sensors: Sources, path: Path) -> Row:
    """Measures a step of two ops: one kernel only computes, the other only moves bytes."""
    kernels = equal_kernels(options.on)
    with ExitStack() as stack:
        profiler = stack.enter_context(Profiler(path))
        profiler.writer.meta(device=options.on)
        stack.enter_context(sampled(profiler.writer, sensors))
        idle(profiler.writer, 1.5)
        profiler.writer.commit()
        with handheld.open_run(path) as run:
            window_s = window_of(run, options.ticks)
        names = list(kernels.run)
        for _ in range(PLANTED_ROUNDS):
            for method, extra in (
                ("slope", {}),
                *(("slope", {n: 2}) for n in names),
                *(("alone", {n: 0}) for n in names),
                ("slope", {}),
            ):
                counts = dict.fromkeys(names, 0 if method == "alone" else 1)
                for name, more in extra.items():
                    counts[name] += more or 1
                runs, begin, end = rounds(kernels, counts, window_s)
                name, more = next(iter(extra.items()), ("", 0))
                ops = [names.index(name)] if name else []
                profiler.energy_window(method, name, ops, more, runs, begin, end)
    with handheld.open_run(path) as run:
        rail = main_rail(run).rail
        rows = {(r.signature, r.method): r for r in run.op_energy() if r.rail == rail}
        result: Row = {"rail": rail}
        for method in METHODS:
            hot, cold = (rows[name, method] for name in names)
            apart = hot.low_joules > cold.high_joules or cold.low_joules > hot.high_joules
            result[method] = {
                name: {k: rows[name, method][k] for k in ("joules", "low_joules", "high_joules", "run_s", "ticks")}
                for name in names
            }
            result[method]["told apart"] = bool(apart)
        return result


def find_sensors(name: str | None) -> Sources:
    if name is None:
        return sources()
    module, _, attribute = name.partition(":")
    return sources((getattr(importlib.import_module(module), attribute),))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="b", help="letters, small or large")
    parser.add_argument("--seconds", type=float, default=120.0, help="seconds for all windows of one model")
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="least rounds of windows")
    parser.add_argument("--ticks", type=int, default=TICKS, help="updates of the slowest sensor per window")
    parser.add_argument("--other", type=int, help="the other batch size (default: half)")
    parser.add_argument("--sensor", metavar="MODULE:CLASS", help="use only this sensor")
    parser.add_argument("--no-planted", action="store_true", help="leave the two kernels out")
    parser.add_argument("--keep", type=Path, help="keep the run files in this folder")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--plot", type=charts_page.html_path, help="write a page with a chart of both methods here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        sensors = find_sensors(options.sensor)
        sensors.need_power()
        caps = describe(options.on)
        print(f"handheld {handheld.__version__} on {caps.name} ({caps.driver})")
        rows, pair = [], None
        with tempfile.TemporaryDirectory() as temporary:
            for entry in chosen(options.only):
                folder = (options.keep or Path(temporary)) / entry.letter
                folder.mkdir(parents=True)
                rows.append(compare(entry, options, sensors, folder))
                say(rows[-1])
            if not options.no_planted:
                pair = planted(options, sensors, (options.keep or Path(temporary)) / "planted.run")
                say_planted(pair)
    except HandheldError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        Path(options.json).write_text(
            json.dumps({"device": caps.to_json(), "rows": rows, "planted": pair}, indent=1) + "\n"
        )
    if options.plot:
        plot(rows, caps.name, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
