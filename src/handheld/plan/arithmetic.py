"""In which arithmetic a plan computes its products: matrix products, convolutions and attention."""

from __future__ import annotations

from handheld.graph.dtypes import F16
from handheld.graph.graph import Graph, Node
from handheld.kernels.base import Lowered
from handheld.plan.lowering import family
from handheld.plan.plan import Plan
from handheld.plan.work import flops

FLOAT32 = "float32"
PRODUCTS = ("contract", "attention")  # families of kernels
UNITS = "#define MATRIX 1\n"  # in a program that multiplies on matrix units


def arithmetic(plan: Plan) -> str:
    """`float32`, `half`, or `3xtf32` if each product of floats is three products of TF32 numbers on matrix units; a
    half needs fewer of them. Several of these are named with their shares of the work."""
    work: dict[str, int] = {}
    for graph_plan in plan.graphs.values():
        for node, lowered in zip(graph_plan.graph.nodes, graph_plan.lowered, strict=True):
            if family(node.op) in PRODUCTS:
                name = _of(node, graph_plan.graph, lowered)
                work[name] = work.get(name, 0) + flops(node, graph_plan.graph)
    if len(work) < 2:
        return next(iter(work), FLOAT32)
    whole = max(sum(work.values()), 1)
    return ", ".join(f"{share / whole:.0%} {name}" for name, share in sorted(work.items(), key=lambda item: -item[1]))


def _of(node: Node, graph: Graph, lowered: Lowered) -> str:
    if any(UNITS in launch.text for launch in lowered.launches):
        halves = sum(graph.tensors[view.tensor].dtype == F16 for view in node.inputs[:2])
        return f"{3 - halves}xtf32"
    return "half" if node.attrs.get("arithmetic") == "half" else FLOAT32
