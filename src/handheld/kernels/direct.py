"""Convolutions with more than one tap, and their gradients, on a CPU: the blocks and launches of direct.cl.

    panels ──► direct ──► combine        (`combine` only if the images are cut into parts)
               direct                    (few work-items read the same panel: each makes its own)

`blocks` decides how a problem is cut, or that another kernel should run it. `lower` makes the launches.
"""

from __future__ import annotations

from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import ints, line
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace, round_up
from handheld.kernels.contract_nodes import live
from handheld.kernels.contract_problem import Problem
from handheld.kernels.contract_text import program_text
from handheld.kernels.expr import epilogue
from handheld.kernels.reshape import OWN, half_output, within

#: The same limits as in direct.cl.
REGION, TERMS, TOTAL, MOST_ROWS, SLAB = 32768, 256, 65536, 512, 64
#: Weight gradients of few pixels have smaller blocks, with at least so many channels, so that all cores have one.
FEW_TERMS, LEAST_CHANNELS = 1024, 8
LEAST_TAPS = 3  # of a phase, on average
FEW_CHANNELS = 3  # the fewest output channels of a forward convolution

#: Blocks with all pixels: for this many bytes of weights or more, and about this many lanes; elements of their panels.
MANY_WEIGHTS, WHOLE_LANES, MOST_PANEL = 1 << 19, 256, 65536


@dataclass(frozen=True, slots=True)
class Side:
    """The sizes of a convolution, in the same terms for all three directions."""

    images: int
    rows: int
    cols: int
    channels: int
    taps: tuple[int, int]
    step: tuple[int, int]
    tap_step: tuple[int, int]

    @property
    def all_taps(self) -> int:
        return self.taps[0] * self.taps[1]

    def pitch(self, images: int, rows: int) -> int:
        """Elements per channel of a region that covers `images` images and `rows` rows of pixels each."""
        high = (rows - 1) * self.step[0] + (self.taps[0] - 1) * abs(self.tap_step[0]) + 1
        wide = (self.cols - 1) * self.step[1] + (self.taps[1] - 1) * abs(self.tap_step[1]) + 1
        return images * high * wide + 16


@dataclass(frozen=True, slots=True)
class Blocks:
    """What one work-item does: `images` x `rows` rows of pixels and `channels` channels at a time, for `lanes` output
    channels. Its register tile has `tile_rows` rows of `vectors` float16."""

    images: int
    rows: int
    channels: int
    lanes: int
    grid: tuple[int, int]
    splits: int
    part_images: int
    tile_rows: int
    vectors: int
    k_most: int
    #: Terms of the panels that each work-item makes for itself; 0: a launch before makes all panels.
    own: int = 0


def side_of(problem: Problem) -> Side:
    maps = problem.conv
    grid, unit = (maps.n_y, maps.n_x), (maps.u_h, maps.u_w)
    rest = problem.n // (maps.n_y * maps.n_x)
    if problem.mode == "WEIGHT":
        return Side(maps.k_c, maps.k_r, maps.k_s, rest, grid, (maps.e_h, maps.e_w), unit)
    # The largest number of taps that a phase has, without those that meet only padding, and the distance between them.
    taps = (
        _most_taps(maps.k_r, maps.phase_h, maps.skip_h, maps.off_h, maps.e_h, maps.n_y, maps.u_h, maps.h),
        _most_taps(maps.k_s, maps.phase_w, maps.skip_w, maps.off_w, maps.e_w, maps.n_x, maps.u_w, maps.w),
    )
    step = (maps.skip_h * maps.e_h // maps.phase_h, maps.skip_w * maps.e_w // maps.phase_w)
    return Side(rest, *grid, maps.k_c, taps, unit, step)


def _most_taps(taps: int, phases: int, skip: int, off: int, step: int, pixels: int, unit: int, size: int) -> int:
    """The most taps along one axis that meet a pixel in one phase: the same as `taps` and `live` in the kernels."""
    most = 1
    for phase in range(phases):
        first = next((t for t in range(min(skip, taps)) if (phase + off + t * step) % phases == 0), taps)
        count = len(range(first, taps, skip))
        if count:
            most = max(
                most, live(pixels, unit, skip * step // phases, (phase + off + first * step) // phases, size, count)[1]
            )
    return most


def _forward(problem: Problem) -> bool:
    """Whether it is a convolution, and not one of its gradients."""
    return problem.mode == "CONV" and problem.conv.e_h > 0


def blocks(problem: Problem, caps: DeviceCaps) -> Blocks | None:
    """How to cut a problem, or None if another kernel is better.

    Another kernel is better in these cases. A convolution with one tap is a matrix product. Few output channels
    leave lanes idle, which forward convolutions can afford. Phases with one tap are matrix products too; with two,
    copying the region for each phase does not pay. Very long rows or large kernels do not fit the region. With 16
    registers of 8 floats only the weight gradients gain: there, register blocks (contract_register.cl) would
    transpose the image for every tap; in the other directions they pack as fast.
    """
    wide = caps.vector_width >= 16
    if (
        caps.kind != "cpu"
        or not (wide or problem.mode == "WEIGHT")
        or problem.mode == "MATMUL"
        or problem.m < (FEW_CHANNELS if _forward(problem) else 8)
        or problem.k == 0
    ):
        return None
    side = side_of(problem)
    if _few_taps(problem, side):
        return None
    tile_rows, vectors = 8 if wide else 6, 2 if wide and problem.m > 16 else 1
    width, units = 16 * vectors, caps.compute_units
    all_lanes = round_up(problem.m, width)
    if problem.mode == "WEIGHT":
        return _weight(problem, side, tile_rows, vectors, all_lanes, units)
    whole = _whole(problem, side, tile_rows, vectors, all_lanes, units)
    if whole is not None:
        return whole
    if side.all_taps == 1:
        return None
    lanes = min(all_lanes, TOTAL // 64)
    while lanes > width and side.cols > TOTAL // lanes:
        lanes = round_up(lanes // 2, width)
    room = min(MOST_ROWS, TOTAL // lanes) // tile_rows * tile_rows
    if side.cols > room or side.all_taps > TERMS:
        return None
    rows = min(side.rows, room // side.cols)
    images = max(min(side.images, room // (side.rows * side.cols)), 1) if rows == side.rows else 1

    def count() -> int:
        strips = -(-side.rows // rows) * -(-side.images // images)
        return strips * -(-problem.m // lanes) * problem.sets

    while count() < 2 * units and (images > 1 or (rows > 1 and rows * side.cols > 32)):
        images, rows = (-(-images // 2), rows) if images > 1 else (1, -(-rows // 2))
    while rows > 1 and side.pitch(images, rows) > REGION:
        images, rows = (-(-images // 2), rows) if images > 1 else (1, -(-rows // 2))
    while count() < 2 * units and lanes > width:
        lanes = round_up(-(-lanes // 2), width)
    rows = -(-side.rows // -(-side.rows // rows))
    channels = min(side.channels, TERMS // side.all_taps, REGION // side.pitch(images, rows))
    if channels < 1:
        return None
    grid = (-(-side.rows // rows) * -(-side.images // images), -(-problem.m // lanes))
    return Blocks(
        images, rows, channels, lanes, grid, 1, side.images, tile_rows, vectors, side.channels * side.all_taps
    )


def _few_taps(problem: Problem, side: Side) -> bool:
    """Whether there is one tap, or too few per phase. Taps that meet only padding count as taps."""
    maps = problem.conv
    if problem.mode == "WEIGHT":
        return side.all_taps == 1
    all_taps, phases = maps.k_r * maps.k_s, maps.phase_h * maps.phase_w
    return all_taps == 1 or (problem.phased and side.all_taps > 1 and all_taps < LEAST_TAPS * phases)


def _whole(problem: Problem, side: Side, tile_rows: int, vectors: int, all_lanes: int, units: int) -> Blocks | None:
    """Blocks with all pixels, each with its own lanes, for few pixels and many weights. Every weight is then read once,
    by the work-item that turns it into its panel. None if the pixels do not fit."""
    width, pixels = 16 * vectors, side.images * side.rows * side.cols
    most = TOTAL // max(round_up(pixels, tile_rows), 1) // width * width
    pitch = side.pitch(side.images, side.rows)
    channels = min(side.channels, TERMS // side.all_taps, REGION // pitch)
    if pixels > MOST_ROWS // tile_rows * tile_rows or most < width or channels < 1:
        return None
    if problem.m * problem.k * 4 < MANY_WEIGHTS:
        return None
    # Each block copies all pixels, so its lanes should be many; but all units need the same number of blocks.
    turns = -(-all_lanes * problem.sets // (units * min(most, WHOLE_LANES)))
    lanes = min(round_up(-(-all_lanes * problem.sets // (turns * units)), width), most, all_lanes)
    if channels * side.all_taps * lanes > MOST_PANEL:
        channels = max(MOST_PANEL // (side.all_taps * lanes), 1)
    grid = 1, -(-problem.m // lanes)
    own = channels * side.all_taps
    return Blocks(side.images, side.rows, channels, lanes, grid, 1, side.images, tile_rows, vectors, own, own)


def _weight(problem: Problem, side: Side, tile_rows: int, vectors: int, all_lanes: int, units: int) -> Blocks | None:
    width = 16 * vectors
    if side.cols > TERMS or side.all_taps > MOST_ROWS:
        return None
    rows = min(side.rows, TERMS // side.cols)
    images = max(TERMS // (side.rows * side.cols), 1) if rows == side.rows else 1
    images = min(images, side.images)
    lanes = min(all_lanes, TOTAL // 64)
    while lanes > width and side.all_taps > TOTAL // lanes:
        lanes = round_up(lanes // 2, width)
    room = min(MOST_ROWS, TOTAL // lanes) // tile_rows * tile_rows
    channels = min(side.channels, room // side.all_taps, REGION // side.pitch(images, rows))
    if channels < 1:
        return None
    others = -(-problem.m // lanes) * problem.sets
    count = -(-side.channels // channels)
    if problem.k <= FEW_TERMS:  # Adding up parts would take longer than to share less.
        count = max(count, min(-(-2 * units // others), side.channels // LEAST_CHANNELS))
    channels = -(-side.channels // count)
    blocks = -(-side.channels // channels) * others
    splits = (
        1 if blocks >= (units if problem.k <= FEW_TERMS else 2 * units) else min(-(-2 * units // blocks), side.images)
    )
    part = round_up(-(-side.images // splits), images if side.images >= splits * images else 1)
    splits = -(-side.images // part)
    images = min(images, part)
    grid = (-(-side.channels // channels), -(-problem.m // lanes))
    return Blocks(images, rows, channels, lanes, grid, splits, part, tile_rows, vectors, problem.k)


def lower(problem: Problem, cut: Blocks, node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    """The launches: `panels`, `direct` and, if the images are cut into parts, `combine`."""
    size = problem.sets * problem.m * problem.n
    width, maps = 16 * cut.vectors, ints(*problem.maps)
    panels = -(-problem.m // width)
    panel_size = problem.sets * panels * cut.k_most * width
    if cut.own:
        panel_size = problem.sets * cut.grid[0] * cut.grid[1] * cut.lanes * cut.own
    within(node, max(cut.splits * size, panel_size), "partial sums or elements of its panels")
    tile = {"DIRECT": 1, "MR": cut.tile_rows, "NV": cut.vectors}
    # Only conv_weight has no epilogue. Its partial sums are the output if there is one part only.
    end = epilogue(node, graph, OWN) if "program" in node.attrs else None
    last: tuple[Arg, ...] = end.args if end else (Buffer(node.outputs[0]),)
    half = half_output(node, graph)
    text = program_text(problem, end if cut.splits == 1 else None, {**tile, **(half if cut.splits == 1 else {})})
    first = Launch(
        "panels",
        text,
        (Buffer(problem.a), *maps, *ints(cut.k_most), Workspace(0)),
        (-(-cut.k_most // SLAB), panels, problem.sets),
        (1, 1, 1),
    )
    args: tuple[Arg, ...] = (
        Buffer(problem.a),
        Buffer(problem.b),
        Workspace(0),
        *maps,
        *ints(cut.k_most, cut.images, cut.rows, cut.channels, cut.lanes, cut.part_images, cut.own),
    )
    wide = (*cut.grid, problem.sets * cut.splits)
    if problem.mode == "CONV":
        wide = (problem.sets, cut.grid[1], cut.grid[0])
    why = f"direct, blocks of {cut.images}x{cut.rows}x{cut.channels}, {cut.lanes} lanes" + ", own panels" * (
        cut.own > 0
    )
    if cut.splits == 1:
        second = Launch("direct", text, args + last, wide, (1, 1, 1))
        return Lowered((second,) if cut.own else (first, second), (panel_size * 4,), why)
    second = Launch("direct", text, (*args, Workspace(1)), wide, (1, 1, 1))
    combine = line(
        "combine",
        program_text(problem, None, {"COMBINE": 1, **half}),
        (Workspace(1), *ints(cut.splits, size), *last),
        size,
        caps,
    )
    return Lowered(
        (first, second, combine), (panel_size * 4, cut.splits * size * 4), f"{why}, images in {cut.splits} parts"
    )
