"""Pooling: max_pool, avg_pool and their gradients. One work-item makes an element, a row or
a plane of the output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import ints, line, strided
from handheld.kernels.base import Arg, Buffer, Lowered, read_source, with_defines


def lower_max_pool(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    return _forward(node, caps, _max_window(node.attrs))


def lower_avg_pool(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    return _forward(node, caps, _avg_window(node.attrs, node.inputs[0].shape, node.attrs["shape"]))


def lower_max_pool_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    return _backward(node, caps, _max_window(node.attrs))


def lower_avg_pool_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    return _backward(node, caps, _avg_window(node.attrs, node.attrs["shape"], node.inputs[0].shape))


def _forward(node: Node, caps: DeviceCaps, window: list[int]) -> Lowered:
    (x,) = node.inputs
    shape: tuple[int, ...] = tuple(node.attrs["shape"])
    return _pool(node, caps, window, image=x.shape, windows=shape, total=math.prod(shape))


def _backward(node: Node, caps: DeviceCaps, window: list[int]) -> Lowered:
    shape: tuple[int, ...] = tuple(node.attrs["shape"])
    windows = node.inputs[0].shape
    return _pool(node, caps, window, image=shape, windows=windows, total=math.prod(shape))


def _pool(node: Node, caps: DeviceCaps, window: list[int], *, image: tuple[int, ...],
          windows: tuple[int, ...], total: int) -> Lowered:
    if total == 0:
        return Lowered(())
    _check_range(node.attrs, image[2:], windows[2:])
    # An input without elements is read by no work-item; an output stands in for its buffer.
    tensors = [v.tensor if v.size else node.outputs[0] for v in node.inputs]
    wide = (windows if node.op in ("max_pool", "avg_pool") else image)[3]
    kernel, run = node.op, wide if caps.kind == "cpu" else 1
    defines: dict[str, object] = {"ADAPTIVE": int(node.attrs.get("adaptive", False))}
    if caps.kind == "cpu" and not defines["ADAPTIVE"]:
        step = node.attrs["stride"][1]
        if node.op == "max_pool" and node.inputs[0].strides[3] == 1 and step <= 2:
            kernel, defines["STEP"] = "max_pool_rows", step
        elif node.op == "max_pool_grad":
            kernel, run = "max_pool_grad_planes", image[2] * image[3]
    items = total // run
    args: tuple[Arg, ...] = (*map(Buffer, tensors), *map(Buffer, node.outputs), *ints(items, run))
    for view in node.inputs:
        args += strided(view)
    args += ints(*image[1:], *windows[2:], *window)
    why = f"{kernel}: one work-item {'an element' if run == 1 else 'a row or plane'}"
    text = read_source("pool.cl")
    source = with_defines(defines, read_source("wide.cl") + text if "STEP" in defines else text)
    return Lowered((line(kernel, source, args, items, caps),), why=why)


def _max_window(attrs: Mapping[str, Any]) -> list[int]:
    if attrs["adaptive"]:
        return [1, 1, 1, 1, 0, 0, 1, 1]
    return [n for key in ("kernel", "stride", "padding", "dilation") for n in attrs[key]]


def _avg_window(attrs: Mapping[str, Any], image: tuple[int, ...],
                windows: tuple[int, ...]) -> list[int]:
    """Where every window has the same size, that is the divisor: one division an output."""
    sides = [n for key in ("kernel", "stride", "padding") for n in attrs[key]]
    kernel, stride, pad = (attrs[key] for key in ("kernel", "stride", "padding"))
    even = all(
        (attrs["count_pad"] or pad[i] == 0)
        and (windows[2 + i] - 1) * stride[i] + kernel[i] <= image[2 + i] + 2 * pad[i]
        for i in (0, 1)
    )
    divisor = attrs["divisor"] or (kernel[0] * kernel[1] if even else 0)
    return [*sides, int(attrs["count_pad"]), int(divisor)]


def _check_range(attrs: Mapping[str, Any], image: tuple[int, ...],
                 windows: tuple[int, ...]) -> None:
    """The positions that the kernels compute on the way fit in 32 bits too."""
    for side in (0, 1):
        if attrs.get("adaptive", False):
            ints((image[side] + 1) * (windows[side] + 1))
            continue
        kernel, stride, pad = (attrs[key][side] for key in ("kernel", "stride", "padding"))
        reach = (kernel - 1) * (attrs["dilation"][side] if "dilation" in attrs else 1) + 1
        ints(windows[side] * stride + reach + pad, image[side] + 2 * pad + reach + stride)
