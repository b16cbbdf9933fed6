"""What is worth knowing of a run: named causes, with their evidence, the steps and ops they touch.

Thresholds are here, in one place. A slow step that nothing explains is said to be unexplained.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from handheld.analyse import timeline
from handheld.analyse.rails import Series
from handheld.store.commands import LAUNCH
from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.run import Run

BIN_S = 0.1  # over which loads are averaged
SMOOTH = 3  # bins: on a full machine a thread's share comes in pieces
CORES, CORES_S = 0.5, 0.5  # more cores than usual, for so long: work besides the steps
THREADS = 0.25  # the same of threads that were started: they are not there in other steps
AT_WORK = 0.3  # a core's clock counts while it is busy for this share of the time
CLOCK_SHARE, CLOCK_S = 0.85, 0.3  # a clock below that share of what it was, for so long
WARMER_C = 5.0  # above the start
CALLER_SHARE = 0.05  # of the run's time that the device had nothing to do between calls
CALLER_STEP = 0.1  # of a step's time: less than that is no wait
CALLER_MOST = 0.98  # of all that was waited: the steps that it lies in are named
LAUNCHING_SHARE = 0.2  # of a step's time that the device waits for the host's launches
DRIVER_SHARE = 0.1  # of a step's time that nothing runs although the next command is there
OP_SHARE, OP_SHOWN = 0.2, 5  # how much slower an op is, to be touched; how many are named
DRIFT_SHARE, DRIFT_S = 0.1, 5.0  # longer or shorter steps at the end of a run of at least so long

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """A named cause, the ids of the steps and ops that it touches, and numbers that show it."""

    kind: str
    text: str
    steps: list[int]
    ops: list[int]
    evidence: dict[str, object]

    @property
    def intervals(self) -> list[Interval]:
        """When that was, in ns, if it was not throughout."""
        return cast("list[Interval]", self.evidence.get("intervals", []))


def find(run: Run) -> list[Finding]:
    """All findings; those that touch most steps first, unexplained slow steps last."""
    found = [
        *_loads(run),
        *_clocks(run),
        *_heat(run),
        *_caller(run),
        *_launching(run),
        *_driver(run),
        *_transfers(run),
        *_drift(run),
    ]
    found.sort(key=lambda one: -len(one.steps))
    return [*found, *_slow(run, found)]


def _finding(kind: str, text: str, steps: list[int], ops: list[int] | None = None, **evidence: object) -> Finding:
    return Finding(kind, text, steps, ops or [], evidence)


def _touched(run: Run, intervals: list[Interval]) -> list[int]:
    """Steps that overlap an interval: from the end of the one before to their own end."""
    steps = run.steps()
    ends = np.array([one.end_ns for one in steps])
    begins = np.append([one.begin_ns for one in steps[:1]], ends[:-1])
    hit = np.zeros(len(steps), bool)
    for a, b in intervals:
        hit |= (begins < b) & (ends > a)
    return [one.id for one, touched in zip(steps, hit.tolist(), strict=True) if touched]


def _slower(run: Run, steps: list[int]) -> list[int]:
    """Ops that took longer in these steps, of those that were recorded, than in the others."""
    inside = set(steps)
    apart = [timeline.op_times([one for one in run.timed if (one.step in inside) == hit]) for hit in (True, False)]
    mine, others = ({op: float(np.median(ns)) for op, ns in part.items()} for part in apart)
    more = {op: ns - others[op] for op, ns in mine.items() if op in others and ns > (1 + OP_SHARE) * others[op]}
    return sorted(more, key=lambda op: -more[op])[:OP_SHOWN]


def _seconds(intervals: list[Interval]) -> float:
    return sum(b - a for a, b in intervals) * 1e-9


def _where(at: np.ndarray, hit: np.ndarray, least_s: float) -> list[Interval]:
    """Stretches of bins [at[i], at[i + 1]) that are hit, of at least so long."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], hit.astype(np.int8), [0]))))
    found = [(int(at[a]), int(at[b])) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    return [one for one in found if _seconds([one]) >= least_s * (1 - 1e-9)]


# ── the machine ───────────────────────────────────────────────────────────────────────────────


def _rate(one: Series, at: np.ndarray) -> np.ndarray:
    """How fast a counter rises in each bin, per second."""
    rate: np.ndarray = np.diff(np.interp(at, one.t_ns, one.values)) / (np.diff(at) * 1e-9)
    return rate


def _bins(run: Run) -> np.ndarray:
    begin, end = run.warm()
    return np.arange(begin, end, int(BIN_S * 1e9), dtype=np.int64)


def _busy(run: Run, source: str, at: np.ndarray) -> np.ndarray | None:
    """Cores that a source's counters of time have kept busy, in each bin."""
    rates = [_rate(s, at) for s in run.channels if s.source == source and s.quantity == "time" and s.counter]
    return np.sum(rates, axis=0) if rates else None


def _loads(run: Run) -> list[Finding]:
    """Cores that something besides the usual work of a step kept busy."""
    at = _bins(run)
    if len(at) < 3:
        return []
    own, cores, threads = (_busy(run, name, at) for name in ("process", "cpu", "process-threads"))
    rows = []
    if threads is not None:
        rows += _more(
            run,
            at,
            threads,
            "own load",
            "threads that this process started kept {:.1f} cores busy besides its steps",
            THREADS,
        )
    if own is not None and not rows:
        # steps that are faster than others have more of the machine, and nothing besides them
        rows += [
            one
            for one in _more(
                run, at, own, "own load", "this process kept {:.1f} cores more busy than in its other steps"
            )
            if not _faster(run, one.steps)
        ]
    if own is not None and cores is not None:
        rows += _more(
            run, at, cores - own, "other load", "other processes kept {:.1f} cores more busy than at other times"
        )
    return rows


def _more(run: Run, at: np.ndarray, load: np.ndarray, kind: str, text: str, cores: float = CORES) -> list[Finding]:
    usual = float(np.percentile(load, 25))
    smooth = np.convolve(np.pad(load, SMOOTH // 2, "edge"), np.full(SMOOTH, 1 / SMOOTH), "valid")
    where = _where(at, smooth > usual + cores, CORES_S)
    if not where:
        return []
    inside = np.any([(at[:-1] >= a) & (at[:-1] < b) for a, b in where], axis=0)
    extra = float(load[inside].mean()) - usual
    seconds, steps = _seconds(where), _touched(run, where)
    return [
        _finding(
            kind,
            f"{text.format(extra)}, for {seconds:.1f} s",
            steps,
            _slower(run, steps),
            cores=extra,
            seconds=seconds,
            intervals=where,
        )
    ]


def _faster(run: Run, steps: list[int]) -> bool:
    """Whether these steps took clearly less than the others."""
    inside = set(steps)
    times: dict[bool, list[int]] = {True: [], False: []}
    for before, one in itertools.pairwise(run.steps()):
        times[one.id in inside].append(one.end_ns - before.end_ns)
    return all(times.values()) and bool(np.median(times[True]) < (1 - OP_SHARE) * np.median(times[False]))


def _clocks(run: Run) -> list[Finding]:
    """Clocks that fell while steps ran; a core's own only while that core was at work."""
    rows = []
    begin, end = run.warm()
    for source, group in itertools.groupby((s for s in run.channels if s.quantity == "frequency"), lambda s: s.source):
        fallen = {}
        for one in group:
            inside = (one.t_ns >= begin) & (one.t_ns <= end)
            at, values = np.append(one.t_ns[inside], end), one.values[inside]
            low = _low(run, one, at, values) if len(values) > 2 else np.zeros(0, bool)
            where = _where(at, low, CLOCK_S) if low.any() else []
            if where:
                usual = float(np.percentile(values, 90))
                fallen[one.name] = (where, usual, float(values[low].mean()))
        if not fallen:
            continue
        name, (_, usual, least) = min(fallen.items(), key=lambda item: item[1][2] / item[1][1])
        where = sorted(one for intervals, _, _ in fallen.values() for one in intervals)
        steps = _touched(run, where)
        longest = max(_seconds(intervals) for intervals, _, _ in fallen.values())
        others = f" and {len(fallen) - 1} more" if len(fallen) > 1 else ""
        rows.append(
            _finding(
                "clock",
                f"{source}/{name}{others} fell to {least / 1e6:.0f} of {usual / 1e6:.0f} MHz for {longest:.1f} s",
                steps,
                _slower(run, steps),
                clocks=list(fallen),
                from_hz=usual,
                to_hz=least,
                seconds=longest,
                intervals=where,
            )
        )
    return rows


def _low(run: Run, one: Series, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which of a clock's values are low while there is work."""
    low: np.ndarray = values < CLOCK_SHARE * np.percentile(values, 90)
    core = one.name.partition(" ")[0]
    work = [s for s in run.channels if s.source == "cpu" and s.name.partition(" ")[0] == core]
    if one.source == "cpu-clock" and work:
        low &= _rate(work[0], at) >= AT_WORK
    return low


def _heat(run: Run) -> list[Finding]:
    rows = []
    begin, end = run.warm()
    for one in run.channels:
        values = one.within(begin, end) if one.quantity == "temperature" else np.zeros(0)
        if len(values) > 4 and values[-1] - values[0] > WARMER_C:
            hot = one.t_ns[(one.t_ns >= begin) & (one.values > values[0] + WARMER_C)]
            rows.append(
                _finding(
                    "heat",
                    f"{one.rail} rose from {values[0]:.0f} to {values[-1]:.0f} °C",
                    _touched(run, [(int(hot[0]), end)]),
                    from_c=float(values[0]),
                    to_c=float(values[-1]),
                )
            )
    return rows


# ── the step ──────────────────────────────────────────────────────────────────────────────────


def _caller(run: Run) -> list[Finding]:
    """Time between the calls of two steps (a data loader, the user's own code) in which the device
    had nothing to do: what a step took longer than the device needs, as far as that was outside."""
    begin, _ = run.warm()
    steps = [s for s in run.steps() if s.begin_ns >= begin]
    if len(steps) < 3:
        return []
    pairs = list(itertools.pairwise(steps))
    outside = np.array([b.begin_ns - a.end_ns for a, b in pairs])
    whole = np.array([b.end_ns - a.end_ns for a, b in pairs])
    need = {graph: _needed(run, graph) for graph in run.graphs}
    needed = np.array([need[b.graph] for _, b in pairs])
    lost = np.minimum(outside, np.maximum(whole - needed, 0))
    # a profiler's own window ends, and opens, with work between steps
    lost[[a.window != b.window for a, b in pairs]] = 0
    long = lost > CALLER_STEP * np.where(needed > 0, needed, np.median(whole))
    share = float(lost[long].sum() / whole.sum()) if long.any() else 0.0
    if share < CALLER_SHARE:
        return []
    long &= lost >= _least_of_most(lost[long])
    ids = [b.id for (_, b), hit in zip(pairs, long, strict=True) if hit]
    each = float(np.median(lost[long])) * 1e-6
    what = "the device waits" if run.periods else "whether the device waits is not known:"
    return [
        _finding(
            "caller",
            f"{what} {each:.2f} ms between the end of a step and the beginning "
            f"of the next in {len(ids)} steps, {share:.0%} of the time: for data, or the "
            "caller's own code",
            ids,
            _first_ops(run),
            ms=each,
            share=share,
        )
    ]


def _least_of_most(values: np.ndarray) -> float:
    """The smallest of the largest values that make up CALLER_MOST of the sum: of a few long waits
    and many that are nothing beside them, the long ones are meant."""
    falling = np.sort(values)[::-1]
    last = np.searchsorted(np.cumsum(falling), CALLER_MOST * falling.sum())
    return float(falling[min(int(last), len(falling) - 1)])


def _needed(run: Run, graph: str) -> float:
    """ns that the device needs for a step, without waiting for the caller; 0: not known, or it
    works only while it is called, so that all time outside counts."""
    parts = None if run.meta.get("device") in ("reference:cpu", "pytorch:cpu") else run.parts(graph)
    return (parts.ms - parts.caller) * 1e6 if parts else 0.0


def _first_ops(run: Run) -> list[int]:
    """The op of each graph that waits for the batch."""
    first: dict[str, int] = {}
    for row in run.op_rows:
        if row.launches:
            first.setdefault(row.graph, row.id)
    return [first[name] for name in run.graphs if name in first]


def _launching(run: Run) -> list[Finding]:
    parts = run.parts()
    if parts is None or parts.launching < LAUNCHING_SHARE * parts.ms:
        return []
    share = parts.launching / parts.ms
    return [
        _finding(
            "launching",
            f"the device waits {parts.launching:.2f} ms of a step ({share:.0%}) for the host to launch its kernels",
            [p.step for p in run.periods if p.graph == run.graph],
            ms=parts.launching,
            share=share,
        )
    ]


def _driver(run: Run) -> list[Finding]:
    """Commands that were there and did not begin."""
    parts = run.parts()
    if parts is None or parts.between < DRIVER_SHARE * parts.ms:
        return []
    share = parts.between / parts.ms
    steps = [p.step for p in run.periods if p.graph == run.graph]
    waits: dict[tuple[int, int], int] = {}  # before a command, of its kind and op
    for one, after in itertools.pairwise(run.timed):
        if one.step not in steps or one.window != after.window:
            continue
        gaps, late = timeline.gaps_after(one, after)
        kinds, ops = (np.append(one.commands[name][1:], after.commands[name][0]).tolist() for name in ("kind", "op"))
        for key, ns in zip(zip(kinds, ops, strict=True), (gaps - late).tolist(), strict=True):
            waits[key] = waits.get(key, 0) + ns
    (kind, op), most = max(waits.items(), key=lambda item: item[1])
    most_ms = most / len(steps) * 1e-6
    name = _op_names(run).get(op, str(op)) if kind == LAUNCH else f"the {timeline.TRANSFERS[kind]}"
    return [
        _finding(
            "driver",
            f"nothing runs for {parts.between:.2f} ms of a step "
            f"({share:.0%}) although the next command is there: the driver, or the "
            f"device. {most_ms:.2f} ms of that are before {name}",
            steps,
            [op] if kind == LAUNCH else [],
            ms=parts.between,
            share=share,
            most_ms=most_ms,
        )
    ]


def _op_names(run: Run) -> dict[int, str]:
    return {row.id: row.title for row in run.op_rows}


def _transfers(run: Run) -> list[Finding]:
    """Transfers with launches before and after them in their step."""
    hits: dict[tuple[str, int, int], list[tuple[int, int, float]]] = {}
    for one in run.timed:
        c = one.commands
        launches = np.flatnonzero(c["kind"] == LAUNCH)
        for at in np.flatnonzero(c["kind"] != LAUNCH) if len(launches) else ():
            if not launches[0] < at < launches[-1]:
                continue
            before, after = launches[launches < at][-1], launches[launches > at][0]
            stall = float(c["started"][after] - c["ended"][before]) * 1e-6
            name = timeline.TRANSFERS[int(c["kind"][at])]
            hits.setdefault((name, int(c["op"][before]), int(c["op"][after])), []).append(
                (one.step, int(c["bytes"][at]), stall)
            )
    ops = _op_names(run)
    rows = []
    for (name, before, after), found in hits.items():
        stall = float(np.median([ms for _, _, ms in found]))
        rows.append(
            _finding(
                "transfer",
                f"a {name} of {found[0][1]:,} bytes in the middle of the step, after "
                f"{ops.get(before, before)}: the device does no other work for {stall:.2f} ms",
                sorted({step for step, _, _ in found}),
                [before, after],
                bytes=found[0][1],
                ms=stall,
            )
        )
    return rows


def _drift(run: Run) -> list[Finding]:
    share = run.variance().drift or 0.0
    begin, end = run.warm()
    if abs(share) < DRIFT_SHARE or end - begin < DRIFT_S * 1e9:
        return []
    word = "longer" if share > 0 else "shorter"
    return [
        _finding(
            "drift",
            f"steps got {word} throughout: the last ones took {abs(share):.0%} {word} than the first ones",
            [],
            share=share,
        )
    ]


def _slow(run: Run, found: list[Finding]) -> list[Finding]:
    """Steps that took far longer than the others, with what else is known of them."""
    causes: dict[str, list[int]] = {}
    # a load's edges are known to a bin
    edge = round(BIN_S * 1e9)
    touched = {
        one.kind: {*one.steps, *_touched(run, [(a - edge, b + edge) for a, b in one.intervals])} for one in found
    }
    for step in sorted(itertools.chain.from_iterable(run.variance(graph).slow_steps for graph in run.graphs)):
        named = sorted(kind for kind, ids in touched.items() if step in ids)
        causes.setdefault(", ".join(named) or "unexplained", []).append(step)
    return [
        _finding(
            "slow steps",
            f"{len(steps)} of {len(run.steps())} steps were far slower than the others: {cause}",
            steps,
            _slower(run, steps),
            cause=cause,
        )
        for cause, steps in sorted(causes.items())
    ]
