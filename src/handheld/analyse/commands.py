"""Commands of recorded steps: transfers cut into latency and bandwidth, launches, the host's time.

A transfer of b bytes takes latency + b / bandwidth. Where a run has transfers of clearly different
sizes the two are fitted to them; else they are the device's ceilings, where those were measured;
else only their sum is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from handheld.analyse.timeline import TRANSFERS, Timed
from handheld.store.commands import DOWNLOAD, LAUNCH, UPLOAD
from handheld.store.record import Record

FIT_RATIO = 16  # the largest transfer over the smallest, for a fit
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
    split_from: str  # where latency and bandwidth come from


@dataclass(frozen=True, slots=True)
class LaunchCost(Record):
    """What a launch costs."""

    per_step: float
    enqueue_us: float  # of the host
    enqueue_p95_us: float
    enqueue_ms_step: float
    start_us: float | None  # of commands given to an idle device: from the end of the host's call
    between_us: float | None  # of commands that were there when the one before them ended


@dataclass(frozen=True, slots=True)
class HostTime(Record):
    """The host's time of a recorded step."""

    call_ms: float
    enqueue_ms: float
    waiting_ms: float
    other_ms: float
    outside_ms: float


def after_another(steps: Iterable[Timed]) -> list[Timed]:
    """Recorded steps that follow another one: the device was at work when they began."""
    return [one for before, one in itertools.pairwise(steps) if before.window == one.window]


def transfers(steps: list[Timed], ceilings: Mapping[str, float] | None) -> list[Transfer]:
    """A row a kind and size of transfer, the largest first."""
    mine = after_another(steps)
    found: dict[tuple[int, int], list[int]] = {}
    for one in mine:
        took = one.commands["ended"] - one.commands["started"]
        for kind, nbytes, ns in zip(
            one.commands["kind"].tolist(), one.commands["bytes"].tolist(), took.tolist(), strict=True
        ):
            if kind in TRANSFERS:
                found.setdefault((kind, nbytes), []).append(ns)
    rows = []
    for (kind, nbytes), times in sorted(found.items(), key=lambda item: (item[0][0], -item[0][1])):
        sizes = {size: float(np.median(ns)) for (k, size), ns in found.items() if k == kind}
        latency, rate, split_from = _split(kind, sizes, ceilings)
        seconds = float(np.median(times)) * 1e-9
        rows.append(
            Transfer(
                kind=TRANSFERS[kind],
                bytes=nbytes,
                per_step=len(times) / len(mine),
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
    """Latency in s, bandwidth in B/s, and where they come from."""
    small, large = min(sizes), max(sizes)
    if small and large >= FIT_RATIO * small:
        # relative errors count, so that a transfer of 4 bytes says what the latency is
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
    """What a launch costs: the host to enqueue it, the device to begin it."""
    mine = after_another(steps)
    enqueue, late, between = [], [], []
    for one in mine:
        c = one.commands
        enqueue.append((c["host_end"] - c["host_begin"])[c["kind"] == LAUNCH])
        start, ready, free = c["started"][1:], c["host_end"][1:], c["ended"][:-1]
        waited = ready > free
        late.append((start - ready)[waited])
        between.append((start - free)[~waited])
    if not mine or not sum(map(len, enqueue)):
        return None
    host = np.concatenate(enqueue) * 1e-3
    return LaunchCost(
        per_step=len(host) / len(mine),
        enqueue_us=float(np.median(host)),
        enqueue_p95_us=float(np.percentile(host, 95)),
        enqueue_ms_step=float(host.sum()) * 1e-3 / len(mine),
        start_us=_median_us(late),
        between_us=_median_us(between),
    )


def _median_us(parts: list[np.ndarray]) -> float | None:
    values = np.concatenate(parts)
    return float(np.median(values)) * 1e-3 if len(values) else None


def host(steps: list[Timed]) -> HostTime | None:
    """The host's time of a recorded step in ms: enqueueing, waiting for the device (it is at most
    some steps ahead), the rest of the call, and outside of it."""
    rows = []
    for before, one in itertools.pairwise(steps):
        if before.window != one.window:
            continue
        c = one.commands
        enqueue = int((c["host_end"] - c["host_begin"]).sum())
        # all waiting is after the last launch or copy, before the loss is asked for
        last = int(np.max(np.flatnonzero(c["kind"] != DOWNLOAD), initial=0))
        until = int(c["host_begin"][last + 1]) if last + 1 < len(c["kind"]) else one.end
        waiting = max(until - int(c["host_end"][last]), 0)
        rows.append((one.end - one.begin, enqueue, waiting, one.begin - before.end))
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
