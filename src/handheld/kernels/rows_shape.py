"""How the work-items of a GPU share the rows of a reduction: sizes to tune, and the choice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from handheld.device import DeviceCaps
from handheld.kernels.args import group
from handheld.kernels.space import Space

GROUP = 128  # work-items of a group whose rows are short
LONG_GROUP = 512  # and of one with a long row, where rows are few
MANY_GROUP = 256  # and where they are many
LEAST_LANES = 16  # along a row that has as many elements
TERMS = 4  # elements of a row that an item should have at least, before it gets company
MANY_TERMS = 16  # and where there are so many for each compute unit, that items are never too few:
MANY = 8192
COLUMNS = 32  # neighbouring rows of a group
COLUMN_TERMS = 8
BUSY = 2  # groups for each compute unit from which on rows are many
LOCAL_BYTES = 16 << 10

SPLIT_WORK = 256 << 10  # elements, and
SPLIT_CHAIN = 64  # elements of an item, from which on a row is split between groups
SPLIT_TERMS = 8  # elements that a split leaves to an item at least
SPLIT_GROUPS = 4  # groups for each compute unit that a split asks for
SPLIT_MOST = 512  # chunks of a row


@dataclass(frozen=True)
class Shape:
    """How work-items share the rows."""

    columns: bool
    rows: int
    size_j: int
    size_x: int
    slots: int
    lanes: int  # a power of two, of which lanes_x run along x
    lanes_x: int = 1
    chunk_j: int = 0  # extent of a chunk
    chunk_x: int = 0

    @property
    def items(self) -> int:
        return self.slots * self.lanes

    @property
    def groups(self) -> int:
        return -(-self.rows // self.slots)

    @property
    def along_j(self) -> bool:
        """Whether an item's innermost loop is over j: that is where it has more to do."""
        return -(-self.chunk_j * self.lanes_x // self.lanes) > -(-self.chunk_x // self.lanes_x)

    @property
    def chunks_x(self) -> int:
        return max(-(-self.size_x // max(self.chunk_x, 1)), 1)

    @property
    def chunks(self) -> int:
        return max(-(-self.size_j // max(self.chunk_j, 1)), 1) * self.chunks_x


def _power(value: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(value - 1, 0).bit_length()


def shape_of(space: Space, reductions: int, caps: DeviceCaps) -> Shape:
    """The shape for a node of so many results, split where rows are few and long."""
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
        want = -(-SPLIT_GROUPS * caps.compute_units // whole.groups)
        whole = _chunks(whole, min(want, chain // SPLIT_TERMS, SPLIT_MOST))
    return replace(whole, lanes_x=_lanes_x(lanes, whole.chunk_j, whole.chunk_x))


def adjacent_rows(space: Space) -> bool:
    """Whether more is read along the last outer dimension than along the row."""
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
    """About `count` chunks of a row: along j if that is long enough, else along x too."""
    if count < 2:
        return shape
    if shape.size_j >= count:
        return replace(shape, chunk_j=-(-shape.size_j // count))
    chunk_x = -(-shape.size_x // -(-count // shape.size_j))
    return replace(shape, chunk_j=1, chunk_x=-(-chunk_x // shape.lanes) * shape.lanes)


def _lanes_x(lanes: int, size_j: int, size_x: int) -> int:
    """Of the lanes of a row, how many run along x: many, but few that find nothing to do."""
    high = min(lanes, _power(size_x))
    low = max(min(LEAST_LANES, high), lanes // _power(size_j))
    choices = [1 << n for n in range(low.bit_length() - 1, max(high, low).bit_length())]

    def padded(n: int) -> int:
        return -(-size_x // n) * n

    good = [n for n in choices if 8 * padded(n) <= 9 * size_x]
    return max(good) if good else min(choices, key=lambda n: (padded(n), -n))


def joining(shape: Shape) -> Shape:
    """For a launch that only folds parts: one group for many rows."""
    lanes = min(_power(shape.chunks), shape.items)
    slots = max(min(GROUP, shape.items) // lanes, 1)
    return replace(shape, slots=slots, lanes=lanes, lanes_x=lanes, chunk_j=shape.size_j, chunk_x=shape.size_x)
