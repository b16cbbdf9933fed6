"""Connectionist temporal classification: turns ctc and ctc_grad nodes into launches of ctc.cl.

    ctc        ctc_states ──► ctc_alpha
    ctc_grad   ctc_states ──► ctc_alpha ──► ctc_beta ──► ctc_norm ──► ctc_link ──► ctc_spread ──► ctc_collect

The gradient computes alpha again: kept from the forward pass it would often need more memory than the input.
"""

from __future__ import annotations

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import group, ints, line
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace, read_cl, with_defines


def _lanes(caps: DeviceCaps) -> int:
    return 1 if caps.kind == "cpu" else group(caps)


def _text(caps: DeviceCaps) -> str:
    lanes = _lanes(caps)
    return with_defines({"LANES": lanes}, (read_cl("math.cl") if lanes == 1 else "") + read_cl("ctc.cl"))


def _why(caps: DeviceCaps) -> str:
    lanes = _lanes(caps)
    return "one work-item per sample" if lanes == 1 else f"a work-group of {lanes} per sample"


def _walk(kernel: str, args: tuple[Arg, ...], samples: int, caps: DeviceCaps) -> Launch:
    """A launch with one work-group per sample."""
    lanes = _lanes(caps)
    return Launch(kernel, _text(caps), args, (samples * lanes,), (lanes,))


def _each(kernel: str, args: tuple[Arg, ...], items: int, numbers: tuple[int, ...], caps: DeviceCaps) -> Launch:
    """A launch with one work-item per element. The number of items is the first integer argument."""
    return line(kernel, _text(caps), (*args, *ints(items, *numbers)), items, caps)


def lower_ctc(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    steps, samples, classes = node.inputs[0].shape
    longest, blank = node.inputs[1].shape[1], node.attrs["blank"]
    if samples == 0:
        return Lowered(())
    logp, targets, *lengths = (Buffer(view.tensor) for view in node.inputs)
    label, skip, alpha = (Workspace(i) for i in range(3))
    states = samples * (2 * longest + 3)
    args: tuple[Arg, ...] = (logp, targets, *lengths, label, skip, Buffer(node.outputs[0]), alpha)
    launches = (
        _each("ctc_states", (targets, label, skip), states, (classes, longest, blank), caps),
        _walk("ctc_alpha", (*args, *ints(steps, samples, classes, longest, 2)), samples, caps),
    )
    return Lowered(launches, (4 * states, 4 * states, 8 * states), _why(caps))


def lower_ctc_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    steps, samples, classes = node.inputs[1].shape
    longest, blank = node.inputs[2].shape[1], node.attrs["blank"]
    if samples == 0:
        return Lowered(())
    d, logp, targets, *lengths = (Buffer(view.tensor) for view in node.inputs)
    out = Buffer(node.outputs[0])
    label, skip, loss, alpha, beta, norm, link = (Workspace(i) for i in range(7))
    states, rows, sizes = samples * (2 * longest + 3), steps * samples, ints(steps, samples, classes, longest)
    ints(states * steps)
    launches = [
        _each("ctc_states", (targets, label, skip), states, (classes, longest, blank), caps),
        _walk("ctc_alpha", (logp, targets, *lengths, label, skip, loss, alpha, *sizes, *ints(steps)), samples, caps),
        _walk("ctc_beta", (logp, *lengths, label, skip, alpha, beta, *sizes), samples, caps),
        _each("ctc_norm", (alpha, *lengths, norm), rows, (steps, samples, longest), caps),
    ]
    if longest:
        launches.append(_each("ctc_link", (targets, lengths[1], link), samples * longest, (longest,), caps))
    spread: tuple[Arg, ...] = (d, logp, lengths[0], loss, out)
    collect: tuple[Arg, ...] = (d, *lengths, label, loss, alpha, norm, link, out)
    zero, share = int(node.attrs["zero_infinity"]), (steps, samples, classes, longest, blank)
    launches += [
        _each("ctc_spread", spread, rows * classes, (samples, classes, zero), caps),
        _each("ctc_collect", collect, rows * (longest + 1), share, caps),
    ]
    workspace = (states, states, samples, states * steps, 2 * states, rows, max(samples * longest, 1))
    return Lowered(tuple(launches), tuple(4 * n for n in workspace), _why(caps))
