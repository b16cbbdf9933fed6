"""Joins many small updates into few: parameters, gradients and state lie end to end, with one launch per bucket.

Candidates are maps that only write new values of slots (optimizer updates, step counters) and run the same
program. A bucket holds at most about a quarter of their elements, so that the memory of some gradients is free
again before the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from handheld.graph.graph import Graph, Node, Tensor, View, pack_offsets

BUCKETS = 4
#: Elements. Smaller buckets would not save memory.
MIN_BUCKET = 1 << 18


Layout = dict[str, tuple[str, ...]]


def pack_updates(graph: Graph, layout: Layout) -> Graph:
    """Packs the updates that can be packed.

    `layout` maps each slot to the group of slots that it already lies in, and is updated. All graphs of a step
    share one state, so they must all use the same groups.
    """
    written = {write.tensor for write in graph.writes}
    # A value that another node reads stays where it is: packs come last.
    written -= {view.tensor for node in graph.nodes for view in node.inputs}
    groups: dict[object, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        key = _key(graph, node, written)
        if key is not None:
            groups.setdefault(key, []).append(i)
    tensors, packs = dict(graph.tensors), dict(graph.packs)
    packed: set[int] = {m for members in packs.values() for m in members}
    gone: set[int] = set()
    new: list[Node] = []
    read: set[int] = set()
    for members in groups.values():
        for bucket in _buckets(graph, _with_own_gradients(graph, members, read)):
            whole = _pack(graph, [graph.nodes[i] for i in bucket], tensors, packs, packed, layout)
            if whole is not None:
                new.append(whole)
                gone.update(bucket)
    nodes = [n for i, n in enumerate(graph.nodes) if i not in gone]
    return schedule_updates(replace(graph, tensors=tensors, packs=packs).with_nodes([*nodes, *new]))


def _key(graph: Graph, node: Node, written: set[int]) -> object | None:
    """Returns what nodes of one pack must have in common, or None if the node cannot be packed."""
    if node.op != "map" or not node.outputs or not set(node.outputs) <= written:
        return None
    size = graph.tensors[node.outputs[0]].size
    if size == 0 or any(
        i.op in ("iota", "index", "gather", "random") or (i.op == "load" and i.params[1]) for i in node.program
    ):
        return None
    kinds: list[object] = []
    olds = {graph.slots[write.slot] for write in graph.writes if write.tensor in node.outputs}
    for view in node.inputs:
        tensor = graph.tensors[view.tensor]
        own = view.tensor in olds or (tensor.role == "gradient" and tensor.size == size)
        if own and view.is_contiguous and view.size == tensor.size:
            kinds.append(tensor.dtype)
        elif tensor.size == 1:
            kinds.append(view.tensor)  # All members must read the same scalar.
        else:
            return None
    return (node.program, node.stores, tuple(kinds), node.origin.phase)


def _with_own_gradients(graph: Graph, members: list[int], read: set[int]) -> list[int]:
    """Returns the updates that do not share a gradient with an earlier update.

    Two updates may read one gradient, for example for two biases whose layers are added. A tensor can lie in only
    one pack, so the second update is not packed. `read` holds the gradients of earlier updates, also of other
    groups, and is updated.
    """
    packable = []
    for i in members:
        size = graph.tensors[graph.nodes[i].outputs[0]].size
        own = {
            v.tensor
            for v in graph.nodes[i].inputs
            if graph.tensors[v.tensor].role == "gradient" and graph.tensors[v.tensor].size == size
        }
        if not own & read:
            packable.append(i)
        read |= own
    return packable


def _buckets(graph: Graph, members: list[int]) -> list[list[int]]:
    sizes = {i: graph.tensors[graph.nodes[i].outputs[0]].size for i in members}
    limit = max(sum(sizes.values()) // BUCKETS, MIN_BUCKET)
    buckets: list[list[int]] = [[]]
    total = 0
    for i in members:
        if buckets[-1] and total + sizes[i] > limit:
            buckets.append([])
            total = 0
        buckets[-1].append(i)
        total += sizes[i]
    return [b for b in buckets if len(b) > 1]


def _pack(
    graph: Graph,
    nodes: list[Node],
    tensors: dict[int, Tensor],
    packs: dict[int, tuple[int, ...]],
    packed: set[int],
    layout: Layout,
) -> Node | None:
    first = nodes[0]
    columns: list[tuple[int, ...]] = []
    scalar: dict[int, View] = {}
    for k, view in enumerate(first.inputs):
        same = all(n.inputs[k].tensor == view.tensor for n in nodes)
        if same and tensors[view.tensor].size == 1:
            scalar[k] = view
        columns.append(tuple(n.inputs[k].tensor for n in nodes))
    results = [tuple(n.outputs[k] for n in nodes) for k in range(len(first.outputs))]
    needed = [c for k, c in enumerate(columns) if k not in scalar] + results
    flat = [t for column in needed for t in column]
    if len(set(flat)) != len(flat) or packed & set(flat) or not _lay_out(graph, needed, layout):
        return None
    number = max(tensors) + 1

    def make(members: tuple[int, ...]) -> int:
        nonlocal number
        _, size = pack_offsets(tensors, members)
        like = tensors[members[0]]
        tensors[number] = Tensor(number, (size,), like.dtype, like.role, "pack")
        packs[number] = members
        packed.update(members)
        number += 1
        return number - 1

    _, size = pack_offsets(tensors, results[0])
    inputs = []
    for k, column in enumerate(columns):
        if k in scalar:
            inputs.append(View(scalar[k].tensor, (size,), (0,), scalar[k].offset))
        else:
            inputs.append(View(make(column), (size,), (1,), 0))
    outputs = tuple(make(column) for column in results)
    attrs = {**first.attrs, "shape": (size,)}
    origin = replace(first.origin, path=_joined_path([n.origin.path for n in nodes]))
    return Node("map", tuple(inputs), outputs, attrs, origin)


def _lay_out(graph: Graph, columns: list[tuple[int, ...]], layout: Layout) -> bool:
    """Whether the slots of each column can lie side by side. If so, adds them to `layout`."""
    slot_of = {t: s for s, t in graph.slots.items()} | {write.tensor: write.slot for write in graph.writes}
    groups = [tuple(slot_of[t] for t in column) for column in columns if all(t in slot_of for t in column)]
    for group in groups:
        if any(layout.get(slot, group) != group for slot in group):
            return False
    for group in groups:
        layout.update(dict.fromkeys(group, group))
    return True


def _joined_path(paths: list[str]) -> str:
    """Returns the path of the innermost module that contains all paths, or "model"."""
    parts = [p.split(".") for p in paths]
    shared: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared) or "model"


def schedule_updates(graph: Graph) -> Graph:
    """Moves each update to the first place where its inputs exist and the old values are no longer needed.

    The memory of gradients is then free early. Counters that other updates read come last.
    """
    packs = graph.packs
    old_of = {write.tensor: graph.slots[write.slot] for write in graph.writes}
    updates = [n for n in graph.nodes if n.origin.phase == "update"]
    rest = [n for n in graph.nodes if n.origin.phase != "update"]
    written_at: dict[int, int] = {}
    read_at: dict[int, int] = {}
    for i, node in enumerate(rest):
        written_at.update(dict.fromkeys(_parts(node.outputs, packs), i))
        read_at.update(dict.fromkeys(_parts([v.tensor for v in node.inputs], packs), i))
    readers: dict[int, int] = {}
    for node in updates:
        for t in set(_parts([v.tensor for v in node.inputs], packs)):
            readers[t] = readers.get(t, 0) + 1
    places: dict[int, list[Node]] = {}
    last: list[Node] = []
    late: set[int] = set()  # What the last updates write. Updates that read it come after them.
    for node in updates:
        inputs = _parts([v.tensor for v in node.inputs], packs)
        olds = [old_of[t] for t in _parts(node.outputs, packs) if t in old_of]
        if any(readers.get(t, 0) > (t in inputs) for t in olds) or late & set(inputs):
            last.append(node)
            late.update(_parts(node.outputs, packs))
            continue
        after = max((written_at.get(t, -1) for t in inputs), default=-1)
        after = max([after, *(read_at.get(t, -1) for t in olds)])
        written_at.update(dict.fromkeys(_parts(node.outputs, packs), after))
        places.setdefault(after, []).append(node)
    nodes = list(places.get(-1, ()))
    for i, node in enumerate(rest):
        nodes.append(node)
        nodes += places.get(i, ())
    return graph.with_nodes([*nodes, *last])


def _parts(tensors: Iterable[int], packs: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Returns the tensors and the members of packs among them."""
    return [t for tensor in tensors for t in (tensor, *packs.get(tensor, ()))]
