"""How the work-items of a GPU share the rows of a reduction (rows_gpu.py): the limits, and the shape they give.

A work-group has slots * lanes work-items ("items"): `slots` rows, and `lanes` items along each row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from handheld.device import DeviceCaps
from handheld.kernels.args import group
from handheld.kernels.space import Space

GROUP = 128  # Items of a work-group if rows are short.
LONG_GROUP = 512  # The most items of a work-group if rows are long and few.
MANY_GROUP = 256  # The most items of a work-group if rows are long and many.
LEAST_LANES = 16  # The least lanes of a row, if it has as many elements.
TERMS = 4  # The least elements per item; with fewer, a row gets fewer lanes.
MANY_TERMS = 16  # The same if there are MANY elements per compute unit, so that there are always enough items.
MANY = 8192
COLUMNS = 32  # Adjacent rows: the slots of a work-group.
COLUMN_TERMS = 8  # Adjacent rows: the least elements per item.
BUSY = 2  # Rows are many if they give this many work-groups per compute unit.
LOCAL_BYTES = 16 << 10  # The most local memory of a work-group.

SPLIT_WORK = 256 << 10  # A row is split into chunks if the node has at least this many elements
SPLIT_CHAIN = 64  # and an item would have at least this many elements.
SPLIT_TERMS = 8  # The least elements per item after the split.
SPLIT_GROUPS = 4  # The work-groups per compute unit that a split aims at.
SPLIT_MOST = 512  # The most chunks of a row.


@dataclass(frozen=True)
class Shape:
    """How the items of a GPU share the rows. Along a row, x is the last dimension and j stands for all others."""

    columns: bool  # Whether rows, and not the elements of a row, are adjacent in memory.
    rows: int
    size_j: int
    size_x: int
    slots: int  # Rows of a work-group.
    lanes: int  # Items per row, a power of two.
    lanes_x: int = 1  # How many of the lanes run along x.
    chunk_j: int = 0  # The extent of a chunk along j and along x.
    chunk_x: int = 0

    @property
    def items(self) -> int:
        return self.slots * self.lanes

    @property
    def groups(self) -> int:
        return -(-self.rows // self.slots)

    @property
    def along_j(self) -> bool:
        """Whether the inner loop of an item is over j, because it has more elements along j than along x."""
        return -(-self.chunk_j * self.lanes_x // self.lanes) > -(-self.chunk_x // self.lanes_x)

    @property
    def chunks_x(self) -> int:
        return max(-(-self.size_x // max(self.chunk_x, 1)), 1)

    @property
    def chunks(self) -> int:
        return max(-(-self.size_j // max(self.chunk_j, 1)), 1) * self.chunks_x


def _power(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << max(value - 1, 0).bit_length()


def shape_of(space: Space, reductions: int, caps: DeviceCaps) -> Shape:
    """The shape for a node with this number of results. Few long rows are split into chunks."""
    outer = [n for n, inner in zip(space.sizes, space.inner, strict=True) if not inner]
    inside = [n for n, inner in zip(space.sizes, space.inner, strict=True) if inner]
    rows, length = math.prod(outer), math.prod(inside)
    size_x = inside[-1] if inside else 1
    size_j = math.prod(inside[:-1])
    limit = group(caps, LONG_GROUP)
    while limit > 1 and 4 * limit * reductions > min(LOCAL_BYTES, caps.local_mem_bytes):
        limit //= 2
    many = BUSY * caps.compute_units
    columns = adjacent_rows(space)
    if columns:
        slots = min(COLUMNS, _power(outer[-1]), limit)
        most = max(limit if rows < many * slots else min(limit, MANY_GROUP), slots)
        lanes = min(_power(-(-length // COLUMN_TERMS)), most // slots)
        while slots * lanes * 2 <= min(GROUP, limit) and slots < outer[-1]:
            slots *= 2
    else:
        most = limit if rows < many else min(limit, MANY_GROUP)
        terms = MANY_TERMS if rows * length >= MANY * caps.compute_units else TERMS
        lanes = max(min(_power(length), LEAST_LANES), _power(-(-length // terms)))
        lanes = min(lanes, most)
        slots = max(min(GROUP, limit) // lanes, 1)
        slots = min(slots, _power(rows))
    whole = Shape(columns, rows, size_j, size_x, slots, lanes, 1, size_j, size_x)
    chain = -(-length // lanes)
    if rows * length >= SPLIT_WORK and chain >= SPLIT_CHAIN and whole.groups < many:
        chunks = -(-SPLIT_GROUPS * caps.compute_units // whole.groups)
        whole = _chunks(whole, min(chunks, chain // SPLIT_TERMS, SPLIT_MOST))
    return replace(whole, lanes_x=_lanes_x(lanes, whole.chunk_j, whole.chunk_x))


def adjacent_rows(space: Space) -> bool:
    """Whether rows are adjacent in memory: more elements are contiguous along the last outer dimension than along the
    row."""
    outer = [d for d, inner in enumerate(space.inner) if not inner]
    inside = [d for d, inner in enumerate(space.inner) if inner]
    if not outer or space.sizes[outer[-1]] < 8:
        return False
    along = across = 0
    for walk in space.operands:
        amount = math.prod(n for n, s in zip(space.sizes, walk, strict=True) if s)
        if any(walk[d] for d in inside):
            along += amount * (walk[outer[-1]] in (1, -1))
            across += amount * any(walk[d] in (1, -1) for d in inside)
    return along > across


def _chunks(shape: Shape, count: int) -> Shape:
    """The shape with about `count` chunks per row: along j if j is long enough, otherwise also along x."""
    if count < 2:
        return shape
    if shape.size_j >= count:
        return replace(shape, chunk_j=-(-shape.size_j // count))
    chunk_x = -(-shape.size_x // -(-count // shape.size_j))
    return replace(shape, chunk_j=1, chunk_x=-(-chunk_x // shape.lanes) * shape.lanes)


def _lanes_x(lanes: int, size_j: int, size_x: int) -> int:
    """How many lanes of a row run along x: many, but with few lanes that have nothing to do."""
    high = min(lanes, _power(size_x))
    low = max(min(LEAST_LANES, high), lanes // _power(size_j))
    choices = [1 << n for n in range(low.bit_length() - 1, max(high, low).bit_length())]

    def padded(n: int) -> int:
        return -(-size_x // n) * n

    good = [n for n in choices if 8 * padded(n) <= 9 * size_x]
    return max(good) if good else min(choices, key=lambda n: (padded(n), -n))


def joining(shape: Shape) -> Shape:
    """The shape of a launch that only joins parts: a work-group takes many rows."""
    lanes = min(_power(shape.chunks), shape.items)
    slots = max(min(GROUP, shape.items) // lanes, 1)
    return replace(shape, slots=slots, lanes=lanes, lanes_x=lanes, chunk_j=shape.size_j, chunk_x=shape.size_x)
