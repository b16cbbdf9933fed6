"""Joins a map to the matrix product or convolution that it follows: bias, activation, residual, mask."""

from __future__ import annotations

import math

from handheld.graph.graph import Graph, Node, contiguous_strides
from handheld.graph.program import Builder, Instr, Store
from handheld.passes.clean import trim
from handheld.passes.edit import Editor
from handheld.passes.spaces import respace, same_walk

MAX_OPERANDS = 8
MAX_INSTRUCTIONS = 48
HOSTS = ("matmul", "conv", "conv_input")


def fuse_epilogues(graph: Graph) -> Graph:
    """Joins maps to their products and convolutions until no more can be joined."""
    edit = Editor(graph)
    for i in edit.ordered():
        while i in edit.nodes and edit.nodes[i].op in HOSTS:
            joined = _absorb(edit, i)
            if joined is None:
                break
            i = joined
    return edit.finish()


def _absorb(edit: Editor, host: int) -> int | None:
    """Joins one map that reads the results of the host. Returns the number of the new node, or None if none fits."""
    for reader in sorted(edit.successors(host), key=lambda r: edit.rank[r]):
        node = edit.nodes[reader]
        same_phase = node.origin.phase == edit.nodes[host].origin.phase
        if node.op != "map" or not same_phase or edit.reaches(host, reader):
            continue
        both = join(edit.nodes[host], node)
        if both is None:
            continue
        keep = {n for n, out in enumerate(both.outputs) if edit.needed(out, {host, reader})}
        both = trim(both, keep)
        number = edit.replace((host, reader), both, edit.rank[reader])
        edit.reorder()
        return number
    return None


def join(host: Node, after: Node) -> Node | None:
    shape = tuple(host.attrs["shape"])
    if math.prod(shape) != math.prod(after.attrs["shape"]):
        return None
    moved = respace(after, shape)
    if moved is None:
        return None
    dense = contiguous_strides(shape)
    position_of = {out: store.position for out, store in zip(host.outputs, host.stores, strict=True)}
    gathered = {i.params[0] for i in moved.program if i.op == "gather"}
    builder = Builder(host.program)
    inputs, where = list(host.inputs), {}
    for i, instr in enumerate(moved.program):
        params = instr.params
        if instr.op in ("load", "gather"):
            view = moved.inputs[params[0]]
            if view.tensor in position_of:
                if params[0] in gathered or instr.op != "load" or params[1] or not same_walk(view, dense):
                    return None
                where[i] = position_of[view.tensor]
                continue
            known = [k for k, v in enumerate(inputs) if k >= 2 and v == view]
            if not known:
                inputs.append(view)
            params = (known[0] if known else len(inputs) - 1, *params[1:])
        where[i] = builder.add(Instr(instr.op, instr.dtype, tuple(where[a] for a in instr.args), params))
    if len(inputs) - 2 > MAX_OPERANDS or len(builder.program) > MAX_INSTRUCTIONS:
        return None
    stores = (*host.stores, *(Store(where[store.position]) for store in moved.stores))
    attrs = {**host.attrs, "program": builder.program, "stores": stores}
    return Node(host.op, tuple(inputs), (*host.outputs, *moved.outputs), attrs, host.origin)
