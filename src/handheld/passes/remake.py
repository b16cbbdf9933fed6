"""Recomputes large activations in the backward pass instead of keeping them from the forward pass.

The gradient of a convolution's weights needs the input of the convolution again: the normalised, rectified
output of the convolution before it. That input follows pointwise from the earlier convolution's output and a
few statistics, and the backward pass of the normalisation reads those anyway. So the input is dropped after the
forward pass. A separate launch computes it again before its first reader in the backward pass.

         forward                                     backward
    x ──► conv ──► y ──► norm, relu ──► z ──► conv ·····  z' ──► gradients ──► norm's gradient
                   └───────────── kept ────────────────────┴──────────────────────┘
"""

from __future__ import annotations

from dataclasses import replace

from handheld.graph.graph import Graph, Node, Tensor, View
from handheld.graph.program import Store
from handheld.passes.recompute import recipe_of

#: Bytes. For a smaller tensor the extra launch costs more than the memory is worth.
LARGE = 1 << 20
#: The least number of nodes between the last reader in the forward pass and the first in the backward pass.
FAR = 16


def remake(graph: Graph) -> Graph:
    """Returns the graph with maps that compute large activations again, each before its first backward reader."""
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for tensor in {v.tensor for v in node.inputs}:
            readers.setdefault(tensor, []).append(i)
    kept = graph.kept
    tensors, nodes = dict(graph.tensors), list(graph.nodes)
    inserted: dict[int, list[Node]] = {}  # node -> the new nodes before it
    for node in graph.nodes:
        if node.op not in ("map", "reduce") or node.origin.phase != "forward":
            continue
        for tensor, store in zip(node.outputs, node.stores, strict=True):
            if not store.full or tensor in kept or tensors[tensor].nbytes < LARGE:
                continue
            later = [r for r in readers.get(tensor, ()) if nodes[r].origin.phase != "forward"]
            before = [r for r in readers.get(tensor, ()) if nodes[r].origin.phase == "forward"]
            if not later or not before or min(later) - max(before) < FAR:
                continue
            recipe = recipe_of(graph, node, tensor, readers, [min(later)], same_space=True)
            if recipe is None:
                continue
            old = tensors[tensor]
            new = Tensor(max(tensors) + 1, old.shape, old.dtype, old.role, old.name)
            tensors[new.id] = new
            attrs = {
                "shape": node.attrs["shape"],
                "axes": (),
                "program": recipe.program,
                "stores": (Store(recipe.result),),
            }
            origin = replace(node.origin, phase=nodes[min(later)].origin.phase)
            again = Node("map", tuple(recipe.views), (new.id,), attrs, origin)
            inserted.setdefault(min(later), []).append(again)
            for view in recipe.views:
                readers.setdefault(view.tensor, []).append(min(later))
            for r in later:
                nodes[r] = _reading(nodes[r], tensor, new.id)
            readers[tensor], readers[new.id] = before, later
    ordered = [n for i, node in enumerate(nodes) for n in (*inserted.get(i, ()), node)]
    return replace(graph, tensors=tensors).with_nodes(ordered)


def _reading(node: Node, old: int, new: int) -> Node:
    views = (View(new, v.shape, v.strides, v.offset) if v.tensor == old else v for v in node.inputs)
    return replace(node, inputs=tuple(views))
