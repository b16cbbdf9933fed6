"""Attention and its gradient: turns nodes into launches of attention_register.cl (CPU) and attention_local.cl (GPU).

                     CPU                                      GPU
    attention        attention                                attention
    attention_grad   attention_grad, sometimes attention_sum  attention_queries (dq), attention_keys (dk, dv)

attention.cl holds the formulas and what both variants share. Only the GPU has choices: WX and WY, the work-items
across and down a work-group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.dtypes import BOOL, F16
from handheld.graph.graph import Graph, Node, View
from handheld.kernels.args import group, ints, line, strided
from handheld.kernels.base import (
    Arg,
    Buffer,
    Choice,
    Float,
    Launch,
    Lowered,
    Workspace,
    read_cl,
    round_up,
    with_defines,
)
from handheld.kernels.contract_local import MATRIX
from handheld.kernels.expr import PHILOX

#: GPU: columns of a chunk, the same as in attention_local.cl; the most work-items across and down a work-group.
KT, MOST_ACROSS, MOST_DOWN = 16, 16, 16

#: CPU: rows of a register tile, float16 per row, and rows of a block. True: 32 vector registers of 512 bits;
#: False: 16 registers.
TILES = {False: (6, 1, 48), True: (8, 2, 64)}
WIDE = 128  # Heads with more columns get blocks of half the size, which fit the cache.


@dataclass(frozen=True)
class _Problem:
    """An attention node: its sizes and the arguments of its kernels."""

    batch: int
    heads: int
    groups: int
    rows: int
    keys: int
    depth: int
    width: int
    #: The parameters INPUTS of attention.cl, then GRADIENTS if the node is a gradient.
    args: tuple[Arg, ...]
    #: The defines CAUSAL, MASK, DROPOUT and HALVES.
    flags: dict[str, object]
    #: Whether all rows can be read as float4.
    quads: bool

    @staticmethod
    def of(node: Node, graph: Graph) -> _Problem:
        grad = node.op == "attention_grad"
        q, k, v = node.inputs[1:4] if grad else node.inputs[:3]
        batch, heads, rows, depth = q.shape
        groups, keys, width = k.shape[1], k.shape[2], v.shape[3]
        ints(batch * heads * rows * max(depth, width), batch * groups * keys * max(depth, width))
        attrs, rest = node.attrs, list(node.inputs[6 if grad else 3 :])
        args: list[Arg] = [*_view(q), *_view(k), *_view(v)]
        args += ints(heads, heads // max(groups, 1), rows, keys, depth, width)
        args.append(Float(attrs["scale"]))
        flags: dict[str, object] = {"CAUSAL": int(attrs["causal"])}
        if graph.tensors[q.tensor].dtype == F16:
            flags["HALVES"] = 1
        if attrs["masked"]:
            mask = rest.pop(0)
            flags["MASK"] = 2 if graph.tensors[mask.tensor].dtype == BOOL else 1
            args += _view(mask)
        if attrs["dropout"] > 0:
            drop = attrs["dropout"]
            flags["DROPOUT"] = 1
            args += [
                Buffer(rest[0].tensor),
                Buffer(rest[1].tensor),
                *ints(attrs["key"]),
                Float(drop),
                Float(0.0 if drop >= 1 else 1 / (1 - drop)),
            ]
        if grad:
            args += [*_view(node.inputs[0]), *_view(node.inputs[4]), Buffer(node.inputs[5].tensor)]
        read = [q, k, v, *([node.inputs[0]] if grad else ())]
        return _Problem(batch, heads, groups, rows, keys, depth, width, tuple(args), flags, all(map(_in_quads, read)))

    @property
    def empty(self) -> bool:
        return 0 in (self.batch, self.heads, self.rows)

    def text(self, defines: Mapping[str, object], *parts: str) -> str:
        first = ("half.cl",) if "HALVES" in self.flags else ()
        text = (PHILOX if "DROPOUT" in self.flags else "") + "".join(map(read_cl, (*first, *parts)))
        return with_defines({**defines, **self.flags}, text)


def _in_quads(view: View) -> bool:
    """Whether columns are contiguous and every row begins at a multiple of four elements."""
    *steps, step = (0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True))
    return step == 1 and not any(n % 4 for n in (view.shape[3], view.offset, *steps))


def _view(view: View) -> tuple[Arg, ...]:
    return (Buffer(view.tensor), *strided(view))


def flops(node: Node, graph: Graph) -> int:
    """Multiplications plus additions of the matrix products: two forward, five backward. One of the five computes
    the scores again."""
    grad = node.op == "attention_grad"
    (b, h, n, d), s, e = (
        node.inputs[int(grad)].shape,
        node.inputs[1 + grad].shape[2],
        (node.inputs[2 + grad].shape[3]),
    )
    return 2 * b * h * n * s * ((3 * d + 2 * e) if grad else (d + e))


def lower_attention(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    problem = _Problem.of(node, graph)
    if problem.empty:
        return Lowered((), why="empty output")
    if caps.kind == "gpu":
        return _local(problem, node, caps, choice)
    return _register(problem, node, caps)


def lower_attention_grad(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    problem = _Problem.of(node, graph)
    if problem.empty:
        return Lowered((), why="empty output")
    if caps.kind == "gpu":
        return _local_grad(problem, node, caps, choice)
    return _register_grad(problem, node, caps)


def _blocks(problem: _Problem, caps: DeviceCaps) -> tuple[int, str]:
    """CPU: the number of queries (and of keys) of a block, and the program text."""
    tile_rows, vectors, block = TILES[caps.vector_width >= 16]
    wide = max(problem.depth, problem.width)
    if wide <= 16:
        vectors = 1
    block = block // 2 if wide > WIDE and block // 2 % (16 * vectors) == 0 else block
    step = 16 * vectors
    defines = {
        "MR": tile_rows,
        "NV": vectors,
        "BQ": block,
        "BK": block,
        "DP": round_up(max(problem.depth, 1), step),
        "EP": round_up(max(problem.width, 1), step),
    }
    return block, problem.text(defines, "math.cl", "wide.cl", "attention.cl", "attention_register.cl")


def _register(problem: _Problem, node: Node, caps: DeviceCaps) -> Lowered:
    block, text = _blocks(problem, caps)
    grid = (-(-problem.rows // block), problem.batch * problem.heads)
    args = (*problem.args, *map(Buffer, node.outputs))
    return Lowered((Launch("attention", text, args, grid, (1, 1)),), (), f"blocks of {block} queries and keys")


def _register_grad(problem: _Problem, node: Node, caps: DeviceCaps) -> Lowered:
    """CPU: each work-item takes a whole head.

    If there are too few heads for the compute units, the keys are cut into parts. Each part has its own dq, and a
    second launch adds them up. Halves use the second launch too, so that all sums are floats.
    """
    block, text = _blocks(problem, caps)
    heads, blocks = problem.batch * problem.groups, max(-(-problem.keys // block), 1)
    parts = min(blocks, max(2 * caps.compute_units // max(heads, 1), 1))
    part = -(-blocks // parts) * block
    parts = -(-max(problem.keys, 1) // part)
    dq, dk, dv = node.outputs
    size = problem.batch * problem.heads * problem.rows * problem.depth
    ints(parts * size)
    whole = parts == 1 and "HALVES" not in problem.flags
    first: Arg = Buffer(dq) if whole else Workspace(0)
    args = (*problem.args, first, Buffer(dk), Buffer(dv), *ints(part))
    launches = [Launch("attention_grad", text, args, (parts, heads), (1, 1))]
    why = f"blocks of {block} queries and keys" + f", keys in {parts} parts" * (parts > 1)
    if whole:
        return Lowered(tuple(launches), (), why)
    launches.append(line("attention_sum", text, (first, Buffer(dq), *ints(size, parts)), size, caps))
    return Lowered(tuple(launches), (4 * parts * size,), why)


def candidates(node: Node, graph: Graph, caps: DeviceCaps) -> tuple[Choice, ...]:
    """The legal work-groups of a GPU, the default first. A CPU has no choices."""
    problem = _Problem.of(node, graph)
    if caps.kind != "gpu" or problem.empty:
        return ()
    return tuple(dict(zip(("WX", "WY"), shape, strict=True)) for shape in _shapes(problem, caps))


def _shapes(problem: _Problem, caps: DeviceCaps) -> list[tuple[int, int]]:
    """Work-items across and down a work-group that the device can run, the default first.

    The default is the largest work-group of which there is at least one per compute unit. If there is none, it is
    the one that gives the most work-groups.
    """
    sizes = [1 << n for n in range(5)]
    legal = [
        (x, y)
        for x in sizes
        for y in sizes
        if x * y <= group(caps, MOST_ACROSS * MOST_DOWN)
        and 4 * _memory(problem, caps, x, y).floats <= caps.local_mem_bytes
    ]
    if not legal:
        wide = max(problem.depth, problem.width)
        raise PlanError(
            f"attention with heads of {wide} columns needs more local memory than the {caps.local_mem_bytes} bytes "
            f"of {caps.name}. Try: narrower heads"
        )

    def groups(shape: tuple[int, int]) -> int:
        return -(-problem.rows // (4 * shape[1])) * problem.batch * problem.heads

    most = max(x * y for x, y in legal)
    worth = [s for s in legal if s[0] * s[1] * 8 >= most and s[0] >= min(s[1], 4)]
    full = [s for s in worth if groups(s) >= caps.compute_units]
    best = max(full, key=lambda s: (s[0] * s[1], s[0])) if full else max(worth, key=lambda s: (groups(s), s[0]))
    return [best, *(s for s in worth if s != best)]


class _Local(NamedTuple):
    """How a work-group uses local memory."""

    room: int  # Floats of the chunks (ROOM).
    tile: int  # Floats of the tile.
    deep: int  # Rows of a chunk of v (DEEP).
    side: int  # Neighbouring columns per work-item (CV).
    matrix: bool  # Whether matrix units multiply (MATRIX).

    @property
    def floats(self) -> int:
        return self.room + self.tile


def _memory(problem: _Problem, caps: DeviceCaps, across: int, down: int) -> _Local:
    tall, wide = 4 * down + 4, 4 * across + 4
    widest = max(problem.depth, problem.width)
    side = 4 if widest >= 4 * across else 2 if widest >= 2 * across else 1
    columns = round_up(widest, across * side)
    matrix = caps.features == MATRIX and side == 4 and across % 4 == 0 and down % 8 == 0
    if matrix:  # Rows are longer, so that they begin in different banks, and a unit multiplies 8 of them.
        columns += 4
    room, deep = max(KT * (tall + wide), columns * (8 if matrix else 1)), min(KT, 4 * across)
    while deep * columns > room:
        deep //= 2
    return _Local(round_up(room, 4), 4 * across * tall, deep, side, matrix)


def _groups(
    problem: _Problem, caps: DeviceCaps, choice: Choice | None, kernels: tuple[int, ...]
) -> tuple[int, int, list[str]]:
    """GPU: the work-items of a work-group, its rows, and one program text per kernel number (ONLY)."""
    shapes = _shapes(problem, caps)
    across, down = (choice["WX"], choice["WY"]) if choice else shapes[0]
    if (across, down) not in shapes:
        raise PlanError(
            f"no work-group for attention has the shape {dict(choice or {})}. Try: one of attention.candidates()"
        )
    memory = _memory(problem, caps, across, down)
    defines = {
        "WX": across,
        "WY": down,
        "CV": memory.side,
        "DEEP": memory.deep,
        "ROOM": memory.room,
        "VEC": 4 if problem.quads else 1,
        "DN": -(-problem.depth // (across * memory.side)),
        "EN": -(-problem.width // (across * memory.side)),
    }
    units: tuple[str, ...] = ()
    if memory.matrix:
        defines["MATRIX"], units = 1, ("matrix.cl",)
    texts = [problem.text({**defines, "ONLY": n}, *units, "attention.cl", "attention_local.cl") for n in kernels]
    return across * down, 4 * down, texts


def _local(problem: _Problem, node: Node, caps: DeviceCaps, choice: Choice | None) -> Lowered:
    items, block, (text,) = _groups(problem, caps, choice, (1,))
    grid = (-(-problem.rows // block) * items, problem.batch * problem.heads)
    args = (*problem.args, *map(Buffer, node.outputs))
    return Lowered(
        (Launch("attention", text, args, grid, (items, 1)),), (), f"groups of {items} items, {block} queries"
    )


def _local_grad(problem: _Problem, node: Node, caps: DeviceCaps, choice: Choice | None) -> Lowered:
    items, block, (first, second) = _groups(problem, caps, choice, (2, 3))
    dq, dk, dv = map(Buffer, node.outputs)
    queries = (-(-problem.rows // block) * items, problem.batch * problem.heads)
    keys = (-(-problem.keys // block) * items, problem.batch * problem.groups)
    launches = (
        Launch("attention_queries", first, (*problem.args, dq, Workspace(0)), queries, (items, 1)),
        Launch("attention_keys", second, (*problem.args, Workspace(0), dk, dv), keys, (items, 1)),
    )
    return Lowered(
        launches,
        (4 * problem.batch * problem.heads * problem.rows,),
        f"groups of {items} items, {block} queries, then {block} keys",
    )
