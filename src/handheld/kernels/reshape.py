"""Rewrites contractions into simpler shapes that compute the same: fewer batch dimensions, longer rows.

    matmul     [8, 12, 64, 64]         ──►  [96, 64, 64]
    1x1 conv   [n, c, height, width]   ──►  [n, c, 1, height*width]

Outputs are dense, so merging two neighbouring dimensions of the output changes no address. The same holds for
exchanging two dimensions if one has size 1. A rewrite is legal if every view that is read over the output's shape
allows it, and if the epilogue uses no coordinate.

This file also has the checks that all indices fit in 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from handheld.errors import PlanError
from handheld.graph.dtypes import F16
from handheld.graph.graph import Graph, Node, View

OWN = 2  # A contraction has two inputs of its own. Those after them are operands of its epilogue.
LIMIT = 2**31 - 1  # Kernels index with 32-bit integers.
Change = Callable[[View], View | None]


def few_batches(node: Node) -> Node:
    """A matmul with as few leading dimensions as its views allow."""
    for d in reversed(range(len(node.attrs["shape"]) - 3)):
        shape = tuple(node.attrs["shape"])
        shape = (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
        node = _changed(node, partial(_merged, d=d), (0, 1), shape) or node
    shape = tuple(node.attrs["shape"])
    if len(shape) > 2 and shape[0] == 1:
        node = _changed(node, _first_dropped, (0, 1), shape[1:]) or node
    return node


def long_rows(node: Node) -> Node:
    """A convolution whose pixels lie in long rows.

    Images of width 1 are transposed. With a 1x1 kernel that takes every pixel, an image becomes a single row.
    """
    n, c, height, width = node.attrs["shape"]
    if width == 1 and all(view.shape[3] == 1 for view in node.inputs[:OWN]):
        turned = _changed(node, _turned, (0, 1), (n, c, width, height))
        if turned is not None:
            pairs = {k: tuple(node.attrs[k])[::-1] for k in ("stride", "padding", "dilation")}
            node = replace(turned, attrs={**turned.attrs, **pairs})
    n, c, height, width = node.attrs["shape"]
    weight = node.op == "conv_weight"
    kernel = (height, width) if weight else node.inputs[1].shape[2:]
    every = tuple(node.attrs["stride"]) == (1, 1) and tuple(node.attrs["padding"]) == (0, 0)
    if tuple(kernel) != (1, 1) or not every:
        return node
    images, shape = ((0, 1), (n, c, 1, 1)) if weight else ((0,), (n, c, 1, height * width))
    node = _changed(node, _flat, images, shape) or node
    if weight and all(view.shape[2:] == (1, 1) for view in node.inputs):
        # Images of a single pixel: the sum runs over the images, so the images become the row.
        node = _changed(node, _images_as_row, images, shape) or node
    return node


def flat_epilogue(node: Node) -> Node | None:
    """The node as its epilogue may see it: with images of one row. Only the operands of the epilogue change. None if it
    uses a coordinate, or if a view does not allow it."""
    n, c, height, width = node.attrs["shape"]
    return _changed(node, _flat, (), (n, c, 1, height * width))


def product_of_pixels(node: Node) -> Node | None:
    """A convolution with one tap of images of one pixel, or its input gradient, as a product: [images, channels].
    Neighbouring results are neighbours in memory. None if the node is no such convolution."""
    x, w = node.inputs[:OWN]
    one = tuple(x.shape[2:]) == tuple(w.shape[2:]) == tuple(node.attrs["shape"][2:]) == (1, 1)
    if node.op == "conv_weight" or not one or node.attrs["groups"] > 1 or tuple(node.attrs["padding"]) != (0, 0):
        return None
    product = _changed(node, _without_pixel, (0, 1), tuple(node.attrs["shape"][:2]))
    if product is None or node.op == "conv_input":
        return product
    w = product.inputs[1]
    turned = View(w.tensor, w.shape[::-1], w.strides[::-1], w.offset)
    return replace(product, inputs=(product.inputs[0], turned, *product.inputs[OWN:]))


def _without_pixel(view: View) -> View:
    return View(view.tensor, view.shape[:2], view.strides[:2], view.offset)


def _changed(node: Node, change: Change, own: tuple[int, ...], shape: tuple[int, ...]) -> Node | None:
    """The node with `change` applied to its inputs `own` and to all operands that are read over its shape. None if one
    of them does not allow it, or if the epilogue uses a coordinate."""
    program = node.attrs.get("program", ())
    if any(i.op == "iota" or (i.op == "load" and i.params[1]) for i in program):
        return None
    moved = {i.params[0] for i in program if i.op == "load"} | set(own)
    inputs = [change(view) if i in moved else view for i, view in enumerate(node.inputs)]
    views = tuple(view for view in inputs if view is not None)
    if len(views) < len(inputs):
        return None
    return replace(node, inputs=views, attrs={**node.attrs, "shape": shape})


def _merged(view: View, d: int) -> View | None:
    """The view with dimensions d and d+1 merged; None if one stride cannot walk both."""
    (n, m), (s, t) = view.shape[d : d + 2], view.strides[d : d + 2]
    if n != 1 and m != 1 and s != t * m:
        return None
    shape = (*view.shape[:d], n * m, *view.shape[d + 2 :])
    strides = (*view.strides[:d], s if m == 1 else t, *view.strides[d + 2 :])
    return View(view.tensor, shape, strides, view.offset)


def _first_dropped(view: View) -> View:
    return View(view.tensor, view.shape[1:], view.strides[1:], view.offset)


def _turned(view: View) -> View:
    (n, c, h, w), (sn, sc, sh, sw) = view.shape, view.strides
    return View(view.tensor, (n, c, w, h), (sn, sc, sw, sh), view.offset)


def _flat(view: View) -> View | None:
    """[n, c, h, w] -> [n, c, 1, h*w]"""
    flat = _merged(view, 2)
    if flat is None:
        return None
    shape, strides = flat.shape, flat.strides
    return View(view.tensor, (*shape[:2], 1, shape[2]), (*strides[:2], 0, strides[2]), view.offset)


def _images_as_row(view: View) -> View:
    """[n, c, 1, 1] -> [1, c, 1, n]"""
    (n, c, _, _), (sn, sc, _, _) = view.shape, view.strides
    return View(view.tensor, (1, c, 1, n), (0, sc, 0, sn), view.offset)


def unit(view: View) -> View:
    """The view with stride 0 in dimensions of size 1. Their strides are arbitrary, and 0 keeps indices small."""
    strides = tuple(0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True))
    return View(view.tensor, view.shape, strides, view.offset)


def half_output(node: Node, graph: Graph) -> dict[str, int]:
    """The define for an output that is stored in halves, if the op has no epilogue."""
    half = "program" not in node.attrs and graph.tensors[node.outputs[0]].dtype == F16
    return {"OUT_HALF": 1} if half else {}


def within(node: Node, value: int, what: str) -> None:
    """Raises PlanError if `value` does not fit in the 32-bit integers of the kernels. `what` says what is counted."""
    if value > LIMIT:
        raise PlanError(
            f"{node.op} at {node.origin.path or 'the top level'} has {value} {what}, but kernels "
            f"count only to {LIMIT}. Try: a smaller batch"
        )


def within_reach(
    node: Node,
    image: View,
    rows: tuple[int, ...],
    step: tuple[int, ...],
    taps: tuple[int, ...],
    tap: tuple[int, ...],
    off: tuple[int, ...],
) -> None:
    """Raises PlanError if the index of a pixel that some output and some tap address does not fit in 32 bits. Pixels
    in the padding count too."""
    far = [abs(o) + n * s + t * abs(e) for o, n, s, t, e in zip(off, rows, step, taps, tap, strict=True)]
    sizes = (*image.shape[:2], *(max(n, f) for n, f in zip(image.shape[2:], far, strict=True)))
    total = abs(image.offset) + sum(n * abs(s) for n, s in zip(sizes, image.strides, strict=True))
    within(node, total, "as an index of its padded image")
