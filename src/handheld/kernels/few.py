"""Convolutions with few channels on one side, and their gradients, on a CPU: the blocks and launches of few.cl.

Lanes are pixels. `applies` decides whether a problem has few enough channels; `lower` makes the launches.
"""

from __future__ import annotations

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import ints, line
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace
from handheld.kernels.contract_problem import Problem
from handheld.kernels.contract_text import program_text
from handheld.kernels.direct import Side, side_of
from handheld.kernels.expr import epilogue
from handheld.kernels.reshape import OWN, half_output, within

#: The same limits as in few.cl.
REGION, LINE, TERMS, COLUMNS = 16384, 1024, 128, 160
MOST_CHANNELS = 8  # CONV: output channels, which are rows of the register tile
MOST_COLUMNS = 32  # WEIGHT: input channels times taps, if there are more output channels; direct.cl is faster beyond
TURNS = 4  # work-items per compute unit, if there are so many rows


def applies(problem: Problem, caps: DeviceCaps) -> bool:
    """Whether this kernel can run a problem and is better than the others."""
    if (
        caps.kind != "cpu"
        or caps.vector_width < 16
        or problem.mode == "MATMUL"
        or problem.half_products
        or problem.sets != 1
        or problem.m * problem.n * problem.k == 0
    ):
        return False
    side = side_of(problem)
    if problem.mode == "WEIGHT":
        few = (
            problem.n <= (COLUMNS if problem.m <= MOST_CHANNELS else MOST_COLUMNS)
            and side.channels * side.pitch(1, 1) <= REGION
        )
    else:
        few = problem.m <= MOST_CHANNELS and side.all_taps <= TERMS and side.pitch(1, 1) <= REGION
    return few and side.step == (1, 1) and side.all_taps > 1 and 2 * side.cols >= _wide(side) <= LINE


def lower(problem: Problem, node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    side = side_of(problem)
    inputs: tuple[Arg, ...] = (Buffer(problem.a), Buffer(problem.b), *ints(*problem.maps))
    most = min(side.rows, LINE // _wide(side))
    if problem.mode == "WEIGHT":
        return _weight(problem, side, most, inputs, node, graph, caps)
    while most > 1 and -(-side.rows // most) * side.images < TURNS * caps.compute_units:
        most = -(-most // 2)
    while most > 1 and side.pitch(1, most) > REGION:
        most = -(-most // 2)
    strips = -(-side.rows // most)
    rows = -(-side.rows // strips)
    channels = min(side.channels, TERMS // side.all_taps, REGION // side.pitch(1, rows))
    end = epilogue(node, graph, OWN)
    text = program_text(problem, end, {"FEW": 1, "MT": problem.m, "PV": 2 if problem.m > 3 else 4})
    args = (*inputs, *ints(rows, channels), *end.args)
    why = f"few channels, blocks of {rows} rows"
    return Lowered((Launch("few", text, args, (strips, side.images), (1, 1)),), why=why)


def _weight(
    problem: Problem, side: Side, rows: int, inputs: tuple[Arg, ...], node: Node, graph: Graph, caps: DeviceCaps
) -> Lowered:
    while rows > 1 and side.channels * side.pitch(1, rows) > REGION:
        rows = -(-rows // 2)
    blocks = -(-problem.m // MOST_CHANNELS)
    tile = -(-problem.m // blocks)
    part = -(-side.images // min(side.images, -(-2 * caps.compute_units // blocks)))
    parts, size = -(-side.images // part), problem.m * problem.n
    within(node, parts * size, "partial sums")
    half = half_output(node, graph)
    define = {"FEW": 1, "MT": tile, "NB": 3 if tile > 6 or problem.n % 3 == 0 else 4}
    text = program_text(problem, None, define | (half if parts == 1 else {}))
    to: Arg = Workspace(0) if parts > 1 else Buffer(node.outputs[0])
    first = Launch("few", text, (*inputs, *ints(rows, part), to), (1, blocks, parts), (1, 1, 1))
    why = f"few channels, {tile} of {problem.m} at a time"
    if parts == 1:
        return Lowered((first,), why=why)
    sums: tuple[Arg, ...] = (Workspace(0), *ints(parts, size), Buffer(node.outputs[0]))
    second = line("combine", program_text(problem, None, {"COMBINE": 1, **half}), sums, size, caps)
    return Lowered((first, second), (4 * parts * size,), f"{why}, images in {parts} parts")


def _wide(side: Side) -> int:
    """Elements per row of the region."""
    return side.cols + (side.taps[1] - 1) * abs(side.tap_step[1])
