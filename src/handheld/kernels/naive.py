"""A baseline matmul without tiling (naive.cl): one work-item per output element, and nothing is shared.

A plan uses it only with `plan_step(..., naive=True)`, to measure how much the other kernels gain.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import group, ints
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, read_cl, round_up, with_defines
from handheld.kernels.expr import epilogue
from handheld.kernels.reshape import OWN, few_batches, unit, within

GROUP = 64  # Work-items per work-group: 8 x 8 elements of the output.


class _Maps(NamedTuple):
    """The integers that the kernel of naive.cl takes, in its order: sizes and strides."""

    m: int
    n: int
    k: int
    a_0: int
    a_m: int
    a_k: int
    b_0: int
    b_k: int
    b_n: int
    g_y: int
    g_x: int
    a_gz: int
    a_gy: int
    a_gx: int
    b_gz: int
    b_gy: int
    b_gx: int


def lower_matmul(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    node = few_batches(node)
    shape = tuple(node.attrs["shape"])
    lead = len(shape) - 2
    if lead > 3:
        raise PlanError(
            f"the naive matmul takes at most 3 batch dimensions, and this one has {lead}. Try: plan without naive=True"
        )
    a, b = (unit(view) for view in node.inputs[:OWN])
    m, n, k = shape[-2], shape[-1], a.shape[-1]
    sizes = (1,) * (3 - lead) + shape[:-2]
    if math.prod(shape) == 0:
        return Lowered((), why="empty output")
    within(node, max(math.prod(shape), n + GROUP, m + GROUP), "elements")
    end = epilogue(node, graph, OWN)
    text = with_defines(
        {"BATCH": lead, "EPILOGUE_PARAMS": end.params, "EPILOGUE": end.body.replace("\n", " ")},
        end.helpers + read_cl("naive.cl"),
    )
    maps = _Maps(
        *(m, n, k),
        *(a.offset, *a.strides[-2:]),
        *(b.offset, *b.strides[-2:]),
        *sizes[1:],
        *(*(0,) * (3 - lead), *a.strides[:-2]),
        *(*(0,) * (3 - lead), *b.strides[:-2]),
    )
    # If there are no terms, the inputs may be empty. The kernel never reads them, so the output can stand in.
    own = (a.tensor, b.tensor) if k else (node.outputs[0],) * 2
    args: tuple[Arg, ...] = (*map(Buffer, own), *ints(*maps), *end.args)
    side = group(caps, math.isqrt(min(GROUP, caps.max_work_group)))
    wide = (round_up(n, side), round_up(m, side), math.prod(sizes))
    return Lowered((Launch("naive", text, args, wide, (side, side, 1)),), (), "naive: one work-item per output")
