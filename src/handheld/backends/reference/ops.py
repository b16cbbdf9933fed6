"""Computes every op of graph/ops.py in plain PyTorch, in float32 or float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional as F

from handheld.backends.reference import attention, ctc, rnn
from handheld.backends.reference.programs import TorchArrays, strided
from handheld.errors import GraphError
from handheld.graph import interpret
from handheld.graph.graph import Graph, Node
from handheld.graph.ops import OPS

T = torch.Tensor
Attrs = Mapping[str, Any]


@torch.no_grad()
def run_node(
    node: Node,
    graph: Graph,
    values: dict[int, torch.Tensor],
    float_dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, ...]:
    """Returns the outputs of a node. They are dense and share no memory with other tensors.

    `values` holds each input tensor, dense and with its shape in the graph (f32 as `float_dtype`).
    """
    arrays, attrs = TorchArrays(values, float_dtype, device), node.attrs
    if node.op in ("map", "reduce"):
        space = interpret.Space(attrs["shape"], attrs["axes"], node.inputs, arrays)
        results: Sequence[T] = interpret.run(node.program, node.stores, space)
    elif node.op in _OPS:
        own = [arrays.view(view) for view in node.inputs[: OPS[node.op].inputs]]
        if attrs.get("arithmetic") == "half" and float_dtype == torch.float32:
            own = [x.to(torch.float16).to(float_dtype) for x in own]
        results = _OPS[node.op](attrs, *own)
        if OPS[node.op].epilogue:
            space = interpret.Space(attrs["shape"], (), node.inputs, arrays, results[0])
            results = interpret.run(node.program, node.stores, space)
    else:
        raise GraphError(f"unknown op {node.op!r}")
    return _outputs(node, graph, arrays, results)


def _outputs(node: Node, graph: Graph, arrays: TorchArrays, results: Sequence[T]) -> tuple[T, ...]:
    taken = {arrays.values[v.tensor].untyped_storage().data_ptr() for v in node.inputs}
    outputs = []
    for tensor_id, result in zip(node.outputs, results, strict=True):
        tensor = graph.tensors[tensor_id]
        out = arrays.cast(result, tensor.dtype).contiguous()
        if out.untyped_storage().data_ptr() in taken:
            out = out.clone()
        taken.add(out.untyped_storage().data_ptr())
        outputs.append(out.reshape(tensor.shape))
    return tuple(outputs)


def _matmul(attrs: Attrs, a: T, b: T) -> tuple[T]:
    return (torch.matmul(a, b),)


def _exact(x: T) -> AbstractContextManager[None]:
    """Makes cuDNN compute full float32 products, with a fixed order of sums."""
    if x.device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)


def _conv(attrs: Attrs, x: T, w: T) -> tuple[T]:
    shape = attrs["shape"]
    if 0 in (*x.shape, *w.shape, *shape):
        return (x.new_zeros(shape),)
    with _exact(x):
        y = F.conv2d(x, w, None, attrs["stride"], attrs["padding"], attrs["dilation"], attrs["groups"])
    return (y[:, :, : shape[2], : shape[3]],)


def _conv_input(attrs: Attrs, dy: T, w: T) -> tuple[T]:
    shape = attrs["shape"]
    if 0 in (*dy.shape, *w.shape, *shape):
        return (dy.new_zeros(shape),)
    return (_conv_backward(attrs, dy, dy.new_empty(shape), w, 0),)


def _conv_weight(attrs: Attrs, dy: T, x: T) -> tuple[T]:
    shape = attrs["shape"]
    if 0 in (*dy.shape, *x.shape, *shape):
        return (dy.new_zeros(shape),)
    return (_conv_backward(attrs, dy, x, dy.new_empty(shape), 1),)


def _conv_backward(attrs: Attrs, dy: T, x: T, w: T, which: int) -> T:
    stride, padding, dilation = attrs["stride"], attrs["padding"], attrs["dilation"]
    full = [(x.shape[2 + i] + 2 * padding[i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    with _exact(x):
        grads = torch.ops.aten.convolution_backward(
            _grow(dy, full).contiguous(),
            x.contiguous(),
            w.contiguous(),
            None,
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            attrs["groups"],
            [which == 0, which == 1, False],
        )
    out: T = grads[which]
    return out


def _grow(dy: T, size: Sequence[int]) -> T:
    """Pads with zeros for the outputs of a convolution or pooling that the graph leaves out."""
    return F.pad(dy, (0, size[1] - dy.shape[3], 0, size[0] - dy.shape[2]))


def _pooled(attrs: Attrs, image: Sequence[int], ceil: bool) -> list[int]:
    """Returns the output height and width of PyTorch's pooling of this image."""
    sizes = []
    for i in (0, 1):
        k, s, p = attrs["kernel"][i], attrs["stride"][i], attrs["padding"][i]
        span = image[i] + 2 * p - attrs.get("dilation", (1, 1))[i] * (k - 1) - 1
        n = -(-span // s) + 1 if ceil else span // s + 1
        sizes.append(n - 1 if ceil and (n - 1) * s >= image[i] + p else n)
    return sizes


def _needs_ceil(attrs: Attrs, image: Sequence[int], out: Sequence[int]) -> bool:
    return any(want > floor for want, floor in zip(out, _pooled(attrs, image, False), strict=True))


def _max_pool(attrs: Attrs, x: T) -> tuple[T, T]:
    h, w = attrs["shape"][2:]
    if 0 in (*x.shape, *attrs["shape"]):
        return x.new_zeros(attrs["shape"]), x.new_zeros(attrs["shape"], dtype=torch.int32)
    if attrs["adaptive"]:
        y, index = torch.ops.aten.adaptive_max_pool2d(x, [h, w])
    else:
        y, index = torch.ops.aten.max_pool2d_with_indices(
            x,
            attrs["kernel"],
            attrs["stride"],
            attrs["padding"],
            attrs["dilation"],
            _needs_ceil(attrs, x.shape[2:], (h, w)),
        )
    return y[:, :, :h, :w], index[:, :, :h, :w]


def _max_pool_grad(attrs: Attrs, dy: T, index: T) -> tuple[T]:
    n, c, h, w = attrs["shape"]
    dx = dy.new_zeros(n, c, h * w)
    return (dx.scatter_add_(2, index.flatten(2).long(), dy.flatten(2)),)


def _avg_pool(attrs: Attrs, x: T) -> tuple[T]:
    h, w = attrs["shape"][2:]
    if 0 in (*x.shape, *attrs["shape"]):
        return (x.new_zeros(attrs["shape"]),)
    y: T = torch.ops.aten.avg_pool2d(
        x,
        attrs["kernel"],
        attrs["stride"],
        attrs["padding"],
        _needs_ceil(attrs, x.shape[2:], (h, w)),
        attrs["count_pad"],
        attrs["divisor"] or None,
    )
    return (y[:, :, :h, :w],)


def _avg_pool_grad(attrs: Attrs, dy: T) -> tuple[T]:
    shape = attrs["shape"]
    if 0 in (*dy.shape, *shape):
        return (dy.new_zeros(shape),)
    ceil = _needs_ceil(attrs, shape[2:], dy.shape[2:])
    dy = _grow(dy, _pooled(attrs, shape[2:], ceil))
    return (
        torch.ops.aten.avg_pool2d_backward(
            dy,
            dy.new_empty(shape),
            attrs["kernel"],
            attrs["stride"],
            attrs["padding"],
            ceil,
            attrs["count_pad"],
            attrs["divisor"] or None,
        ),
    )


def _scatter(attrs: Attrs, index: T, src: T, base: T | None = None) -> tuple[T]:
    o, v, i = attrs["shape"]
    start = src.new_zeros(o, v, i) if base is None else base
    where = torch.where(index < 0, v, index).long()  # Row v collects the ignored elements.
    room = torch.cat((start, start.new_zeros(o, 1, i)), dim=1)
    if attrs["mode"] == "add":
        return (room.scatter_add(1, where, src)[:, :v],)
    if src.numel() == 0:
        return (start,)
    order = torch.arange(src.shape[1], device=src.device)[None, :, None].expand_as(where)
    none = torch.full_like(room, -1, dtype=torch.int64)
    # If several elements have the same target, the last one wins.
    winner = none.scatter_reduce(1, where, order, "amax")[:, :v]
    return (torch.where(winner >= 0, src.gather(1, winner.clamp(min=0)), start),)


def _assign(attrs: Attrs, base: T, value: T) -> tuple[T]:
    shape, strides = attrs["region_shape"], attrs["region_strides"]
    out = base.contiguous().clone()
    if value.numel():
        back = [d for d, s in enumerate(strides) if s < 0]
        offset = attrs["region_offset"] + sum((shape[d] - 1) * strides[d] for d in back)
        region = strided(out.reshape(-1), shape, [abs(s) for s in strides], offset)
        region.copy_(value.reshape(shape).flip(back))
    return (out,)


def _scan(attrs: Attrs, x: T) -> tuple[T]:
    if x.numel() == 0:
        return (x.clone(),)
    run: Callable[[T], T] = {
        "add": lambda x: x.cumsum(1, dtype=x.dtype),
        "mul": lambda x: x.cumprod(1, dtype=x.dtype),
        "max": lambda x: x.cummax(1).values,
        "min": lambda x: x.cummin(1).values,
    }[attrs["mode"]]
    return (run(x.flip(1)).flip(1) if attrs["reverse"] else run(x),)


def _sort(attrs: Attrs, x: T) -> tuple[T, ...]:
    return tuple(torch.sort(x, dim=-1, stable=True, descending=attrs["descending"]))


def _rnn(run: Callable[..., tuple[T, ...]]) -> Callable[..., tuple[T, ...]]:
    return lambda attrs, *inputs: run(inputs, attrs["reverse"])


#: Every op except map and reduce. An op with an epilogue returns `acc`.
_OPS: dict[str, Callable[..., tuple[T, ...]]] = {
    "matmul": _matmul,
    "conv": _conv,
    "conv_input": _conv_input,
    "conv_weight": _conv_weight,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool_grad,
    "avg_pool": _avg_pool,
    "avg_pool_grad": _avg_pool_grad,
    "scatter": _scatter,
    "assign": _assign,
    "scan": _scan,
    "sort": _sort,
    "lstm": _rnn(rnn.lstm),
    "lstm_grad": _rnn(rnn.lstm_grad),
    "gru": _rnn(rnn.gru),
    "gru_grad": _rnn(rnn.gru_grad),
    "attention": attention.attention,
    "attention_grad": attention.attention_grad,
    "ctc": ctc.ctc,
    "ctc_grad": ctc.ctc_grad,
}
