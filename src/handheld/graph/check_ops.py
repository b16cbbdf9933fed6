"""The rules of each op except map and reduce: shapes, types, density and ranges of attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from handheld.errors import GraphError
from handheld.graph.dtypes import BOOL, DTYPES, F16, F32, I32
from handheld.graph.graph import Graph, Node, View

LIMIT = 2**31 - 1  # Kernels use 32-bit integers as indices.

Rule = Callable[[Graph, Node], None]


def need(condition: bool, message: str) -> None:
    if not condition:
        raise GraphError(message)


def check_view(graph: Graph, view: View) -> None:
    """Checks that a view stays inside its tensor."""
    need(view.tensor in graph.tensors, f"reads tensor {view.tensor}, which does not exist")
    well_formed(view)
    if math.prod(view.shape) == 0:
        return
    spans = [(n - 1) * s for n, s in zip(view.shape, view.strides, strict=False)]
    low = view.offset + sum(s for s in spans if s < 0)
    high = view.offset + sum(s for s in spans if s > 0)
    size = graph.tensors[view.tensor].size
    need(low >= 0 and high < size, f"a view reads [{low}, {high}] of a tensor of {size} elements")


def well_formed(view: View) -> None:
    """Checks that a view has as many strides as sizes and that a kernel can hold every number."""
    need(len(view.shape) == len(view.strides), f"malformed view {view.shape}, {view.strides}")
    need(
        all(0 <= n <= LIMIT for n in view.shape) and math.prod(view.shape) <= LIMIT,
        f"a view of {view.shape} needs more than 32-bit indices",
    )
    need(
        all(abs(s) <= LIMIT for s in (*view.strides, view.offset)),
        f"strides {view.strides} or offset {view.offset} need more than 32 bits",
    )


def _types(graph: Graph, node: Node, inputs: str, outputs: str) -> None:
    """Checks the types of the op's own inputs and of its outputs.

    The expected types are separated by spaces; `?` is any type, `float` is f32 or f16.
    """
    tensors = [view.tensor for view in node.inputs], node.outputs
    for what, actual, expected in zip(("input", "output"), tensors, (inputs, outputs), strict=False):
        for i, (tensor, kind) in enumerate(zip(actual, expected.split(), strict=False)):
            dtype = graph.tensors[tensor].dtype
            right = DTYPES[dtype].is_float if kind == "float" else kind in ("?", dtype)
            need(right, f"{what} {i} is {dtype}, not {kind.replace('float', F32)}")


def _dense(node: Node) -> None:
    for i, view in enumerate(node.inputs):
        need(view.is_contiguous, f"input {i} is not dense")


def _sizes(graph: Graph, node: Node, size: int) -> None:
    for out in node.outputs:
        actual = graph.tensors[out].size
        need(actual == size, f"output {out} has {actual} elements, not {size}")


def _shape(node: Node, rank: int) -> tuple[int, ...]:
    shape: tuple[int, ...] = tuple(node.attrs["shape"])
    need(len(shape) == rank, f"shape {shape} does not have {rank} dimensions")
    need(min(shape) >= 0 and math.prod(shape) <= LIMIT, f"shape {shape} is out of range")
    return shape


def _pairs(node: Node, **least: int) -> None:
    """Checks that each named attribute is two numbers of at least the given value."""
    for key, low in least.items():
        values = tuple(node.attrs[key])
        need(
            len(values) == 2 and all(low <= v <= LIMIT for v in values),
            f"{key} {values} is not two numbers of at least {low}",
        )


def _mode(node: Node, *known: str) -> None:
    mode = node.attrs["mode"]
    need(mode in known, f"unknown mode {mode!r}, not one of {', '.join(known)}")


def _matmul(graph: Graph, node: Node) -> None:
    _types(graph, node, "float float", "")
    a, b, shape = node.inputs[0].shape, node.inputs[1].shape, tuple(node.attrs["shape"])
    need(len(a) == len(b) == len(shape) >= 2, "operands of different rank")
    need(
        a[:-1] == shape[:-1] and b[:-2] == shape[:-2] and b[-1] == shape[-1] and a[-1] == b[-2],
        f"{a} @ {b} is not {shape}",
    )


def _conv(graph: Graph, node: Node) -> None:
    _types(graph, node, "float float", "float" if node.op == "conv_weight" else "")
    _pairs(node, stride=1, padding=0, dilation=1)
    a, b, out = node.inputs[0].shape, node.inputs[1].shape, _shape(node, 4)
    need(len(a) == len(b) == 4, "convolution operands must have four dimensions")
    x, w, y = {"conv": (a, b, out), "conv_input": (out, b, a), "conv_weight": (b, out, a)}[node.op]
    groups = node.attrs["groups"]
    need(
        0 < groups <= LIMIT and x[1] == w[1] * groups and w[0] == y[1] and w[0] % groups == 0 and x[0] == y[0],
        f"shapes {x} * {w} -> {y} with {groups} groups do not fit",
    )
    for i in (0, 1):
        stride, pad, dilation = (node.attrs[k][i] for k in ("stride", "padding", "dilation"))
        most = (x[2 + i] + 2 * pad - dilation * (w[2 + i] - 1) - 1) // stride + 1
        need(y[2 + i] <= max(most, 0), f"output {y} is too large for {x} * {w}")
    if node.op == "conv_weight":
        _sizes(graph, node, math.prod(out))


def _pool(graph: Graph, node: Node) -> None:
    largest, forward = node.op.startswith("max"), not node.op.endswith("grad")
    if forward:
        _types(graph, node, "float", "float i32")
    else:
        _types(graph, node, "float i32", "float")
    attrs, shape = node.attrs, _shape(node, 4)
    given = node.inputs[0].shape
    for view in node.inputs:
        need(len(view.shape) == 4 and view.shape == given, "inputs must have equal shapes of rank 4")
    x, y = (given, shape) if forward else (shape, given)
    need(x[:2] == y[:2], f"images {x} and windows {y} differ in number")
    if not largest:
        need(abs(attrs["divisor"]) <= LIMIT, f"divisor {attrs['divisor']} is out of range")
    if not attrs.get("adaptive", False):
        _pairs(node, kernel=1, stride=1, padding=0, **({"dilation": 1} if largest else {}))
        _windows(node, x[2:], y[2:])
    _sizes(graph, node, math.prod(shape))


def _windows(node: Node, image: tuple[int, ...], windows: tuple[int, ...]) -> None:
    """Checks that every window begins inside the padded image. It may end outside."""
    for i in (0, 1):
        kernel, stride, pad = (node.attrs[k][i] for k in ("kernel", "stride", "padding"))
        dilation = node.attrs["dilation"][i] if "dilation" in node.attrs else 1
        most = -(-(image[i] + 2 * pad - dilation * (kernel - 1) - 1) // stride) + 1
        need(windows[i] <= max(most, 0), f"{image} has no room for {windows} windows")


def _scatter(graph: Graph, node: Node) -> None:
    _mode(node, "add", "set")
    count = 3 if node.attrs["base"] else 2
    need(len(node.inputs) == count, f"has {len(node.inputs)} inputs but needs {count}")
    dtype = graph.tensors[node.outputs[0]].dtype
    need(dtype != F16, "a scatter of f16 is not defined")
    _types(graph, node, f"i32 {dtype} {dtype}", dtype)
    shape = outer, _, inner = _shape(node, 3)
    index, src = node.inputs[0].shape, node.inputs[1].shape
    need(
        len(index) == 3 and index == src and (index[0], index[2]) == (outer, inner),
        f"index {index} and source {src} do not fit {shape}",
    )
    for base in node.inputs[2:]:
        need(base.shape == shape, f"base {base.shape} is not {shape}")
    _sizes(graph, node, math.prod(shape))


def _assign(graph: Graph, node: Node) -> None:
    base, value = node.inputs
    out = graph.tensors[node.outputs[0]]
    _types(graph, node, f"{out.dtype} {out.dtype}", "?")
    need(base.is_contiguous, "base is not dense")
    _sizes(graph, node, base.size)
    shape, strides = tuple(node.attrs["region_shape"]), tuple(node.attrs["region_strides"])
    need(value.shape == shape, f"value {value.shape} is not the region's {shape}")
    check_view(graph, View(out.id, shape, strides, node.attrs["region_offset"]))
    need(_apart(shape, strides), f"region {shape} with strides {strides} overlaps itself")


def _apart(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether each stride exceeds the reach of all smaller ones, as in every slice of a dense tensor."""
    dims = sorted((abs(s), n) for n, s in zip(shape, strides, strict=False) if n > 1)
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            return 0 in shape
        reach += (size - 1) * stride
    return True


def _ordered(graph: Graph, node: Node) -> None:
    """Checks scan and sort: one dense input of numbers."""
    (x,) = node.inputs
    dtype = graph.tensors[x.tensor].dtype
    need(dtype in (F32, I32), f"{node.op} of {dtype} is not defined")
    rank = 3 if node.op == "scan" else 2
    need(len(x.shape) == rank, f"input {x.shape} does not have {rank} dimensions")
    _dense(node)
    _types(graph, node, "?", f"{dtype} i32")
    _sizes(graph, node, x.size)
    if node.op == "scan":
        _mode(node, "add", "mul", "max", "min")


#: Op -> shapes of inputs, shapes of outputs, number of gates. Letters are sizes: t steps, b batch, h hidden, G all
#: gates, S what gru saves. The last input always has the shape "bh".
_RECURRENT: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "lstm": ("tbG Gh bh bh", "tbh tbh tbG", 4),
        "lstm_grad": ("tbh bh bh Gh tbh tbG bh", "tbG bh bh", 4),
        "gru": ("tbG Gh G bh", "tbh tbS", 3),
        "gru_grad": ("tbh bh Gh tbh tbS bh", "tbG tbG bh", 3),
    }
)


def _recurrent(graph: Graph, node: Node) -> None:
    inputs, outputs, gates = _RECURRENT[node.op]
    first, last = node.inputs[0].shape, node.inputs[-1].shape
    need(len(first) == 3 and len(last) == 2, f"inputs {first} ... {last} have wrong ranks")
    batch, hidden = last
    sizes = {"t": first[0], "b": batch, "h": hidden, "G": gates * hidden, "S": 4 * hidden}
    _dense(node)
    _types(graph, node, "f32 " * len(node.inputs), "f32 " * len(node.outputs))
    shapes = [view.shape for view in node.inputs] + [graph.tensors[t].shape for t in node.outputs]
    for shape, letters in zip(shapes, (*inputs.split(), *outputs.split()), strict=False):
        expected = tuple(sizes[letter] for letter in letters)
        need(shape == expected, f"an operand is {shape} where [{', '.join(letters)}] is {expected}")


def _attention(graph: Graph, node: Node) -> None:
    attrs, grad = node.attrs, node.op == "attention_grad"
    drops, masked = attrs["dropout"] > 0, bool(attrs["masked"])
    need(math.isfinite(attrs["scale"]), f"scale {attrs['scale']} is not finite")
    need(0 <= attrs["dropout"] <= 1, f"dropout {attrs['dropout']} is not in [0, 1]")
    need(0 <= attrs["key"] <= LIMIT, f"random key {attrs['key']} needs more than 31 bits")
    own = 6 if grad else 3
    count = own + masked + 2 * drops
    need(len(node.inputs) == count, f"has {len(node.inputs)} inputs but needs {count}")
    views = [view.shape for view in node.inputs]
    q, k, v = views[1:4] if grad else views[:3]
    need(len(q) == len(k) == len(v) == 4, "queries, keys and values must have four dimensions")
    (b, h, n, d), (_, g, s, _), e = q, k, v[3]
    need(
        k == (b, g, s, d) and v == (b, g, s, e) and (h % g == 0 if g else h == 0),
        f"queries {q}, keys {k} and values {v} do not fit",
    )
    need(min(s, d, e) > 0, f"there are no keys in {k} or values in {v}")
    need(b * h * n * s <= LIMIT or not drops, f"{b * h * n * s} probabilities need more than 32-bit indices")
    expected = [(b, h, n, e), q, k, v, (b, h, n, e), (b, h, n)] if grad else [q, k, v]
    expected += [(b, h, n, s)] * masked + [()] * (2 * drops)
    expected += [(b, n, h, d), (b, s, g, d), (b, s, g, e)] if grad else [(b, n, h, e), (b, h, n)]
    actual = [*views, *(graph.tensors[t].shape for t in node.outputs)]
    for shape, right in zip(actual, expected, strict=False):
        need(shape == right, f"an operand is {shape}, not {right}")
    kind = graph.tensors[node.inputs[own].tensor].dtype if masked else ""
    need(kind in ("", F32, BOOL), f"the mask is {kind}, not f32 or bool")
    stored = graph.tensors[node.inputs[0].tensor].dtype  # Either all of them are f16 or none is.
    need(DTYPES[stored].is_float, f"input 0 is {stored}, not f32")
    _types(
        graph,
        node,
        f"{stored} " * (own - grad) + "f32 " * grad + kind + " i32 i32" * drops,
        f"{stored} " * 3 if grad else f"{stored} f32",
    )
    for view in (*node.inputs[5:own], *node.inputs[own + masked :]):
        need(view.is_contiguous, "lse, seed or step is not dense")


def _ctc(graph: Graph, node: Node) -> None:
    grad = node.op == "ctc_grad"
    logp, targets = (view.shape for view in node.inputs[grad : grad + 2])
    need(len(logp) == 3 and len(targets) == 2, f"log-probabilities {logp} or targets {targets} have wrong ranks")
    steps, samples, classes = logp
    need(steps > 0 and classes > 0, f"there are no steps or no classes in {logp}")
    need(0 <= node.attrs["blank"] < classes, f"blank {node.attrs['blank']} is not one of {classes} classes")
    expected = [(samples,)] * grad + [logp, (samples, targets[1]), (samples,), (samples,), logp if grad else (samples,)]
    actual = [*(view.shape for view in node.inputs), graph.tensors[node.outputs[0]].shape]
    for shape, right in zip(actual, expected, strict=True):
        need(shape == right, f"an operand is {shape}, not {right}")
    _dense(node)
    _types(graph, node, f"{F32} " * grad + f"{F32} {I32} {I32} {I32}", F32)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "matmul": _matmul,
        "conv": _conv,
        "conv_input": _conv,
        "conv_weight": _conv,
        "max_pool": _pool,
        "max_pool_grad": _pool,
        "avg_pool": _pool,
        "avg_pool_grad": _pool,
        "scatter": _scatter,
        "assign": _assign,
        "scan": _ordered,
        "sort": _ordered,
        "lstm": _recurrent,
        "lstm_grad": _recurrent,
        "gru": _recurrent,
        "gru_grad": _recurrent,
        "attention": _attention,
        "attention_grad": _attention,
        "ctc": _ctc,
        "ctc_grad": _ctc,
    }
)
