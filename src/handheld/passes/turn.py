"""Lets a map walk over its results in another order of the axes.

    map over (6, 197, 64) ──► its only reader walks (2, 197, 3, 64), with strides (12608, 64, 25216, 1)
    the same map over (2, 197, 3, 64): the axis of 6 is split in two, and axes are exchanged

The map can then join that reader, although the reader transposes.
"""

from __future__ import annotations

from dataclasses import replace

from handheld.graph.dtypes import I32
from handheld.graph.graph import Node, View, contiguous_strides
from handheld.graph.program import Builder, Guard, Instr, Store, prune


def turn(node: Node, view: View) -> Node | None:
    """Returns the map (of one output) over the shape of a view of its output, such that it writes in the order in which
    the view reads. None if the view does not take every element once, or if no strides describe the operands."""
    if view.offset or any(i.op == "index" for i in node.program):
        return None
    axes = sorted((d for d, n in enumerate(view.shape) if n != 1), key=lambda d: -view.strides[d])
    sizes = tuple(view.shape[d] for d in axes)
    if tuple(view.strides[d] for d in axes) != contiguous_strides(sizes):
        return None
    parts = _parts(tuple(node.attrs["shape"]), sizes, axes)
    if parts is None:
        return None
    gathered = {i.params[0] for i in node.program if i.op == "gather"}
    if gathered & {i.params[0] for i in node.program if i.op == "load"}:
        return None
    inputs = tuple(v if k in gathered else _looked_at(v, view.shape, parts) for k, v in enumerate(node.inputs))
    moved = _program(node, view.shape, parts)
    if moved is None:
        return None
    program, stores = moved
    attrs = {**node.attrs, "shape": view.shape, "program": program, "stores": stores}
    return replace(node, inputs=inputs, attrs=attrs)


def _parts(shape: tuple[int, ...], sizes: tuple[int, ...], axes: list[int]) -> list[list[int]] | None:
    """For each axis of a shape, the new axes whose sizes multiply to its size, the outermost first; None if a new axis
    would lie in two old ones."""
    parts: list[list[int]] = []
    position = 0
    for size in shape:
        mine: list[int] = []
        while size > 1:
            if position == len(sizes) or size % sizes[position]:
                return None
            mine.append(axes[position])
            size //= sizes[position]
            position += 1
        parts.append(mine)
    return parts if position == len(sizes) else None


def _looked_at(view: View, shape: tuple[int, ...], parts: list[list[int]]) -> View:
    strides = [0] * len(shape)
    for stride, mine in zip(view.strides, parts, strict=True):
        for d in reversed(mine):
            strides[d] = stride
            stride *= shape[d]
    return View(view.tensor, shape, tuple(strides), view.offset)


def _program(
    node: Node, shape: tuple[int, ...], parts: list[list[int]]
) -> tuple[tuple[Instr, ...], tuple[Store, ...]] | None:
    """The program with coordinates and guards in the new axes, and its stores; None if a guard cuts a new axis."""
    builder = Builder()
    where: dict[int, int] = {}
    for i, instr in enumerate(node.program):
        if instr.op == "iota":
            where[i] = _coordinate(builder, shape, parts[instr.params[0]])
            continue
        params = instr.params
        if instr.op == "load" and params[1]:
            guards = [_guards(guard, shape, parts[guard.dimension]) for guard in params[1]]
            if None in guards:
                return None
            params = (params[0], tuple(g for some in guards for g in some or ()), params[2])
        where[i] = builder.add(Instr(instr.op, instr.dtype, tuple(where[a] for a in instr.args), params))
    program, kept = prune(builder.program, (where[s.position] for s in node.stores))
    return program, tuple(Store(kept[where[s.position]], s.full) for s in node.stores)


def _coordinate(builder: Builder, shape: tuple[int, ...], mine: list[int]) -> int:
    """The coordinate in an old axis, from those in the new ones."""
    value = None
    for d in mine:
        here = builder.op("iota", I32, params=(d,))
        if value is not None:
            here = builder.op("add", I32, builder.op("mul", I32, value, builder.const(shape[d], I32)), here)
        value = here
    return builder.const(0, I32) if value is None else value


def _guards(guard: Guard, shape: tuple[int, ...], mine: list[int]) -> tuple[Guard, ...] | None:
    """A guard of an old axis in the new ones. It may cut the outermost of them, and none within it."""
    if not mine:
        return () if guard.low <= 0 < guard.high else None
    inner = 1
    for d in mine[1:]:
        inner *= shape[d]
    low, high = max(guard.low, 0), min(guard.high, shape[mine[0]] * inner)
    if low % inner or high % inner:
        return None
    return (Guard(mine[0], low // inner, high // inner),)
