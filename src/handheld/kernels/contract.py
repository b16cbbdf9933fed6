"""Matrix products, convolutions and their gradients: nodes -> launches of contract.cl.

Every op becomes a `Problem`: an implicit GEMM whose index maps are the kernel's integer arguments,
so that one program text serves all layers of a model. Then the device decides the variant:
register blocks on a CPU, tiles in local memory on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node, View
from handheld.graph.program import Instr
from handheld.kernels import depthwise
from handheld.kernels.base import (
    Arg,
    Buffer,
    Int,
    Launch,
    Lowered,
    Workspace,
    read_source,
    round_up,
    with_defines,
)
from handheld.kernels.expr import Epilogue, epilogue
from handheld.kernels.reshape import OWN, few_batches, long_rows

LIMIT = 2**31 - 1  # kernels index with 32-bit integers
KC = 256  # terms of one chunk sum: the error of a long sum stays near that of a short one
KT = 16
MR, NT, ROWS, COLS = 6, 16, 96, 256

#: local variant: (WX, WY, PM, PN), a tile of WY*PM rows and WX*PN columns
BIG, WIDE, SMALL, TINY = (16, 8, 8, 4), (16, 8, 4, 8), (8, 8, 4, 4), (4, 4, 4, 4)
MAX_LOCAL_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Problem:
    """An implicit GEMM: `sets` products of M x K by K x N; `maps` are the kernel's MAP_PARAMS."""

    mode: str
    a: int
    b: int
    sets: int
    m: int
    n: int
    k: int
    maps: tuple[int, ...]
    #: strides along m, n, k that tell in which direction loads are contiguous
    a_steps: tuple[int, int]
    b_steps: tuple[int, int]
    batch: int = 0


def lower_matmul(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    node = few_batches(node)
    shape = tuple(node.attrs["shape"])
    if len(shape) > 5:
        raise PlanError(
            f"matmul at {node.origin.path or 'the top level'} has {len(shape) - 2} batch dimensions "
            "that do not merge, and kernels take 3. Try: make its operands contiguous"
        )
    a, b = (_unit(view) for view in node.inputs[:OWN])
    m, n, k = shape[-2], shape[-1], a.shape[-1]
    lead = len(shape) - 2
    sizes = (1,) * (3 - lead) + shape[:-2]
    a_batch = (0,) * (3 - lead) + a.strides[:-2]
    b_batch = (0,) * (3 - lead) + b.strides[:-2]
    sets = math.prod(sizes)
    maps = (sets, m, n, k, a.offset, *a.strides[-2:], b.offset, b.strides[-1], b.strides[-2],
            graph.tensors[b.tensor].size, sizes[1], sizes[2], *a_batch, *b_batch)
    steps = a.strides[-2:], (b.strides[-1], b.strides[-2])
    problem = Problem("MATMUL", a.tensor, b.tensor, sets, m, n, k, maps, *steps, lead)
    return _lower(problem, node, graph, caps)


def lower_conv(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv(node, graph, caps)
    node = long_rows(node)
    x, w = (_unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[1] // groups, w.shape[1]
    maps = _conv_maps(
        node, graph, groups, (m, out[0] * out[2] * out[3], c * w.shape[2] * w.shape[3]), out[2:],
        a=w, a_steps=(w.strides[0], m * w.strides[0], *w.strides[1:]),
        b=x, b_steps=(c * x.strides[1], *x.strides), taps=(c, *w.shape[2:]), unit=stride,
        step=dilation, off=(-padding[0], -padding[1]), phases=(1, 1),
    )
    problem = Problem("CONV", w.tensor, x.tensor, *maps[:4], maps, w.strides[:2], (1, 0))
    return _lower(problem, node, graph, caps)


def lower_conv_input(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv_input(node, graph, caps)
    node = long_rows(node)
    dy, w = (_unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[1] // groups, w.shape[0] // groups
    rows = tuple(-(-size // step) for size, step in zip(out[2:], stride))
    maps = _conv_maps(
        node, graph, groups, (m, out[0] * rows[0] * rows[1], c * w.shape[2] * w.shape[3]), rows,
        a=w, a_steps=(w.strides[1], c * w.strides[0], w.strides[0], *w.strides[2:]),
        b=dy, b_steps=(c * dy.strides[1], *dy.strides), taps=(c, *w.shape[2:]), unit=(1, 1),
        step=(-dilation[0], -dilation[1]), off=tuple(padding), phases=tuple(stride),
    )
    problem = Problem("CONV", w.tensor, dy.tensor, *maps[:4], maps, (w.strides[1], w.strides[0]), (1, 0))
    return _lower(problem, node, graph, caps)


def lower_conv_weight(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv_weight(node, graph, caps)
    node = long_rows(node)
    node = replace(node, attrs={**node.attrs, "program": (Instr("acc", "f32"),), "stores": (0,)})
    dy, x = (_unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[0] // groups, out[1]
    sa, sx = dy.strides, x.strides
    maps = _conv_maps(
        node, graph, groups, (m, c * out[2] * out[3], math.prod(dy.shape) // max(dy.shape[1], 1)),
        out[2:], a=dy, a_steps=(sa[1], m * sa[1], sa[0], sa[2], sa[3]),
        b=x, b_steps=(c * sx[1], sx[1], sx[0], *sx[2:]), taps=(dy.shape[0], *dy.shape[2:]),
        unit=dilation, step=stride, off=(-padding[0], -padding[1]), phases=(1, 1),
    )
    problem = Problem("WEIGHT", dy.tensor, x.tensor, *maps[:4], maps, (0, 1), (0, 1))
    return _lower(problem, node, graph, caps)


def flops(node: Node, graph: Graph) -> int:
    """Multiplications and additions of a node. A convolution and its two gradients do the same."""
    if node.op == "matmul":
        return 2 * math.prod(node.attrs["shape"]) * node.inputs[0].shape[-1]
    shape = tuple(node.attrs["shape"])
    first, second = node.inputs[0].shape, node.inputs[1].shape
    y, w = {"conv": (shape, second), "conv_input": (first, second),
            "conv_weight": (first, shape)}[node.op]
    return 2 * math.prod(y) * math.prod(w[1:])


def _unit(view: View) -> View:
    """Strides of dimensions of size 1 are arbitrary: 0 keeps every partial index small."""
    strides = tuple(0 if n == 1 else s for n, s in zip(view.shape, view.strides))
    return View(view.tensor, view.shape, strides, view.offset)


def _conv_maps(
    node: Node, graph: Graph, groups: int, mnk: tuple[int, int, int], rows: tuple[int, ...], *,
    a: View, a_steps: tuple[int, ...], b: View, b_steps: tuple[int, ...], taps: tuple[int, ...],
    unit: tuple[int, ...], step: tuple[int, ...], off: tuple[int, ...], phases: tuple[int, ...],
) -> tuple[int, ...]:
    """MAP_PARAMS of the modes CONV and WEIGHT, in the kernel's order."""
    a_m, a_g, a_c, a_r, a_s = a_steps
    skip = tuple(p // math.gcd(p, e) for p, e in zip(phases, step))
    image = b.shape[2:]
    # the furthest pixel that any column and term speak of, inside or not
    reach = [abs(o) + r * u + t * abs(e) for o, r, u, t, e in zip(off, rows, unit, taps[1:], step)]
    far = sum(abs(s) * n for s, n in zip(b.strides, b.shape)) + sum(
        abs(s) * n for s, n in zip(b.strides[2:], reach))
    _within(node, far, "reaches an index of")
    limits = tuple(node.attrs["shape"])[2:]
    return (groups * phases[0] * phases[1], *mnk, a.offset, a_m, a_g, a_c, a_r, a_s,
            b.offset, *b_steps, graph.tensors[b.tensor].size, *image, *rows, *taps, *unit, *step,
            *off, *limits, *phases, *skip)


def _within(node: Node, value: int, what: str) -> None:
    if value > LIMIT:
        raise PlanError(
            f"{node.op} at {node.origin.path or 'the top level'} {what} {value}, more than the "
            f"{LIMIT} that 32-bit indices reach. Try: a smaller batch"
        )


def _lower(problem: Problem, node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    if problem.sets * problem.m * problem.n == 0:
        return Lowered((), why="empty output")
    # without terms the inputs may be empty; the output stands in for pointers that are never read
    own = (problem.a, problem.b) if problem.k else (node.outputs[0],) * 2
    end = epilogue(node, graph, OWN)
    tile = _tile(problem, caps) if caps.kind == "gpu" else None
    if tile is None:
        rows, cols, splits = _blocks(problem, caps)
        grid = -(-problem.n // cols), -(-problem.m // rows)
        local, extra = (1, 1, 1), (rows, cols)
        why = f"register blocks of {rows}x{cols}"
    else:
        wx, wy, pm, pn = tile
        grid = -(-problem.n // (wx * pn)), -(-problem.m // (wy * pm))
        splits = _splits(problem, grid[0] * grid[1] * problem.sets, caps)
        local = (wx, wy, 1)
        along = [int(abs(k) < abs(other)) for other, k in (problem.a_steps, problem.b_steps)]
        extra = (along[0], along[1])
        why = f"local tiles of {wy * pm}x{wx * pn}"
    k_part = round_up(-(-problem.k // splits), KC)
    splits = max(-(-problem.k // max(k_part, 1)), 1)
    size = problem.sets * problem.m * problem.n
    _within(node, splits * size, "has a number of partial sums of")
    _within(node, problem.n + COLS, "has a number of columns of")
    _within(node, problem.k + KC, "has a number of terms of")
    args = tuple(Buffer(t) for t in own) + tuple(Int(i) for i in (*problem.maps, *extra, k_part))
    global_size = (grid[0] * local[0], grid[1] * local[1], problem.sets * splits)
    if splits == 1:
        source = _source(problem, tile, end)
        return Lowered((Launch("contract", source, args + end.args, global_size, local),), why=why)
    part = Launch("contract", _source(problem, tile, None), (*args, Workspace(0)), global_size, local)
    group = min(64, caps.max_work_group)
    ints = tuple(Int(i) for i in problem.maps)
    combine = Launch("combine", _source(problem, tile, end, combine=True),
                     (*ints, Workspace(0), Int(splits), *end.args), (round_up(size, group),), (group,))
    return Lowered((part, combine), (splits * size * 4,), f"{why}, k in {splits} parts")


def _source(
    problem: Problem, tile: tuple[int, int, int, int] | None, end: Epilogue | None,
    combine: bool = False,
) -> str:
    defines: dict[str, object] = {"MODE": {"MATMUL": 0, "CONV": 1, "WEIGHT": 2}[problem.mode]}
    if problem.mode == "MATMUL":
        defines["BATCH"] = problem.batch
    if combine:
        defines["COMBINE"] = 1
    elif tile is not None:
        defines |= {"LOCAL": 1, **dict(zip(("WX", "WY", "PM", "PN"), tile))}
    if end is None:
        return with_defines({**defines, "SPLIT": 1}, read_source("contract.cl"))
    defines["EPILOGUE_PARAMS"] = end.params
    defines["EPILOGUE"] = end.body.replace("\n", " ")
    return with_defines(defines, end.helpers + read_source("contract.cl"))


def _tile(problem: Problem, caps: DeviceCaps) -> tuple[int, int, int, int]:
    """The largest tile that the device can hold and the problem can use."""
    local_bytes = min(caps.local_mem_bytes, MAX_LOCAL_BYTES)
    first = WIDE if problem.m <= 32 < problem.n else BIG
    if max(problem.m, problem.n) <= 32:
        first = SMALL
    for tile in (first, SMALL, TINY, (1, 1, 4, 4)):
        wx, wy, pm, pn = tile
        need = 4 * KT * (wy * pm + wx * pn + 2) + 12 * wx * pn + 32 * KT
        if wx * wy <= caps.max_work_group and need <= local_bytes:
            return tile
    raise PlanError(f"a contraction on {caps.name} needs {need} bytes of local memory and the device "
                    f"has {caps.local_mem_bytes}. Try: another device")


def _splits(problem: Problem, groups: int, caps: DeviceCaps) -> int:
    """Into how many parts k is cut when there are too few work-groups to fill a GPU."""
    want = 4 * caps.compute_units // max(groups, 1)
    return max(1, min(want, problem.k // (2 * KC), 64))


def _blocks(problem: Problem, caps: DeviceCaps) -> tuple[int, int, int]:
    """Rows and columns of a register block and the parts of k, by what packing and multiplying
    cost in cycles per term and how evenly blocks fill the compute units."""
    pack_b = 0.3 if problem.mode != "WEIGHT" and abs(problem.b_steps[0]) == 1 else 1.5
    best: tuple[float, tuple[int, int, int]] | None = None
    for down in range(1, -(-problem.m // MR) + 1):
        rows = round_up(-(-problem.m // down), MR)
        if rows > ROWS:
            continue
        for cols in (16, 32, 48, 64, 96, 128, 192, 256):
            blocks = down * -(-problem.n // cols) * problem.sets
            splits = 1
            if blocks < caps.compute_units:
                splits = max(1, min(caps.compute_units // blocks, problem.k // (4 * KC)))
            turns = -(-blocks * splits // caps.compute_units) / splits
            cost = turns * (rows * cols / NT + 1.5 * rows + pack_b * cols)
            if best is None or cost < best[0]:
                best = cost, (rows, cols, splits)
        if rows == MR:
            break
    assert best is not None
    return best[1]
