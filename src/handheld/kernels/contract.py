"""Matrix products, convolutions and their gradients: nodes -> launches of contract_*.cl.

Every op becomes a `Problem`: an implicit GEMM whose index maps are the kernel's integer arguments,
so that one program text serves all layers of a model. Then the device decides the variant:
register blocks on a CPU, tiles in local memory on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node, View
from handheld.kernels import depthwise
from handheld.kernels.args import ints, line
from handheld.kernels.base import (
    Arg,
    Buffer,
    Launch,
    Lowered,
    Workspace,
    read_source,
    round_up,
    with_defines,
)
from handheld.kernels.expr import Epilogue, epilogue
from handheld.kernels.reshape import OWN, few_batches, long_rows, unit, within, within_reach

#: as in contract_maps.cl
MODES = {"MATMUL": 0, "CONV": 1, "WEIGHT": 2}
#: the file of a kernel, by a define that names it; contract_register.cl without
FILES = {"COMBINE": "contract_combine.cl", "LOCAL": "contract_local.cl"}
KC, KT = 256, 16
PART = 128  # parts of k are multiples of this
MOST_ROWS, MOST = 384, 32768  # rows and elements of a register block
#: register tiles, rows and float16 of a row: for 16 registers, and for 32 of 512 bits
TILES = {False: ((6, 1),), True: ((8, 2), (6, 1))}
COLUMNS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)

#: local variant: (WX, WY, PM, PN), a tile of WY*PM rows and WX*PN columns
BIG, WIDE, SMALL = (16, 8, 8, 4), (16, 8, 4, 8), (8, 8, 4, 4)
TINY, ONE = (4, 4, 4, 4), (1, 1, 4, 4)
MAX_LOCAL_BYTES = 16 << 10
WORTH_A_LAUNCH = 5  # parts of k; fewer save less time than their second launch costs


@dataclass(frozen=True, slots=True)
class Problem:
    """An implicit GEMM: `sets` products of M x K by K x N of the tensors `a` and `b`."""

    mode: str
    a: int
    b: int
    #: MAP_PARAMS of contract_maps.cl, in order
    maps: tuple[int, ...]
    #: strides of A along (m, k) and of B along (n, k): along the smaller, loads are contiguous
    a_steps: tuple[int, ...]
    b_steps: tuple[int, ...]
    batch: int = 0
    phased: bool = False

    @property
    def sets(self) -> int:
        return self.maps[0]

    @property
    def m(self) -> int:
        return self.maps[1]

    @property
    def n(self) -> int:
        return self.maps[2]

    @property
    def k(self) -> int:
        return self.maps[3]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a problem is cut: work-groups across n and m, their size, parts of k; `extra` are the
    two arguments of the variant, `defines` its tile."""

    grid: tuple[int, int]
    local: tuple[int, int, int]
    splits: int
    extra: tuple[int, int]
    defines: Mapping[str, int]
    why: str


def lower_matmul(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    node = few_batches(node)
    shape = tuple(node.attrs["shape"])
    if len(shape) > 5:
        raise PlanError(
            f"matmul at {node.origin.path or 'the top level'} has {len(shape) - 2} batch "
            "dimensions that do not merge, and kernels take 3. Try: make its operands contiguous"
        )
    a, b = (unit(view) for view in node.inputs[:OWN])
    m, n, k = shape[-2], shape[-1], a.shape[-1]
    lead = len(shape) - 2
    sizes = (1,) * (3 - lead) + shape[:-2]
    a_batch = (0,) * (3 - lead) + a.strides[:-2]
    b_batch = (0,) * (3 - lead) + b.strides[:-2]
    sets = math.prod(sizes)
    maps = (sets, m, n, k, a.offset, *a.strides[-2:], graph.tensors[a.tensor].size,
            b.offset, b.strides[-1], b.strides[-2], graph.tensors[b.tensor].size,
            sizes[1], sizes[2], *a_batch, *b_batch)
    problem = Problem("MATMUL", a.tensor, b.tensor, maps, a.strides[-2:],
                      (b.strides[-1], b.strides[-2]), batch=lead)
    return _lower(problem, node, graph, caps)


def lower_conv(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv(node, graph, caps)
    node = long_rows(node)
    x, w = (unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[1] // groups, w.shape[1]
    maps = _conv_maps(
        node, graph, groups, (m, out[0] * out[2] * out[3], c * w.shape[2] * w.shape[3]), out[2:],
        a=w, a_steps=(w.strides[0], m * w.strides[0], *w.strides[1:]),
        b=x, b_steps=(c * x.strides[1], *x.strides), taps=(c, *w.shape[2:]), unit_step=stride,
        step=dilation, off=(-padding[0], -padding[1]), phases=(1, 1),
    )
    problem = Problem("CONV", w.tensor, x.tensor, maps, w.strides[:2], (1, 0))
    return _lower(problem, node, graph, caps)


def lower_conv_input(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv_input(node, graph, caps)
    node = long_rows(node)
    dy, w = (unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[1] // groups, w.shape[0] // groups
    rows = tuple(-(-size // step) for size, step in zip(out[2:], stride))
    maps = _conv_maps(
        node, graph, groups, (m, out[0] * rows[0] * rows[1], c * w.shape[2] * w.shape[3]), rows,
        a=w, a_steps=(w.strides[1], c * w.strides[0], w.strides[0], *w.strides[2:]),
        b=dy, b_steps=(c * dy.strides[1], *dy.strides), taps=(c, *w.shape[2:]), unit_step=(1, 1),
        step=(-dilation[0], -dilation[1]), off=tuple(padding), phases=tuple(stride),
    )
    problem = Problem("CONV", w.tensor, dy.tensor, maps, (w.strides[1], w.strides[0]), (1, 0),
                      phased=max(stride) > 1)
    return _lower(problem, node, graph, caps)


def lower_conv_weight(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv_weight(node, graph, caps)
    node = long_rows(node)
    dy, x = (unit(view) for view in node.inputs[:OWN])
    out, groups = tuple(node.attrs["shape"]), node.attrs["groups"]
    stride, padding, dilation = (node.attrs[k] for k in ("stride", "padding", "dilation"))
    m, c = out[0] // groups, out[1]
    sa, sx = dy.strides, x.strides
    maps = _conv_maps(
        node, graph, groups, (m, c * out[2] * out[3], math.prod(dy.shape) // max(dy.shape[1], 1)),
        out[2:], a=dy, a_steps=(sa[1], m * sa[1], sa[0], sa[2], sa[3]),
        b=x, b_steps=(c * sx[1], sx[1], sx[0], *sx[2:]), taps=(dy.shape[0], *dy.shape[2:]),
        unit_step=dilation, step=stride, off=(-padding[0], -padding[1]), phases=(1, 1),
    )
    problem = Problem("WEIGHT", dy.tensor, x.tensor, maps, (0, 1), (0, 1))
    return _lower(problem, node, graph, caps)


def flops(node: Node, graph: Graph) -> int:
    """Multiplications and additions of a node. A convolution and its two gradients do the same."""
    if node.op == "matmul":
        return 2 * int(math.prod(node.attrs["shape"])) * node.inputs[0].shape[-1]
    shape = tuple(node.attrs["shape"])
    first, second = node.inputs[0].shape, node.inputs[1].shape
    y, w = {"conv": (shape, second), "conv_input": (first, second),
            "conv_weight": (first, shape)}[node.op]
    return 2 * int(math.prod(y)) * int(math.prod(w[1:]))


def _conv_maps(
    node: Node, graph: Graph, groups: int, mnk: tuple[int, int, int], rows: tuple[int, ...], *,
    a: View, a_steps: tuple[int, ...], b: View, b_steps: tuple[int, ...], taps: tuple[int, ...],
    unit_step: tuple[int, ...], step: tuple[int, ...], off: tuple[int, ...],
    phases: tuple[int, ...],
) -> tuple[int, ...]:
    """MAP_PARAMS of the modes CONV and WEIGHT, in the kernel's order."""
    a_m, a_g, a_c, a_r, a_s = a_steps
    skip = tuple(p // math.gcd(p, e) for p, e in zip(phases, step))
    within_reach(node, b, rows, unit_step, taps[1:], step, off)
    limits = tuple(node.attrs["shape"])[2:]
    return (groups * phases[0] * phases[1], *mnk, a.offset, a_m, a_g, a_c, a_r, a_s,
            graph.tensors[a.tensor].size, b.offset, *b_steps,
            graph.tensors[b.tensor].size, *b.shape[2:], *rows, *taps, *unit_step, *step, *off,
            *limits, *phases, *skip)


def _lower(problem: Problem, node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    size = problem.sets * problem.m * problem.n
    if size == 0:
        return Lowered((), why="empty output")
    cut = _tiles(problem, caps) if caps.kind == "gpu" else _blocks(problem, caps)
    k_part = round_up(-(-problem.k // cut.splits), PART)
    splits = max(-(-problem.k // max(k_part, 1)), 1)
    within(node, splits * size, "partial sums")
    within(node, max(problem.n + COLUMNS[-1], problem.k + k_part), "columns or terms")
    # without terms the inputs may be empty; the output stands in for pointers that are never read
    own = (problem.a, problem.b) if problem.k else (node.outputs[0],) * 2
    maps = ints(*problem.maps)
    args: tuple[Arg, ...] = (*(Buffer(t) for t in own), *maps, *ints(*cut.extra, k_part))
    wide = (cut.grid[0] * cut.local[0], cut.grid[1] * cut.local[1], problem.sets * splits)
    # only conv_weight has no epilogue: a single part is its output
    end = epilogue(node, graph, OWN) if "program" in node.attrs else None
    last = end.args if end else (Buffer(node.outputs[0]),)
    if splits == 1:
        source = _source(problem, end, cut.defines)
        return Lowered((Launch("contract", source, args + last, wide, cut.local),), why=cut.why)
    part = Launch("contract", _source(problem, None, cut.defines), (*args, Workspace(0)), wide,
                  cut.local)
    head: tuple[Arg, ...] = (Workspace(0), *ints(splits), *(() if end else ints(size)))
    combine = line("combine", _source(problem, end, {"COMBINE": 1}),
                   (*(maps if end else ()), *head, *last), size, caps)
    return Lowered((part, combine), (splits * size * 4,), f"{cut.why}, k in {splits} parts")


def _source(problem: Problem, end: Epilogue | None, tile: Mapping[str, int]) -> str:
    """The program text; without an epilogue it writes, or combines, partial sums."""
    defines: dict[str, object] = {"MODE": MODES[problem.mode], **tile}
    if problem.mode == "MATMUL":
        defines["BATCH"] = problem.batch
    if problem.phased:
        defines["PHASED"] = 1
    kernel = next((v for k, v in FILES.items() if k in tile), "contract_register.cl")
    text = read_source("contract_maps.cl") + read_source(kernel)
    if end is None:
        defines["SPLIT"] = int("COMBINE" not in tile)
        return with_defines(defines, text)
    defines["EPILOGUE_PARAMS"] = end.params
    defines["EPILOGUE"] = end.body.replace("\n", " ")
    return with_defines(defines, end.helpers + text)


def _tiles(problem: Problem, caps: DeviceCaps) -> Shape:
    """The largest local tile that the device can hold and the problem can use."""
    room = min(caps.local_mem_bytes, MAX_LOCAL_BYTES)
    first = BIG
    if problem.m <= 32 and problem.mode != "WEIGHT":  # a weight gradient's k is cut instead
        first = WIDE if problem.n > 32 else SMALL
    for tile in (first, SMALL, TINY, ONE):
        wx, wy, pm, pn = tile
        need = 4 * KT * (wy * pm + wx * pn + 2) + 12 * wx * pn + 32 * KT
        if wx * wy <= caps.max_work_group and need <= room:
            break
    else:
        raise PlanError(f"a contraction on {caps.name} needs {need} bytes of local memory and the "
                        f"device has {caps.local_mem_bytes}. Try: another device")
    grid = -(-problem.n // (wx * pn)), -(-problem.m // (wy * pm))
    groups = grid[0] * grid[1] * problem.sets
    # too few work-groups to fill the device: cut k, and combine in a second launch
    splits = max(1, min(4 * caps.compute_units // groups, problem.k // PART, 256))
    if splits < WORTH_A_LAUNCH:
        splits = 1
    along = [int(abs(k) < abs(other)) for other, k in (problem.a_steps, problem.b_steps)]
    defines = {"LOCAL": 1, "WX": wx, "WY": wy, "PM": pm, "PN": pn}
    return Shape(grid, (wx, wy, 1), splits, (along[0], along[1]), defines,
                 f"local tiles of {wy * pm}x{wx * pn}")


def _blocks(problem: Problem, caps: DeviceCaps) -> Shape:
    """The register tile, blocks and parts of k that cost fewest cycles, by what packing,
    multiplying and combining cost and how evenly blocks fill the compute units."""
    m, n, k, units = problem.m, problem.n, max(problem.k, 1), caps.compute_units
    pack_a = 0.4 if 1 in problem.a_steps else 1.5
    pack_b = {"MATMUL": 2.0, "CONV": 0.8, "WEIGHT": 1.5}[problem.mode]
    best, chosen = float("inf"), (6, 1, 6, 16, 1)
    for tile_rows, vectors in TILES[caps.vector_width >= 16]:
        width = 16 * vectors
        for down in range(-(-m // MOST_ROWS), -(-m // tile_rows) + 1):
            rows = round_up(-(-m // down), tile_rows)
            for cols in COLUMNS:
                if cols % width or rows > MOST_ROWS or (cols > width and rows * cols > MOST):
                    continue
                blocks = -(-m // rows) * -(-n // cols) * problem.sets
                for splits in (1, 2, 4, 8, 16):
                    if splits > 1 and (blocks > 4 * units or k < splits * 2 * KC):
                        break
                    turns = -(-blocks * splits // units)
                    cost = turns * k / splits * (
                        rows * cols / 16 * (1.05 if vectors == 1 else 1) + pack_a * rows
                        + pack_b * cols)
                    if splits > 1:  # a second launch, and what it reads
                        cost += 50_000 + 2 * splits * problem.sets * m * n / units
                    if cost < best:
                        best, chosen = cost, (tile_rows, vectors, rows, cols, splits)
            if blocks > 64 * units:  # smaller blocks only pack more
                break
    tile_rows, vectors, rows, cols, splits = chosen
    return Shape((-(-n // cols), -(-m // rows)), (1, 1, 1), splits, (rows, cols),
                 {"MR": tile_rows, "NV": vectors},
                 f"register blocks of {rows}x{cols}, tiles of {tile_rows}x{16 * vectors}")
