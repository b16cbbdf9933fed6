"""Computes values of the forward pass again in the backward pass, so that they need no memory in between.

`remake` does this for values that follow pointwise from others that are in memory anyway. Here somebody else decides,
to meet a memory limit (limits/): `dropped` names the values, whatever they cost. A dropped value is computed again just
before the first node of the backward pass that reads it. What its computation reads is in memory, or dropped as well
and computed before it:

         forward                              backward
    x ──► conv ──► y ──► norm ──► z ····· x ──► conv ──► y' ──► norm ──► z' ──► gradients
                 dropped       dropped

Reductions of a normalisation are not repeated: their small results stay in memory.

A value may be needed twice: first to compute another value, and much later by the backward pass itself. In between it
stays in memory, unless it is *brief*: then it is freed, and is computed once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from handheld.graph.graph import Graph, Node, Tensor, consumers, producers
from handheld.graph.program import Store
from handheld.passes.clean import remove_dead, trim
from handheld.passes.pack import schedule_updates
from handheld.passes.recompute import recipe_of


def turning_point(graph: Graph) -> int:
    """The position of the first node of the backward pass; the number of nodes if there is none."""
    return next((i for i, node in enumerate(graph.nodes) if node.origin.phase == "backward"), len(graph.nodes))


def droppable(graph: Graph) -> dict[int, int]:
    """The values that may be dropped, with the node that makes each: made in the forward pass, and not a result.

    Small results of a reduction are not among them: what is computed again needs them.
    """
    fixed = graph.kept | set(graph.packs) | {m for members in graph.packs.values() for m in members}
    return {
        tensor: i
        for i, node in enumerate(graph.nodes[: turning_point(graph)])
        for n, tensor in enumerate(node.outputs)
        if tensor not in fixed and (node.op != "reduce" or node.stores[n].full)
    }


def node_again(graph: Graph, maker: Mapping[int, int], tensor: int) -> Node:
    """The node that computes a value again. Its outputs are named as in the forward pass.

    If the value follows pointwise from other values, it is a map of these; otherwise its own node, without the results
    that are not needed.
    """
    node = graph.nodes[maker[tensor]]
    if "program" not in node.attrs:
        return node
    there = {view.tensor for view in node.inputs} | set(node.outputs)
    recipe = recipe_of(graph, node, tensor, {t: [0] for t in there}, [0], same_space=True)
    if recipe is None:
        return trim(node, {node.outputs.index(tensor)})
    stores = (Store(recipe.result),)
    attrs = {"shape": node.attrs["shape"], "axes": (), "program": recipe.program, "stores": stores}
    return Node("map", tuple(recipe.views), (tensor,), attrs, node.origin)


def compute_again(graph: Graph, dropped: Collection[int], brief: Collection[int] = ()) -> Graph:
    """Returns the graph in which these values of the forward pass are computed again where the backward pass reads
    them. `droppable` has the values that can be named. `brief` are those of them that do not stay in memory if they
    were computed only for another value."""
    turn = turning_point(graph)
    nodes = list(graph.nodes[:turn])
    work = _Again(graph, frozenset(dropped), frozenset(brief), producers(graph), dict(graph.tensors), nodes)
    for node in graph.nodes[turn:]:
        for view in node.inputs:
            if view.tensor in work.dropped:
                work.need(view.tensor)
        work.nodes.append(work.reading(node))
        work.forget(node)
    return schedule_updates(replace(graph, tensors=work.tensors).with_nodes(work.nodes))


@dataclass
class _Again:
    """The nodes so far, while the backward pass is walked."""

    graph: Graph
    dropped: frozenset[int]
    brief: frozenset[int]
    maker: Mapping[int, int]
    tensors: dict[int, Tensor]
    nodes: list[Node]
    #: Dropped value -> the tensor that has it in the backward pass.
    made: dict[int, int] = field(default_factory=dict)
    #: The brief values that were made for the current node of the backward pass.
    fresh: list[int] = field(default_factory=list)

    def need(self, tensor: int) -> None:
        """Adds the nodes that compute a dropped value, and before them those that it needs."""
        stack = [tensor]
        while stack:
            if stack[-1] in self.made:
                stack.pop()
                continue
            node = node_again(self.graph, self.maker, stack[-1])
            missing = [v.tensor for v in node.inputs if v.tensor in self.dropped and v.tensor not in self.made]
            if missing:
                stack += missing
            else:
                self._add(node)

    def _add(self, node: Node) -> None:
        first = max(self.tensors) + 1
        new = tuple(range(first, first + len(node.outputs)))
        for old, number in zip(node.outputs, new, strict=True):
            self.tensors[number] = replace(self.tensors[old], id=number)
        self.nodes.append(replace(self.reading(node), outputs=new, origin=replace(node.origin, phase="backward")))
        self.made.update(zip(node.outputs, new, strict=True))
        self.fresh += self.brief.intersection(node.outputs)

    def forget(self, node: Node) -> None:
        """Forgets the brief values that were made for a node of the backward pass but are not read by it."""
        read = {view.tensor for view in node.inputs}
        for tensor in self.fresh:
            if tensor not in read:
                self.made.pop(tensor, None)
        self.fresh.clear()

    def reading(self, node: Node) -> Node:
        """The node with the new values instead of the dropped ones."""
        if not any(view.tensor in self.dropped for view in node.inputs):
            return node
        views = (
            replace(view, tensor=self.made[view.tensor]) if view.tensor in self.dropped else view
            for view in node.inputs
        )
        return replace(node, inputs=tuple(views))


def without_remade(graph: Graph) -> tuple[Graph, frozenset[int]]:
    """Returns the graph as it was before the pass `remake`, and the values that this pass had dropped.

    `compute_again` with these values gives the graph back. So one mechanism decides about all values.
    """
    turn, readers = turning_point(graph), consumers(graph)
    makers = {_source(node): node for node in graph.nodes[:turn] if node.op in ("map", "reduce")}
    alias: dict[int, int] = {}
    for i, node in enumerate(graph.nodes[turn:], turn):
        maker = makers.get(_source(node)) if node.op == "map" and len(node.outputs) == 1 else None
        for tensor in maker.outputs if maker is not None else ():
            if maker is not None and _computes(graph, readers, node, i, maker, tensor):
                alias[node.outputs[0]] = tensor
    nodes = [_with(node, alias) for node in graph.nodes if not alias.keys() & set(node.outputs)]
    return remove_dead(graph.with_nodes(nodes)), frozenset(alias.values())


def _with(node: Node, alias: Mapping[int, int]) -> Node:
    """The node with other tensors as inputs. A node that reads none of them stays the same object."""
    if not any(view.tensor in alias for view in node.inputs):
        return node
    return replace(node, inputs=tuple(replace(v, tensor=alias.get(v.tensor, v.tensor)) for v in node.inputs))


def _source(node: Node) -> tuple[object, ...]:
    """What a node and one that was remade from it have in common."""
    return node.origin.path, node.origin.torch_op, tuple(node.attrs.get("shape", ()))


def _computes(graph: Graph, readers: dict[int, list[int]], node: Node, at: int, maker: Node, tensor: int) -> bool:
    """Whether a node of the backward pass computes this value of `maker` again, the way `remake` does."""
    like, other = graph.tensors[tensor], graph.tensors[node.outputs[0]]
    if (like.shape, like.dtype) != (other.shape, other.dtype) or not maker.stores[maker.outputs.index(tensor)].full:
        return False
    recipe = recipe_of(graph, maker, tensor, readers, [at], same_space=True)
    if recipe is None or recipe.program != node.program or tuple(recipe.views) != node.inputs:
        return False
    return node.stores[0].position == recipe.result
