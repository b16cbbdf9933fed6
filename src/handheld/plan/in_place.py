"""Which tensors may be made in the memory of others."""

from __future__ import annotations

from collections.abc import Mapping

from handheld.graph.graph import Graph, Node
from handheld.passes.spaces import same_walk, store_strides


def in_place(node: Node, k: int, j: int) -> bool:
    """Whether input k may share memory with output j: each point reads only the element that it writes."""
    view = node.inputs[k]
    if node.op in ("assign", "scan"):
        return k == 0
    if node.op not in ("map", "reduce", "matmul", "conv", "conv_input"):
        return False
    loops = node.op in ("map", "reduce")
    if not loops and k < 2:
        return False
    program = node.program
    if any(i.op == "gather" and i.params[0] == k for i in program):
        return False
    if any(i.op == "load" and i.params[0] == k and i.params[1] for i in program):
        return False
    walk = store_strides(tuple(node.attrs["shape"]), tuple(node.attrs.get("axes", ())), node.stores[j].full)
    return same_walk(view, walk)


def replaces(graph: Graph, born: Mapping[int, int], last: Mapping[int, int], new: int, old: int) -> bool:
    """Whether a tensor can be made in the memory of another one of the same size: the old one was needed before, or the
    node that makes the new one reads only the element that it writes."""
    at = born[new]
    node = graph.nodes[at]
    if graph.tensors[new].nbytes != graph.tensors[old].nbytes or last[old] > at or born[old] >= at:
        return False
    if last[old] < at:
        return True
    reads = [k for k, view in enumerate(node.inputs) if old in (view.tensor, *graph.packs.get(view.tensor, ()))]
    return new in node.outputs and all(
        node.inputs[k].tensor == old and in_place(node, k, node.outputs.index(new)) for k in reads
    )
