"""Register tiles and blocks of contractions on CPUs (contract_register.cl), and a model of their cost.

A work-item computes one block of `rows` x `cols` results, in register tiles of MR x 16*NV. A choice is

    {"MR", "NV", "rows", "cols", "splits", "packed"}

`splits` is the number of parts of k. With `packed` 1, a separate launch packs B once for all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.kernels.base import Choice, round_up
from handheld.kernels.contract_problem import Problem, Shape

KC = 256  # The same as in contract_register.cl.
PART = 128  # The terms of a part of k are a multiple of this.
MOST_ROWS, MOST = 384, 33792  # The most rows and the most elements of a block.
#: Register tiles: rows, and float16 vectors per row. False: 16 vector registers; True: 32 registers of 512 bits.
TILES = {False: ((6, 1),), True: ((8, 2), (6, 1))}
COLUMNS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
NAMES = ("MR", "NV", "rows", "cols", "splits", "packed")


def choose(problem: Problem, caps: DeviceCaps) -> Choice:
    """The choice with the lowest estimated cost."""
    _, chosen = min(_costs(problem, caps), key=itemgetter(0))
    return dict(zip(NAMES, chosen, strict=True))


def choices(problem: Problem, caps: DeviceCaps, most: int) -> list[Choice]:
    """At most `most` choices with the lowest estimated costs, the cheapest first."""
    ranked = sorted(_costs(problem, caps), key=itemgetter(0))
    return [dict(zip(NAMES, chosen, strict=True)) for chosen in [*dict.fromkeys(c for _, c in ranked)][:most]]


def cut(problem: Problem, caps: DeviceCaps, choice: Choice) -> Shape:
    """The work-groups of a choice. Raises PlanError if the choice is not legal."""
    if set(choice) != set(NAMES):
        raise PlanError(f"a choice of a register block has the keys {', '.join(NAMES)}, not {sorted(choice)}")
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
        raise PlanError(f"{dict(choice)} is not a legal register block. Try: one of contract.candidates()")
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
    """Choices with their estimated cycles.

    The estimate adds up packing, multiplying and combining, and takes into account how evenly the blocks fill the
    compute units.
    """
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
                    if splits > 1:  # This adds a second launch, which reads the partial sums.
                        cost += 50_000 + 2 * splits * problem.sets * m * n / units
                    yield cost, (tile_rows, vectors, rows, cols, splits, 0)
                    if problem.mode == "MATMUL":  # B can be packed once for all rows, in a separate launch.
                        cost -= turns * k / splits * 0.9 * pack_b * cols
                        cost += 50_000 + pack_b * problem.sets * k * n / units
                        yield cost, (tile_rows, vectors, rows, cols, splits, 1)
            if blocks > 64 * units:  # Smaller blocks would only add packing work.
                break
