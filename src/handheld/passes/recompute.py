"""Recomputes values in the backward pass if that is cheaper than to keep them.

This concerns values that the forward pass stores only for the backward pass, and that follow pointwise from
values that are in memory anyway (the input of a batch norm and its statistics, a seed). Such a value is not
stored; its readers get the few instructions that compute it. Activations before a ReLU6 or SiLU and the masks of
dropout need no memory then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, Node, View
from handheld.graph.program import REDUCTIONS, Builder, Guard, Instr, Program
from handheld.passes.clean import trim
from handheld.passes.spaces import reshape_view, same_walk, store_strides

MAX_INSTRUCTIONS = 32
MAX_OPERANDS = 16
_ALWAYS = ("parameter", "buffer", "optimizer", "control", "constant", "input")


@dataclass
class Recipe:
    """How to compute a value: instructions over views of the producer's space."""

    program: Program
    result: int
    views: list[View]


def recompute(graph: Graph) -> Graph:
    """Returns the graph without the forward values that their readers in other phases can compute themselves."""
    nodes = list(graph.nodes)
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for tensor in {v.tensor for v in node.inputs}:
            readers.setdefault(tensor, []).append(i)
    kept = graph.kept
    for i, node in enumerate(nodes):
        if node.op in ("map", "reduce") and node.origin.phase == "forward":
            for n, tensor in enumerate(node.outputs):
                if tensor not in kept and node.stores[n].full:
                    _try(graph, nodes, readers, i, tensor)
            keep = {n for n, t in enumerate(node.outputs) if t in kept or readers.get(t)}
            nodes[i] = trim(node, keep) if keep else node
    return graph.with_nodes([n for n in nodes if n.outputs])


def _try(graph: Graph, nodes: list[Node], readers: dict[int, list[int]], producer: int, tensor: int) -> None:
    users = readers.get(tensor, [])
    if not users or any(not can_take(nodes[u], nodes[producer], tensor) for u in users):
        return
    recipe = recipe_of(graph, nodes[producer], tensor, readers, users)
    if recipe is None:
        return
    new = {u: insert(nodes[u], tensor, recipe) for u in users}
    if any(n is None for n in new.values()):
        return
    for u, node in new.items():
        assert node is not None
        nodes[u] = node
        for view in node.inputs:
            if u not in readers.setdefault(view.tensor, []):
                readers[view.tensor].append(u)
    readers[tensor] = []


def can_take(user: Node, producer: Node, tensor: int) -> bool:
    if user.op not in ("map", "reduce") or user.origin.phase == producer.origin.phase:
        return False
    shape = tuple(user.attrs["shape"])
    for k, view in enumerate(user.inputs):
        if view.tensor == tensor:
            loads = [i for i in user.program if i.op in ("load", "gather") and i.params[0] == k]
            if any(i.op == "gather" or i.params[1] for i in loads):
                return False
            if not same_walk(view, store_strides(shape, (), True)):
                return False
    return True


def recipe_of(
    graph: Graph, node: Node, tensor: int, readers: dict[int, list[int]], users: list[int], same_space: bool = False
) -> Recipe | None:
    """Returns instructions that compute a value from tensors that live until the last of `users` anyway.

    Returns None if there is no such program, or if it is too long. With `same_space` the users run over the space
    of the producer, so that the value may depend on coordinates.
    """
    shape, axes = tuple(node.attrs["shape"]), tuple(node.attrs.get("axes", ()))
    program = node.program
    stored = {
        store.position: (out, store.full) for out, store in zip(node.outputs, node.stores, strict=True) if out != tensor
    }
    target = node.stores[node.outputs.index(tensor)].position
    last = max(users)
    builder = Builder()
    views: list[View] = []
    where: dict[int, int] = {}

    def load(view: View, guards: tuple[Guard, ...] = (), fill: float = 0) -> int:
        if view not in views:
            views.append(view)
        dtype = DTYPES[graph.tensors[view.tensor].dtype].value
        return builder.add(Instr("load", dtype, (), (views.index(view), guards, fill)))

    def alive(t: int) -> bool:
        return graph.tensors[t].role in _ALWAYS or max(readers.get(t, ()), default=-1) >= last

    def visit(i: int) -> int | None:
        if i in where:
            return where[i]
        instr: Instr = program[i]
        if i in stored:
            out, full = stored[i]
            if not full or alive(out):
                where[i] = load(View(out, shape, store_strides(shape, axes, full), 0))
                return where[i]
        if instr.op in REDUCTIONS or instr.op in ("gather", "acc"):
            return None
        if instr.op == "iota" and not same_space:
            return None
        if instr.op == "load":
            operand, guards, fill = instr.params
            view = node.inputs[operand]
            if (guards and not same_space) or not alive(view.tensor):
                return None
            where[i] = load(view, guards, fill)
            return where[i]
        args = [visit(a) for a in instr.args]
        if any(a is None for a in args) or len(builder.instrs) > MAX_INSTRUCTIONS:
            return None
        where[i] = builder.add(Instr(instr.op, instr.dtype, tuple(a for a in args if a is not None), instr.params))
        return where[i]

    result = visit(target)
    if result is None or len(builder.instrs) > MAX_INSTRUCTIONS:
        return None
    return Recipe(builder.program, result, views)


def insert(user: Node, tensor: int, recipe: Recipe) -> Node | None:
    """Returns the user with loads of the tensor replaced by the recipe."""
    shape = tuple(user.attrs["shape"])
    views = [reshape_view(v, shape) for v in recipe.views]
    if any(v is None for v in views):
        return None
    inputs = list(user.inputs)
    number: dict[int, int] = {}
    for k, view in enumerate(views):
        assert view is not None
        if view not in inputs:
            inputs.append(view)
        number[k] = inputs.index(view)
    if len(inputs) > MAX_OPERANDS + 4:
        return None
    moved = tuple(
        replace(i, params=(number[i.params[0]], *i.params[1:])) if i.op == "load" else i for i in recipe.program
    )
    builder, where = Builder(), {}
    for i, instr in enumerate(user.program):
        if instr.op == "load" and user.inputs[instr.params[0]].tensor == tensor:
            where[i] = builder.append(moved, {})[recipe.result]
        else:
            args = tuple(where[a] for a in instr.args)
            where[i] = builder.add(Instr(instr.op, instr.dtype, args, instr.params))
    stores = tuple(replace(store, position=where[store.position]) for store in user.stores)
    attrs = {**user.attrs, "program": builder.program, "stores": stores}
    return trim(replace(user, inputs=tuple(inputs), attrs=attrs), set(range(len(user.outputs))))
