"""Runs a PyTorch model layer by layer in another framework.

`Walk(model)` traces the module once. A peer passes an object with one method per layer that it supports
(`conv`, `linear`, `batch_norm` ...; see `LAYERS`), and the walk calls these methods in order. So one
description of a model, with PyTorch's weights, serves all peers. Parameters are passed by name:
`conv(x, "conv1.weight", ...)` says which one to read.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional as F

#: method of a peer -> its arguments and what it computes; w, b and name are names of parameters
LAYERS = {
    "conv": "(x, w, b, stride, padding, groups), b may be None",
    "linear": "(x, w, b)",
    "batch_norm": "(x, name, eps, momentum): with the batch's statistics; updates the running ones",
    "layer_norm": "(x, w, b, eps)",
    "embedding": "(x, w)",
    "lstm": "(x, name, layers), batch first",
    "attention": "(q, k, v): softmax(q kᵀ / √width) v",
    "max_pool": "(x, kernel, stride, padding, ceil)",
    "mean_pool": "(x): the mean of each plane, [n, c, 1, 1]",
    "dropout": "(x, p)",
    "relu": "(x)",
    "relu6": "(x)",
    "gelu": "(x)",
    "flatten": "(x, start)",
    "cat": "(xs, axis)",
    "permute": "(x, axes)",
    "reshape": "(x, shape)",
    "unbind": "(x, axis)",
    "transpose": "(x, a, b)",
    "read": "(name): a parameter itself",
    "cross_entropy": "(scores, target): the mean over all positions",
}

#: functions that work on every framework's tensors, or on sizes
PLAIN = {operator.add, operator.getitem, operator.floordiv, getattr}


class NotWritten(Exception):
    """The peer has no such layer, so the pair is not compared."""


class Walk:
    def __init__(self, model: nn.Module, dropout: bool = True) -> None:
        self.dropout = dropout
        try:
            self.traced = fx.symbolic_trace(model)
        except Exception as error:
            raise NotWritten(f"the model cannot be traced: {error}") from None
        self.modules = dict(self.traced.named_modules())
        self.parameters = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
        self.buffers = {n: b.numpy().copy() for n, b in model.named_buffers() if b.dtype == torch.float32}

    def __call__(self, peer: Any, x: Any) -> Any:
        """The model's output, computed layer by layer by the peer."""
        known: dict[fx.Node, Any] = {}
        for node in self.traced.graph.nodes:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            if node.op == "placeholder":
                known[node] = x
            elif node.op == "get_attr":
                known[node] = layer(peer, "read")(node.target)
            elif node.op == "call_module":
                known[node] = self.module(peer, node.target, *args)
            elif node.op == "output":
                return args[0]
            else:
                known[node] = call(peer, node.target, args, kwargs)
        raise AssertionError("a traced graph ends in its output")

    def module(self, peer: Any, name: str, x: Any) -> Any:
        m = self.modules[name]
        w, b = f"{name}.weight", f"{name}.bias" if getattr(m, "bias", None) is not None else None
        if isinstance(m, nn.Conv2d):
            assert m.dilation == (1, 1) and m.padding_mode == "zeros"
            return layer(peer, "conv")(x, w, b, m.stride, m.padding, m.groups)
        if isinstance(m, nn.Linear):
            return layer(peer, "linear")(x, w, b)
        if isinstance(m, nn.BatchNorm2d):
            return layer(peer, "batch_norm")(x, name, m.eps, m.momentum)
        if isinstance(m, nn.LayerNorm):
            return layer(peer, "layer_norm")(x, w, b, m.eps)
        if isinstance(m, nn.Embedding):
            return layer(peer, "embedding")(x, w)
        if isinstance(m, nn.LSTM):
            return layer(peer, "lstm")(x, name, m.num_layers), None
        if isinstance(m, nn.MaxPool2d):
            return pool(peer, x, m.kernel_size, m.stride, m.padding, m.ceil_mode)
        if isinstance(m, nn.Dropout):
            return layer(peer, "dropout")(x, m.p) if m.p and self.dropout else x
        if isinstance(m, nn.Flatten):
            return layer(peer, "flatten")(x, m.start_dim)
        if isinstance(m, (nn.ReLU, nn.ReLU6)):
            return layer(peer, type(m).__name__.lower())(x)
        if isinstance(m, nn.Identity):
            return x
        raise NotWritten(type(m).__name__)


def call(peer: Any, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function or a method of a tensor."""
    if target in PLAIN:
        return target(*args, **kwargs)
    if target is F.relu or target is F.gelu:
        return layer(peer, target.__name__)(args[0])
    if target is F.max_pool2d:
        stride = kwargs["stride"] or args[1]
        return pool(peer, args[0], args[1], stride, kwargs["padding"], kwargs["ceil_mode"])
    if target is F.adaptive_avg_pool2d and args[1] == 1:
        return layer(peer, "mean_pool")(args[0])
    if target is F.scaled_dot_product_attention and len(args) == 3:
        return layer(peer, "attention")(*args)
    if target is torch.cat:
        return layer(peer, "cat")(list(args[0]), args[1])
    if target in ("flatten", "unbind", "transpose"):
        return layer(peer, target)(*args)
    if target in ("view", "reshape", "permute"):
        sizes = tuple(args[1:])
        return layer(peer, "permute" if target == "permute" else "reshape")(args[0], sizes)
    raise NotWritten(str(target))


def pool(peer: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool) -> Any:
    sides = [(s, s) if isinstance(s, int) else tuple(s) for s in (kernel, stride, padding)]
    return layer(peer, "max_pool")(x, *sides, ceil)


def layer(peer: Any, name: str) -> Any:
    assert name in LAYERS, name
    method = getattr(peer, name, None)
    if method is None:
        raise NotWritten(name)
    return method


def host(batch: tuple[torch.Tensor, ...]) -> list[np.ndarray[Any, Any]]:
    """A batch as peers receive it: NumPy arrays, with int64 as int32."""
    return [t.numpy().astype(np.int32) if t.dtype == torch.int64 else t.numpy() for t in batch]
