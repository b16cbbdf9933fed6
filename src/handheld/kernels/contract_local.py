"""Tiles in local memory for contractions on GPUs (contract_local.cl): how they load, which are
legal on a device, and an estimate of the time each takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.kernels.contract_problem import Choice, MatmulMaps, Problem, Shape

NAMES = ("WX", "WY", "PM", "PN", "KT", "SLICES", "UNROLL")

#: every tile: items across and down, rows and columns of an item, terms, slices, unrolled terms; a
#: tile has WY*PM rows and WX*PN columns. Larger ones load less, smaller ones and more slices fill
#: the device.
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
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
LONG = 4096  # terms that an item adds up in one sum: like PyTorch's own, 1e-6 of float64
RUN = 256  # terms of the first of two sums, where there are more

Tile = tuple[int, ...]

# In cycles of a compute unit of 128 lanes; measured on desktop GPUs, and right enough elsewhere.
LANES = 128
#: by the size of a register tile: the share of the peak it can reach, how many warps reach half of
#: that, and the registers of an item beside those for its sums
RATE, HALF, REGISTERS = {64: 0.85, 32: 0.7, 16: 0.5}, {64: 2, 32: 4, 16: 6}, {2: 64, 4: 80, 8: 96}
FILE = 65536  # registers of a compute unit
LATENCY = 700  # of a tile that is fetched, stored and waited for
START = 2000  # of a work-group: first fetch, last stores
LAUNCH = 8500  # of a second launch
BYTES = 24  # that a compute unit loads or stores in a cycle


@dataclass(frozen=True, slots=True)
class Reads:
    """How a tile of A or B is loaded: along k or along its lines, elements a load, the step from
    term to term if there is one, and whether pixels may lie outside."""

    along_k: bool
    vec: int
    step: int | None
    check: bool = False

    @property
    def cost(self) -> float:
        """Instructions an element."""
        return (1 if self.vec == 4 else 4) + (2 if self.step is None else 0) + 4 * self.check


def choose(problem: Problem, caps: DeviceCaps) -> Choice:
    """The choice with the least estimated time."""
    best = min(_costs(problem, caps), key=itemgetter(0), default=None)
    if best is None:
        smallest = min(_local_bytes(tile, 1) for tile in TILES)
        raise PlanError(
            f"a contraction on {caps.name} needs {smallest} bytes of local memory and "
            f"the device has {caps.local_mem_bytes}. Try: another device"
        )
    return _named(best[1], _likes_textures(caps))


def choices(problem: Problem, caps: DeviceCaps, most: int) -> list[Choice]:
    """The choices with the least estimated times, the least first, at most two of a tile."""
    found: list[Tile] = []
    seen: Counter[Tile] = Counter()
    for _, chosen in sorted(_costs(problem, caps), key=itemgetter(0)):
        seen[chosen[:-1]] += 1
        if seen[chosen[:-1]] <= 2:
            found.append(chosen)
    if _likes_textures(caps):
        return [_named(chosen, on) for chosen in found[: most // 2] for on in (True, False)]
    return [_named(chosen, False) for chosen in found[:most]]


def cut(problem: Problem, caps: DeviceCaps, choice: Choice) -> Shape:
    if {*choice} - {"TEXTURE"} != {*NAMES, "splits"}:
        raise PlanError(f"a local tile is chosen by {', '.join(NAMES)} and splits, not {sorted(choice)}")
    tile, splits = tuple(choice[name] for name in NAMES), choice["splits"]
    texture = choice.get("TEXTURE", 0)
    if texture not in (0, 1) or (texture and not caps.images):
        raise PlanError(f"{caps.name} has no textures")
    texture = texture and problem.k  # without terms there is nothing to read
    buffers = _buffers(tile, caps) if tile in TILES else 0
    if not buffers or splits < 1:
        raise PlanError(f"no local tile of {caps.name} is {dict(choice)}")
    wx, wy, pm, pn, kt, slices, _ = tile
    a, b = reads(problem, caps)
    long = -(-problem.depth // splits) > LONG * slices
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
    if texture:
        defines["TEXTURE"] = 1
    grid = -(-problem.n // (wx * pn)), -(-problem.m // (wy * pm))
    sliced = f" in {slices} slices" if slices > 1 else ""
    return Shape(
        grid,
        (wx * wy * slices, 1, 1),
        splits,
        kt,
        (a.step or 0, b.step or 0),
        defines,
        f"local tiles of {wy * pm}x{wx * pn}{sliced}{', textures' if texture else ''}",
        textures=(a.vec, b.vec) if texture else None,
    )


# ---------------------------------------------------------------------------------- loads

Digits = list[tuple[int, int]]  # sizes and strides, the fastest first


def reads(problem: Problem, caps: DeviceCaps) -> tuple[Reads, Reads]:
    """How A and B are loaded."""
    wide = caps.base_align_bytes % 16 == 0  # else tensors may start where float4 may not
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
    if problem.phased and maps.k_r * maps.k_s > 1:  # each phase has taps of its own
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
    """Whether all pixels of an axis that outputs and taps speak of are in the image."""
    reach = (taps - 1) * step
    return off + min(reach, 0) >= 0 and off + (outs - 1) * unit + max(reach, 0) < size


def _reads(lines: Digits, terms: Digits, fixed: tuple[int, ...], wide: bool) -> Reads:
    lines, terms = _merged(lines), _merged(terms)
    along_k = _neighbours(terms) > _neighbours(lines)
    first, other = (terms, lines) if along_k else (lines, terms)
    rest = [stride for _, stride in (*first[1:], *other)]
    wide = wide and bool(first) and first[0][1] == 1 and first[0][0] % 4 == 0
    vec = 4 if wide and all(stride % 4 == 0 for stride in (*rest, *fixed)) else 1
    step = None if len(terms) > 1 else terms[0][1] if terms else 0
    return Reads(along_k, vec, step)


def _merged(digits: Digits) -> Digits:
    """The same numbers with as few digits as possible."""
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
    """How many of 8 neighbouring numbers are in the same 32 bytes, roughly."""
    if not digits:
        return 1
    size, stride = digits[0]
    return min(size, max(8 // max(abs(stride), 1), 1))


# ---------------------------------------------------------------------------------- tiles


def _named(chosen: Tile, texture: bool) -> Choice:
    return dict(zip((*NAMES, "splits"), chosen, strict=True)) | ({"TEXTURE": 1} if texture else {})


def _likes_textures(caps: DeviceCaps) -> bool:
    """Adreno GPUs cache textures, and plain memory hardly."""
    return caps.images and "qualcomm" in caps.vendor.lower()


def _local_bytes(tile: Tile, buffers: int) -> int:
    wx, wy, pm, pn, kt, *_ = tile
    return 4 * buffers * kt * (wy * pm + wx * pn + 8) + 44 * kt + 12


def _buffers(tile: Tile, caps: DeviceCaps) -> int:
    """How often As and Bs fit, at most twice; 0 if the device cannot run the tile."""
    if tile[0] * tile[1] * tile[5] > caps.max_work_group:
        return 0
    return max((n for n in (1, 2) if _local_bytes(tile, n) <= caps.local_mem_bytes), default=0)


def _costs(problem: Problem, caps: DeviceCaps) -> Iterator[tuple[float, Tile]]:
    """Legal choices with their estimated cycles."""
    a, b = reads(problem, caps)
    # desktop GPUs have more local memory than they give one group; on others two groups share it
    room = caps.local_mem_bytes // (1 if caps.local_mem_bytes > 32 << 10 else 2)
    legal = [tile for tile in TILES if _buffers(tile, caps)]
    for tile in [tile for tile in legal if _local_bytes(tile, 2) <= room] or legal[-1:]:
        for splits in SPLITS:
            if splits > 1 and problem.depth < splits * 4 * tile[4]:
                break
            yield _cost(problem, caps, tile, splits, a.cost, b.cost), (*tile, splits)


def _cost(problem: Problem, caps: DeviceCaps, tile: Tile, splits: int, load_a: float, load_b: float) -> float:
    """Cycles: compute units run some groups at a time, each tile of terms taking as long as its
    arithmetic and loads, or as its latency if that is longer."""
    wx, wy, pm, pn, kt, slices, unroll = tile
    rows, cols, items = wy * pm, wx * pn, wx * wy * slices
    units, points = caps.compute_units, problem.sets * problem.m * problem.n
    groups = -(-problem.n // cols) * -(-problem.m // rows) * problem.sets * splits
    long = problem.depth > splits * LONG * slices
    most = max(FILE // (items * (pm * pn * (2 if long else 1) + REGISTERS[unroll])), 1)
    at_once = min(-(-groups // units), most)
    warps = -(-items // 32)
    busy = warps * at_once / (warps * at_once + HALF[pm * pn])
    loads = rows * load_a + cols * load_b
    term = (rows * cols / RATE[pm * pn] + loads) * warps * 32 / items / LANES
    alone = pm * pn / slices + loads / items  # instructions of an item, a term
    moved = (rows + cols) * 4 / BYTES
    step = max(at_once * kt * max(term / busy, moved), 1.5 * kt * alone, LATENCY)
    each = START + math.ceil(problem.depth / splits / kt) * step + at_once * rows * cols * 4 / LANES
    cost = math.ceil(groups / (units * at_once)) * each
    if splits > 1:
        cost += LAUNCH + 40 * splits + 8 * splits * points / (units * BYTES)
    return cost
