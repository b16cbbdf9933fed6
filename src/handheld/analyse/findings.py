"""What is worth knowing of a run: named causes, with their evidence, the steps and ops they touch.

A finding is a row: `kind`, `text`, `steps` and `ops` (ids), and `evidence` (numbers). Thresholds
are here, in one place. A slow step that nothing explains is said to be unexplained.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.analyse import stats
from handheld.analyse.rails import Series
from handheld.backends.base import LAUNCH

if TYPE_CHECKING:
    from handheld.analyse.run import Row, Run

BIN_S = 0.1  # over which loads are averaged
CORES, CORES_S = 0.5, 0.5  # more cores than usual, for so long: someone else's work
CLOCK_SHARE, CLOCK_S = 0.9, 0.1  # a clock below that share of what it was, for so long
WARMER = 5.0  # °C above the start
OUTSIDE_SHARE = 0.1  # of a step's time between the calls of two steps
LAUNCHING_SHARE = 0.2  # of a step's time that the device waits for the host's launches

Interval = tuple[int, int]


def find(run: Run) -> list[Row]:
    """All findings; those that touch most steps first, unexplained slow steps last."""
    found = [*_loads(run), *_clocks(run), *_heat(run), *_caller(run), *_launching(run),
             *_transfers(run), *_drift(run)]
    found.sort(key=lambda one: -len(one["steps"]))
    return [*found, *_slow(run, found)]


def _finding(kind: str, text: str, steps: list[int], ops: list[int] | None = None,
             **evidence: Any) -> Row:
    return {"kind": kind, "text": text, "steps": steps, "ops": ops or [], "evidence": evidence}


def _touched(run: Run, intervals: list[Interval]) -> list[int]:
    """Steps that overlap an interval: from the end of the one before to their own end."""
    steps, found = run.steps(), []
    for before, one in zip([None, *steps], steps):
        begin = before["end_ns"] if before else one["begin_ns"]
        if any(begin < b and a < one["end_ns"] for a, b in intervals):
            found.append(one["id"])
    return found


def _seconds(intervals: list[Interval]) -> float:
    return sum(b - a for a, b in intervals) * 1e-9


def _where(at: np.ndarray, hit: np.ndarray, least_s: float) -> list[Interval]:
    """Stretches of bins [at[i], at[i + 1]) that are hit, of at least so long."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], hit.astype(np.int8), [0]))))
    found = [(int(at[a]), int(at[b])) for a, b in zip(edges[::2], edges[1::2])]
    return [one for one in found if _seconds([one]) >= least_s * (1 - 1e-9)]


# ── the machine ───────────────────────────────────────────────────────────────────────────────


def _rate(one: Series, at: np.ndarray) -> np.ndarray:
    """How fast a counter rises in each bin, per second."""
    rate: np.ndarray = np.diff(np.interp(at, one.t_ns, one.values)) / (np.diff(at) * 1e-9)
    return rate


def _bins(run: Run) -> np.ndarray:
    begin, end = run.warm()
    return np.arange(begin, end, int(BIN_S * 1e9), dtype=np.int64)


def _loads(run: Run) -> list[Row]:
    """Cores that something besides the usual work of a step kept busy."""
    at = _bins(run)
    if len(at) < 3:
        return []
    cores = [_rate(s, at) for s in run.channels
             if s.source == "cpu" and s.quantity == "time" and s.counter]
    mine = [_rate(s, at) for s in run.channels
            if s.source == "process" and s.quantity == "time" and s.counter]
    rows = []
    if mine:
        own = np.sum(mine, axis=0)
        rows += _more(run, at, own, "own load", "this process kept {:.1f} cores more busy than in "
                      "its other steps")
        if cores:
            rows += _more(run, at, np.sum(cores, axis=0) - own, "other load",
                          "other processes kept {:.1f} cores more busy than before")
    return rows


def _more(run: Run, at: np.ndarray, load: np.ndarray, kind: str, text: str) -> list[Row]:
    usual = float(np.percentile(load, 25))
    where = _where(at, load > usual + CORES, CORES_S)
    if not where:
        return []
    inside = np.any([(at[:-1] >= a) & (at[:-1] < b) for a, b in where], axis=0)
    extra = float(load[inside].mean()) - usual
    seconds = _seconds(where)
    return [_finding(kind, f"{text.format(extra)}, for {seconds:.1f} s", _touched(run, where),
                     cores=extra, seconds=seconds, intervals=where)]


def _clocks(run: Run) -> list[Row]:
    """Clocks that fell while steps ran."""
    rows = []
    begin, end = run.warm()
    for one in run.channels:
        if one.quantity != "frequency":
            continue
        inside = (one.t_ns >= begin) & (one.t_ns <= end)
        at, values = one.t_ns[inside], one.values[inside]
        if len(values) < 3:
            continue
        usual = float(np.percentile(values, 90))
        where = _where(np.append(at, end), values < CLOCK_SHARE * usual, CLOCK_S)
        if where:
            least = float(values[values < CLOCK_SHARE * usual].mean())
            rows.append(_finding(
                "clock", f"{one.rail} fell to {least / 1e6:.0f} of {usual / 1e6:.0f} MHz for "
                f"{_seconds(where):.1f} s", _touched(run, where), from_hz=usual, to_hz=least,
                seconds=_seconds(where), intervals=where))
    return rows


def _heat(run: Run) -> list[Row]:
    rows = []
    begin, end = run.warm()
    for one in run.channels:
        values = one.within(begin, end) if one.quantity == "temperature" else np.zeros(0)
        if len(values) > 4 and values[-1] - values[0] > WARMER:
            rows.append(_finding(
                "heat", f"{one.rail} rose from {values[0]:.0f} to {values[-1]:.0f} °C", [],
                from_c=float(values[0]), to_c=float(values[-1])))
    return rows


# ── the step ──────────────────────────────────────────────────────────────────────────────────


def _caller(run: Run) -> list[Row]:
    """Time between the calls of two steps: a data loader, the user's own code."""
    steps = [s for s in run.steps() if s["begin_ns"] >= run.warm()[0]]
    if len(steps) < 3:
        return []
    outside = np.array([b["begin_ns"] - a["end_ns"] for a, b in itertools.pairwise(steps)])
    whole = np.array([b["end_ns"] - a["end_ns"] for a, b in itertools.pairwise(steps)])
    usual = float(np.median(whole))
    long = outside > OUTSIDE_SHARE * usual
    # a profiler's own window ends with work between steps
    long &= np.array([not (a["recorded"] and not b["recorded"])
                      for a, b in itertools.pairwise(steps)])
    if not long.any():
        return []
    ids = [s["id"] for s, hit in zip(steps[1:], long) if hit]
    share = float(outside[long].sum() / whole.sum())
    each = float(np.median(outside[long])) * 1e-6
    return [_finding("caller", f"{each:.2f} ms between the end of a step and the beginning of the "
                     f"next in {len(ids)} steps: data, or the caller's own code; "
                     f"{share:.0%} of the time", ids, ms=each, share=share)]


def _launching(run: Run) -> list[Row]:
    parts = run.parts()
    if parts is None or parts["launching"] < LAUNCHING_SHARE * parts["ms"]:
        return []
    share = parts["launching"] / parts["ms"]
    return [_finding("launching", f"the device waits {parts['launching']:.2f} ms of a step "
                     f"({share:.0%}) for the host to launch its kernels",
                     [p.step for p in run.periods], ms=parts["launching"], share=share)]


def _transfers(run: Run) -> list[Row]:
    """Transfers with launches before and after them in their step."""
    hits: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    for one in run.timed:
        kinds, launches = one.commands["kind"], np.flatnonzero(one.commands["kind"] == LAUNCH)
        if not len(launches):
            continue
        for at in np.flatnonzero(kinds != LAUNCH):
            if not launches[0] < at < launches[-1]:
                continue
            before = int(one.commands["op"][launches[launches < at][-1]])
            after = launches[launches > at][0]
            stall = (one.commands["started"][after]
                     - one.commands["ended"][launches[launches < at][-1]]) * 1e-6
            name = {1: "upload", 2: "download", 3: "copy"}[int(kinds[at])]
            hits.setdefault((name, before), []).append(
                (one.step, int(one.commands["bytes"][at]), float(stall)))
    rows = []
    for (name, op), found in hits.items():
        stall = float(np.median([ms for _, _, ms in found]))
        rows.append(_finding(
            "transfer", f"a {name} of {found[0][1]:,} bytes in the middle of the step, after op "
            f"{op}: the device stands still for {stall:.2f} ms",
            sorted({step for step, _, _ in found}), [op], bytes=found[0][1], ms=stall))
    return rows


def _drift(run: Run) -> list[Row]:
    variance = run.variance()
    if abs(variance.get("drift", 0.0)) < stats.LIKE_THE_REST:
        return []
    word = "longer" if variance["drift"] > 0 else "shorter"
    return [_finding("drift", f"the last steps took {abs(variance['drift']):.0%} {word} than the "
                     "first ones", [], share=variance["drift"])]


def _slow(run: Run, found: list[Row]) -> list[Row]:
    """Steps that took far longer than the others, with what else is known of them."""
    ids = run.variance().get("slow_steps", [])
    causes: dict[str, list[int]] = {}
    for step in ids:
        named = sorted({one["kind"] for one in found if step in one["steps"]})
        causes.setdefault(", ".join(named) or "unexplained", []).append(step)
    return [_finding("slow steps", f"{len(steps)} of {len(run.steps())} steps were far slower than "
                     f"the others: {cause}", steps, cause=cause)
            for cause, steps in sorted(causes.items())]
