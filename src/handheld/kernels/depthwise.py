"""Depthwise convolutions and their gradients: turns nodes into launches of depthwise.cl.

As an implicit GEMM, such a convolution would have one row and only as many terms as taps. So these kernels walk
over planes of pixels instead. contract.py sends the nodes here for which `applies` is true.
"""

from __future__ import annotations

import math

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.dtypes import F16
from handheld.graph.graph import Graph, Node, View
from handheld.kernels import depthwise_lanes
from handheld.kernels.args import group, ints, line
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace, read_cl, round_up, with_defines
from handheld.kernels.depthwise_lanes import Geometry
from handheld.kernels.expr import epilogue
from handheld.kernels.reshape import OWN, half_output, long_rows, unit, within_reach

TILE, BLOCK, TAPS, SMALL, WIDENED = 8192, 4096, 128, 64, 4096  # The same as in depthwise.cl.
VECTOR = 16
#: CPU: planes with fewer pixels are small even if they could be one long row.
LEAST_FLAT = 25
STRIP, HELD = 4, 9  # GPU: pixels per work-item; taps whose sums a work-group keeps.
# GPU, weight gradient: the pixels of a channel are divided among several work-groups, as long as each work-item has
# PART_TERMS pixels and there are fewer than PART_GROUPS work-groups per compute unit.
PART_TERMS = 32
PART_GROUPS = 16
Pair = tuple[int, int]


def applies(node: Node) -> bool:
    """Whether these kernels can run a node: one channel per group, and a row of outputs fits the tile."""
    kernel = tuple(node.attrs["shape"]) if node.op == "conv_weight" else node.inputs[1].shape
    if kernel[1] != 1 or node.attrs["groups"] == 1 or math.prod(kernel[2:]) > TAPS:
        return False
    return all(
        _tile_floats(1, VECTOR, step, _span(kernel[2:], node.attrs["dilation"])) <= TILE
        for step in (_pair(node, "stride"), _pair(node, "stride")[::-1])
    )


def lower_conv(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    node = long_rows(node)
    padding = _pair(node, "padding")
    return _lower(
        node,
        graph,
        caps,
        unit_step=_pair(node, "stride"),
        tap=_pair(node, "dilation"),
        off=(-padding[0], -padding[1]),
        phases=(1, 1),
    )


def lower_conv_input(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    node = long_rows(node)
    dilation = _pair(node, "dilation")
    return _lower(
        node,
        graph,
        caps,
        unit_step=(1, 1),
        tap=(-dilation[0], -dilation[1]),
        off=_pair(node, "padding"),
        phases=_pair(node, "stride"),
    )


def lower_conv_weight(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    node = long_rows(node)
    dy, x = (unit(view) for view in node.inputs[:OWN])
    out = tuple(node.attrs["shape"])
    if math.prod(out) == 0:
        return Lowered((), why="empty output")
    stride, padding, dilation = (_pair(node, k) for k in ("stride", "padding", "dilation"))
    rows = (dy.shape[2], dy.shape[3])
    off = (-padding[0], -padding[1])
    within_reach(node, x, rows, stride, out[2:], dilation, off)
    empty = dy.size == 0 or x.size == 0
    first = Buffer(node.outputs[0] if empty else x.tensor)
    second = Buffer(node.outputs[0] if empty else dy.tensor)
    plane = ints(
        x.offset, *x.strides, *x.shape[2:], *rows, *out[2:], *stride, *dilation, *off, out[0] // node.attrs["groups"], 1
    )
    images = 0 if empty else dy.shape[0]
    lanes = depthwise_lanes.lower_weight(node, graph, caps, Geometry((out[2], out[3]), stride, dilation, off, (1, 1)))
    if lanes is not None:
        return lanes
    args: tuple[Arg, ...] = (first, *plane, second, *ints(dy.offset, *dy.strides, images))
    halves, text = _text(node, graph, X=x, Y=dy)
    if caps.kind == "gpu":
        return _weight_groups(node, caps, args, halves, text, images * rows[0] * rows[1])
    text = with_defines({**halves, "MODE": 2}, text)
    span = _span(out[2:], dilation)
    flat = _flat_rows(rows, stride, span)
    if _is_small(rows, flat) and (not halves or math.prod(x.shape[2:]) <= WIDENED):
        launch = Launch("weight_small", text, (*args, Buffer(node.outputs[0])), (out[0],), (1,))
        return Lowered((launch,), why="depthwise, small planes")
    block = (flat, rows[1]) if flat else _block(rows, stride, span)
    text = with_defines({"FLAT": 1}, text) if flat else text
    args = (*args, *ints(*block), Buffer(node.outputs[0]))
    return Lowered((Launch("weight", text, args, (out[0],), (1,)),), why=_why(block, flat))


def _weight_groups(
    node: Node, caps: DeviceCaps, args: tuple[Arg, ...], halves: dict[str, object], text: str, pixels: int
) -> Lowered:
    """conv_weight on a GPU. The pixels of a channel are divided among work-groups until the device is busy."""
    out = tuple(node.attrs["shape"])
    items, taps, all_ = group(caps, 128), out[2] * out[3], math.prod(out)
    turns = -(-taps // HELD)
    parts = min(-(-pixels // (items * PART_TERMS)), -(-PART_GROUPS * caps.compute_units // (turns * out[0])))
    parts = max(parts, 1)
    defines = {**halves, "MODE": 2, "LOCAL": 1, "ITEMS": items, "HELD": HELD}
    text = (
        with_defines(defines | {"PARTS": 1}, text + read_cl("combine.cl")) if parts > 1 else with_defines(defines, text)
    )
    size = (items * turns, parts, out[0])
    to: Arg = Workspace(0) if parts > 1 else Buffer(node.outputs[0])
    launches = [Launch("weight", text, (*args, *ints(parts), to), size, (items, 1, 1))]
    if parts > 1:
        sums: tuple[Arg, ...] = (Workspace(0), *ints(parts, all_), Buffer(node.outputs[0]))
        launches.append(line("combine", text, sums, all_, caps))
    return Lowered(
        tuple(launches), (4 * parts * all_,) if parts > 1 else (), why=f"depthwise, {parts} work-groups per channel"
    )


def _lower(
    node: Node, graph: Graph, caps: DeviceCaps, *, unit_step: Pair, tap: Pair, off: Pair, phases: Pair
) -> Lowered:
    """conv and conv_input. They differ in the phases, and in which side has several channels per channel of the
    other side."""
    out = tuple(node.attrs["shape"])
    if math.prod(out) == 0:
        return Lowered((), why="empty output")
    x, w = (unit(view) for view in node.inputs[:OWN])
    lanes = depthwise_lanes.lower(node, graph, caps, Geometry((w.shape[2], w.shape[3]), unit_step, tap, off, phases))
    if lanes is not None:
        return lanes
    multiplier = w.shape[0] // node.attrs["groups"]
    share, count = (multiplier, 1) if node.op == "conv" else (1, multiplier)
    rows = (-(-out[2] // phases[0]), -(-out[3] // phases[1]))
    within_reach(node, x, rows, unit_step, w.shape[2:], tap, off)
    skip = tuple(p // math.gcd(p, e) for p, e in zip(phases, tap, strict=True))
    end = epilogue(node, graph, OWN)
    empty = x.size == 0 or w.size == 0  # There are no terms, and the kernel never reads the pointers.
    if empty:
        count = 0
    args: tuple[Arg, ...] = (
        Buffer(node.outputs[0] if empty else x.tensor),
        *ints(x.offset, *x.strides, *x.shape[2:], *rows, *w.shape[2:], *unit_step, *tap, *off, share, count),
        Buffer(node.outputs[0] if empty else w.tensor),
        *ints(w.offset, w.strides[0], *w.strides[2:], *out[2:], *phases, *skip, out[1]),
    )
    halves, text = _text(node, graph, X=x, W=w)
    defines: dict[str, object] = {
        **halves,
        "MODE": 1,
        "EPILOGUE_PARAMS": end.params,
        "EPILOGUE": end.body.replace("\n", " "),
    }
    text = end.helpers + text
    planes = out[1] * phases[0] * phases[1]
    if caps.kind == "gpu":
        items = group(caps)
        size = (round_up(-(-rows[0] // STRIP) * rows[1], items), out[0], planes)
        text = with_defines({**defines, "LOCAL": 1, "STRIP": STRIP}, text)
        return Lowered(
            (Launch("conv", text, args + end.args, size, (items, 1, 1)),),
            why=f"depthwise, {STRIP} pixels per work-item",
        )
    text = with_defines(defines, text)
    span = _span(w.shape[2:], tap)
    span = (span[0] // phases[0], span[1] // phases[1])
    flat = _flat_rows(rows, unit_step, span)
    fits = not halves or math.prod(x.shape[2:]) <= WIDENED
    if _is_small(rows, flat) and count == 1 and fits:
        launch = Launch("conv_small", text, (*args, *ints(out[0]), *end.args), (planes,), (1,))
        return Lowered((launch,), why="depthwise, small planes")
    block = (flat, rows[1]) if flat else _block(rows, unit_step, span)
    text = with_defines({"FLAT": 1}, text) if flat else text
    across = -(-rows[1] // block[1])
    size = (-(-rows[0] // block[0]) * across, out[0], planes)
    args = (*args, *ints(across, *block), *end.args)
    return Lowered((Launch("conv", text, args, size, (1, 1, 1)),), why=_why(block, flat))


def _text(node: Node, graph: Graph, **views: View) -> tuple[dict[str, object], str]:
    """The defines of the tensors that are stored in halves, and the program text."""
    halves: dict[str, object] = {
        f"{name}_HALF": 1 for name, view in views.items() if graph.tensors[view.tensor].dtype == F16
    }
    halves |= half_output(node, graph)
    text = read_cl("wide.cl") + read_cl("depthwise.cl")
    return halves, read_cl("half.cl") + text if halves else text


def _pair(node: Node, name: str) -> Pair:
    first, second = node.attrs[name]
    return first, second


def _span(kernel: tuple[int, ...], tap: tuple[int, ...]) -> Pair:
    """The distance in pixels from the first tap to the last, down and across."""
    return (kernel[0] - 1) * abs(tap[0]), (kernel[1] - 1) * abs(tap[1])


def _tile_floats(rows: int, cols: int, step: Pair, span: Pair) -> int:
    return ((rows - 1) * step[0] + span[0] + 1) * (cols + span[1] // step[1]) * step[1]


def _is_small(rows: Pair, flat: int) -> bool:
    """Whether a work-item takes one channel of all images."""
    return rows[0] * rows[1] <= (SMALL if flat < rows[0] else LEAST_FLAT - 1)


def _why(block: Pair, flat: int) -> str:
    return f"depthwise, planes in blocks of {block[0]}x{block[1]}{', each one long row' if flat else ''}"


def _flat_rows(rows: Pair, step: Pair, span: Pair) -> int:
    """The rows of a block that is one long row; 0 if blocks of separate rows need fewer vectors."""
    pitch = rows[1] + span[1]
    most = min((BLOCK - VECTOR) // pitch, (TILE - 2 * VECTOR - span[1]) // pitch - span[0])
    if step != (1, 1) or most < 1 or not rows[0] or rows[0] * -(-rows[1] // VECTOR) <= -(-rows[0] * pitch // VECTOR):
        return 0
    return -(-rows[0] // -(-rows[0] // min(most, rows[0])))


def _block(rows: Pair, step: Pair, span: Pair) -> Pair:
    """Rows and columns of a block: whole rows of pixels if they fit, and as many rows as fit, evenly divided."""
    cols = min(max(round_up(rows[1], VECTOR), VECTOR), BLOCK)
    while cols > VECTOR and _tile_floats(1, cols, step, span) > TILE:
        cols -= VECTOR
    high = min(rows[0], BLOCK // cols)
    while high > 1 and _tile_floats(high, cols, step, span) > TILE:
        high -= 1
    if _tile_floats(high, cols, step, span) > TILE:
        raise PlanError(
            f"a depthwise convolution whose taps reach over {span} pixels does not fit its tile of {TILE} floats. "
            "Try: a smaller dilation"
        )
    return -(-rows[0] // -(-rows[0] // max(high, 1))) if rows[0] else 1, cols
