"""Pooling: turns max_pool, avg_pool and their gradients into launches of pool.cl.

A work-item computes one element of the output (GPU), or one row or plane of it (CPU).
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
    # No work-item reads an input without elements, so the output can stand in for its buffer.
    tensors = [v.tensor if v.size else node.outputs[0] for v in node.inputs]
    wide = (windows if node.op in ("max_pool", "avg_pool") else image)[3]
    kernel, run = node.op, wide if caps.kind == "cpu" else 1
    half = [graph.tensors[t].dtype == F16 for t in (node.inputs[0].tensor, node.outputs[0])]
    defines: dict[str, object] = {"ADAPTIVE": int(node.attrs.get("adaptive", False)), **window}
    if caps.kind == "cpu" and not defines["ADAPTIVE"]:
        step = node.attrs["stride"][1]
        row = max(image[3], windows[3])
        if (
            node.op in ("avg_pool", "avg_pool_grad")
            and node.inputs[0].strides[3] == 1
            and row <= MOST_WIDE
            and max(node.attrs["kernel"]) <= MOST_TAPS
        ):
            kernel, defines["WIDE"] = f"{node.op}_rows", row
        elif node.op == "max_pool" and node.inputs[0].strides[3] == 1 and step <= 2:
            kernel, defines["STEP"] = "max_pool_rows", step
        elif node.op == "max_pool_grad" and not half[1]:
            kernel, run = "max_pool_grad_planes", image[2] * image[3]
    items = total // run
    args: tuple[Arg, ...] = (*map(Buffer, tensors), *map(Buffer, node.outputs), *ints(items, run))
    for view in node.inputs:
        args += strided(view)
    args += ints(*image[1:], *windows[2:])
    if "STEP" in defines:
        args += ints(graph.tensors[node.inputs[0].tensor].size)
    planes = image[0] * image[1]
    if caps.kind == "gpu" and planes <= MOST_PLANES:
        defines["GRID"] = 1
    why = f"{kernel}: one work-item per {'element' if run == 1 else 'row or plane'}"
    text = read_cl("pool.cl")
    if "STEP" in defines:
        text = read_cl("wide.cl") + text
    if any(half):
        defines |= {f"{name}_HALF": 1 for name, on in zip(("IN", "OUT"), half, strict=True) if on}
        text = read_cl("half.cl") + text
    text = with_defines(defines, text)
    if "GRID" not in defines:
        return Lowered((line(kernel, text, args, items, caps),), why=why)
    local = _grid(wide, group(caps, 128))
    size = (round_up(wide, local[0]), round_up(total // planes // wide, local[1]), planes)
    return Lowered((Launch(kernel, text, args, size, local),), why=why)


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
