"""What limits a step, with the share of the step for each limit.

The parts of a recorded step (timeline.py) are assigned to limits, and the shares add up to the step. If recorded
steps take longer than the others, the time in which the device waits is reduced to theirs.

    compute, memory   ops, by what is longer at the device's ceilings: their arithmetic or their bytes (roofline.py)
    launches          ops that take hardly longer than empty launches; gaps between commands; waiting for the host to
                      enqueue
    host              waiting for the host's other work inside the call of a step
    data              waiting for the caller between two calls: the next batch, or the caller's own code
    transfers         uploads, downloads, and copies on the device

Without measured ceilings, compute and memory are one limit, `compute or memory`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from handheld.analyse.roofline import Ceiling, OpBound, op_bounds
from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.run import Run
    from handheld.analyse.timeline import StepParts

LIMITS = ("compute", "memory", "launches", "host", "data", "transfers")
UNSPLIT = "compute or memory"  # without ceilings
UNEXPLAINED = "unexplained"  # the error of the clocks
WAITING = ("launches", "host", "data")  # limits that mostly mean that the device waits
NAMED = 0.03  # Other limits are named in the text if they take at least this share.
FAR = 0.2  # Below this share of the ceiling, the text says that the device itself is not the limit.

_WHAT = {
    "compute": "is in ops that are limited by arithmetic",
    "memory": "is in ops that are limited by memory",
    UNSPLIT: "is in ops",
    "launches": "is spent on launching kernels",
    "host": "the device waits for the host's own work during the call",
    "data": "the device waits for the next batch or the caller's code",
    "transfers": "is spent on transfers",
}


@dataclass(frozen=True, slots=True)
class Bound(Record):
    """What limits a step. `limit` is None if no step was recorded; `text` then says so."""

    limit: str | None
    text: str
    step_ms: float | None = None
    ms: dict[str, float] = field(default_factory=dict)  # per limit; adds up to step_ms
    shares: dict[str, float] = field(default_factory=dict)  # the same as shares of the step
    reached: float | None = None  # share of the ceiling that the ops of this limit reach
    ops_reached: float | None = None  # the same for all ops together
    ops: list[OpBound] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Without the rows of the ops."""
        return {name: value for name, value in Record.to_json(self).items() if name != "ops"}


def bound(run: Run, graph: str | None = None) -> Bound:
    """What limits a step of one graph."""
    graph = graph or run.graph
    parts = run.parts(graph)
    if parts is None:
        return Bound(None, "What limits a step is not known: no step was recorded completely.")
    ceiling = Ceiling.of(run.meta.get("ceilings"))
    rows = op_bounds([row for row in run.ops() if row.graph == graph], ceiling) if ceiling else []
    ms = _unrecorded(_by_limit(run, parts, rows), run.step_ms(graph)[0] or parts.ms)
    limit = max((name for name in ms if name != UNEXPLAINED), key=lambda name: ms[name])
    reached = _reached([row for row in rows if row.limit == limit]) if limit in ("compute", "memory") else None
    step_ms = sum(ms.values())
    shares = {name: value / step_ms for name, value in ms.items()}
    return Bound(
        limit, _text(limit, shares, reached, ceiling is not None), step_ms, ms, shares, reached, _reached(rows), rows
    )


def _by_limit(run: Run, parts: StepParts, rows: list[OpBound]) -> dict[str, float]:
    ms = dict.fromkeys(LIMITS, 0.0)
    kernels = parts.forward + parts.backward + parts.update
    for row in rows:
        ms[row.limit] += row.ms
    if rows:
        # The parts and the rows are means over the same steps; what rounding leaves belongs to the largest limit.
        ms[max(("compute", "memory", "launches"), key=lambda name: ms[name])] += kernels - sum(row.ms for row in rows)
    else:
        del ms["compute"], ms["memory"]
        ms = {UNSPLIT: kernels, **ms}
    enqueueing = _enqueue_share(run)
    ms["launches"] += parts.between + parts.launching * enqueueing
    ms["host"] = parts.launching * (1 - enqueueing)
    ms["data"] = parts.caller
    ms["transfers"] = parts.upload + parts.download + parts.copy
    return {**ms, UNEXPLAINED: parts.unexplained}


def _unrecorded(ms: dict[str, float], step_ms: float) -> dict[str, float]:
    """The same for steps that are not recorded. Recording slows the host down, so a device waits longer in recorded
    steps, while its kernels take the same time. Waiting is reduced first, and then all parts alike."""
    waiting = sum(ms[name] for name in WAITING)
    left = max(waiting - max(sum(ms.values()) - step_ms, 0.0), 0.0)
    fewer = {name: value * left / waiting if name in WAITING and waiting else value for name, value in ms.items()}
    whole = sum(fewer.values())
    return {name: value * step_ms / whole for name, value in fewer.items()}


def _enqueue_share(run: Run) -> float:
    """The share of the host's own time in a call that it spends on enqueueing."""
    host = run.host()
    own = host.enqueue_ms + max(host.other_ms, 0.0) if host else 0.0
    return host.enqueue_ms / own if host and own else 1.0


def _reached(rows: list[OpBound]) -> float | None:
    spent = sum(row.ms for row in rows)
    return sum(row.least_ms for row in rows) / spent if spent else None


def _text(limit: str, shares: dict[str, float], reached: float | None, ceilings: bool) -> str:
    when = "in" if limit in ("host", "data") else ""
    first = f"{shares[limit]:.0%} of a step"
    text = f"Bound by {limit}: {when and when + ' '}{first} {_WHAT[limit]}"
    if reached is not None:
        text += f", at {_percent(reached)} of the device's ceiling"
    others = sorted(((share, name) for name, share in shares.items() if name != limit and share >= NAMED), reverse=True)
    if others:
        text += f". The rest: {', '.join(f'{name} {share:.0%}' for share, name in others)}"
    if reached is not None and reached < FAR:
        text += ". The device could do much more: slow kernels or other programs limit these ops"
    return text + ("." if ceilings else ". The ceilings of the device were not measured.")


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.095 else f"{share:.0%}"
