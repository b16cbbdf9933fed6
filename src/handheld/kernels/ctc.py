"""Connectionist temporal classification: turns ctc and ctc_grad nodes into launches of ctc.cl.

    ctc        ctc_alpha
    ctc_grad   ctc_alpha ──► ctc_beta ──► ctc_norm ──► ctc_link ──► ctc_spread ──► ctc_collect

The gradient computes alpha again: kept from the forward pass it would often need more memory than the input.
"""

from __future__ import annotations

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import group, ints, line
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace, read_cl, with_defines


def _per_sample(kernel: str, args: tuple[Arg, ...], samples: int, caps: DeviceCaps) -> Launch:
    lanes = 1 if caps.kind == "cpu" else group(caps)
    text = with_defines({"LANES": lanes}, read_cl("ctc.cl"))
    return Launch(kernel, text, args, (samples * lanes,), (lanes,))


def _why(caps: DeviceCaps) -> str:
    return "one work-item per sample" if caps.kind == "cpu" else f"a work-group of {group(caps)} per sample"


def lower_ctc(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    steps, samples, classes = node.inputs[0].shape
    longest = node.inputs[1].shape[1]
    if samples == 0:
        return Lowered(())
    tensors = (*(view.tensor for view in node.inputs), node.outputs[0])
    args: tuple[Arg, ...] = (*map(Buffer, tensors), Workspace(0))
    sizes = ints(steps, samples, classes, longest, node.attrs["blank"], 2)
    return Lowered(
        (_per_sample("ctc_alpha", (*args, *sizes), samples, caps),), (4 * samples * 2 * (2 * longest + 1),), _why(caps)
    )


def lower_ctc_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    steps, samples, classes = node.inputs[1].shape
    longest, blank = node.inputs[2].shape[1], node.attrs["blank"]
    if samples == 0:
        return Lowered(())
    d, logp, targets, input_lengths, target_lengths = (Buffer(view.tensor) for view in node.inputs)
    out = Buffer(node.outputs[0])
    loss, alpha, beta, norm, link = (Workspace(i) for i in range(5))
    given, lengths = (logp, targets, input_lengths, target_lengths), (input_lengths, target_lengths)
    sizes, width = ints(steps, samples, classes, longest), 2 * longest + 1
    ints(samples * steps * width)
    walks = [
        _per_sample("ctc_alpha", (*given, loss, alpha, *sizes, *ints(blank, steps)), samples, caps),
        _per_sample("ctc_beta", (*given, alpha, beta, *sizes, *ints(blank)), samples, caps),
    ]
    text, rows = walks[0].text, steps * samples

    def each(kernel: str, args: tuple[Arg, ...], items: int, *numbers: int) -> Launch:
        return line(kernel, text, (*args, *ints(items, *numbers)), items, caps)

    rest = [each("ctc_norm", (alpha, *lengths, norm), rows, steps, samples, longest)]
    if longest:
        rest.append(each("ctc_link", (targets, target_lengths, link), samples * longest, longest))
    zero = int(node.attrs["zero_infinity"])
    rest.append(each("ctc_spread", (d, logp, input_lengths, loss, out), rows * classes, samples, classes, zero))
    args = (d, targets, *lengths, loss, alpha, norm, link, out)
    rest.append(each("ctc_collect", args, rows * (longest + 1), steps, samples, classes, longest, blank))
    workspace = (samples, samples * steps * width, samples * 2 * width, rows, max(samples * longest, 1))
    return Lowered((*walks, *rest), tuple(4 * n for n in workspace), _why(caps))
