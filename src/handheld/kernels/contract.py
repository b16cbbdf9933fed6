"""Matrix products, convolutions and their gradients: turns nodes into launches of contract_*.cl.

1. Each op becomes a `Problem`: an implicit GEMM (contract_maps.cl). Its index maps are integer arguments of the
   kernel, so that one program serves many layers of a model.
2. The kind of device selects the variant, which cuts the problem into work-groups:

    matmul ───────┐              ┌─► contract_register.py   CPU: register blocks
    conv ─────────┤              ├─► contract_local.py      GPU: tiles in local memory
    conv_input ───┼─► Problem ───┼─► winograd.py            CPU: convolutions with 3x3 taps, where it pays
    conv_weight ──┘              └─► direct.py              CPU: other convolutions with more than one tap

3. If k is cut into parts, a second launch (contract_combine.cl) adds up the partial sums.

Convolutions with one channel per group go to depthwise.py instead.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from types import ModuleType

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.dtypes import F16
from handheld.graph.graph import Graph, Node, View
from handheld.kernels import contract_local, contract_register, depthwise, direct, winograd
from handheld.kernels.args import ints, line
from handheld.kernels.base import Arg, Buffer, Choice, Launch, Lowered, Start, Texture, Workspace, round_up
from handheld.kernels.contract_problem import ConvMaps, MatmulMaps, Problem
from handheld.kernels.contract_text import program_text
from handheld.kernels.expr import Epilogue, epilogue
from handheld.kernels.reshape import OWN, few_batches, half_output, long_rows, unit, within, within_reach

MOST_CANDIDATES = 40
MOST_COLUMNS = 512  # The most columns of a block or a tile.
WINOGRAD, DIRECT = {"winograd": 1}, {"direct": 1}  # the choices of the kernels without variants


def lower_matmul(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    return _lower(*_problem(node, graph), graph, caps, choice)


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


def lower_conv(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv(node, graph, caps)
    return _lower(*_problem(node, graph), graph, caps, choice)


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


def lower_conv_input(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv_input(node, graph, caps)
    return _lower(*_problem(node, graph), graph, caps, choice)


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


def lower_conv_weight(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv_weight(node, graph, caps)
    return _lower(*_problem(node, graph), graph, caps, choice)


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


def _problem(node: Node, graph: Graph) -> tuple[Problem, Node]:
    make = {"matmul": _matmul, "conv": _conv, "conv_input": _conv_input, "conv_weight": _conv_weight}[node.op]
    problem, node = make(node, graph)
    return replace(problem, half_products=node.attrs.get("arithmetic") == "half"), node


def _halves(graph: Graph, a: View, b: View) -> tuple[bool, bool]:
    return graph.tensors[a.tensor].dtype == F16, graph.tensors[b.tensor].dtype == F16


def candidates(node: Node, graph: Graph, caps: DeviceCaps) -> tuple[Choice, ...]:
    """The choices for a node that are legal on a device and worth timing; empty if there is nothing to choose.

    The first is the best of the register blocks or tiles by their cost model. Winograd and `direct` follow, except the
    one that runs if `lower_*` gets no choice.
    """
    if node.op != "matmul" and depthwise.applies(node):
        return ()
    problem, _ = _problem(node, graph)
    if problem.sets * problem.m * problem.n == 0:
        return ()
    first, *rest = _variant(caps).choices(problem, caps, MOST_CANDIDATES)
    tiles, blocks = winograd.cut(problem, caps, always=True), _blocks(problem, caps)
    own = WINOGRAD if winograd.cut(problem, caps) else DIRECT
    others = [choice for choice, legal in ((WINOGRAD, tiles), (DIRECT, blocks)) if legal and choice != own]
    return (first, *others, *rest)


def flops(node: Node, graph: Graph) -> int:
    """Multiplications plus additions of a node. A convolution and its two gradients need equally many."""
    if node.op == "matmul":
        return 2 * int(math.prod(node.attrs["shape"])) * node.inputs[0].shape[-1]
    shape = tuple(node.attrs["shape"])
    first, second = node.inputs[0].shape, node.inputs[1].shape
    y, w = {"conv": (shape, second), "conv_input": (first, second), "conv_weight": (first, shape)}[node.op]
    return 2 * int(math.prod(y)) * int(math.prod(w[1:]))


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
    a_m, a_g, a_c, a_r, a_s = a_steps
    first = [0, 0]
    if node.op != "conv_weight" and phases == (1, 1):
        axes = zip(rows, unit_step, step, off, b.shape[2:], taps[1:], strict=True)
        live = [_live_taps(*axis) for axis in axes]
        first = [low for low, _ in live]
        off = tuple(o + low * e for o, low, e in zip(off, first, step, strict=True))
        taps = (taps[0], *(count for _, count in live))
        mnk = (*mnk[:2], math.prod(taps))
    b_g, b_n, b_c, b_h, b_w = b_steps
    skip = tuple(p // math.gcd(p, e) for p, e in zip(phases, step, strict=True))
    within_reach(node, b, rows, unit_step, taps[1:], step, off)
    limits = tuple(node.attrs["shape"])[2:]
    return ConvMaps(
        groups * phases[0] * phases[1],
        *mnk,
        a_0=a.offset + first[0] * a_r + first[1] * a_s,
        a_m=a_m,
        a_g=a_g,
        a_c=a_c,
        a_r=a_r,
        a_s=a_s,
        a_size=graph.tensors[a.tensor].size,
        b_0=b.offset,
        b_g=b_g,
        b_n=b_n,
        b_c=b_c,
        b_h=b_h,
        b_w=b_w,
        b_size=graph.tensors[b.tensor].size,
        h=b.shape[2],
        w=b.shape[3],
        n_y=rows[0],
        n_x=rows[1],
        k_c=taps[0],
        k_r=taps[1],
        k_s=taps[2],
        u_h=unit_step[0],
        u_w=unit_step[1],
        e_h=step[0],
        e_w=step[1],
        off_h=off[0],
        off_w=off[1],
        out_h=limits[0],
        out_w=limits[1],
        phase_h=phases[0],
        phase_w=phases[1],
        skip_h=skip[0],
        skip_w=skip[1],
    )


def _lower(problem: Problem, node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None) -> Lowered:
    size = problem.sets * problem.m * problem.n
    if size == 0:
        return Lowered((), why="empty output")
    if problem.half_products and not caps.fp16:
        raise PlanError(f"{caps.name} has no arithmetic in halves (cl_khr_fp16). Try: precision='half'")
    special = _special(problem, node, graph, caps, choice)
    if special is not None:
        return special
    variant = _variant(caps)
    cut = variant.cut(problem, caps, choice or variant.choose(problem, caps))
    k_part = round_up(-(-problem.depth // cut.splits), cut.part)
    splits = max(-(-problem.depth // max(k_part, 1)), 1)
    within(node, splits * size, "partial sums")
    within(node, max(problem.n + MOST_COLUMNS, problem.k + k_part), "columns or terms")
    why = cut.why + (", products in halves" if problem.half_products else "")
    # If there are no terms, the inputs may be empty. The kernel never reads them, so the output can stand in.
    own = (problem.a, problem.b) if problem.k else (node.outputs[0],) * 2
    maps = ints(*problem.maps)
    # Only conv_weight has no epilogue. Its partial sums are the output if there is one part only.
    end = epilogue(node, graph, OWN) if "program" in node.attrs else None
    last = end.args if end else (Buffer(node.outputs[0]),)
    half = half_output(node, graph)
    text = program_text(problem, end if splits == 1 else None, {**cut.defines, **(half if splits == 1 else {})})
    launches: list[Launch] = []
    workspace: list[int] = []
    right: Arg = Buffer(own[1])
    if cut.panel and problem.k:
        panels, chunks = -(-problem.n // cut.panel[0]), -(-problem.k // cut.panel[1])
        elements = problem.sets * panels * cut.panel[0] * problem.k
        within(node, elements, "elements of its panels")
        right = Workspace(0)
        launches.append(Launch("pack", text, (Buffer(own[1]), *maps, right), (chunks, panels, problem.sets), (1, 1, 1)))
        workspace.append(elements * (2 if problem.half_products else 4))
    inputs: tuple[Arg, ...] = (Buffer(own[0]), right)
    if cut.textures:
        inputs = (*map(Texture, own, cut.textures), *map(Start, own))
    args: tuple[Arg, ...] = (*inputs, *maps, *ints(*cut.extra, k_part))
    wide = (cut.grid[0] * cut.local[0], cut.grid[1] * cut.local[1], problem.sets * splits)
    if splits == 1:
        if problem.phased and caps.kind == "cpu":  # contract_register.cl takes the phase from dimension 0.
            wide = (wide[2], wide[1], wide[0])
        launches.append(Launch("contract", text, args + last, wide, cut.local))
        return Lowered(tuple(launches), tuple(workspace), why)
    parts = Workspace(len(workspace))
    workspace.append(splits * size * 4)
    launches.append(Launch("contract", text, (*args, parts), wide, cut.local))
    head: tuple[Arg, ...] = (parts, *ints(splits), *(() if end else ints(size)))
    launches.append(
        line(
            "combine",
            program_text(problem, end, {"COMBINE": 1, **half}),
            (*(maps if end else ()), *head, *last),
            size,
            caps,
        )
    )
    return Lowered(tuple(launches), tuple(workspace), f"{why}, k in {splits} parts")


def _live_taps(count: int, unit_step: int, step: int, off: int, size: int, taps: int) -> tuple[int, int]:
    """The first tap of an axis that reaches a pixel of the image from any of `count` results, and the number of taps
    from there to the last one."""
    live = [tap for tap in range(taps) if any(0 <= y * unit_step + off + tap * step < size for y in range(count))]
    return (live[0], live[-1] - live[0] + 1) if live else (0, taps)


def _special(problem: Problem, node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None) -> Lowered | None:
    """The launches of a kernel that has no variants, if it is the choice or, without one, better than the others."""
    if choice not in (None, WINOGRAD, DIRECT):
        return None
    tiles = None if choice == DIRECT else winograd.cut(problem, caps, always=choice == WINOGRAD)
    if tiles is not None:
        return winograd.lower(problem, tiles, node, graph, partial(_product, caps))
    blocks = None if choice == WINOGRAD else _blocks(problem, caps)
    if blocks is not None:
        return direct.lower(problem, blocks, node, graph, caps)
    if choice is not None:
        raise PlanError(f"{dict(choice)} is not possible for this shape on {caps.name}. Try: one of contract.candidates()")
    return None


def _blocks(problem: Problem, caps: DeviceCaps) -> direct.Blocks | None:
    return None if problem.half_products else direct.blocks(problem, caps)


def _product(
    caps: DeviceCaps, a: Arg, b: Arg, out: Arg, more: bool, maps: MatmulMaps, workspace: list[int]
) -> list[Launch]:
    """The launches of matrix products outside a node: of scratch buffers, for winograd.py. With `more`, they are added
    to the result. Bytes that they need themselves are added to `workspace`."""
    problem = Problem("MATMUL", 0, 0, maps, (maps.a_m, maps.a_k), batch=1)
    variant = _variant(caps)
    cut = variant.cut(problem, caps, {**variant.choose(problem, caps), "splits": 1})
    end = Epilogue(
        ", __global float *out, int more",
        (out, *ints(int(more))),
        "",
        "__global float *at_ = out + (d0 * M + d1) * N + d2; *at_ = more ? *at_ + acc : acc;",
    )
    text, launches, right = program_text(problem, end, cut.defines), [], b
    if cut.panel:
        panels, chunks = -(-problem.n // cut.panel[0]), -(-problem.k // cut.panel[1])
        right = Workspace(len(workspace))
        workspace.append(4 * problem.sets * panels * cut.panel[0] * problem.k)
        launches.append(Launch("pack", text, (b, *ints(*maps), right), (chunks, panels, problem.sets), (1, 1, 1)))
    wide = (cut.grid[0] * cut.local[0], cut.grid[1] * cut.local[1], problem.sets)
    k_part = round_up(problem.k, cut.part)
    args = (a, right, *ints(*maps), *ints(*cut.extra, k_part), *end.args)
    return [*launches, Launch("contract", text, args, wide, cut.local)]


def _variant(caps: DeviceCaps) -> ModuleType:
    """The module that cuts problems into work-groups for a kind of device."""
    return contract_local if caps.kind == "gpu" else contract_register
