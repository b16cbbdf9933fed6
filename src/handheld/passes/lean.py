"""Rewrites the backward pass so that fewer large tensors are in memory at one time. It computes the same values.

    sums_in_products  a gradient that arrives in two parts: the product that makes the second part adds the first one,
                      in the memory of the first one
    inline_again      a node that only needs a forward value point by point (the sign before a ReLU) computes it from
                      what it was made of, if that is in memory anyway
    apart             large parameters are updated one by one, so that a gradient need not wait for those of a pack

    products_early    a product whose result is added to one that comes much later (the weight of an embedding that is
                      also the head) no longer waits for it, and frees its large input

All are for plans with a memory limit (plan/fit.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from handheld.graph.dtypes import DTYPES, F32
from handheld.graph.graph import Graph, Node, Tensor, View, consumers, contiguous_strides, pack_offsets, producers
from handheld.graph.program import Builder, Instr, Store
from handheld.passes.again import turning_point
from handheld.passes.clean import remove_dead, trim
from handheld.passes.epilogue import HOSTS, join
from handheld.passes.recompute import can_take, insert, recipe_of
from handheld.passes.spaces import same_walk, store_strides

#: A member of a pack with at least this share of it is updated on its own.
LARGE = 1 / 256
#: A product waits long for an operand if that comes so many nodes after its own inputs.
FAR = 8


def sums_in_products(graph: Graph) -> Graph:
    """Returns the graph in which products add gradients that their readers would add."""
    turn, maker, readers = turning_point(graph), producers(graph), consumers(graph)
    tensors, nodes = dict(graph.tensors), list(graph.nodes)
    for i in range(turn, len(nodes)):
        while (sum_ := _sum_of(graph, nodes, maker, readers, turn, i)) is not None:
            position, first, second = sum_
            node, host = nodes[i], nodes[maker[second.tensor]]
            new = max(tensors) + 1
            tensors[new] = replace(tensors[second.tensor], id=new)
            joined = join(host, _adding(node, graph, first, second, new))
            if joined is None:
                del tensors[new]
                break
            nodes[maker[second.tensor]] = trim(joined, {joined.outputs.index(new)})
            maker = {**maker, new: maker[second.tensor]}
            nodes[i] = _loading(node, position, replace(second, tensor=new))
            readers = {**readers, new: [i], first.tensor: [maker[new]], second.tensor: []}
            graph = replace(graph, tensors=tensors)
    return replace(graph, tensors=tensors).with_nodes(nodes)


def _sum_of(
    graph: Graph, nodes: list[Node], maker: Mapping[int, int], readers: Mapping[int, list[int]], turn: int, i: int
) -> tuple[int, View, View] | None:
    """An instruction of node i that adds two gradients which only it reads, and the views of them. A product makes the
    second one, later than the first one is made."""
    node = nodes[i]
    if node.op not in ("map", "reduce") or node.origin.phase != "backward":
        return None
    program = node.program
    walk = store_strides(tuple(node.attrs["shape"]), (), True)
    for position, instr in enumerate(program):
        loads = [program[a] for a in instr.args]
        if instr.op != "add" or any(load.op != "load" or load.params[1] for load in loads):
            continue
        pair = [node.inputs[load.params[0]] for load in loads]
        once = all(sum(a in other.args for other in program) == 1 for a in instr.args)
        made = all(maker.get(v.tensor, -1) >= turn and readers.get(v.tensor) == [i] for v in pair)
        alike = all(graph.tensors[v.tensor].role == "gradient" and same_walk(v, walk) for v in pair)
        if not (once and made and alike) or pair[0].tensor == pair[1].tensor:
            continue
        first, second = sorted(pair, key=lambda view: maker[view.tensor])
        host = nodes[maker[second.tensor]]
        if host.op in HOSTS and maker[first.tensor] < maker[second.tensor] and second.tensor not in graph.kept:
            return position, first, second
    return None


def _adding(node: Node, graph: Graph, first: View, second: View, new: int) -> Node:
    """A map that adds two tensors."""
    builder = Builder()
    dtypes = [DTYPES[graph.tensors[view.tensor].dtype].value for view in (second, first)]
    total = builder.op("add", dtypes[0], builder.load(0, dtypes[0]), builder.load(1, dtypes[1]))
    attrs = {"shape": node.attrs["shape"], "axes": (), "program": builder.program, "stores": (Store(total),)}
    return Node("map", (second, first), (new,), attrs, node.origin)


def _loading(node: Node, position: int, view: View) -> Node:
    """The node with a load instead of one of its instructions."""
    load = Instr("load", node.program[position].dtype, (), (len(node.inputs), (), 0))
    program = (*node.program[:position], load, *node.program[position + 1 :])
    changed = replace(node, inputs=(*node.inputs, view), attrs={**node.attrs, "program": program})
    return trim(changed, set(range(len(node.outputs))))


def products_early(graph: Graph) -> Graph:
    """Returns the graph in which a product does not wait for the operands of its epilogue, if that frees memory."""
    turn, maker, readers = turning_point(graph), producers(graph), consumers(graph)
    tensors, nodes = dict(graph.tensors), list[Node]()
    for i, node in enumerate(graph.nodes):
        own = {view.tensor for view in node.inputs[:2]}
        others = {view.tensor for view in node.inputs[2:]} - own
        held = sum(tensors[t].nbytes for t in own if maker.get(t, -1) >= turn and readers[t][-1] == i)
        early = max((maker.get(t, -1) for t in own), default=-1)
        late = max((maker.get(t, -1) for t in others), default=-1)
        nbytes = 4 * math.prod(node.attrs["shape"]) if node.op in HOSTS else 0
        if i < turn or node.op not in HOSTS or late - early < FAR or held <= nbytes:
            nodes.append(node)
            continue
        new = max(tensors) + 1
        like = tensors[node.outputs[0]]
        tensors[new] = replace(like, id=new, shape=tuple(node.attrs["shape"]), dtype=F32, role="gradient")
        nodes += _cut(node, new, contiguous_strides(tensors[new].shape))
    return replace(graph, tensors=tensors).with_nodes(nodes)


def _cut(node: Node, new: int, strides: tuple[int, ...]) -> tuple[Node, Node]:
    """A product without its epilogue, and the epilogue as a map."""
    (acc,) = {instr for instr in node.program if instr.op == "acc"}
    shape = tuple(node.attrs["shape"])
    plain = replace(
        node, inputs=node.inputs[:2], outputs=(new,), attrs={**node.attrs, "program": (acc,), "stores": (Store(0),)}
    )
    program = tuple(
        Instr("load", instr.dtype, (), (0, (), 0))
        if instr.op == "acc"
        else replace(instr, params=(instr.params[0] - 1, *instr.params[1:]))
        if instr.op in ("load", "gather")
        else instr
        for instr in node.program
    )
    attrs = {"shape": shape, "axes": (), "program": program, "stores": node.stores}
    return plain, Node("map", (View(new, shape, strides), *node.inputs[2:]), node.outputs, attrs, node.origin)


def inline_again(graph: Graph) -> Graph:
    """Returns the graph in which loops of the backward pass compute values of the forward pass themselves, if all that
    they need for it is read by them or later."""
    turn, kept = turning_point(graph), graph.kept
    nodes, readers = list(graph.nodes), {tensor: list(read) for tensor, read in consumers(graph).items()}
    for node in graph.nodes[:turn]:
        if node.op not in ("map", "reduce"):
            continue
        for tensor, store in zip(node.outputs, node.stores, strict=True):
            if not store.full or tensor in kept:
                continue
            for user in [r for r in readers.get(tensor, ()) if r >= turn]:
                taken = _inlined(graph, nodes[user], node, tensor, readers, user)
                if taken is not None:
                    nodes[user] = taken
                    readers[tensor].remove(user)
                    for read in {view.tensor for view in taken.inputs}:
                        if user not in readers.setdefault(read, []):
                            readers[read].append(user)
    return remove_dead(graph.with_nodes(nodes))


def _inlined(graph: Graph, user: Node, maker: Node, tensor: int, readers: dict[int, list[int]], at: int) -> Node | None:
    if not can_take(user, maker, tensor):
        return None
    recipe = recipe_of(graph, maker, tensor, readers, [at])
    return None if recipe is None else insert(user, tensor, recipe)


def apart(graph: Graph) -> Graph:
    """Returns the graph in which large members of packs are updated on their own. Small ones stay together."""
    tensors, packs, nodes = dict(graph.tensors), dict(graph.packs), list[Node]()
    read: dict[int, int] = {}
    for node in graph.nodes:
        for pack in {*(view.tensor for view in node.inputs), *node.outputs} & packs.keys():
            read[pack] = read.get(pack, 0) + 1
    paths = {write.tensor: write.slot.rpartition(".")[0] for write in graph.writes}
    for node in graph.nodes:
        own = [t for t in (*(view.tensor for view in node.inputs), *node.outputs) if t in graph.packs]
        if node.op != "map" or not own or any(read[t] > 1 for t in own) or not set(node.outputs) <= set(own):
            nodes.append(node)
            continue
        count = len(packs[own[0]])
        like, whole = packs[node.outputs[0]], tensors[node.outputs[0]]
        large = [k for k in range(count) if tensors[like[k]].nbytes >= whole.nbytes * LARGE]
        small = [k for k in range(count) if k not in large]
        for group in [*([k] for k in large), *([small] if small else [])]:
            nodes.append(_part(node, group, tensors, packs, paths))
    return replace(graph, tensors=tensors, packs=packs).with_nodes(nodes)


def _part(
    node: Node,
    group: list[int],
    tensors: dict[int, Tensor],
    packs: dict[int, tuple[int, ...]],
    paths: Mapping[int, str],
) -> Node:
    """The update of some members of the packs that a node updates."""

    def of(pack: int) -> int:
        members = tuple(packs[pack][k] for k in group)
        if len(members) == 1:
            return members[0]
        new = max(tensors) + 1
        _, size = pack_offsets(tensors, members)
        tensors[new] = replace(tensors[pack], id=new, shape=(size,))
        packs[new] = members
        return new

    outputs = tuple(of(pack) for pack in node.outputs)
    size = tensors[outputs[0]].size
    inputs = tuple(
        View(of(view.tensor), (size,), (1,), 0) if view.tensor in packs else replace(view, shape=(size,))
        for view in node.inputs
    )
    path = paths.get(outputs[0], node.origin.path) if len(group) == 1 else node.origin.path
    return Node("map", inputs, outputs, {**node.attrs, "shape": (size,)}, replace(node.origin, path=path))
