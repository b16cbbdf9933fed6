"""Turns matrix products, convolutions and their gradients into problems: the index maps of an implicit GEMM."""

from __future__ import annotations

import math
from dataclasses import replace

from handheld.errors import PlanError
from handheld.graph.dtypes import F16
from handheld.graph.graph import Graph, Node, View
from handheld.kernels.contract_problem import ConvMaps, MatmulMaps, Problem
from handheld.kernels.reshape import OWN, few_batches, long_rows, product_of_pixels, unit, within_reach


def problem_of(node: Node, graph: Graph, products: bool = False) -> tuple[Problem, Node]:
    """The problem of a contraction, and the node with fewer or longer axes, over whose shape its epilogue runs. With
    `products`, convolutions of single pixels become matrix products."""
    product = product_of_pixels(node) if products and node.op != "matmul" else None
    if product is not None:
        problem, node = _matmul(product, graph)
        return replace(problem, half_products=node.attrs.get("arithmetic") == "half"), node
    make = {"matmul": _matmul, "conv": _conv, "conv_input": _conv_input, "conv_weight": _conv_weight}[node.op]
    problem, node = make(node, graph)
    return replace(problem, half_products=node.attrs.get("arithmetic") == "half"), node


def _matmul(node: Node, graph: Graph) -> tuple[Problem, Node]:
    node = few_batches(node)
    shape = tuple(node.attrs["shape"])
    if len(shape) > 5:
        raise PlanError(
            f"matmul at {node.origin.path or 'the top level'} has {len(shape) - 2} batch dimensions that cannot be "
            "merged; kernels take at most 3. Try: make its operands contiguous"
        )
    a, b = (unit(view) for view in node.inputs[:OWN])
    m, n, k = shape[-2], shape[-1], a.shape[-1]
    lead = len(shape) - 2
    sizes = (1,) * (3 - lead) + shape[:-2]
    a_batch = (0,) * (3 - lead) + a.strides[:-2]
    b_batch = (0,) * (3 - lead) + b.strides[:-2]
    sets = math.prod(sizes)
    maps = MatmulMaps(
        sets=sets,
        m=m,
        n=n,
        k=k,
        a_0=a.offset,
        a_m=a.strides[-2],
        a_k=a.strides[-1],
        a_size=graph.tensors[a.tensor].size,
        b_0=b.offset,
        b_n=b.strides[-1],
        b_k=b.strides[-2],
        b_size=graph.tensors[b.tensor].size,
        g_y=sizes[1],
        g_x=sizes[2],
        a_gz=a_batch[0],
        a_gy=a_batch[1],
        a_gx=a_batch[2],
        b_gz=b_batch[0],
        b_gy=b_batch[1],
        b_gx=b_batch[2],
    )
    problem = Problem("MATMUL", a.tensor, b.tensor, maps, a.strides[-2:], _halves(graph, a, b), batch=lead)
    return problem, node


def _conv(node: Node, graph: Graph) -> tuple[Problem, Node]:
    node = long_rows(node)
    x, w = (unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[1] // groups, w.shape[1]
    maps = _conv_maps(
        node,
        graph,
        groups,
        (m, out[0] * out[2] * out[3], c * w.shape[2] * w.shape[3]),
        out[2:],
        a=w,
        a_steps=(w.strides[0], m * w.strides[0], *w.strides[1:]),
        b=x,
        b_steps=(c * x.strides[1], *x.strides),
        taps=(c, *w.shape[2:]),
        unit_step=stride,
        step=dilation,
        off=(-padding[0], -padding[1]),
        phases=(1, 1),
    )
    problem = Problem("CONV", w.tensor, x.tensor, maps, w.strides[:2], _halves(graph, w, x))
    return problem, node


def _conv_input(node: Node, graph: Graph) -> tuple[Problem, Node]:
    node = long_rows(node)
    dy, w = (unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[1] // groups, w.shape[0] // groups
    rows = tuple(-(-size // step) for size, step in zip(out[2:], stride, strict=True))
    maps = _conv_maps(
        node,
        graph,
        groups,
        (m, out[0] * rows[0] * rows[1], c * w.shape[2] * w.shape[3]),
        rows,
        a=w,
        a_steps=(w.strides[1], c * w.strides[0], w.strides[0], *w.strides[2:]),
        b=dy,
        b_steps=(c * dy.strides[1], *dy.strides),
        taps=(c, *w.shape[2:]),
        unit_step=(1, 1),
        step=(-dilation[0], -dilation[1]),
        off=tuple(padding),
        phases=tuple(stride),
    )
    problem = Problem(
        "CONV", w.tensor, dy.tensor, maps, (w.strides[1], w.strides[0]), _halves(graph, w, dy), phased=max(stride) > 1
    )
    return problem, node


def _conv_weight(node: Node, graph: Graph) -> tuple[Problem, Node]:
    node = long_rows(node)
    dy, x = (unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[0] // groups, out[1]
    sa, sx = dy.strides, x.strides
    maps = _conv_maps(
        node,
        graph,
        groups,
        (m, c * out[2] * out[3], math.prod(dy.shape) // max(dy.shape[1], 1)),
        out[2:],
        a=dy,
        a_steps=(sa[1], m * sa[1], sa[0], sa[2], sa[3]),
        b=x,
        b_steps=(c * sx[1], sx[1], sx[0], *sx[2:]),
        taps=(dy.shape[0], *dy.shape[2:]),
        unit_step=dilation,
        step=stride,
        off=(-padding[0], -padding[1]),
        phases=(1, 1),
    )
    problem = Problem("WEIGHT", dy.tensor, x.tensor, maps, (0, 1), _halves(graph, dy, x))
    return problem, node


def _halves(graph: Graph, a: View, b: View) -> tuple[bool, bool]:
    return graph.tensors[a.tensor].dtype == F16, graph.tensors[b.tensor].dtype == F16


def _conv_maps(
    node: Node,
    graph: Graph,
    groups: int,
    mnk: tuple[int, int, int],
    rows: tuple[int, ...],
    *,
    a: View,
    a_steps: tuple[int, ...],
    b: View,
    b_steps: tuple[int, ...],
    taps: tuple[int, ...],
    unit_step: tuple[int, ...],
    step: tuple[int, ...],
    off: tuple[int, ...],
    phases: tuple[int, ...],
) -> ConvMaps:
    """The maps of a convolution or one of its gradients. Raises PlanError if an index does not fit in 32 bits.

    Taps that see only padding, as the outer ones over an image of one pixel, are left out if they are terms.
    """
    first = (0, 0)
    if node.op != "conv_weight" and phases == (1, 1):
        first, counts = live_taps(rows, unit_step, step, off, b.shape[2:], taps[1:])
        off = tuple(o + low * e for o, low, e in zip(off, first, step, strict=True))
        taps = (taps[0], *counts)
        mnk = (*mnk[:2], math.prod(taps))
    skip = tuple(p // math.gcd(p, e) for p, e in zip(phases, step, strict=True))
    within_reach(node, b, rows, unit_step, taps[1:], step, off)
    *_, a_r, a_s = a_steps
    return ConvMaps(
        *(groups * phases[0] * phases[1], *mnk),
        *(a.offset + first[0] * a_r + first[1] * a_s, *a_steps, graph.tensors[a.tensor].size),
        *(b.offset, *b_steps, graph.tensors[b.tensor].size),
        *(*b.shape[2:], *rows, *taps, *unit_step, *step, *off),
        *(*node.attrs["shape"][2:], *phases, *skip),
    )


def live_taps(*axes: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Per axis, the first tap that reaches a pixel of the image, and the number of taps from there to the last one.

    The arguments have a number per axis: results, their distance, that of taps, the pixel of the first tap of the first
    result, pixels of the image, and taps.
    """
    (high, rows), (wide, columns) = (live(*axis) for axis in zip(*axes, strict=True))
    return (high, wide), (rows, columns)


def live(count: int, unit_step: int, step: int, off: int, size: int, taps: int) -> tuple[int, int]:
    live = [tap for tap in range(taps) if any(0 <= y * unit_step + off + tap * step < size for y in range(count))]
    return (live[0], live[-1] - live[0] + 1) if live else (0, taps)
