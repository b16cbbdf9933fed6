"""Removes dead code and common subexpressions."""

from __future__ import annotations

from dataclasses import replace

from handheld.graph.graph import Graph, Node, View
from handheld.graph.program import operands, prune, renumber


def remove_dead(graph: Graph) -> Graph:
    """Removes nodes, stores and operands that nothing needs."""
    needed = set(graph.kept)
    for pack, members in graph.packs.items():
        if pack in needed or needed & set(members):
            needed |= {pack, *members}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed & set(node.outputs) and not any(needed & set(graph.packs.get(out, ())) for out in node.outputs):
            continue
        if "program" in node.attrs:
            node = trim(
                node,
                {i for i, out in enumerate(node.outputs) if out in needed or needed & set(graph.packs.get(out, ()))},
            )
        for view in node.inputs:
            needed.add(view.tensor)
            needed.update(graph.packs.get(view.tensor, ()))
        kept.append(node)
    return graph.with_nodes(kept[::-1])


def trim(node: Node, keep: set[int]) -> Node:
    """Returns the node with only the outputs in `keep`, and only the instructions and inputs that they need."""
    epilogue = "axes" not in node.attrs
    first = 2 if epilogue else 0
    stores = [store for i, store in enumerate(node.stores) if i in keep]
    outputs = tuple(o for i, o in enumerate(node.outputs) if i in keep)
    roots = [store.position for store in stores]
    program, where = prune(node.program, roots)
    used = operands(program)
    number = {k: first + n for n, k in enumerate(used)}
    attrs = dict(node.attrs)
    attrs["program"] = renumber(program, number)
    attrs["stores"] = tuple(replace(store, position=where[store.position]) for store in stores)
    inputs = (*node.inputs[:first], *(node.inputs[k] for k in used))
    if (inputs, outputs, attrs) == (node.inputs, node.outputs, node.attrs):
        return node  # The same object, so that what is known about it stays known.
    return replace(node, inputs=inputs, outputs=outputs, attrs=attrs)


def merge_equal(graph: Graph) -> Graph:
    """Merges equal nodes. Random ops are never equal, because each has its own key."""
    given = graph.kept
    alias: dict[int, int] = {}
    seen: dict[object, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(_follow(v, alias) for v in node.inputs)
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        key = (node.op, inputs, tuple(sorted((k, v) for k, v in node.attrs.items())))
        first = seen.get(key)
        if first is not None and not given & set(node.outputs):
            alias.update(zip(node.outputs, first.outputs, strict=True))
        else:
            seen.setdefault(key, node)
            nodes.append(node)
    return graph.with_nodes(nodes)


def _follow(view: View, alias: dict[int, int]) -> View:
    return replace(view, tensor=alias[view.tensor]) if view.tensor in alias else view
