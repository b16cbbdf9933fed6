"""The signature of a node: everything that decides how fast it runs, as a short text. Tuning records use it as key.

    conv 32x64x8x8 64x64x3x3 > 32x64x8x8 padding=1x1 e2
    matmul 128x1024/1x128 1024x784 > 128x784 e0

A signature has, in this order:

    the op
    its own inputs: sizes; `/` and the strides if one is not dense; `+` if its start is not aligned;
                    `:` and the type if it is not f32
    `>` and the size of the output; `f16` if an output is stored in halves
    the attributes that differ from their default
    `e` and the base-2 logarithm of the epilogue's length, rounded up; or `p` and a checksum of the program

Nodes that differ only in names, tensors or constants have the same signature.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from handheld.graph.dtypes import F16, F32
from handheld.graph.graph import Attr, Graph, Node, View
from handheld.graph.ops import OPS

#: Elements in a vector of the widest registers.
ALIGNED = 16

_DEFAULTS: dict[str, Attr] = {
    "stride": (1, 1),
    "padding": (0, 0),
    "dilation": (1, 1),
    "groups": 1,
    "axes": (),
    "causal": False,
    "masked": False,
    "dropout": 0.0,
}
#: Attributes that other words already describe, or that do not change the speed.
_LEFT_OUT = ("shape", "program", "stores", "scale", "key")


def signature(node: Node, graph: Graph) -> str:
    """Returns the signature of a node."""
    op, attrs = OPS[node.op], node.attrs
    words = [node.op, *(_view(view, graph) for view in node.inputs[: op.inputs])]
    if "shape" in attrs:
        words += [">", _sizes(attrs["shape"])]
    if any(graph.tensors[out].dtype == F16 for out in node.outputs):
        words.append(F16)
    for name in (*op.attrs, *(name for name in op.optional if name in attrs)):
        if name not in _LEFT_OUT and attrs[name] != _DEFAULTS.get(name):
            words.append(f"{name}={_value(attrs[name])}")
    if op.epilogue:
        words.append(f"e{(len(attrs['program']) - 1).bit_length()}")
    elif "program" in attrs:
        text = repr([(i.op, i.dtype, i.args) for i in node.program] + [(s.position, s.full) for s in node.stores])
        words.append(f"p{zlib.crc32(text.encode()):08x}")
    return " ".join(words)


def _view(view: View, graph: Graph) -> str:
    dtype = graph.tensors[view.tensor].dtype
    text = _sizes(view.shape)
    if not replace(view, offset=0).is_contiguous:
        # The stride of a dimension of size 1 is never used.
        text += "/" + _sizes([s if n > 1 else 0 for n, s in zip(view.shape, view.strides, strict=True)])
    return text + "+" * (view.offset % ALIGNED != 0) + (f":{dtype}" if dtype != F32 else "")


def _sizes(sizes: Sequence[int]) -> str:
    return "x".join(str(n) for n in sizes) or "1"


def _value(value: float | str | Sequence[int]) -> str:
    return _sizes([int(n) for n in value]) if isinstance(value, (tuple, list)) else str(value)
