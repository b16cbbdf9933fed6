"""Matrix products with few rows on CPUs: launches of dots.cl, which packs nothing.

Register blocks pack B, which takes as long as multiplying it by few rows. There are two kernels. The terms of A's rows
must be contiguous in memory for both, and in B:

    dots      the terms of a column, as in the forward pass of a linear layer
    stream    the columns of a row, as in its gradient for the input
"""

from __future__ import annotations

from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import ints
from handheld.kernels.base import Buffer, Launch, Lowered, round_up
from handheld.kernels.contract_problem import MatmulMaps, Problem
from handheld.kernels.contract_text import program_text
from handheld.kernels.expr import epilogue
from handheld.kernels.reshape import OWN, half_output, within

TOTAL, MOST_COLUMNS = 32768, 512  # The same as in dots.cl.
LANES, SIDE = 16, 4  # Terms at a time, and the side of a tile.
MOST_ROWS = 48  # With more rows, packing B pays.
#: Contiguous terms: with fewer terms, also per row, adding up the lanes takes too long.
LEAST_TERMS, TERMS_PER_ROW = 64, 6
#: Contiguous columns: the most rows, of a B of any size and of a large one (bytes), and the least columns.
FEW_ROWS, MOST_STREAM, LARGE, LEAST_COLUMNS = 12, 16, 1 << 20, 128
IN_MEMORY = 4 << 20  # Bytes of a B that is in no cache.


@dataclass(frozen=True, slots=True)
class Blocks:
    """The rows and columns of a block."""

    rows: int
    cols: int
    #: The rows that share a vector of B, if its columns are contiguous and not its terms; else 0.
    stream: int = 0


def cut(problem: Problem, caps: DeviceCaps, always: bool = False) -> Blocks | None:
    """The blocks of a product, or None if the kernel cannot compute it. Without `always`, also None if register blocks
    are probably faster."""
    maps = problem.maps
    if caps.kind != "cpu" or caps.vector_width < LANES or not isinstance(maps, MatmulMaps):
        return None
    if any(problem.halves) or problem.half_products or maps.k == 0 or maps.k % LANES or maps.m > MOST_ROWS:
        return None
    stream = maps.b_k != 1 and maps.b_n == 1 and maps.n % LANES == 0
    if maps.a_k != 1 or not (maps.b_k == 1 or stream):
        return None
    if not (always or (_streams if stream else _adds)(maps)):
        return None
    side = round_up(-(-maps.m // -(-maps.m // LANES)), SIDE) if stream else SIDE
    rows = round_up(maps.m, side)
    most = TOTAL // rows if stream else min(TOTAL // rows, MOST_COLUMNS)
    # All units get the same number of blocks.
    turns = -(-maps.n * maps.sets // (most * caps.compute_units))
    width = LANES if stream else SIDE
    cols = round_up(-(-maps.n * maps.sets // (turns * caps.compute_units)), width)
    return Blocks(rows, min(max(cols, width), most // width * width), side if stream else 0)


def _adds(maps: MatmulMaps) -> bool:
    """Whether dot products are probably faster than register blocks."""
    return maps.k >= max(LEAST_TERMS, TERMS_PER_ROW * maps.m)


def _streams(maps: MatmulMaps) -> bool:
    """Whether reading the rows of B side by side is probably faster than packing them."""
    if maps.k < LEAST_TERMS or maps.n < LEAST_COLUMNS:
        return False
    return maps.m <= FEW_ROWS or (maps.m <= MOST_STREAM and 4 * maps.k * maps.n >= LARGE)


def lower(problem: Problem, blocks: Blocks, node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    """The launch of a product."""
    within(node, max(problem.n + TOTAL, problem.k), "columns or terms")
    end = epilogue(node, graph, OWN)
    tile = {"STREAM": 1, "MR": blocks.stream} if blocks.stream else {}
    tile["AHEAD"] = int(4 * problem.k * problem.n >= IN_MEMORY)
    text = program_text(problem, end, {"DOTS": 1, **tile, **half_output(node, graph)})
    args = (Buffer(problem.a), Buffer(problem.b), *ints(*problem.maps, blocks.rows, blocks.cols), *end.args)
    grid = (-(-problem.n // blocks.cols), -(-problem.m // blocks.rows), problem.sets)
    kernel, what = ("stream", "rows of B side by side") if blocks.stream else ("dots", "dot products")
    return Lowered((Launch(kernel, text, args, grid, (1, 1, 1)),), (), f"{what}, blocks of {blocks.rows}x{blocks.cols}")
