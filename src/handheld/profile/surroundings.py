"""Facts that advice needs beyond the ops of a plan: tensors that ops pass to one another, and other devices."""

from __future__ import annotations

from typing import Any

from handheld.backends.opencl import devices as opencl_devices
from handheld.errors import HandheldError
from handheld.graph.graph import Graph
from handheld.measure.ceilings import stored
from handheld.plan.plan import Plan
from handheld.plan.work import nbytes
from handheld.profile.facts import rates

LOOPS = ("map", "reduce")  # ops that do little work per byte


def chains(plan: Plan) -> list[list[int]]:
    """Pairs of loops of which the second alone reads a tensor of the first: [first op, second op, bytes of the tensor,
    bytes that the first moves, bytes that the second moves]."""
    links: list[list[int]] = []
    start = 0
    for graph_plan in plan.graphs.values():
        links += [[start + a, start + b, *sizes] for a, b, *sizes in _links(graph_plan.graph)]
        start += len(graph_plan.graph.nodes)
    return links


def _links(graph: Graph) -> list[list[int]]:
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for tensor in {view.tensor for view in node.inputs}:
            readers.setdefault(tensor, []).append(i)
    links = []
    for i, node in enumerate(graph.nodes):
        for tensor in node.outputs if node.op in LOOPS else ():
            users = readers.get(tensor, [])
            if len(users) != 1 or tensor in graph.kept:
                continue
            reader = graph.nodes[users[0]]
            if reader.op in LOOPS and reader.origin.phase == node.origin.phase:
                passed = graph.tensors[tensor].nbytes
                links.append([i, users[0], passed, nbytes(node, graph), nbytes(reader, graph)])
    return links


def other_devices(plan: Plan) -> list[dict[str, Any]]:
    """The other OpenCL devices of this machine whose ceilings were measured, beside one that the plan runs on."""
    if plan.device.partition(":")[0] != "opencl":
        return []
    try:
        present = opencl_devices.devices()
    except HandheldError:
        return []
    rows = []
    for device in present:
        known = stored(device.caps) if device.caps.name != plan.caps.name else None
        if known:
            rows.append({"device": device.name, "name": device.caps.name, "ceilings": rates(known)})
    return rows
