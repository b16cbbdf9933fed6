"""Fuses maps and reductions over the same space into single nodes.

    map ──► map or reduce        the map joins its reader
    reduce ──► map or reduce     the reduction joins a reader of its rows: batch norm, layer norm,
                                 softmax and their gradients become one node each
    reduce, reduce               two reductions over the same data join side by side

If other nodes still need an inner value, it becomes another output. Nothing is computed twice.
"""

from __future__ import annotations

import math
from dataclasses import replace

from handheld.graph.graph import Graph, Node, contiguous_strides
from handheld.graph.program import REDUCTIONS, Builder, Instr, Store
from handheld.passes.clean import trim
from handheld.passes.edit import Editor
from handheld.passes.spaces import lift, respace, same_walk, store_strides
from handheld.passes.turn import turn

#: Pointers and sizes must fit into 1 KiB of kernel arguments, and into registers.
MAX_BUFFERS = 20
MAX_INSTRUCTIONS = 160
#: A reduction that also writes whole rows runs rows in parallel, so it needs at least this many rows ...
MIN_ROWS = 4
#: ... unless it has at most this many elements.
SMALL = 4096
#: A map joins a reader that transposes its results if the reader takes at least this many neighbours at a time.
MIN_RUN = 8


def fuse_loops(graph: Graph) -> Graph:
    """Joins nodes until no more can be joined."""
    edit = Editor(graph)
    for i in edit.ordered():
        while i in edit.nodes:
            joined = _join_into(edit, i)
            if joined is None:
                break
            i = joined
    edit.reorder()
    _side_by_side(edit)
    return edit.finish()


def _is_loop(node: Node) -> bool:
    return node.op in ("map", "reduce")


def _join_into(edit: Editor, consumer: int) -> int | None:
    """Joins one producer into the consumer. Returns the number of the new node, or None if none fits."""
    node = edit.nodes[consumer]
    if not _is_loop(node):
        return None
    makers = {edit.maker[v.tensor] for v in node.inputs if v.tensor in edit.maker}
    for producer in sorted(makers, key=lambda p: -edit.rank[p]):
        earlier = edit.nodes[producer]
        # Reports give times per phase, so a node belongs to exactly one phase.
        if not _is_loop(earlier) or earlier.origin.phase != node.origin.phase:
            continue
        both = join(earlier, node)
        if both is None and not edit.needed(earlier.outputs[0], {producer, consumer}):
            both = join_turned(earlier, node)
        if both is None:
            continue
        both = _without_unused(edit, both, {producer, consumer})
        if not _worth_it(both) or edit.reaches(producer, consumer):
            continue
        number = edit.replace((producer, consumer), both, edit.rank[consumer])
        _repair(edit, number)
        return number
    return None


def _repair(edit: Editor, number: int) -> None:
    """Restores the order. The joined node has the rank of the consumer; readers of the producer may come before it."""
    here = edit.rank[number]
    if any(edit.rank[r] <= here for r in edit.successors(number)):
        edit.reorder()


def _without_unused(edit: Editor, node: Node, members: set[int]) -> Node:
    keep = {i for i, out in enumerate(node.outputs) if edit.needed(out, members)}
    return trim(node, keep) if len(keep) < len(node.outputs) else node


def _worth_it(node: Node) -> bool:
    shape: tuple[int, ...] = tuple(node.attrs["shape"])
    axes = node.attrs["axes"]
    if len(node.inputs) + len(node.outputs) > MAX_BUFFERS:
        return False
    if len(node.program) > MAX_INSTRUCTIONS:
        return False
    if axes and any(store.full for store in node.stores):
        rows = math.prod(n for d, n in enumerate(shape) if d not in axes)
        return rows >= MIN_ROWS or math.prod(shape) <= SMALL
    return True


def join(producer: Node, consumer: Node) -> Node | None:
    """Returns one node that does the work of both, or None if their spaces do not fit."""
    pair = _common_space(producer, consumer)
    if pair is None:
        return None
    first, second = pair
    shape, axes = tuple(first.attrs["shape"]), tuple(first.attrs["axes"])
    store_of = dict(zip(first.outputs, first.stores, strict=True))
    gathered = {i.params[0] for i in second.program if i.op == "gather"}
    for k, view in enumerate(second.inputs):
        if view.tensor in store_of:
            walk = store_strides(shape, axes, store_of[view.tensor].full)
            if k in gathered or view.shape != shape or not same_walk(view, walk):
                return None
    return _combine(first, second, store_of)


def join_turned(producer: Node, consumer: Node) -> Node | None:
    """Joins a map whose one output the consumer reads transposed, in runs of neighbours. Nothing else needs it."""
    if producer.op != "map" or len(producer.outputs) > 1:
        return None
    views = {view for view in consumer.inputs if view.tensor == producer.outputs[0]}
    if len(views) > 1:
        return None
    view = views.pop()
    run = next((n for n, s in zip(view.shape[::-1], view.strides[::-1], strict=True) if n > 1 and s == 1), 0)
    turned = turn(producer, view) if run >= MIN_RUN else None
    if turned is None:
        return None
    straight = replace(view, strides=contiguous_strides(view.shape))
    inputs = tuple(straight if each == view else each for each in consumer.inputs)
    return join(turned, replace(consumer, inputs=inputs))


def _common_space(p: Node, c: Node) -> tuple[Node, Node] | None:
    """Returns both nodes over one shape and one set of reduced axes, or None."""
    p_shape, c_shape = tuple(p.attrs["shape"]), tuple(c.attrs["shape"])
    p_axes, c_axes = tuple(p.attrs["axes"]), tuple(c.attrs["axes"])
    if p_axes and c_axes:
        return (p, c) if (p_shape, p_axes) == (c_shape, c_axes) else None
    if not p_axes and not c_axes:
        moved = respace(p, c_shape)
        if moved is not None:
            return moved, c
        moved = respace(c, p_shape)
        return (p, moved) if moved is not None else None
    fixed, other = (c, p) if c_axes else (p, c)
    fitted = _fit(other, tuple(fixed.attrs["shape"]), tuple(fixed.attrs["axes"]))
    if fitted is None:
        return None
    return (fitted, c) if c_axes else (p, fitted)


def _fit(node: Node, shape: tuple[int, ...], axes: tuple[int, ...]) -> Node | None:
    """Turns a map into a part of a reduction that runs per element or once per row; None if neither fits."""
    size = math.prod(node.attrs["shape"])
    if size == math.prod(shape):
        moved = respace(node, shape)
        if moved is not None:
            return replace(moved, op="reduce", attrs={**moved.attrs, "axes": axes})
    if size == math.prod(n for d, n in enumerate(shape) if d not in axes):
        return lift(node, shape, axes)
    return None


def _combine(first: Node, second: Node, store_of: dict[int, Store]) -> Node:
    """Appends the program of the second node to that of the first.

    Loads of tensors in `store_of` are replaced by the values that the first program computes.
    """
    builder = Builder(first.program)
    start = {i: builder.add(instr) for i, instr in enumerate(first.program)}
    inputs = list(first.inputs)
    places = {view: k for k, view in enumerate(inputs)}
    where: dict[int, int] = {}
    for i, instr in enumerate(second.program):
        if instr.op in ("load", "gather"):
            view = second.inputs[instr.params[0]]
            if instr.op == "load" and view.tensor in store_of:
                where[i] = start[store_of[view.tensor].position]
                continue
            if view not in places:
                places[view] = len(inputs)
                inputs.append(view)
            params = (places[view], *instr.params[1:])
        else:
            params = instr.params
        where[i] = builder.add(Instr(instr.op, instr.dtype, tuple(where[a] for a in instr.args), params))
    stores = [Store(start[s.position], s.full) for s in first.stores]
    stores += [Store(where[s.position], s.full) for s in second.stores]
    reducing = any(i.op in REDUCTIONS for i in builder.program)
    attrs = {
        "shape": first.attrs["shape"],
        "axes": first.attrs["axes"],
        "program": builder.program,
        "stores": tuple(stores),
    }
    op = "reduce" if reducing or first.attrs["axes"] else "map"
    # Reports name the kernel after the heavier of the two nodes.
    origin = max((second, first), key=_weight).origin
    return Node(op, tuple(inputs), (*first.outputs, *second.outputs), attrs, origin)


def _weight(node: Node) -> tuple[int, int]:
    program = node.program
    return sum(i.op in REDUCTIONS for i in program), len(program)


def _side_by_side(edit: Editor) -> None:
    """Joins reductions over the same space that share an operand and do not depend on each other."""
    groups: dict[object, list[int]] = {}
    for i in edit.ordered():
        node = edit.nodes[i]
        if node.op == "reduce":
            groups.setdefault((node.attrs["shape"], node.attrs["axes"], node.origin.phase), []).append(i)
    for members in groups.values():
        for n, first in enumerate(members):
            for second in members[n + 1 :]:
                if first in edit.nodes and second in edit.nodes:
                    first = _pair_up(edit, first, second)


def _pair_up(edit: Editor, first: int, second: int) -> int:
    a, b = edit.nodes[first], edit.nodes[second]
    shared = {v.tensor for v in a.inputs if v.size > 1} & {v.tensor for v in b.inputs if v.size > 1}
    linked = set(a.outputs) & {v.tensor for v in b.inputs}
    if not shared or linked or edit.reaches(first, second):
        return first
    both = _combine(a, b, {})
    if not _worth_it(both):
        return first
    number = edit.replace((first, second), both, edit.rank[second])
    edit.reorder()
    return number
