"""The vocabulary of a graph: 22 ops, each with its exact meaning. There are no other ops.

`x[n, c, h, w]` is a view with these dimensions in this order. It may have any strides, unless the text says
"dense". program.py explains `program` and `stores`.

An op with an epilogue computes `acc` at each point of its output and then runs `program` there. The operands of
the program are the inputs after the op's own, as views over the shape of the output. `stores` names the
instruction whose value each output gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Op:
    """An op: how many inputs and outputs it has (None: any number), its attributes and its meaning.

    `inputs` counts the op's own inputs. More inputs may follow only if the op has an epilogue.
    """

    name: str
    inputs: int | None
    outputs: int | None
    attrs: tuple[str, ...]
    doc: str
    epilogue: bool = False
    #: Attributes that may be missing.
    optional: tuple[str, ...] = ()


_CONV = ("stride", "padding", "dilation", "groups")
_EPILOGUE = ("program", "stores")
#: `arithmetic` "half": operands are rounded to halves, and a device may add a few products in halves.
_ARITHMETIC = ("arithmetic",)
_ATTENTION = ("scale", "causal", "masked", "dropout", "key")

_OPS = (
    Op(
        "map",
        None,
        None,
        ("shape", "axes", "program", "stores"),
        "Pointwise: runs `program` at every point of `shape`. `axes` is (). Every output is dense over "
        "`shape`, and every store is full.",
    ),
    Op(
        "reduce",
        None,
        None,
        ("shape", "axes", "program", "stores"),
        "Like map, with reductions over the dimensions `axes`. The output of a full store is dense over "
        "`shape`; that of any other store is dense over the dimensions that are not in `axes`. A "
        "reduction over no elements gives its neutral element.",
    ),
    Op(
        "matmul",
        2,
        None,
        ("shape", *_EPILOGUE),
        "acc[..., m, n] = sum over k of a[..., m, k] * b[..., k, n]; the leading dimensions of "
        "both equal those of `shape`.",
        epilogue=True,
        optional=_ARITHMETIC,
    ),
    Op(
        "conv",
        2,
        None,
        (*_CONV, "shape", *_EPILOGUE),
        "x[n, c, h, w], w[k, c/groups, r, s]: acc[n, k, p, q] = sum over c, r, s of "
        "x[n, c, p*stride - padding + r*dilation, ...] * w[k, c, r, s]; x is 0 outside its bounds.",
        epilogue=True,
        optional=_ARITHMETIC,
    ),
    Op(
        "conv_input",
        2,
        None,
        (*_CONV, "shape", *_EPILOGUE),
        "dy[n, k, p, q], w[k, c/groups, r, s]: the adjoint of conv in x, with acc of `shape` "
        "[n, c, h, w]. Also the forward of a transposed convolution.",
        epilogue=True,
        optional=_ARITHMETIC,
    ),
    Op(
        "conv_weight",
        2,
        1,
        (*_CONV, "shape"),
        "dy[n, k, p, q], x[n, c, h, w]: the adjoint of conv in w, dense of `shape` [k, c/groups, r, s].",
        optional=_ARITHMETIC,
    ),
    Op(
        "max_pool",
        1,
        2,
        ("kernel", "stride", "padding", "dilation", "adaptive", "shape"),
        "x[n, c, h, w] -> the largest value of each window and its position h*W + w in the plane "
        "(i32; the first of equal values; a NaN counts as the largest). `adaptive`: window i of H -> O is "
        "[floor(i*H/O), ceil((i+1)*H/O)) and kernel, stride, padding, dilation are unused.",
    ),
    Op(
        "max_pool_grad",
        2,
        1,
        ("kernel", "stride", "padding", "dilation", "adaptive", "shape"),
        "dy[n, c, p, q], index[n, c, p, q] -> dx of `shape` [n, c, h, w]: the sum of dy over the "
        "windows whose largest value is this pixel.",
    ),
    Op(
        "avg_pool",
        1,
        1,
        ("kernel", "stride", "padding", "count_pad", "divisor", "shape"),
        "x[n, c, h, w] -> mean of each window. The divisor is `divisor` if not 0, else the "
        "window's size clipped to the padded image (`count_pad`) or to the image.",
    ),
    Op(
        "avg_pool_grad",
        1,
        1,
        ("kernel", "stride", "padding", "count_pad", "divisor", "shape"),
        "dy[n, c, p, q] -> dx of `shape` [n, c, h, w], the adjoint of avg_pool.",
    ),
    Op(
        "scatter",
        None,
        1,
        ("mode", "base", "shape"),
        "index[o, k, i] (i32), src[o, k, i], and if `base` a third input base[o, v, i]. The output "
        "is base (or zeros) of `shape` [o, v, i] with, for each k in order, "
        "out[o, index[o, k, i], i] += src (`mode` add) or = src (`mode` set). A view of stride 0 "
        "applies one index to a whole row. Negative indices are ignored.",
    ),
    Op(
        "assign",
        2,
        1,
        ("region_shape", "region_strides", "region_offset"),
        "base (dense), value -> base with one region replaced by value. The region is a view of base that "
        "does not overlap itself.",
    ),
    Op(
        "scan",
        1,
        1,
        ("mode", "reverse"),
        "x[o, n, i] (dense) -> inclusive running `mode` (add, mul, max, min) over n; `reverse` starts at the end.",
    ),
    Op("sort", 1, 2, ("descending",), "x[o, n] (dense) -> values and positions (i32), stable; NaN is the largest."),
    Op(
        "lstm",
        4,
        3,
        ("reverse",),
        "gx[t, b, 4h] (input part of the gates i, f, g, o with both biases), w[4h, h], h0[b, h], "
        "c0[b, h], all dense -> h[t, b, h], c[t, b, h], activated gates[t, b, 4h]. `reverse` runs "
        "t from the end.",
    ),
    Op(
        "lstm_grad",
        7,
        3,
        ("reverse",),
        "dh[t, b, h], dh_last[b, h], dc_last[b, h], w, c, gates, c0, all dense -> dgx[t, b, 4h] "
        "(before activation), dh0, dc0.",
    ),
    Op(
        "gru",
        4,
        2,
        ("reverse",),
        "gx[t, b, 3h] (input part of r, z, n with the input bias), w[3h, h], bias[3h], h0[b, h], "
        "all dense -> h[t, b, h], saved[t, b, 4h] = r, z, n and the hidden part of n "
        "(w_n h + b_n).",
    ),
    Op(
        "gru_grad",
        6,
        3,
        ("reverse",),
        "dh[t, b, h], dh_last[b, h], w, h, saved, h0, all dense -> dgx[t, b, 3h] (gradient of gx), "
        "dgh[t, b, 3h] (gradient of w h + bias), dh0.",
    ),
    Op(
        "attention",
        None,
        2,
        _ATTENTION,
        "q[b, h, l, d], k[b, g, s, d], v[b, g, s, e], h a multiple of g: head i of q reads head "
        "i*g/h of k and v. If `masked`, mask[b, h, l, s] follows: f32 is added, bool is true where a "
        "query may see a key. If `dropout` > 0, seed[] and step[] (i32) follow. "
        "t = `scale` * sum over d of q*k, plus the mask, with `causal` only where s <= l; "
        "lse[b, h, l] = log of the sum over s of exp(t); out[b, l, h, e] = sum over s of "
        "exp(t - lse) * v, each term dropped, or divided by 1 - `dropout`, by random number `key` "
        "at the row-major position in [b, h, l, s]. A row that may see no key has out 0 and "
        "the largest float as lse. No matrix [l, s] is written to memory.",
    ),
    Op(
        "attention_grad",
        None,
        3,
        _ATTENTION,
        "dout[b, h, l, e], q, k, v, out[b, h, l, e], lse (dense), then mask, seed and step as in "
        "attention -> dq[b, l, h, d], dk[b, s, g, d], dv[b, s, g, e].",
    ),
    Op(
        "ctc",
        4,
        1,
        ("blank",),
        "logp[t, n, c], targets[n, k] (i32), input_lengths[n], target_lengths[n] (i32), all dense -> loss[n] = "
        "-log of the sum, over all alignments, of the product of exp(logp) along the alignment. An alignment "
        "gives each of the first input_lengths[n] steps a class, so that the classes without repetitions and then "
        "without `blank` are the first target_lengths[n] targets. Without an alignment the loss is infinite; with a "
        "target that is no class it is NaN. Lengths are clamped to t and k.",
    ),
    Op(
        "ctc_grad",
        5,
        1,
        ("blank", "zero_infinity"),
        "d[n], then the inputs of ctc -> dense [t, n, c]: d * (exp(logp) - the share of the alignments with class c "
        "at step t), as PyTorch defines it for logp from log_softmax; 0 from step input_lengths[n]. Where the loss is "
        "infinite it is NaN, or 0 with `zero_infinity`.",
    ),
)

OPS: Mapping[str, Op] = MappingProxyType({op.name: op for op in _OPS})
