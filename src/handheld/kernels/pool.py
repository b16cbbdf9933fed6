"""Pooling: turns max_pool, avg_pool and their gradients into launches of pool.cl.

A work-item computes one element of the output (GPU), or some rows or a plane of it (CPU, also with pool_wide.cl).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from handheld.device import DeviceCaps
from handheld.graph.dtypes import F16
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import group, ints, line, strided
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, read_cl, round_up, with_defines

MOST_PLANES = 32768  # Every GPU can run this many work-groups along the third dimension.
# CPU: average pooling goes by rows up to this many elements per row and taps per side of the window.
MOST_WIDE, MOST_TAPS = 2048, 64
# CPU: 16 results at a time for rows of at least LEAST_WIDE results and windows of at most MOST_ACROSS taps across and
# MOST_INSIDE in all.
LEAST_WIDE, MOST_ACROSS, MOST_INSIDE = 4, 16, 256
# CPU: work-items per compute unit that share the rows of the output, and the fewest rows that one takes.
ITEMS, LEAST_ROWS = 16, 8


def lower_max_pool(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    return _forward(node, graph, caps, _max_window(node.attrs))


def lower_avg_pool(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    window = _avg_window(node.attrs, node.inputs[0].shape, node.attrs["shape"])
    return _forward(node, graph, caps, window)


def lower_max_pool_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    return _backward(node, graph, caps, _max_window(node.attrs))


def lower_avg_pool_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    window = _avg_window(node.attrs, node.attrs["shape"], node.inputs[0].shape)
    return _backward(node, graph, caps, window)


def _forward(node: Node, graph: Graph, caps: DeviceCaps, window: dict[str, int]) -> Lowered:
    (x,) = node.inputs
    shape: tuple[int, ...] = tuple(node.attrs["shape"])
    return _pool(node, graph, caps, window, image=x.shape, windows=shape, total=math.prod(shape))


def _backward(node: Node, graph: Graph, caps: DeviceCaps, window: dict[str, int]) -> Lowered:
    shape: tuple[int, ...] = tuple(node.attrs["shape"])
    windows = node.inputs[0].shape
    return _pool(node, graph, caps, window, image=shape, windows=windows, total=math.prod(shape))


def _pool(
    node: Node,
    graph: Graph,
    caps: DeviceCaps,
    window: dict[str, int],
    *,
    image: tuple[int, ...],
    windows: tuple[int, ...],
    total: int,
) -> Lowered:
    if total == 0:
        return Lowered(())
    _check_range(node.attrs, image[2:], windows[2:])
    half = [graph.tensors[t].dtype == F16 for t in (node.inputs[0].tensor, node.outputs[0])]
    defines: dict[str, object] = {"ADAPTIVE": int(node.attrs.get("adaptive", False)), **window}
    defines |= {f"{name}_HALF": 1 for name, on in zip(("IN", "OUT"), half, strict=True) if on}
    wide = (windows if node.op in ("max_pool", "avg_pool") else image)[3]
    if caps.kind == "cpu" and _is_wide(node, defines, wide):
        return _wide(node, graph, caps, defines, image, windows, total // wide)
    kernel, run = node.op, wide if caps.kind == "cpu" else 1
    if caps.kind == "cpu" and not defines["ADAPTIVE"]:
        row = max(image[3], windows[3])
        if (
            node.op in ("avg_pool", "avg_pool_grad")
            and node.inputs[0].strides[3] == 1
            and row <= MOST_WIDE
            and max(node.attrs["kernel"]) <= MOST_TAPS
        ):
            kernel, defines["WIDE"] = f"{node.op}_rows", row
        elif node.op == "max_pool_grad" and not half[1]:
            kernel, run = "max_pool_grad_planes", image[2] * image[3]
    items = total // run
    args = _args(node, items, run, image, windows)
    planes = image[0] * image[1]
    if caps.kind == "gpu" and planes <= MOST_PLANES:
        defines["GRID"] = 1
    why = f"{kernel}: one work-item per {'element' if run == 1 else 'row or plane'}"
    text = _text(defines, read_cl("pool.cl"))
    if "GRID" not in defines:
        return Lowered((line(kernel, text, args, items, caps),), why=why)
    local = _grid(wide, group(caps, 128))
    size = (round_up(wide, local[0]), round_up(total // planes // wide, local[1]), planes)
    return Lowered((Launch(kernel, text, args, size, local),), why=why)


def _is_wide(node: Node, defines: Mapping[str, Any], wide: int) -> bool:
    """Whether pool_wide.cl computes a node on a CPU."""
    averages = node.op in ("avg_pool", "avg_pool_grad")
    return (
        not defines["ADAPTIVE"]
        and defines["SW"] <= 2
        and defines["KW"] <= MOST_ACROSS
        and defines["KH"] * defines["KW"] <= MOST_INSIDE
        and all(view.strides[3] == 1 for view in node.inputs)
        and (wide >= LEAST_WIDE or node.op == "max_pool")
        and (not averages or bool(defines["DIVISOR"]))
    )


def _wide(
    node: Node,
    graph: Graph,
    caps: DeviceCaps,
    defines: dict[str, object],
    image: tuple[int, ...],
    windows: tuple[int, ...],
    rows: int,
) -> Lowered:
    """The launch of pool_wide.cl. Each work-item makes as many rows as leave enough work-items for all cores."""
    run = max(-(-rows // (ITEMS * caps.compute_units)), min(LEAST_ROWS, -(-rows // caps.compute_units)))
    args = _args(node, rows, run, image, windows)
    args += ints(*(graph.tensors[view.tensor].size for view in node.inputs))
    defines |= {"MAX_WIDE": 1} if node.op in ("max_pool", "max_pool_grad") else {}
    text = _text(defines, read_cl("wide.cl") + read_cl("pool.cl") + read_cl("pool_wide.cl"))
    items = -(-rows // run)
    kernel = f"{node.op}_wide"
    why = f"{kernel}: {run} row{'s' if run > 1 else ''} per work-item"
    return Lowered((Launch(kernel, text, args, (items,), (1,)),), why=why)


def _args(node: Node, items: int, run: int, image: tuple[int, ...], windows: tuple[int, ...]) -> tuple[Arg, ...]:
    # No work-item reads an input without elements, so the output can stand in for its buffer.
    tensors = [v.tensor if v.size else node.outputs[0] for v in node.inputs]
    args: tuple[Arg, ...] = (*map(Buffer, tensors), *map(Buffer, node.outputs), *ints(items, run))
    for view in node.inputs:
        args += strided(view)
    return args + ints(*image[1:], *windows[2:])


def _text(defines: dict[str, object], text: str) -> str:
    half = any(name in defines for name in ("IN_HALF", "OUT_HALF"))
    return with_defines(defines, (read_cl("half.cl") if half else "") + text)


def _grid(wide: int, items: int) -> tuple[int, int, int]:
    """The size of a work-group of neighbouring pixels: long along a row, but not much longer than the row."""
    across = 1
    while across < min(wide, 32, items):
        across *= 2
    return across, items // across, 1


def _sides(attrs: Mapping[str, Any]) -> dict[str, int]:
    """Kernel, stride, padding and dilation as defines of pool.cl: KH, KW, SH, SW and so on."""
    keys = {"K": "kernel", "S": "stride", "P": "padding", "D": "dilation"}
    return {letter + side: attrs[key][n] for letter, key in keys.items() if key in attrs for n, side in enumerate("HW")}


def _max_window(attrs: Mapping[str, Any]) -> dict[str, int]:
    sides = dict.fromkeys(("KH", "KW", "SH", "SW", "DH", "DW"), 1) | {"PH": 0, "PW": 0}
    return sides if attrs["adaptive"] else _sides(attrs)


def _avg_window(attrs: Mapping[str, Any], image: tuple[int, ...], windows: tuple[int, ...]) -> dict[str, int]:
    """The defines of average pooling. If all windows have the same size, that size is the divisor, and one division
    per output is enough."""
    kernel, stride, pad = (attrs[key] for key in ("kernel", "stride", "padding"))
    even = all(
        (attrs["count_pad"] or pad[i] == 0)
        and (windows[2 + i] - 1) * stride[i] + kernel[i] <= image[2 + i] + 2 * pad[i]
        for i in (0, 1)
    )
    divisor = attrs["divisor"] or (kernel[0] * kernel[1] if even else 0)
    return {**_sides(attrs), "COUNT_PAD": int(attrs["count_pad"]), "DIVISOR": int(divisor)}


def _check_range(attrs: Mapping[str, Any], image: tuple[int, ...], windows: tuple[int, ...]) -> None:
    """Raises PlanError if a position that the kernels compute in between does not fit in 32 bits."""
    for side in (0, 1):
        if attrs.get("adaptive", False):
            ints((image[side] + 1) * (windows[side] + 1))
            continue
        kernel, stride, pad = (attrs[key][side] for key in ("kernel", "stride", "padding"))
        reach = (kernel - 1) * (attrs["dilation"][side] if "dilation" in attrs else 1) + 1
        ints(windows[side] * stride + reach + pad, image[side] + 2 * pad + reach + stride)
