"""Tiles in local memory for contractions on GPUs (contract_local.cl).

This file decides how a tile loads A and B, which tiles are legal on a device, and estimates the time of each.
A work-group computes one tile of the output:

              WX*PN columns
            +----+----+ - +----+
            |item|item|   |item|   WX x WY work-items, each with PM x PN results,
    WY*PM   +----+----+ - +----+   and SLICES times as many if they share the KT terms
    rows    |item|item|   |item|
            +----+----+ - +----+
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.kernels.base import Choice
from handheld.kernels.contract_problem import MatmulMaps, Problem, Shape

NAMES = ("WX", "WY", "PM", "PN", "KT", "SLICES", "UNROLL")

#: The tiles of every GPU, in the order of NAMES: work-items across and down, rows and columns per work-item, terms,
#: slices, unrolled terms. The comments give the rows and columns of a tile. Large tiles load less data; small tiles and
#: more slices keep more of the device busy.
TILES = (
    (16, 16, 8, 8, 16, 1, 8),
    (16, 16, 8, 8, 8, 1, 8),
    (16, 16, 8, 8, 8, 1, 2),  # 128 x 128
    (8, 16, 8, 8, 16, 1, 8),
    (8, 16, 8, 8, 8, 1, 2),
    (8, 16, 8, 8, 16, 2, 8),  # 128 x 64
    (16, 8, 8, 8, 16, 1, 8),
    (16, 8, 8, 8, 8, 1, 2),
    (16, 8, 8, 8, 16, 2, 8),  # 64 x 128
    (8, 8, 8, 8, 16, 1, 8),
    (8, 8, 8, 8, 16, 2, 8),
    (8, 8, 8, 8, 32, 4, 8),  # 64 x 64
    (8, 8, 8, 8, 16, 4, 2),
    (16, 16, 4, 4, 16, 1, 8),
    (16, 8, 4, 8, 16, 1, 8),  # 32 x 128
    (8, 16, 8, 4, 16, 1, 8),  # 128 x 32
    (8, 8, 8, 4, 16, 1, 8),
    (8, 8, 8, 4, 32, 4, 8),  # 64 x 32
    (8, 8, 4, 8, 16, 1, 8),
    (8, 8, 4, 8, 32, 4, 8),  # 32 x 64
    (8, 8, 4, 4, 16, 1, 8),
    (8, 8, 4, 4, 32, 4, 8),  # 32 x 32
    (16, 4, 4, 4, 16, 1, 8),
    (16, 4, 4, 4, 32, 4, 8),  # 16 x 64
    (4, 16, 4, 4, 16, 1, 8),
    (4, 16, 4, 4, 32, 4, 8),  # 64 x 16
    (4, 4, 4, 4, 16, 1, 8),
    (4, 4, 4, 4, 32, 4, 8),
    (4, 4, 4, 4, 64, 16, 4),  # 16 x 16
    (32, 1, 4, 4, 32, 4, 8),  # 4 x 128
    (1, 1, 4, 4, 8, 1, 8),  # 4 x 4
)
#: Tiles whose products run on matrix units (MATRIX in contract_local.cl), with a 1 at the end. Their work-items form
#: warps of 8 x 4, and read all KT terms in one go.
MATRIX_TILES = (
    (16, 16, 8, 8, 16, 1, 8, 1),
    (8, 16, 8, 16, 16, 1, 8, 1),
    (8, 16, 8, 16, 8, 1, 8, 1),  # 128 x 128
    (8, 16, 8, 8, 8, 1, 8, 1),
    (8, 16, 8, 8, 16, 1, 8, 1),
    (8, 16, 8, 8, 16, 1, 16, 1),  # 128 x 64
    (16, 8, 8, 8, 16, 1, 8, 1),
    (8, 8, 8, 16, 16, 1, 8, 1),  # 64 x 128
    (8, 16, 4, 8, 16, 1, 8, 1),
    (8, 16, 4, 8, 32, 1, 16, 1),
    (8, 16, 4, 8, 32, 1, 8, 1),
    (8, 8, 8, 8, 16, 1, 8, 1),
    (8, 8, 8, 8, 16, 1, 16, 1),  # 64 x 64
    (16, 8, 4, 8, 16, 1, 8, 1),  # 32 x 128
    (8, 8, 4, 8, 32, 1, 8, 1),  # 32 x 64
    (4, 16, 4, 8, 32, 1, 8, 1),  # 64 x 32
)
#: In `features` of a device: products of floats on matrix units.
MATRIX = "tf32"
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
LONG = 4096  # The most terms in one sum of a work-item. PyTorch does the same; the error is near 1e-6 of float64.
RUN = 256  # Longer sums have two levels; this is the number of terms of the first level.

Tile = tuple[int, ...]

# The cost model. Times are cycles of a compute unit with 128 lanes. They were measured on desktop GPUs, and the
# order of the tiles that follows from them is good enough on other GPUs.
LANES = 128
#: RATE: the share of the peak that a register tile of PM*PN results can reach. HALF: the number of warps that reach
#: half of that. REGISTERS: registers of a work-item in addition to its sums, by UNROLL.
RATE, HALF, REGISTERS = {64: 0.85, 32: 0.7, 16: 0.5}, {64: 2, 32: 4, 16: 6}, {2: 64, 4: 80, 8: 96}
#: The same for tiles on matrix units, measured on an H200.
MATRIX_RATE, MATRIX_HALF, MATRIX_REGISTERS = {128: 1.2, 64: 1.1, 32: 1.0}, 3, {8: 100, 16: 160}
FILE = 65536  # Registers of a compute unit.
LATENCY = 700  # Cycles to fetch a tile of terms, store it and wait for it.
START = 2000  # Cycles per work-group for its first fetch and its last stores.
LAUNCH = 8500  # Cycles of a second launch.
BYTES = 24  # Bytes per cycle that a compute unit loads or stores.


@dataclass(frozen=True, slots=True)
class Reads:
    """How a tile of A or B is loaded. A line is a row of A or a column of B."""

    #: Whether neighbouring work-items load along k (else along the lines).
    along_k: bool
    #: Elements per load: 1 or 4.
    vec: int
    #: The distance in memory from one term to the next; None if it is not constant.
    step: int | None
    #: Whether a pixel may lie outside the image.
    check: bool = False

    @property
    def cost(self) -> float:
        """Instructions per element."""
        return (1 if self.vec == 4 else 4) + (2 if self.step is None else 0) + 4 * self.check


def choose(problem: Problem, caps: DeviceCaps) -> Choice:
    """The choice with the lowest estimated time. Raises PlanError if no tile fits the device."""
    return dict(_chosen(replace(problem, a=0, b=0), caps))


@lru_cache(4096)
def _chosen(problem: Problem, caps: DeviceCaps) -> Choice:
    """The choice of `choose`. A model has many equal problems, and a plan may be made several times."""
    best = min(_costs(problem, caps), key=itemgetter(0), default=None)
    if best is None:
        smallest = min(_local_bytes(tile, 1) for tile in TILES)
        raise PlanError(
            f"a contraction on {caps.name} needs {smallest} bytes of local memory; "
            f"the device has {caps.local_mem_bytes}. Try: another device"
        )
    return _named(best[1], _likes_textures(caps))


def choices(problem: Problem, caps: DeviceCaps, most: int) -> list[Choice]:
    """At most `most` choices with the lowest estimated times, the lowest first, and at most two per tile."""
    ranked: list[Tile] = []
    per_tile: Counter[Tile] = Counter()
    for _, chosen in sorted(_costs(problem, caps), key=itemgetter(0)):
        per_tile[chosen[:-1]] += 1
        if per_tile[chosen[:-1]] <= 2:
            ranked.append(chosen)
    if _likes_textures(caps):
        return [_named(chosen, texture) for chosen in ranked[: most // 2] for texture in (True, False)]
    return [_named(chosen, False) for chosen in ranked[:most]]


def cut(problem: Problem, caps: DeviceCaps, choice: Choice) -> Shape:
    """The work-groups of a choice. Raises PlanError if the choice is not legal on the device."""
    if {*choice} - {"TEXTURE", "MATRIX"} != {*NAMES, "splits"}:
        raise PlanError(f"a choice of a local tile has the keys {', '.join(NAMES)} and splits, not {sorted(choice)}")
    matrix = choice.get("MATRIX", 0)
    tile, splits = (*(choice[name] for name in NAMES), *([matrix] if matrix else [])), choice["splits"]
    texture = choice.get("TEXTURE", 0)
    if texture not in (0, 1) or (texture and not caps.images):
        raise PlanError(f"TEXTURE={texture} is not possible on {caps.name}. Try: one of contract.candidates()")
    texture = texture and problem.k  # Without terms there is nothing to read.
    buffers = _buffers(tile, caps) if tile in _tiles(problem, caps) else 0
    if not buffers or splits < 1:
        raise PlanError(f"{dict(choice)} is not a legal tile on {caps.name}. Try: one of contract.candidates()")
    wx, wy, pm, pn, kt, slices, *_ = tile
    a, b = reads(problem, caps)
    long = _long(problem, tile, splits)
    defines = {
        "LOCAL": 1,
        **{name: choice[name] for name in NAMES},
        "BUFFERS": buffers,
        "RUN": RUN if long else 0,
        "A_ALONG_K": int(a.along_k),
        "B_ALONG_K": int(b.along_k),
        "A_VEC": a.vec,
        "B_VEC": b.vec,
        "A_STEPS": int(a.step is not None),
        "B_STEPS": int(b.step is not None),
        "B_CHECK": int(b.check),
    }
    if b.check and problem.mode == "CONV" and problem.conv.k_r * problem.conv.k_s <= 32:
        defines["B_TAPS"] = 1
    if texture:
        defines["TEXTURE"] = 1
    if matrix:
        defines["MATRIX"] = 1
    grid = -(-problem.n // (wx * pn)), -(-problem.m // (wy * pm))
    sliced = f" in {slices} slices" if slices > 1 else ""
    units = f" on matrix units, {_products(problem)} TF32 products each" if matrix else ""
    return Shape(
        grid,
        (wx * wy * slices, 1, 1),
        splits,
        kt,
        (a.step or 0, b.step or 0),
        defines,
        f"local tiles of {wy * pm}x{wx * pn}{sliced}{units}{', textures' if texture else ''}",
        textures=(a.vec, b.vec) if texture else None,
    )


# ---------------------------------------------------------------------------------- loads

#: A number with several digits: the size and the stride of each digit, the fastest digit first.
Digits = list[tuple[int, int]]


def reads(problem: Problem, caps: DeviceCaps) -> tuple[Reads, Reads]:
    """How A and B are loaded."""
    # float4 loads need tensors that start at a multiple of 16 bytes.
    wide = caps.base_align_bytes % 16 == 0
    maps = problem.maps
    if isinstance(maps, MatmulMaps):
        return (
            _reads([(maps.m, maps.a_m)], [(maps.k, maps.a_k)], (maps.a_0, maps.a_gz, maps.a_gy, maps.a_gx), wide),
            _reads([(maps.n, maps.b_n)], [(maps.k, maps.b_k)], (maps.b_0, maps.b_gz, maps.b_gy, maps.b_gx), wide),
        )
    one_group = maps.sets == maps.phase_h * maps.phase_w
    a_g, b_g = (0, 0) if one_group else (maps.a_g, maps.b_g)
    inside = (
        _inside(maps.h, maps.n_y, maps.u_h, maps.k_r, maps.e_h, maps.off_h)
        and _inside(maps.w, maps.n_x, maps.u_w, maps.k_s, maps.e_w, maps.off_w)
        and not problem.phased
    )
    columns = [
        (maps.n_x, maps.u_w * maps.b_w),
        (maps.n_y, maps.u_h * maps.b_h),
        (maps.n // max(maps.n_x * maps.n_y, 1), maps.b_n),
    ]
    taps = [(maps.k_s, maps.a_s), (maps.k_r, maps.a_r), (maps.k_c, maps.a_c)]
    a = _reads([(maps.m, maps.a_m)], taps, (maps.a_0, a_g), wide)
    if problem.phased and maps.k_r * maps.k_s > 1:  # The kernel computes the taps of each phase.
        a = Reads(a.along_k, 1, None)
    b = _reads(
        columns,
        [(maps.k_s, maps.e_w * maps.b_w), (maps.k_r, maps.e_h * maps.b_h), (maps.k_c, maps.b_c)],
        (maps.b_0 + maps.off_h * maps.b_h + maps.off_w * maps.b_w, b_g),
        wide and inside,
    )
    if not inside:
        b = Reads(b.along_k, 1, None, check=True)
    return a, b


def _inside(size: int, outs: int, unit: int, taps: int, step: int, off: int) -> bool:
    """Whether every pixel of an axis that some output and some tap need is inside the image."""
    reach = (taps - 1) * step
    return off + min(reach, 0) >= 0 and off + (outs - 1) * unit + max(reach, 0) < size


def _reads(lines: Digits, terms: Digits, fixed: tuple[int, ...], wide: bool) -> Reads:
    """How a matrix is loaded. `fixed` are the other offsets and strides of its addresses; `wide` allows float4."""
    lines, terms = _merged(lines), _merged(terms)
    along_k = _neighbours(terms) > _neighbours(lines)
    first, other = (terms, lines) if along_k else (lines, terms)
    rest = [stride for _, stride in (*first[1:], *other)]
    wide = wide and bool(first) and first[0][1] == 1 and first[0][0] % 4 == 0
    vec = 4 if wide and all(stride % 4 == 0 for stride in (*rest, *fixed)) else 1
    step = None if len(terms) > 1 else terms[0][1] if terms else 0
    return Reads(along_k, vec, step)


def _merged(digits: Digits) -> Digits:
    """The same numbers, with as few digits as possible."""
    merged: Digits = []
    for size, stride in digits:
        if size == 1:
            continue
        if merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return merged


def _neighbours(digits: Digits) -> int:
    """Roughly how many of 8 neighbouring numbers lie in the same 32 bytes."""
    if not digits:
        return 1
    size, stride = digits[0]
    return min(size, max(8 // max(abs(stride), 1), 1))


# ---------------------------------------------------------------------------------- tiles


def _named(chosen: Tile, texture: bool) -> Choice:
    *tile, splits = chosen
    names = (*NAMES, "MATRIX")[: len(tile)]
    return dict(zip(names, tile, strict=True)) | {"splits": splits} | ({"TEXTURE": 1} if texture else {})


def _tiles(problem: Problem, caps: DeviceCaps) -> tuple[Tile, ...]:
    """The tiles that a device has kernels for. Matrix units compute with floats and with halves in memory."""
    matrix = caps.features == MATRIX and not problem.half_products
    return (*MATRIX_TILES, *TILES) if matrix else TILES


def _matrix(tile: Tile) -> bool:
    return len(tile) > len(NAMES)


def _products(problem: Problem) -> int:
    """The products of matrix units that make one product of floats. Halves have no low part."""
    return 3 - sum(problem.halves)


def _long(problem: Problem, tile: Tile, splits: int) -> bool:
    """Whether a sum has so many terms that it needs two levels. A matrix unit adds 8 terms at a time."""
    return -(-problem.depth // splits) > LONG * tile[5] * (8 if _matrix(tile) else 1)


def _likes_textures(caps: DeviceCaps) -> bool:
    """Whether textures are the default: Adreno GPUs cache textures, but hardly cache buffers."""
    return caps.images and "qualcomm" in caps.vendor.lower()


def _local_bytes(tile: Tile, buffers: int) -> int:
    """Local memory of a work-group in bytes."""
    wx, wy, pm, pn, kt, *_ = tile
    return 4 * buffers * kt * (wy * pm + wx * pn + 8) + 44 * kt + 12


def _buffers(tile: Tile, caps: DeviceCaps) -> int:
    """How many copies of As and Bs fit in local memory, at most 2; 0 if the device cannot run the tile."""
    if tile[0] * tile[1] * tile[5] > caps.max_work_group:
        return 0
    return max((n for n in (1, 2) if _local_bytes(tile, n) <= caps.local_mem_bytes), default=0)


def _costs(problem: Problem, caps: DeviceCaps) -> Iterator[tuple[float, Tile]]:
    """Legal choices with their estimated cycles."""
    a, b = reads(problem, caps)
    # Desktop GPUs have more local memory than one work-group may use. On other GPUs two work-groups share it.
    room = caps.local_mem_bytes // (1 if caps.local_mem_bytes > 32 << 10 else 2)
    # Half arithmetic adds UNROLL products in halves; with few of them, most of the work would be conversions.
    legal = [tile for tile in _tiles(problem, caps) if _buffers(tile, caps)]
    legal = [tile for tile in legal if tile[6] >= 4 or not problem.half_products]
    for tile in [tile for tile in legal if _local_bytes(tile, 2) <= room] or legal[-1:]:
        for splits in SPLITS:
            if splits > 1 and problem.depth < splits * 4 * tile[4]:
                break
            yield _cost(problem, caps, tile, splits, a.cost, b.cost), (*tile, splits)


def _cost(problem: Problem, caps: DeviceCaps, tile: Tile, splits: int, load_a: float, load_b: float) -> float:
    """Estimated cycles of a choice.

    A compute unit runs `at_once` work-groups at a time. Each step of KT terms takes as long as its arithmetic and
    its loads, or as long as the latency if that is longer.
    """
    wx, wy, pm, pn, kt, slices, unroll, *_ = tile
    rows, cols, items = wy * pm, wx * pn, wx * wy * slices
    units, points = caps.compute_units, problem.sets * problem.m * problem.n
    groups = -(-problem.n // cols) * -(-problem.m // rows) * problem.sets * splits
    if _matrix(tile):
        rate, half, registers = MATRIX_RATE[pm * pn] * 3 / _products(problem), MATRIX_HALF, MATRIX_REGISTERS[unroll]
        alone = pm * pn / 8  # Instructions of a work-item per term.
    else:
        rate, half, registers = RATE[pm * pn], HALF[pm * pn], REGISTERS[unroll]
        alone = pm * pn / slices
    most = max(FILE // (items * (pm * pn * (2 if _long(problem, tile, splits) else 1) + registers)), 1)
    at_once = min(-(-groups // units), most)
    warps = -(-items // 32)
    busy = warps * at_once / (warps * at_once + half)
    loads = rows * load_a + cols * load_b
    term = (rows * cols / rate + loads) * warps * 32 / items / LANES
    moved = (rows + cols) * 4 / BYTES
    step = max(at_once * kt * max(term / busy, moved), 1.5 * kt * (alone + loads / items), LATENCY)
    each = START + math.ceil(problem.depth / splits / kt) * step + at_once * rows * cols * 4 / LANES
    cost = math.ceil(groups / (units * at_once)) * each
    if splits > 1:
        cost += LAUNCH + 40 * splits + 8 * splits * points / (units * BYTES)
    return cost
