"""Matrix products with few rows on CPUs: launches of dots.cl, which packs nothing.

The terms of A's rows and of B's columns must be contiguous in memory, as in the forward pass of a linear layer.
Register blocks pack B, which takes as long as multiplying it by few rows.
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
LEAST_TERMS, TERMS_PER_ROW = 64, 6  # With fewer terms, adding up the lanes of the accumulators takes too long.


@dataclass(frozen=True, slots=True)
class Blocks:
    """The rows and columns of a block."""

    rows: int
    cols: int


def cut(problem: Problem, caps: DeviceCaps, always: bool = False) -> Blocks | None:
    """The blocks of a product, or None if the kernel cannot compute it. Without `always`, also None if register blocks
    are probably faster."""
    maps = problem.maps
    if caps.kind != "cpu" or caps.vector_width < LANES or not isinstance(maps, MatmulMaps):
        return None
    if any(problem.halves) or problem.half_products or maps.k == 0 or maps.k % LANES:
        return None
    if maps.a_k != 1 or maps.b_k != 1:
        return None
    if not always and (maps.m > MOST_ROWS or maps.k < max(LEAST_TERMS, TERMS_PER_ROW * maps.m)):
        return None
    rows = round_up(min(maps.m, MOST_ROWS), SIDE)
    others = -(-maps.m // rows) * maps.sets
    most = min(TOTAL // rows, MOST_COLUMNS)
    # All units get the same number of blocks.
    turns = -(-maps.n * others // (most * caps.compute_units))
    cols = round_up(-(-maps.n * others // (turns * caps.compute_units)), SIDE)
    return Blocks(rows, min(max(cols, SIDE), most))


def lower(problem: Problem, blocks: Blocks, node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    """The launch of a product."""
    within(node, max(problem.n + MOST_COLUMNS, problem.k), "columns or terms")
    end = epilogue(node, graph, OWN)
    text = program_text(problem, end, {"DOTS": 1, **half_output(node, graph)})
    args = (Buffer(problem.a), Buffer(problem.b), *ints(*problem.maps, blocks.rows, blocks.cols), *end.args)
    grid = (-(-problem.n // blocks.cols), -(-problem.m // blocks.rows), problem.sets)
    return Lowered(
        (Launch("dots", text, args, grid, (1, 1, 1)),), (), f"dot products, blocks of {blocks.rows}x{blocks.cols}"
    )
