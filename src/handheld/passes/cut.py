"""Cuts a training graph into two: one computes the gradients, the other updates the parameters with them.

The two halves may run on different devices, and the second one may take the gradients of two devices: it begins by
adding them, each with its weight, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from handheld.errors import PlanError
from handheld.graph.check import check
from handheld.graph.dtypes import F32
from handheld.graph.graph import (
    Graph,
    GraphInput,
    GraphOutput,
    Node,
    Origin,
    Tensor,
    View,
    contiguous_strides,
    pack_offsets,
)
from handheld.graph.program import Builder, Store

#: The output of the first half that holds all gradients.
GRADIENTS = "gradients"
#: Tensors that a node can write, each with the gradients in it.
Groups = list[tuple[int, tuple[int, ...]]]
_PHASES = {"backward": "gradients in one piece", "update": "sum of two devices"}


@dataclass(frozen=True)
class Halves:
    """The two halves. The first one has one more output, all gradients end to end. The second one takes two of them."""

    first: Graph
    second: Graph


def cut(graph: Graph, first: str, second: str, weights: tuple[float, float]) -> Halves:
    """The halves of a training graph, with these names. The inputs of the second half are the gradients of one device,
    then those of the other. Raises PlanError if the graph cannot be cut."""
    updates = [node for node in graph.nodes if node.origin.phase == "update"]
    rest = [node for node in graph.nodes if node.origin.phase != "update"]
    if not updates:
        raise PlanError(f"graph {graph.name!r} updates nothing, so it cannot be cut into gradients and update")
    made = _parts(graph, (t for node in rest for t in node.outputs))
    read = _parts(graph, (view.tensor for node in updates for view in node.inputs))
    crossing = sorted(made & read - set(graph.packs))
    _check(graph, crossing, made, updates)
    groups = _groups(graph, crossing)
    return Halves(_first(graph, rest, groups, first), _second(graph, updates, groups, second, weights))


def _groups(graph: Graph, crossing: Sequence[int]) -> Groups:
    """The gradients in the order in which they lie end to end: those of each pack, then single ones. Each group has the
    tensor that one node can write."""
    packs = [(pack, members) for pack, members in graph.packs.items() if set(members) <= set(crossing)]
    packed = {member for _, members in packs for member in members}
    return [*packs, *((tensor, (tensor,)) for tensor in crossing if tensor not in packed)]


def _parts(graph: Graph, tensors: Iterable[int]) -> set[int]:
    """The tensors and the members of packs among them."""
    return {part for tensor in tensors for part in (tensor, *graph.packs.get(tensor, ()))}


def _check(graph: Graph, crossing: Sequence[int], made: set[int], updates: list[Node]) -> None:
    own = {write.slot: write.tensor for write in graph.writes}
    kept = [slot for slot, tensor in own.items() if tensor in made]
    if kept:
        raise PlanError(
            f"the forward pass changes {', '.join(kept[:3])} by the whole batch (batch norm does), so a batch "
            "cannot be split between two devices without changing the results. Try: one device"
        )
    strange = [t for t in crossing if graph.tensors[t].role != "gradient" or graph.tensors[t].dtype != F32]
    batch = {given.tensor for given in graph.inputs} & {view.tensor for node in updates for view in node.inputs}
    if strange or batch or not crossing:
        raise PlanError(
            f"the update of graph {graph.name!r} reads more than gradients, so it cannot follow those of two "
            "devices. Try: one device"
        )


def _first(graph: Graph, nodes: list[Node], groups: Groups, name: str) -> Graph:
    used = _parts(graph, (view.tensor for node in nodes for view in node.inputs))
    pack = max(graph.tensors) + 1
    members = tuple(member for _, group in groups for member in group)
    size = pack_offsets(graph.tensors, members)[1]
    both = {i: Tensor(i, (size,), F32, "gradient", GRADIENTS) for i in (pack, pack + 1)}
    half = replace(
        graph,
        name=name,
        tensors={**graph.tensors, **both},
        packs={pack: members},
        slots={slot: tensor for slot, tensor in graph.slots.items() if tensor in used},
        writes=(),
    )
    program = Builder()
    copy = _map(half, "backward", pack + 1, [half.view(pack)], program, program.load(0, F32))
    shown = GraphOutput(GRADIENTS, half.view(pack + 1), "float32")
    return check(replace(half, outputs=(*graph.outputs, shown)).with_nodes([*nodes, copy]))


def _second(graph: Graph, nodes: list[Node], groups: Groups, name: str, weights: tuple[float, float]) -> Graph:
    used = _parts(graph, (view.tensor for node in nodes for view in node.inputs))
    written = {write.slot for write in graph.writes}
    members = tuple(member for _, group in groups for member in group)
    offsets, size = pack_offsets(graph.tensors, members)
    start, ends = dict(zip(members, offsets, strict=True)), (max(graph.tensors) + 1, max(graph.tensors) + 2)
    half = replace(
        graph,
        name=name,
        tensors={**graph.tensors, **{i: Tensor(i, (size,), F32, "input", GRADIENTS) for i in ends}},
        inputs=tuple(GraphInput(f"{GRADIENTS}.{n}", tensor, "float32") for n, tensor in enumerate(ends)),
        slots={slot: tensor for slot, tensor in graph.slots.items() if tensor in used or slot in written},
        outputs=(),
        notes={key: value for key, value in graph.notes.items() if key != "ranges"},
    )
    sums = [_sum(half, whole, ends, start[group[0]], weights) for whole, group in groups]
    return check(half.with_nodes([*sums, *nodes]))


def _sum(graph: Graph, total: int, ends: tuple[int, int], offset: int, weights: tuple[float, float]) -> Node:
    """The node that adds the gradients of two devices."""
    shape, program = graph.tensors[total].shape, Builder()
    parts = [program.op("mul", F32, program.load(i, F32), program.const(weights[i], F32)) for i in (0, 1)]
    views = [View(end, shape, contiguous_strides(shape), offset) for end in ends]
    return _map(graph, "update", total, views, program, program.op("add", F32, *parts))


def _map(graph: Graph, phase: str, out: int, views: list[View], program: Builder, position: int) -> Node:
    shape = graph.tensors[out].shape
    attrs = {"shape": shape, "axes": (), "program": program.program, "stores": (Store(position),)}
    return Node("map", tuple(views), (out,), attrs, Origin(phase, "optimizer", _PHASES[phase]))


def same_update(one: Graph, other: Graph) -> bool:
    """Whether two second halves do the same with their gradients. Graphs of other batch sizes number their tensors
    differently, so tensors are compared by where they first appear."""
    return _shape_of(one) == _shape_of(other)


def _shape_of(graph: Graph) -> object:
    numbers: dict[int, int] = {}

    def number(tensor: int) -> tuple[int, tuple[int, ...]]:
        for part in (tensor, *graph.packs.get(tensor, ())):
            numbers.setdefault(part, len(numbers))
        return numbers[tensor], tuple(numbers[part] for part in graph.packs.get(tensor, ()))

    ends = [number(given.tensor) for given in graph.inputs], [(s, number(graph.slots[s])) for s in sorted(graph.slots)]
    nodes = [
        (
            node.op,
            [(number(view.tensor), view.shape, view.strides, view.offset) for view in node.inputs],
            [number(tensor) for tensor in node.outputs],
            dict(node.attrs),
        )
        for node in graph.nodes
    ]
    return ends, nodes, sorted((write.slot, number(write.tensor)) for write in graph.writes)
