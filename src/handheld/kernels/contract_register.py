"""Register tiles and blocks for contractions on CPUs (contract_register.cl), and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.kernels.base import round_up
from handheld.kernels.contract_problem import Choice, Problem, Shape

KC = 256  # as in contract_register.cl
PART = 128  # parts of k are multiples of this
MOST_ROWS, MOST = 384, 33792  # rows and elements of a block
#: register tiles, rows and float16 of a row: for 16 registers, and for 32 of 512 bits
TILES = {False: ((6, 1),), True: ((8, 2), (6, 1))}
COLUMNS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
NAMES = ("MR", "NV", "rows", "cols", "splits", "packed")


def choose(problem: Problem, caps: DeviceCaps) -> Choice:
    """The choice that costs fewest cycles."""
    _, chosen = min(_costs(problem, caps), key=itemgetter(0))
    return dict(zip(NAMES, chosen, strict=True))


def choices(problem: Problem, caps: DeviceCaps, most: int) -> list[Choice]:
    """The cheapest choices, the cheapest first."""
    ranked = sorted(_costs(problem, caps), key=itemgetter(0))
    return [dict(zip(NAMES, chosen, strict=True)) for chosen in [*dict.fromkeys(c for _, c in ranked)][:most]]


def cut(problem: Problem, caps: DeviceCaps, choice: Choice) -> Shape:
    if set(choice) != set(NAMES):
        raise PlanError(f"a register block is chosen by {', '.join(NAMES)}, not {sorted(choice)}")
    tile_rows, vectors, rows, cols, splits, packed = (choice[name] for name in NAMES)
    if (
        (tile_rows, vectors) not in TILES[True]
        or rows % tile_rows
        or not 0 < rows <= MOST_ROWS
        or cols not in COLUMNS
        or cols % (16 * vectors)
        or rows * cols > MOST
        or splits < 1
        or packed not in ((0, 1) if problem.mode == "MATMUL" else (0,))
    ):
        raise PlanError(f"no register block is {dict(choice)}")
    grid = -(-problem.n // cols), -(-problem.m // rows)
    defines = {"MR": tile_rows, "NV": vectors} | ({"PACKED": 1} if packed else {})
    return Shape(
        grid,
        (1, 1, 1),
        splits,
        PART,
        (rows, cols),
        defines,
        f"register blocks of {rows}x{cols}, tiles of {tile_rows}x{16 * vectors}"
        + (", packed before" if packed else ""),
        (16 * vectors, KC) if packed else None,
    )


def _costs(problem: Problem, caps: DeviceCaps) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Choices with their cycles, by what packing, multiplying and combining cost and how evenly
    blocks fill the compute units."""
    m, n, k, units = problem.m, problem.n, max(problem.k, 1), caps.compute_units
    pack_a = 1.0 if 1 in problem.a_steps else 1.5
    pack_b = {"MATMUL": 2.0, "CONV": 0.8, "WEIGHT": 1.5}[problem.mode]
    for tile_rows, vectors in TILES[caps.vector_width >= 16]:
        width, rows = 16 * vectors, 0
        for down in range(-(-m // MOST_ROWS), -(-m // tile_rows) + 1):
            before, rows = rows, round_up(-(-m // down), tile_rows)
            if rows == before:
                continue
            for cols in COLUMNS:
                if cols % width or rows > MOST_ROWS or (cols > width and rows * cols > MOST):
                    continue
                blocks = -(-m // rows) * -(-n // cols) * problem.sets
                for splits in (1, 2, 4, 8, 16):
                    if splits > 1 and (blocks > 4 * units or k < splits * 2 * KC):
                        break
                    turns = -(-blocks * splits // units)
                    cost = (
                        turns
                        * k
                        / splits
                        * (rows * cols / 16 * (1.05 if vectors == 1 else 1) + pack_a * rows + pack_b * cols)
                    )
                    if splits > 1:  # a second launch, and what it reads
                        cost += 50_000 + 2 * splits * problem.sets * m * n / units
                    yield cost, (tile_rows, vectors, rows, cols, splits, 0)
                    if problem.mode == "MATMUL":  # once for all rows, in a launch of its own
                        cost -= turns * k / splits * 0.9 * pack_b * cols
                        cost += 50_000 + pack_b * problem.sets * k * n / units
                        yield cost, (tile_rows, vectors, rows, cols, splits, 1)
            if blocks > 64 * units:  # smaller blocks only pack more
                break
