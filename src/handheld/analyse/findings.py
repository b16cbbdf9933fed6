"""Findings: named causes of slow steps, with their evidence and the steps and ops they affect.

Rules about the machine are in machine.py, rules about the step are here; thresholds are at the top of each file. A slow
step that no finding explains is reported as unexplained.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from handheld.analyse import machine, timeline
from handheld.analyse.energy_rank import energy_rank
from handheld.analyse.finding import Finding, finding, slower, touched
from handheld.analyse.joules import MODEL
from handheld.store.commands import LAUNCH
from handheld.units import count

if TYPE_CHECKING:
    from handheld.analyse.run import Run

# Each share is the least for which a finding is reported.
CALLER_SHARE = 0.05  # share of the run in which the device was idle between calls
CALLER_STEP = 0.1  # share of a step's time; shorter waits are ignored
CALLER_MOST = 0.98  # share of the total wait that the named steps must cover
LAUNCHING_SHARE = 0.2  # share of a step in which the device waits for the host to launch
DRIVER_SHARE = 0.1  # share of a step in which nothing runs although the next command is enqueued
DRIFT_SHARE, DRIFT_S = 0.1, 5.0  # change of the step time from beginning to end; the least length of the run in s


def find(run: Run) -> list[Finding]:
    """All findings: those that affect most steps first, slow steps last."""
    findings = [
        *machine.loads(run),
        *machine.clocks(run),
        *machine.heat(run),
        *_caller(run),
        *_launching(run),
        *_driver(run),
        *_transfers(run),
        *_drift(run),
        *energy_rank(run),
        *_stale_energy_model(run),
    ]
    findings.sort(key=lambda item: -len(item.steps))
    return [*findings, *_slow(run, findings)]


def _stale_energy_model(run: Run) -> list[Finding]:
    """Joules of ops come from an energy model that was measured with other kernels."""
    stale = run.meta.get("stale_energy_model")
    ids = [row.id for row in run.joules() if row.source == MODEL] if stale else []
    if not stale or not ids:
        return []
    return [finding("energy model", f"{stale}. Try: handheld doctor --energy{run.on_option}", [], sorted(set(ids)))]


def _caller(run: Run) -> list[Finding]:
    """Time between the calls of two steps (a data loader, the user's code) in which the device was idle. It is the part
    of a step's time beyond what the device needs, limited to the time outside the call."""
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
    # The profiler itself works between steps when it opens or closes a window.
    lost[[a.window != b.window for a, b in pairs]] = 0
    long = lost > CALLER_STEP * np.where(needed > 0, needed, np.median(whole))
    share = float(lost[long].sum() / whole.sum()) if long.any() else 0.0
    if share < CALLER_SHARE:
        return []
    long &= lost >= _least_of_most(lost[long])
    ids = [b.id for (_, b), hit in zip(pairs, long, strict=True) if hit]
    each = float(np.median(lost[long])) * 1e-6
    beginning = "the device waits {:.2f} ms" if run.periods else "there are {:.2f} ms"
    unknown = "" if run.periods else ". Whether the device waits is not known, because no step was recorded"
    return [
        finding(
            "caller",
            f"{beginning.format(each)} between the end of a step and the beginning "
            f"of the next in {count(len(ids), 'step')}, {share:.0%} of the time, for data or for the "
            f"caller's own code{_or_connection(run)}{unknown}",
            ids,
            _first_ops(run),
            ms=each,
            share=share,
        )
    ]


def _or_connection(run: Run) -> str:
    """Batches for a target pass through its connection."""
    return f", or for the connection to {run.meta['target']}" if run.meta.get("target") else ""


def _least_of_most(values: np.ndarray) -> float:
    """The smallest of the largest values that together make up CALLER_MOST of the sum. It separates a few long waits
    from many negligible ones."""
    falling = np.sort(values)[::-1]
    last = np.searchsorted(np.cumsum(falling), CALLER_MOST * falling.sum())
    return float(falling[min(int(last), len(falling) - 1)])


def _needed(run: Run, graph: str) -> float:
    """The time in ns that the device needs for a step, without waiting for the caller. 0 if it is not known, or if the
    device works only during the call, so that all time outside the call counts."""
    parts = None if run.meta.get("device") in ("reference:cpu", "pytorch:cpu") else run.parts(graph)
    return (parts.ms - parts.caller) * 1e6 if parts else 0.0


def _first_ops(run: Run) -> list[int]:
    """The first op of each graph: it waits for the batch."""
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
        finding(
            "launching",
            f"the device waits {parts.launching:.2f} ms of a step ({share:.0%}) for the host to launch its kernels",
            [p.step for p in run.periods if p.graph == run.graph],
            ms=parts.launching,
            share=share,
        )
    ]


def _driver(run: Run) -> list[Finding]:
    """Time in which an enqueued command did not start."""
    parts = run.parts()
    if parts is None or parts.between < DRIVER_SHARE * parts.ms:
        return []
    share = parts.between / parts.ms
    steps = [p.step for p in run.periods if p.graph == run.graph]
    waits: dict[tuple[int, int], int] = {}  # (kind, op) of a command -> total wait before it
    for step, after in itertools.pairwise(run.timed):
        if step.step not in steps or step.window != after.window:
            continue
        gaps, late = timeline.gaps_after(step, after)
        kinds, ops = (np.append(step.commands[name][1:], after.commands[name][0]).tolist() for name in ("kind", "op"))
        for key, ns in zip(zip(kinds, ops, strict=True), (gaps - late).tolist(), strict=True):
            waits[key] = waits.get(key, 0) + ns
    (kind, op), most = max(waits.items(), key=lambda item: item[1])
    most_ms = most / len(steps) * 1e-6
    name = _op_names(run).get(op, str(op)) if kind == LAUNCH else f"the {timeline.TRANSFERS[kind]}"
    return [
        finding(
            "driver",
            f"nothing runs for {parts.between:.2f} ms of a step "
            f"({share:.0%}) although the next command is enqueued: the driver or the "
            f"device is late. {most_ms:.2f} ms of that are before {name}",
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
    """Transfers in the middle of a step, with launches before and after them."""
    hits: dict[tuple[str, int, int], list[tuple[int, int, float]]] = {}
    for step in run.timed:
        c = step.commands
        launches = np.flatnonzero(c["kind"] == LAUNCH)
        for at in np.flatnonzero(c["kind"] != LAUNCH) if len(launches) else ():
            if not launches[0] < at < launches[-1]:
                continue
            before, after = launches[launches < at][-1], launches[launches > at][0]
            stall = float(c["started"][after] - c["ended"][before]) * 1e-6
            name = timeline.TRANSFERS[int(c["kind"][at])]
            hits.setdefault((name, int(c["op"][before]), int(c["op"][after])), []).append(
                (step.step, int(c["bytes"][at]), stall)
            )
    ops = _op_names(run)
    rows = []
    for (name, before, after), transfers in hits.items():
        stall = float(np.median([ms for _, _, ms in transfers]))
        rows.append(
            finding(
                "transfer",
                f"a {name} of {transfers[0][1]:,} bytes in the middle of the step, after "
                f"{ops.get(before, before)}: the device does no other work for {stall:.2f} ms",
                sorted({id_ for id_, _, _ in transfers}),
                [before, after],
                bytes=transfers[0][1],
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
        finding(
            "drift",
            f"steps got {word} during the run: the last ones took {abs(share):.0%} {word} than the first ones",
            [],
            share=share,
        )
    ]


def _slow(run: Run, findings: list[Finding]) -> list[Finding]:
    """Steps that took far longer than the others, grouped by the findings that affect them."""
    causes: dict[str, list[int]] = {}
    edge = round(machine.BIN_S * 1e9)  # The edges of a load are known only to one bin.
    known = {
        item.kind: {*item.steps, *touched(run, [(a - edge, b + edge) for a, b in item.intervals])} for item in findings
    }
    for step in sorted(itertools.chain.from_iterable(run.variance(graph).slow_steps for graph in run.graphs)):
        named = sorted(kind for kind, ids in known.items() if step in ids)
        causes.setdefault(", ".join(named) or "unexplained", []).append(step)
    return [
        finding(
            "slow steps",
            f"{len(steps)} of {len(run.steps())} steps were far slower than the others: {cause}",
            steps,
            slower(run, steps),
            cause=cause,
        )
        for cause, steps in sorted(causes.items())
    ]
