"""Changes the space that a map runs over without changing what it computes."""

from __future__ import annotations

import math
from dataclasses import replace

from handheld.graph.graph import Node, View, contiguous_strides


def reshape_view(view: View, shape: tuple[int, ...]) -> View | None:
    """Returns a view of the same elements in row-major order with another shape; None if no strides describe it."""
    if view.shape == shape:
        return view
    if math.prod(shape) != view.size:
        return None
    if view.size == 0:
        return View(view.tensor, shape, contiguous_strides(shape), 0)
    old = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if n != 1]
    # Adjacent dimensions that one stride covers are joined first.
    runs: list[list[int]] = []
    for n, s in old:
        if runs and runs[-1][1] == n * s:
            runs[-1] = [runs[-1][0] * n, s]
        else:
            runs.append([n, s])
    strides: list[int] = []
    position = len(runs) - 1
    left, step = runs[position] if runs else (1, 0)
    for size in reversed(shape):
        if size == 1:
            strides.append(0)
            continue
        if left == 1:
            position -= 1
            left, step = runs[position]
        if left % size:
            return None
        strides.append(step)
        left //= size
        step *= size
    return View(view.tensor, shape, tuple(reversed(strides)), view.offset)


def names_dimensions(node: Node) -> bool:
    """Whether the program uses coordinates, so that another shape would change its result."""
    return any(i.op == "iota" or (i.op == "load" and i.params[1]) for i in node.program)


def _gathers_apart(node: Node) -> Node:
    """Splits an operand that is both loaded and gathered from into two, because only the loaded one is reshaped."""
    program = node.program
    loaded = {i.params[0] for i in program if i.op == "load"}
    both = sorted(loaded & {i.params[0] for i in program if i.op == "gather"})
    if not both:
        return node
    number = {k: len(node.inputs) + n for n, k in enumerate(both)}
    moved = tuple(
        replace(i, params=(number.get(i.params[0], i.params[0]), *i.params[1:])) if i.op == "gather" else i
        for i in program
    )
    inputs = (*node.inputs, *(node.inputs[k] for k in both))
    return replace(node, inputs=inputs, attrs={**node.attrs, "program": moved})


def respace(node: Node, shape: tuple[int, ...], first: int = 0) -> Node | None:
    """Returns the map over another shape of the same size, or None if that is not possible."""
    if tuple(node.attrs["shape"]) == shape:
        return node
    if names_dimensions(node) or math.prod(node.attrs["shape"]) != math.prod(shape):
        return None
    node = _gathers_apart(node)
    gathered = {i.params[0] for i in node.program if i.op == "gather"}
    inputs: list[View] = list(node.inputs[:first])
    for k, view in enumerate(node.inputs[first:], first):
        new = view if k in gathered else reshape_view(view, shape)
        if new is None:
            return None
        inputs.append(new)
    return replace(node, inputs=tuple(inputs), attrs={**node.attrs, "shape": shape})


def lift(node: Node, shape: tuple[int, ...], axes: tuple[int, ...]) -> Node | None:
    """Turns a map over the rows of a reduction into a part of it that runs once per row; None if not possible."""
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    node = _gathers_apart(node)
    small = respace(node, outer)
    if small is None:
        return None
    places = [d for d in range(len(shape)) if d not in axes]
    if names_dimensions(node) or any(i.op == "index" for i in node.program):
        return None
    gathered = {i.params[0] for i in node.program if i.op == "gather"}
    inputs = []
    for k, view in enumerate(small.inputs):
        if k in gathered:
            inputs.append(view)
            continue
        strides = [0] * len(shape)
        for d, s in zip(places, view.strides, strict=True):
            strides[d] = s
        inputs.append(View(view.tensor, shape, tuple(strides), view.offset))
    attrs = {
        **node.attrs,
        "shape": shape,
        "axes": axes,
        "stores": tuple(replace(store, full=False) for store in node.stores),
    }
    return replace(small, op="reduce", inputs=tuple(inputs), attrs=attrs)


def store_strides(shape: tuple[int, ...], axes: tuple[int, ...], full: bool) -> tuple[int, ...]:
    """Returns the strides with which an operand over `shape` reads what a store wrote."""
    if full:
        return contiguous_strides(shape)
    packed = iter(contiguous_strides(tuple(n for d, n in enumerate(shape) if d not in axes)))
    return tuple(0 if d in axes else next(packed) for d in range(len(shape)))


def same_walk(view: View, strides: tuple[int, ...]) -> bool:
    return view.offset == 0 and all(n == 1 or a == b for n, a, b in zip(view.shape, view.strides, strides, strict=True))
