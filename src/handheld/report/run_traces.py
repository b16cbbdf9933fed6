"""The parts of a run's payload that lie on the axis of time: steps, recorded commands, sensors, cores.

Times are milliseconds since the first step began. Commands lie within their step and are given in ns.
"""

from __future__ import annotations

import numpy as np

from handheld.analyse import stats
from handheld.analyse.rails import Series
from handheld.analyse.run import Run
from handheld.analyse.timeline import Timed
from handheld.report.pack import rounded, thinned
from handheld.store.rows import StepRow

MOST_STEPS, MOST_COMMANDS = 12, 24_000  # recorded steps that the timeline keeps, and their commands
MOST_TIMES = 4_000  # step times in a figure
MOST_POINTS, MOST_CHANNEL = 120_000, 2_000  # points of all sensor traces, and of one
MOST_BINS = 240  # columns of the picture of the cores
RATE_NS = 200_000_000  # A counter's rate is taken over at least this time, from tick to tick.


def milliseconds(run: Run, ns: int) -> float:
    """A host time on the page's axis, to the microsecond."""
    return round((ns - run.span()[0]) * 1e-6, 3)


def step_times(run: Run) -> list[dict[str, object]]:
    """Per graph: the times of steps that were not recorded, the smoothed times, and which of them are slow."""
    rows: list[dict[str, object]] = []
    for graph in run.graphs:
        ids, times, stretches = stats.step_times(run.steps(), graph)
        variance = run.variance(graph)
        if variance.times is None:
            rows.append({"name": graph, "why": "there are too few steps that were not recorded. Try: more --steps"})
            continue
        ms, smooth = times * 1e-6, stats.steady(times, stretches) * 1e-6
        slow = np.isin(ids, variance.slow_steps)
        kept = np.unique(np.concatenate((thinned(np.arange(len(ids)), ms, MOST_TIMES)[0], np.flatnonzero(slow)[:500])))
        rows.append(
            {
                "name": graph,
                "step": ids[kept].tolist(),
                "ms": [rounded(v) for v in ms[kept].tolist()],
                "smooth": [rounded(v) for v in smooth[kept].tolist()],
                "slow": np.flatnonzero(slow[kept]).tolist(),
                "slow_count": len(variance.slow_steps),
                "all": len(ids),
                "warm_up": variance.warm_up,
                "drift": rounded(variance.drift),
                **{
                    name: rounded(getattr(variance.times, name)) for name in ("median", "p5", "p95", "min", "max", "cv")
                },
            }
        )
    return rows


def all_steps(run: Run) -> dict[str, object]:
    """When each step ended and whether it was recorded, for the overview. Long runs are thinned out."""
    steps = run.steps()
    stride = max(1, -(-len(steps) // (2 * MOST_TIMES)))
    kept = [step for n, step in enumerate(steps) if n % stride == 0 or step.recorded]
    return {
        "id": [step.id for step in kept],
        "begin": [milliseconds(run, step.begin_ns) for step in kept],
        "end": [milliseconds(run, step.end_ns) for step in kept],
        "recorded": [int(step.recorded) for step in kept],
        "stride": stride,
    }


def recorded(run: Run) -> list[dict[str, object]]:
    """Some recorded steps with their commands: the most typical with its neighbours, the slowest and the fastest."""
    chosen, labels = _chosen(run)
    rows = {step.id: step for step in run.steps()}
    return [_step(run, step, rows[step.step], labels.get(step.step, "")) for step in chosen]


def _chosen(run: Run) -> tuple[list[Timed], dict[int, str]]:
    """At most MOST_STEPS steps in their order, and what is special about some of them."""
    if not run.timed:
        return [], {}
    by_id = {step.step: step for step in run.timed}
    lengths = {period.step: period.length for period in run.periods if period.graph == run.graph}
    order, labels = list(by_id), {}
    if lengths:
        usual = float(np.median(list(lengths.values())))
        typical = min(lengths, key=lambda step: abs(lengths[step] - usual))
        slowest, fastest = max(lengths, key=lambda s: lengths[s]), min(lengths, key=lambda s: lengths[s])
        labels = {fastest: "fastest", slowest: "slowest", typical: "typical"}
        window = by_id[typical].window
        order = [typical, slowest, fastest, *(s for s in by_id if by_id[s].window == window), *by_id]
    kept: dict[int, Timed] = {}
    commands = 0
    for step in dict.fromkeys(order):
        commands += len(by_id[step].commands)
        if kept and (len(kept) >= MOST_STEPS or commands > MOST_COMMANDS):
            break
        kept[step] = by_id[step]
    return [kept[step] for step in sorted(kept)], {step: text for step, text in labels.items() if step in kept}


def _step(run: Run, step: Timed, row: StepRow, label: str) -> dict[str, object]:
    commands = step.commands
    # Everything is relative to the first moment of the step, on the host or on the device.
    origin = int(min(row.begin_ns, commands["started"][0], commands["host_begin"].min()))
    relative = {name: (commands[name] - origin).tolist() for name in ("started", "ended", "host_begin", "host_end")}
    return {
        "step": step.step,
        "graph": step.graph,
        "label": label,
        "origin": milliseconds(run, origin),
        "begin": row.begin_ns - origin,
        "end": row.end_ns - origin,
        "kind": commands["kind"].tolist(),
        "op": commands["op"].tolist(),
        "bytes": commands["bytes"].tolist(),
        **relative,
    }


def sensors(run: Run) -> list[dict[str, object]]:
    """The traces of all channels that show something over time. Counters become rates: W, or busy share of a core."""
    shown = [c for c in run.channels if _inside(run, c) >= 2 and not (c.quantity == "time" and c.source != "process")]
    most = min(MOST_CHANNEL, MOST_POINTS // max(len(shown), 1))
    rows = []
    for channel in shown:
        made = _trace(run, channel)
        if made is None:
            continue
        t, values, quantity, unit = made
        t, values = thinned(t, values, most)
        begin = run.span()[0]
        rows.append(
            {
                "source": channel.source,
                "name": channel.name,
                "quantity": quantity,
                "unit": unit,
                "covers": list(channel.covers),
                "counter": channel.counter,
                "t": [round(v * 1e-6, 2) for v in (t - begin).tolist()],
                "v": [rounded(v) for v in values.tolist()],
            }
        )
    return rows


def _inside(run: Run, channel: Series) -> int:
    return len(channel.within(*run.span()))


def _trace(run: Run, channel: Series) -> tuple[np.ndarray, np.ndarray, str, str] | None:
    """Times, values, quantity and unit. None if a counter did not move."""
    begin, end = run.span()
    margin = max((end - begin) // 20, 200_000_000)
    near = (channel.t_ns >= begin - margin) & (channel.t_ns <= end + margin)
    t, values = channel.t_ns[near], channel.values[near]
    if not channel.counter:
        return t, values, channel.quantity, channel.unit
    t, rates = _rates(t, values)
    if not len(t):
        return None
    quantity, unit = ("power", "W") if channel.quantity == "energy" else ("cores", "cores")
    return t, rates, quantity, unit


def _rates(t: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rate of a counter per second, at the middle of stretches of at least RATE_NS.

    A stretch begins and ends where the counter ticks. A counter may tick less often than it is read: between two
    readings it would seem to stand still and then to jump.
    """
    kept: list[int] = []
    for n in (np.flatnonzero(np.diff(values)) + 1).tolist():
        if not kept or t[n] - t[kept[-1]] >= RATE_NS:
            kept.append(n)
    at, value = t[kept], values[kept]
    if len(at) < 2:
        return at[:0], value[:0]
    return (at[1:] + at[:-1]) // 2, np.diff(value) / (np.diff(at) * 1e-9)


def cores(run: Run) -> dict[str, object]:
    """The busy share of each core over time, in percent, and over the whole run."""
    begin, end = run.span()
    channels = [c for c in run.channels if c.source == "cpu" and c.quantity == "time" and c.counter]
    use = run.utilisation()
    if not channels or end <= begin:
        return {"why": "this system does not report the time of its cores, or no step was run", "names": []}
    period = min(float(np.median(np.diff(c.t_ns))) if len(c.t_ns) > 1 else float("inf") for c in channels)
    bins = int(min(MOST_BINS, max((end - begin) // max(period, 50e6), 1)))
    edges = np.linspace(begin, end, bins + 1)
    kinds = (run.meta.get("machine") or {}).get("core_kinds") or {}
    names, rows = [], []
    for channel in channels:
        rises = np.diff(np.interp(edges, channel.t_ns, channel.values)) / (np.diff(edges) * 1e-9)
        names.append(channel.name.removesuffix(" busy"))
        rows.append(np.clip(np.rint(rises * 100), 0, 100).astype(int).tolist())
    return {
        "names": names,
        "kinds": [str(kinds.get(name, "")) for name in names],
        "busy": rows,
        "mean": [rounded(min(use.cores.get(c.name, 0.0), 1.0)) for c in channels],
        "end": milliseconds(run, end),
        "others": rounded(others.cores) if (others := run.others()) else None,
    }
