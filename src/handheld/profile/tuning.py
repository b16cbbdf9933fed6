"""What tuning records know about the ops of a plan: which ops have none, and what records gained for such ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.plan.lowering import candidates
from handheld.plan.plan import Plan
from handheld.plan.signature import signature
from handheld.plan.tuning import SHIPPED, Entry, TuningRecord, load_tuning

FEW = 8  # With fewer measured shapes than this, the records of other devices of the same kind are used.


def tuning_facts(plan: Plan) -> dict[str, Any] | None:
    """None if the device has no variants to choose from.

    `records` are the names of the records that the plan uses; `variants` is the number of ops that have variants;
    `without` has the ids of those that no record knows; `gains` says per kind of op what tuning gained (see `gains`).
    """
    if not plan.caps.takes_launches:
        return None
    known = load_tuning(plan.caps, plan.options.get("tuning", True))
    offered: dict[str, bool] = {}
    count, without, kinds, first = 0, [], set(), 0
    for graph_plan in plan.graphs.values():
        graph = graph_plan.graph
        for i, node in enumerate(graph.nodes):
            key = signature(node, graph)
            if key not in offered:
                offered[key] = len(candidates(node, graph, plan.caps)) > 1
            count += offered[key]
            if offered[key] and key not in known.entries:
                without.append(first + i)
                kinds.add(node.op)
        first += len(graph.nodes)
    return {
        "records": [path.name for path in known.used],
        "variants": count,
        "without": without,
        "gains": {kind: gain for kind in sorted(kinds) if (gain := _gains(kind, known.entries.items(), plan.caps))},
    }


def _gains(kind: str, entries: Iterable[tuple[str, Entry]], caps: DeviceCaps) -> dict[str, Any] | None:
    """What tuning gained for ops of this kind: the time of the best variant as a share of the default's time, all
    shapes together (`mean`), and for the better and the worse quarter of the shapes (`low`, `high`)."""
    source = "this device"
    pairs = _pairs(kind, entries)
    if len(pairs) < FEW:
        others = _pairs(kind, (pair for record in _like(caps) for pair in record.entries.items()))
        if len(others) > len(pairs):
            pairs, source = others, f"other {caps.kind.upper()}s"
    if not pairs:
        return None
    default, best = np.array(pairs).T
    low, high = np.percentile(best / default, (25, 75))
    return {
        "shapes": len(pairs),
        "mean": float(best.sum() / default.sum()),
        "low": float(low),
        "high": float(high),
        "from": source,
    }


def _pairs(kind: str, entries: Iterable[tuple[str, Entry]]) -> list[tuple[float, float]]:
    return [
        (entry.default_ms, entry.best_ms)
        for key, entry in entries
        if key.partition(" ")[0] == kind and entry.default_ms and entry.best_ms
    ]


def _like(caps: DeviceCaps) -> Iterable[TuningRecord]:
    """The shipped records of devices of the same kind."""
    for path in sorted(SHIPPED.glob("*.json")):
        try:
            record = TuningRecord.read(path)
        except PlanError:
            continue  # Only an estimate rests on it; a plan reports the record as unreadable.
        if record.kind == caps.kind:
            yield record
