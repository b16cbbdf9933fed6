"""Which nodes of a plan run a variant that was measured, and which their family's own choice.

tuned     the shipped record, or the user's, says which variant is the fastest
best      it says that the family's own choice is
absent    no record knows the shape: what a model gets that nobody tuned
—         the family has one variant
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.plan.lowering import Choice, candidates
from handheld.plan.plan import Plan
from handheld.plan.signature import signature
from handheld.plan.tuning import SHIPPED, Tuning, load_tuning


def known(caps: DeviceCaps) -> tuple[Tuning, str]:
    """What records say of a device, and a line about where it comes from."""
    found = load_tuning(caps)
    if not found.used:
        return found, "no tuning record for this device, driver and kernels: all shapes are absent"
    shipped = sum(path.parent == SHIPPED for path in found.used)
    return found, (
        f"tuning: {len(found.entries)} shapes in {shipped} shipped records and "
        f"{len(found.used) - shipped} of the user's"
    )


def standing(node: Node, graph: Graph, caps: DeviceCaps, records: Tuning) -> tuple[str, Choice | None]:
    """tuned, best, absent or —, and the choice of the record."""
    offered = candidates(node, graph, caps)
    if len(offered) < 2:
        return "—", None
    entry = records.entries.get(signature(node, graph))
    if entry is None or (entry.choice is None and entry.default_ms is None):
        return "absent", None
    if entry.choice is not None and entry.choice in offered:
        return "tuned", entry.choice
    return ("best" if entry.choice is None else "absent"), None


def coverage(plan: Plan, records: Tuning) -> dict[str, Any]:
    """How many nodes stand where, and the signatures that are absent."""
    counts = {"tuned": 0, "best": 0, "absent": 0}
    absent = set()
    for node, graph in nodes(plan):
        where, _ = standing(node, graph, plan.caps, records)
        if where in counts:
            counts[where] += 1
        if where == "absent":
            absent.add(signature(node, graph))
    return {**counts, "absent_signatures": sorted(absent)}


def nodes(plan: Plan) -> Iterator[tuple[Node, Graph]]:
    for part in plan.graphs.values():
        for node in part.graph.nodes:
            yield node, part.graph
