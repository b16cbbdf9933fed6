"""Convolutions with 3x3 taps and their gradients on a CPU, with Winograd's algorithm: the launches of winograd.cl.

    conv, conv_input    weights ──► [ input ──► 16 products ──► output ]   for each part of the rows of tiles
    conv_weight         [ input, grads ──► 16 products ] ──► taps

16 multiplications replace 36, but tiles go through memory. `cut` estimates both, and decides which convolutions gain.
None do on processors that multiply two vectors of 16 floats per cycle: there, direct.cl is faster. A part has so few
rows of tiles that its tiles stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import ints
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace
from handheld.kernels.contract_problem import MatmulMaps, Problem
from handheld.kernels.contract_text import program_text
from handheld.kernels.expr import epilogue
from handheld.kernels.reshape import LIMIT, OWN, half_output

TAPS, POINTS, SIDE = 9, 16, 2  # taps of a convolution, elements of a transformed tile, results of a tile across
#: Bytes of the transformed tiles of a part, the most parts, and the longest line of pixels (LINE in winograd.cl).
PART, MOST_PARTS, MOST_LINE = 8 << 20, 24, 528

# The model of cost. Times are nanoseconds of a core; only their ratio matters.
FLOPS, FASTER = 100.0, 0.85  # per nanosecond; the share of the other kernel's time that is worth it
BYTES, FAR_BYTES = 16.0, 5.0  # per nanosecond, in the cache and beyond
LAUNCHES = 10_000.0  # launches of a part

#: Makes the launches of a product: operands, result, whether it is added to what is there, maps, and the bytes of the
#: scratch buffers, to which it may add its own.
Product = Callable[[Arg, Arg, Arg, bool, MatmulMaps, list[int]], list[Launch]]


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a convolution is cut into tiles of 2x2 results."""

    channels: int
    rows: int
    #: Rows of tiles of an image, tiles of a row, and tiles that are computed at a time.
    down: int
    across: int
    together: int
    #: Rows of tiles of a part.
    part: int

    @property
    def parts(self) -> int:
        return -(-self.rows // self.part)


def cut(problem: Problem, caps: DeviceCaps, always: bool = False) -> Tiles | None:
    """The tiles of a problem, or None if the algorithm does not apply or, unless `always`, would not be faster."""
    if caps.kind != "cpu" or problem.mode == "MATMUL" or problem.phased or problem.half_products or any(problem.halves):
        return None
    maps, weight = problem.conv, problem.mode == "WEIGHT"
    taps = (maps.n_y, maps.n_x) if weight else (maps.k_r, maps.k_s)
    steps = (maps.u_h, maps.u_w, abs(maps.e_h), abs(maps.e_w))
    if taps != (3, 3) or steps != (1, 1, 1, 1) or maps.sets != 1 or (weight and min(maps.e_h, maps.e_w) < 0):
        return None
    high, wide = (maps.k_r, maps.k_s) if weight else (maps.n_y, maps.n_x)
    images = maps.k_c if weight else maps.n // (maps.n_y * maps.n_x)
    channels = maps.n // TAPS if weight else maps.k_c
    down, across = -(-high // SIDE), -(-wide // SIDE)
    if across < 4 or SIDE * across + SIDE > MOST_LINE or min(channels, problem.m) < 16:
        return None
    rows = images * down
    row_bytes = POINTS * across * (channels + problem.m) * 4
    part = min(max(PART // row_bytes, 1, -(-rows // MOST_PARTS)), rows)
    part = -(-rows // -(-rows // part))
    tiles = Tiles(channels, rows, down, across, next(n for n in (16, 8, 4) if n <= across), part)
    pays = always or (caps.vector_rate == 1 and _gains(problem, tiles, images * high * wide, row_bytes))
    return tiles if pays and _counts(problem, tiles) else None


def _counts(problem: Problem, tiles: Tiles) -> bool:
    """Whether every element of the scratch buffers has a 32-bit index."""
    m, c, pixels = problem.m, tiles.channels, tiles.part * tiles.across
    return POINTS * max(m * pixels, c * pixels, m * c) <= LIMIT


def _gains(problem: Problem, tiles: Tiles, results: int, row_bytes: int) -> bool:
    pairs, bytes_ns = problem.m * tiles.channels, BYTES if tiles.part * row_bytes <= 2 * PART else FAR_BYTES
    before = 2 * TAPS * pairs * results / FLOPS
    after = 2 * POINTS * pairs * tiles.rows * tiles.across / FLOPS + 2 * tiles.rows * row_bytes / bytes_ns
    after += POINTS * pairs * 4 * 3 / BYTES + tiles.parts * LAUNCHES
    return after < FASTER * before


def lower(problem: Problem, tiles: Tiles, node: Node, graph: Graph, product: Product) -> Lowered:
    """The launches of a convolution or of a gradient."""
    defines = {"WINOGRAD": 1, "VW": tiles.together, **half_output(node, graph)}
    make = _weight if problem.mode == "WEIGHT" else _both
    launches, workspace = make(problem, tiles, node, graph, defines, product)
    parts = f", {tiles.parts} parts" if tiles.parts > 1 else ""
    return Lowered(tuple(launches), tuple(workspace), f"Winograd, {tiles.together} tiles at a time{parts}")


def _part(tiles: Tiles, number: int) -> tuple[int, int]:
    """The first row of tiles of a part, and its number of rows."""
    first = number * tiles.part
    return first, min(tiles.part, tiles.rows - first)


def _both(
    problem: Problem, tiles: Tiles, node: Node, graph: Graph, defines: Mapping[str, int], product: Product
) -> tuple[list[Launch], list[int]]:
    """conv and conv_input. Scratch buffers: 0 the transformed weights, 1 the tiles of the input, 2 the products."""
    m, c, maps = problem.m, tiles.channels, ints(*problem.maps)
    end = epilogue(node, graph, OWN)
    plain, last = program_text(problem, None, defines), program_text(problem, end, defines)
    most = POINTS * tiles.part * tiles.across * 4
    workspace = [POINTS * m * c * 4, most * c, most * m]
    launches = [Launch("weights", plain, (Buffer(problem.a), *maps, Workspace(0)), (m, 1, 1), (1, 1, 1))]
    for number in range(tiles.parts):
        first, rows = _part(tiles, number)
        count = rows * tiles.across
        place = ints(first, tiles.down, tiles.across, count)
        launches.append(
            Launch("input", plain, (Buffer(problem.b), *maps, *place, Workspace(1)), (rows, c, 1), (1, 1, 1))
        )
        sides = _maps(m, count, c, (c, 1), (1, count))
        launches += product(Workspace(0), Workspace(1), Workspace(2), False, sides, workspace)
        launches.append(Launch("output", last, (Workspace(2), *maps, *place, *end.args), (rows, m, 1), (1, 1, 1)))
    return launches, workspace


def _weight(
    problem: Problem, tiles: Tiles, node: Node, graph: Graph, defines: Mapping[str, int], product: Product
) -> tuple[list[Launch], list[int]]:
    """conv_weight. Scratch buffers: 0 the tiles of dy, 1 those of the input, 2 the products, summed over the parts."""
    m, c, maps = problem.m, tiles.channels, ints(*problem.maps)
    text = program_text(problem, None, defines)
    most = POINTS * tiles.part * tiles.across * 4
    workspace = [most * m, most * c, POINTS * m * c * 4]
    launches: list[Launch] = []
    for number in range(tiles.parts):
        first, rows = _part(tiles, number)
        count = rows * tiles.across
        place = ints(first, tiles.down, tiles.across, count)
        launches.append(
            Launch("grads", text, (Buffer(problem.a), *maps, *place, Workspace(0)), (rows, m, 1), (1, 1, 1))
        )
        launches.append(
            Launch("input", text, (Buffer(problem.b), *maps, *place, Workspace(1)), (rows, c, 1), (1, 1, 1))
        )
        sides = _maps(m, c, count, (count, 1), (count, 1))
        launches += product(Workspace(0), Workspace(1), Workspace(2), number > 0, sides, workspace)
    out = Buffer(node.outputs[0])
    launches.append(Launch("taps", text, (Workspace(2), *maps, out), (m, 1, 1), (1, 1, 1)))
    return launches, workspace


def _maps(m: int, n: int, k: int, a: tuple[int, int], b: tuple[int, int]) -> MatmulMaps:
    """16 products of M x K and K x N matrices that lie one after the other. `a` are strides along (m, k), `b` along
    (n, k)."""
    return MatmulMaps(
        POINTS, m, n, k, 0, *a, POINTS * m * k, 0, *b, POINTS * n * k, 1, POINTS, 0, 0, m * k, 0, 0, n * k
    )
