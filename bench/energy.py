"""Energy of operations: two methods, what they add up to on work that was held out, and a pair of
kernels of equal time.

    python bench/energy.py [--on opencl] [--only b] [--seconds 120] [--other 16]
                           [--rounds 2] [--ticks 20] [--sensor MODULE:CLASS]
                           [--json FILE] [--plot FILE.html]

For a workload: windows of equal work tell the energy of each op signature by the slope over extra
runs in normal steps and by running it alone (`--seconds`, about). Their sum is compared with what
the rail's counter says about the step itself and about two things that were held out: the forward
pass alone, and another batch size (what each op takes above idle power, by how much more it does
there, and idle power over the time it all takes), and beside it mean power x time, which knows no
ops. Then two kernels that take the same time, one arithmetic-
bound and one memory-bound, as a step of two ops. `timed` is each method's watts by the times that
ops have in the step, not by those they have when repeated. All joules are of the rail that is
named, idle power included.
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
from handheld.profile.energy import LEAST_ROUNDS, LEAST_S, MOST_S, TICKS, measure, window
from handheld.profile.profiler import Profiler
from handheld.profile.run import update_s
from handheld.profile.sampling import Sources, idle, sampled, sources
from handheld.store.rows import EnergyWindowRow

ROUNDS, OTHER_ROUNDS, PLANTED_ROUNDS = 5, 8, 6  # of windows of what is held out, and planted


STEPS, STEPS_S = 30, 2.0  # before the windows, at least


HELD = "held out"


Keyed = dict[tuple[Any, ...], OpTime]


# ── a workload ────────────────────────────────────────────────────────────────────────────────


def record(entry: Entry, options: argparse.Namespace, found: Sources, path: Path, everything: bool) -> str:
    """A run of a workload with windows for energy: of all ops, or only of steps as they are."""
    step, runs = captured(entry)
    (graph, batch), *_ = runs
    plan = step.plan(options.on, graphs=[graph], isolate=True)
    with ExitStack() as stack:
        profiler = stack.enter_context(Profiler(path))
        stack.enter_context(sampled(profiler.writer, found))
        trainer = stack.enter_context(plan.start())
        profiler.attach(trainer)
        idle(profiler.writer, 1.5)
        inputs, done, until = [t.numpy() for t in batch], 0, time.monotonic() + STEPS_S
        while done < STEPS or time.monotonic() < until:  # several windows with op times
            loss = trainer.run(graph, *inputs)
            done += 1
        float(loss)
        profiler.flush()
        with handheld.open_run(path) as run:
            window_s = window_of(run, options.ticks)
        session, nodes = trainer.session, plan.graphs[graph].graph.nodes
        forward = {i: int(node.origin.phase == "forward") for i, node in enumerate(nodes)}

        def held(name: str, repeats: dict[int, int]) -> None:
            runs, begin, end = window(session, graph, repeats, window_s)
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
    """Long enough for so many updates of the rail that everything is compared on, and its parts."""
    main = main_rail(run)
    mine = [one for one in rails(run.channels) if one.source == main.source]
    return min(max(ticks * max(map(update_s, mine)), LEAST_S), MOST_S)


def ledger(run: Run, method: str, rail: str) -> dict[int, tuple[float, float]]:
    """Op -> (J, s) of one run of it: its signature's, shared among its ops by their times."""
    times = {row.id: row.ms for row in run.ops() if row.ms is not None}
    found = {}
    for row in run.op_energy():
        if (row.method, row.rail) == (method, rail):
            whole = sum(times.get(op, 0.0) for op in row.ops) or 1.0
            for op in row.ops:
                part = times.get(op, 0.0) / whole
                found[op] = (row.joules * part, row.run_s * part)
    return found


def held_out(run: Run, rail: Series, name: str) -> tuple[float, float, float]:
    """J of one run of what was held out, half its interval, and s."""
    rows = run.file.table(EnergyWindowRow, "WHERE method=? AND signature=?", HELD, name)
    joules, seconds = [], []
    for row in rows:
        value = rail.joules(row.begin_ns, row.end_ns)
        if value is not None:
            joules.append(value / row.runs)
            seconds.append((row.end_ns - row.begin_ns) * 1e-9 / row.runs)
    if not joules:
        raise HandheldError(f"no reading of {rail.rail} reaches around the windows of {name}")
    mean, half = interval(joules)
    return mean, half, float(np.mean(seconds))


def compare(entry: Entry, options: argparse.Namespace, found: Sources, folder: Path) -> Row:
    first, second = folder / "first.run", folder / "second.run"
    record(entry, options, found, first, True)
    other, problem = options.other or max(entry.batch // 2, 1), ""
    try:
        record(replace(entry, batch=other), options, found, second, False)
    except Exception as error:  # what the first run says stays
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
    """Each op's joules above idle power by how much more work it is at the other batch, and idle
    power over the whole of a step: where the device waits for the host, or is not full, it takes
    longer and no more. Ops are matched by where they come from; one that is only there counts as
    the mean of its phase."""
    if idle_w is None:
        raise HandheldError(
            f"no reading of {rail.rail} reaches around the idle time, so that what ops take above it is not known"
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
    """How much more an op does: by its arithmetic, or by the bytes of one that has none."""
    before, after = (here.flops, there.flops) if here.flops else (here.bytes, there.bytes)
    return after / before if before else 1.0


def by_power(here: Keyed, there: Keyed, sums: dict[str, Any], mean_w: float, seconds: float) -> Row:
    """The same methods' watts while an op runs, by the times of ops where they are wanted: right
    also where an op that is repeated finds its inputs in a cache, and takes less."""
    whole = sum(r.ms or 0.0 for r in there.values())
    found = {}
    for m in METHODS:
        watts = {}
        for key, r in here.items():
            joules, took = sums[m].get(r.id, (0.0, 0.0))
            watts[key] = joules / took if joules > 0 and took > 0 else mean_w
        mean = sum(watts.get(key, mean_w) * (r.ms or 0.0) for key, r in there.items()) / whole
        found[f"{m} timed"] = mean * seconds
    return found


def keyed(run: Run) -> Keyed:
    """Ops that take time, by where they come from."""
    found: Keyed = {}
    for row in sorted(run.ops(), key=lambda r: r.position):
        if row.ms:
            key = (row.op, row.source, row.phase, row.path)
            again = sum(other[:-1] == key for other in found)
            found[(*key, again)] = row
    return found


def phase_rate(here: Keyed, joules: dict[int, tuple[float, float]], phase: str) -> float:
    """J a ms of the ops of a phase."""
    mine = [r for r in here.values() if r.phase == phase and r.id in joules] or [
        r for r in here.values() if r.id in joules
    ]
    return sum(joules[r.id][0] for r in mine) / sum(r.ms or 0.0 for r in mine)


def agreement(run: Run, rail: str) -> Row:
    """How far the two methods agree on each signature."""
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
    """The GPU's own, if there is one: a counter before power, all of it before a part."""
    found = rails(run.channels)
    return min(found, key=lambda one: ("gpu" not in one.covers, bool(one.part_of), not one.counter))


def memory_share(run: Run, rail: Series) -> float | None:
    """Of the energy of a step, where memory has a rail."""
    for one in rails(run.channels):
        if "memory" in one.covers and one.rail != rail.rail:
            return held_out(run, one, "step")[0] / held_out(run, rail, "step")[0]
    return None


# ── two kernels of equal time ─────────────────────────────────────────────────────────────────


def planted(options: argparse.Namespace, found: Sources, path: Path) -> Row:
    """A step of two ops, made of a kernel that only computes and one that only moves."""
    kernels = equal_kernels(options.on)
    with ExitStack() as stack:
        profiler = stack.enter_context(Profiler(path))
        profiler.writer.meta(device=options.on)
        stack.enter_context(sampled(profiler.writer, found))
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
    parser.add_argument("--seconds", type=float, default=120.0, help="for all windows of one model")
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="of windows, at least")
    parser.add_argument("--ticks", type=int, default=TICKS, help="of the slowest sensor, a window")
    parser.add_argument("--other", type=int, help="the other batch size; half if not given")
    parser.add_argument("--sensor", metavar="MODULE:CLASS", help="this sensor alone, not all")
    parser.add_argument("--no-planted", action="store_true", help="leave the two kernels out")
    parser.add_argument("--keep", type=Path, help="keep the run files in this folder")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--plot", type=charts_page.html_path, help="write a page with the two methods' agreement here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        found = find_sensors(options.sensor)
        found.need_power()
        caps = describe(options.on)
        print(f"handheld {handheld.__version__} on {caps.name} ({caps.driver})")
        rows, pair = [], None
        with tempfile.TemporaryDirectory() as temporary:
            for entry in chosen(options.only):
                folder = (options.keep or Path(temporary)) / entry.letter
                folder.mkdir(parents=True)
                rows.append(compare(entry, options, found, folder))
                say(rows[-1])
            if not options.no_planted:
                pair = planted(options, found, (options.keep or Path(temporary)) / "planted.run")
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
