"""Analyses the commands of recorded steps: transfers (latency and bandwidth), launches, time of the host.

A transfer of b bytes takes latency + b / bandwidth. If a run has transfers of clearly different sizes, both values are
fitted to them. Otherwise they come from the device's ceilings, if those were measured. Otherwise only the total time is
known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from handheld.analyse.timeline import TRANSFERS, Timed
from handheld.store.commands import DOWNLOAD, LAUNCH, UPLOAD
from handheld.store.record import Record

FIT_RATIO = 16  # A fit needs a largest transfer of at least this many times the smallest.
CEILINGS: dict[int, str] = {UPLOAD: "to_device", DOWNLOAD: "to_host"}


@dataclass(frozen=True, slots=True)
class Transfer(Record):
    """All transfers of one kind and size."""

    kind: str
    bytes: int
    per_step: float
    ms: float
    gbytes_s: float | None
    latency_ms: float | None
    bandwidth_gbytes_s: float | None
    split_from: str  # the origin of latency and bandwidth


@dataclass(frozen=True, slots=True)
class LaunchCost(Record):
    """The cost of a launch."""

    per_step: float
    enqueue_us: float  # host time
    enqueue_p95_us: float
    enqueue_ms_step: float
    start_us: float | None  # idle device: from the end of the host's call to the start of the command
    between_us: float | None  # busy device: from the end of a command to the start of the next, already enqueued one


@dataclass(frozen=True, slots=True)
class HostTime(Record):
    """The host's time per recorded step."""

    call_ms: float
    enqueue_ms: float
    waiting_ms: float
    other_ms: float
    outside_ms: float


def after_another(steps: Iterable[Timed]) -> list[Timed]:
    """Recorded steps that follow another recorded step, so that the device was busy when they began."""
    return [step for before, step in itertools.pairwise(steps) if before.window == step.window]


def transfers(steps: list[Timed], ceilings: Mapping[str, float] | None) -> list[Transfer]:
    """One row per kind and size of transfer, the largest first within each kind."""
    chosen = after_another(steps)
    durations: dict[tuple[int, int], list[int]] = {}
    for step in chosen:
        took = step.commands["ended"] - step.commands["started"]
        for kind, nbytes, ns in zip(
            step.commands["kind"].tolist(), step.commands["bytes"].tolist(), took.tolist(), strict=True
        ):
            if kind in TRANSFERS:
                durations.setdefault((kind, nbytes), []).append(ns)
    rows = []
    for (kind, nbytes), times in sorted(durations.items(), key=lambda item: (item[0][0], -item[0][1])):
        sizes = {size: float(np.median(ns)) for (k, size), ns in durations.items() if k == kind}
        latency, rate, split_from = _split(kind, sizes, ceilings)
        seconds = float(np.median(times)) * 1e-9
        rows.append(
            Transfer(
                kind=TRANSFERS[kind],
                bytes=nbytes,
                per_step=len(times) / len(chosen),
                ms=seconds * 1e3,
                gbytes_s=nbytes / seconds * 1e-9 if seconds else None,
                latency_ms=None if latency is None else latency * 1e3,
                bandwidth_gbytes_s=None if rate is None else rate * 1e-9,
                split_from=split_from,
            )
        )
    return rows


def _split(
    kind: int, sizes: Mapping[int, float], ceilings: Mapping[str, float] | None
) -> tuple[float | None, float | None, str]:
    """Latency in s, bandwidth in B/s, and their origin."""
    small, large = min(sizes), max(sizes)
    if small and large >= FIT_RATIO * small:
        # The fit minimises relative errors, so that a transfer of 4 bytes determines the latency.
        at = np.array(list(sizes), np.float64)
        ns = np.array(list(sizes.values()))
        weight = 1 / np.maximum(ns, 1.0)
        each, fixed = np.polyfit(at, ns, 1, w=weight)
        if each > 0 and fixed > 0:
            return float(fixed) * 1e-9, 1e9 / float(each), "this run"
    name = CEILINGS.get(kind)
    if ceilings and name:
        return (ceilings[f"{name}_latency_s"], ceilings[f"{name}_bytes_s"], "the device's ceilings")
    return None, None, "not known: transfers of one size, and no ceilings of this device"


def launches(steps: list[Timed]) -> LaunchCost | None:
    """The cost of a launch: the host's time to enqueue it, and the device's time to start it."""
    chosen = after_another(steps)
    enqueue, late, between = [], [], []
    for step in chosen:
        c = step.commands
        enqueue.append((c["host_end"] - c["host_begin"])[c["kind"] == LAUNCH])
        start, ready, free = c["started"][1:], c["host_end"][1:], c["ended"][:-1]
        waited = ready > free
        # A device may begin before the host's call has returned; then it took no time after it.
        late.append(np.maximum(start - ready, 0)[waited])
        between.append((start - free)[~waited])
    if not chosen or not sum(map(len, enqueue)):
        return None
    host = np.concatenate(enqueue) * 1e-3
    return LaunchCost(
        per_step=len(host) / len(chosen),
        enqueue_us=float(np.median(host)),
        enqueue_p95_us=float(np.percentile(host, 95)),
        enqueue_ms_step=float(host.sum()) * 1e-3 / len(chosen),
        start_us=_median_us(late),
        between_us=_median_us(between),
    )


def _median_us(parts: list[np.ndarray]) -> float | None:
    values = np.concatenate(parts)
    return float(np.median(values)) * 1e-3 if len(values) else None


def host(steps: list[Timed]) -> HostTime | None:
    """The host's time per recorded step in ms: enqueueing, waiting for the device (the host may be only a few steps
    ahead), the rest of the call, and time outside the call."""
    rows = []
    for before, step in itertools.pairwise(steps):
        if before.window != step.window:
            continue
        c = step.commands
        enqueue = int((c["host_end"] - c["host_begin"]).sum())
        # The host waits only after the last launch or copy, before it downloads the loss.
        last = int(np.max(np.flatnonzero(c["kind"] != DOWNLOAD), initial=0))
        until = int(c["host_begin"][last + 1]) if last + 1 < len(c["kind"]) else step.end
        waiting = max(until - int(c["host_end"][last]), 0)
        rows.append((step.end - step.begin, enqueue, waiting, step.begin - before.end))
    if not rows:
        return None
    call, enqueue_ms, waiting_ms, outside = np.mean(rows, axis=0) * 1e-6
    return HostTime(
        call_ms=float(call),
        enqueue_ms=float(enqueue_ms),
        waiting_ms=float(waiting_ms),
        other_ms=float(call - enqueue_ms - waiting_ms),
        outside_ms=float(outside),
    )
