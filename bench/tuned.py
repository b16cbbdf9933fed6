"""Tells which nodes of a plan run a measured variant, and which the default choice of their family.

tuned     a shipped record, or the user's, names the fastest variant
best      a record says that the family's default choice is the fastest
absent    no record has the shape; an untuned model runs like this
—         the family has one variant
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.base import Choice
from handheld.plan.lowering import candidates
from handheld.plan.plan import Plan
from handheld.plan.signature import signature
from handheld.plan.tuning import SHIPPED, Tuning, load_tuning


def known(caps: DeviceCaps) -> tuple[Tuning, str]:
    """The tuning records for a device, and one line about where they come from."""
    tuning = load_tuning(caps)
    if not tuning.used:
        return tuning, "no tuning record for this device, driver and kernels: all shapes are absent"
    shipped = sum(path.parent == SHIPPED for path in tuning.used)
    return tuning, (
        f"tuning: {len(tuning.entries)} shapes in {shipped} shipped records and "
        f"{len(tuning.used) - shipped} of the user's"
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
    """The number of nodes per standing, and the signatures that are absent."""
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
