"""Constant propagation: writes constant values into the programs that read them."""

from __future__ import annotations

from dataclasses import replace

from handheld.graph.graph import Graph, Node
from handheld.graph.program import Builder, Instr, prune
from handheld.passes.clean import trim


def inline_constants(graph: Graph) -> Graph:
    """Replaces loads of tensors with a single value (zeros, ones, full) by that value."""
    values: dict[int, tuple[Node, int]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if "program" in node.attrs and any(v.tensor in values for v in node.inputs):
            node = _substitute(node, values)
        if node.op == "map":
            program = node.program
            for out, store in zip(node.outputs, node.stores, strict=True):
                needed, _ = prune(program, [store.position])
                if all(i.op not in ("load", "gather", "iota", "index", "random") for i in needed):
                    values[out] = (node, store.position)
        nodes.append(node)
    return graph.with_nodes(nodes)


def _substitute(node: Node, values: dict[int, tuple[Node, int]]) -> Node:
    """Returns the node with the instructions of constant operands in its own program."""
    first = 2 if "axes" not in node.attrs else 0
    builder, where = Builder(), {}
    for i, instr in enumerate(node.program):
        known = None
        if instr.op == "load" and instr.params[0] >= first and not instr.params[1]:
            known = values.get(node.inputs[instr.params[0]].tensor)
        if known is not None:
            producer, position = known
            needed, moved = prune(producer.program, [position])
            where[i] = builder.append(needed, {})[moved[position]]
        else:
            args = tuple(where[a] for a in instr.args)
            where[i] = builder.add(Instr(instr.op, instr.dtype, args, instr.params))
    stores = tuple(replace(store, position=where[store.position]) for store in node.stores)
    attrs = {**node.attrs, "program": builder.program, "stores": stores}
    return trim(replace(node, attrs=attrs), set(range(len(node.outputs))))
