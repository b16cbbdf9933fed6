"""LSTM, GRU and their gradients: turns nodes into launches of recurrent.cl.

    forward     pack ──► lstm (t = 0) ──► lstm (t = 1) ──► ..
    backward    pack ──► lstm_grad (last t) ──► .. ──► lstm_grad (t = 0) ──► lstm_begin

There is one launch per time step. All launches of a node share one program. The first one packs the weights.

If a batch has enough rows for all cores of a CPU, one launch makes all steps (recurrent_rows.cl):

    forward     pack ──► lstm_all               backward    pack ──► lstm_grad_all
"""

from __future__ import annotations

from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import group, ints, line
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace, read_cl, round_up, with_defines

#: CPU: the terms that a work-item packs. The same as in recurrent_lanes.cl.
PACKED = 16
#: CPU: the most panels of columns of a gradient at once.
PANELS = 4
#: GPU, per work-group: rows of the batch and hidden units of its tile, and its work-items.
TILE, UNITS, ITEMS = 8, 8, 256
#: GPU, per work-item: columns, and quads of k (four terms each) between two barriers.
COLUMNS, QUADS = 2, 4


@dataclass(frozen=True)
class _Cell:
    """One node on one device: its sizes, its program, the sizes of a launch, and the size of the packed weights."""

    caps: DeviceCaps
    text: str
    steps: int
    batch: int
    hidden: int
    gates: int
    panel: int
    grid: tuple[tuple[int, int], tuple[int, int]]
    packed_size: int
    why: str
    #: CPU, all steps in one launch: the blocks of rows of a work-item; 0: one launch per step.
    blocks: int = 0

    @staticmethod
    def of(caps: DeviceCaps, steps: int, batch: int, hidden: int, gates: int, *, backward: bool = False) -> _Cell:
        ints(steps * batch * gates * hidden)
        if caps.kind == "gpu":
            return _tiles(caps, steps, batch, hidden, gates, backward)
        # lanes * rows * gates sums stay in registers. A CPU with vectors of 16 floats has twice as many registers.
        wide = caps.vector_width >= 16
        lanes, rows = 16 if wide and hidden > 8 else 8, 4 if wide else 2
        if 2 * caps.compute_units <= batch < rows * caps.compute_units:
            rows = 2
        row_blocks, lane_blocks = -(-batch // rows), -(-hidden // lanes)
        blocks = -(-row_blocks // caps.compute_units) if row_blocks >= caps.compute_units else 0
        # A step of the gradient takes up to four panels of columns at once, as evenly as possible.
        panels = -(-lane_blocks // -(-lane_blocks // PANELS)) if blocks else 1
        if blocks:
            local, size = (1, 1), (-(-row_blocks // blocks), 1)
        else:
            local = (min(group(caps, 16), _power(row_blocks)), 1)
            size = (round_up(row_blocks, local[0]), lane_blocks)
        text = read_cl("math.cl") + _text("recurrent_lanes.cl") + (read_cl("recurrent_rows.cl") if blocks else "")
        return _Cell(
            caps,
            with_defines({"LANES": lanes, "ROWS": rows, "PANELS": panels}, text),
            steps,
            batch,
            hidden,
            gates,
            lanes,
            (size, local),
            gates * hidden * round_up(hidden, lanes),
            f"{blocks * rows} rows of the batch per work-item" if blocks else "vectors of columns",
            blocks,
        )

    @property
    def sizes(self) -> tuple[Arg, ...]:
        return ints(self.batch, self.hidden, self.panel)

    def pack(self, weights: int, *, transposed: bool) -> Launch:
        """The launch that packs the weights in the order in which a step reads them. Forward steps need them
        transposed."""
        strides = (self.hidden, 1) if transposed else (1, self.hidden)
        if self.caps.kind == "gpu":
            terms = self.hidden if transposed else self.gates * self.hidden
            sizes = ints(self.packed_size, self.hidden, terms, self.panel)
            args: tuple[Arg, ...] = (Buffer(weights), Workspace(0), *sizes, *ints(*strides))
            return line("pack_tiles", self.text, args, self.packed_size, self.caps)
        blocks = (-(-self.hidden // PACKED), self.gates, -(-self.hidden // self.panel))
        args = (Buffer(weights), Workspace(0), *ints(self.hidden, self.panel, *strides))
        return Launch("pack", self.text, args, blocks, (1, 1, 1))

    def keep(self, value: int, target: int) -> Launch:
        """A launch that copies a state: the gradient of a sequence without steps."""
        total = self.batch * self.hidden
        args: tuple[Arg, ...] = (Buffer(value), Buffer(target), *ints(total))
        return line("keep", self.text, args, total, self.caps)

    def step(self, kernel: str, *args: Arg) -> Launch:
        return Launch(kernel, self.text, (*args, *self.sizes), *self.grid)

    def all_steps(self, kernel: str, reverse: bool, *args: Arg) -> Launch:
        """The launch that makes all steps."""
        sizes = ints(self.steps, int(reverse), self.blocks)
        return Launch(f"{kernel}_all", self.text, (*args, *sizes, *self.sizes), *self.grid)

    def lowered(self, launches: list[Launch]) -> Lowered:
        how = f"one launch for {self.steps} steps" if self.blocks else f"one launch per step, {self.steps} steps"
        return Lowered(tuple(launches), (4 * self.packed_size,), f"{how}, {self.why}, weights packed once")


def _power(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()


def _shape(caps: DeviceCaps, batch: int, hidden: int, per_unit: int, terms: int) -> dict[str, int]:
    """GPU: the tile of a work-group and how its work-items share it, as defines of recurrent.cl.

    All but GATES and QUADS are powers of two; COLUMNS may also be 3, if a work-item takes all columns of a GRU unit.
    """
    items, room = group(caps, ITEMS), caps.local_mem_bytes * 3 // 4
    tile = min(TILE, _power(batch), items)
    while True:
        units = min(UNITS, _power(hidden), items // tile)
        width = per_unit * units
        columns = per_unit if per_unit == 3 or width % COLUMNS else COLUMNS
        if width // columns > items:
            columns = per_unit
        slices, quads = min(items * columns // width, _power(-(-terms // 4))), QUADS
        least = -(-tile * units * columns // width)  # There is at least one work-item per element of the tile.
        slices = max(slices, least)
        while 4 * tile * slices * max(width, 4 * quads) > room and (quads > 1 or slices > least):
            quads, slices = (quads - 1, slices) if quads > 1 else (quads, slices // 2)
        if tile == 1 or 4 * tile * slices * max(width, 4 * quads) <= room:
            return {
                "UNITS": units,
                "TILE": tile,
                "GATES": per_unit,
                "COLUMNS": columns,
                "SLICES": slices,
                "QUADS": quads,
            }
        tile //= 2


def _text(sums: str) -> str:
    """The text of the kernels with one launch per step, with the sums of this file."""
    return "".join(map(read_cl, ("recurrent.cl", sums, "recurrent_steps.cl")))


def _tiles(caps: DeviceCaps, steps: int, batch: int, hidden: int, gates: int, backward: bool) -> _Cell:
    """GPU: one work-group per tile. Its work-items share the sum over k in slices."""
    per_unit, terms = (1, gates * hidden) if backward else (gates, hidden)
    shape = _shape(caps, batch, hidden, per_unit, terms)
    units, slices, width = shape["UNITS"], shape["SLICES"], shape["UNITS"] * per_unit
    quads, local = round_up(-(-terms // 4), slices), slices * width // shape["COLUMNS"]
    row_tiles, unit_tiles = -(-batch // shape["TILE"]), -(-hidden // units)
    packed = unit_tiles * quads * width * 4
    ints(packed)
    defines: dict[str, object] = {"LANES": 1, "ROWS": 1, **shape, "WHOLE": int(terms % 4 == 0)}
    return _Cell(
        caps,
        with_defines(defines, _text("recurrent_tiles.cl")),
        steps,
        batch,
        hidden,
        gates,
        quads,
        ((row_tiles, unit_tiles * local), (1, local)),
        packed,
        f"tiles of {shape['TILE']}x{units}, k in {slices} slices",
    )


def _order(steps: int, reverse: bool) -> list[int]:
    """The time steps in the order in which the forward pass takes them."""
    return list(range(steps - 1, -1, -1) if reverse else range(steps))


def lower_lstm(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    gx, w, h0, c0 = (view.tensor for view in node.inputs)
    h, c, gates = node.outputs
    steps, batch, hidden = graph.tensors[h].shape
    if steps * batch * hidden == 0:
        return Lowered(())
    cell = _Cell.of(caps, steps, batch, hidden, 4)
    launches = [cell.pack(w, transposed=True)]
    if cell.blocks:
        args: tuple[Arg, ...] = (Buffer(gx), Workspace(0), *map(Buffer, (h0, c0, h, c, gates)))
        return cell.lowered([*launches, cell.all_steps("lstm", node.attrs["reverse"], *args)])
    before_h, before_c, near = h0, c0, 0
    for t in _order(steps, node.attrs["reverse"]):
        launches.append(
            cell.step(
                "lstm",
                Buffer(gx),
                Workspace(0),
                Buffer(before_h),
                Buffer(before_c),
                Buffer(h),
                Buffer(c),
                Buffer(gates),
                *ints(t * batch, near),
            )
        )
        before_h, before_c, near = h, c, t * batch
    return cell.lowered(launches)


def lower_gru(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    gx, w, bias, h0 = (view.tensor for view in node.inputs)
    h, saved = node.outputs
    steps, batch, hidden = graph.tensors[h].shape
    if steps * batch * hidden == 0:
        return Lowered(())
    cell = _Cell.of(caps, steps, batch, hidden, 3)
    launches = [cell.pack(w, transposed=True)]
    if cell.blocks:
        args: tuple[Arg, ...] = (Buffer(gx), Workspace(0), *map(Buffer, (bias, h0, h, saved)))
        return cell.lowered([*launches, cell.all_steps("gru", node.attrs["reverse"], *args)])
    before, near = h0, 0
    for t in _order(steps, node.attrs["reverse"]):
        launches.append(
            cell.step(
                "gru",
                Buffer(gx),
                Workspace(0),
                Buffer(bias),
                Buffer(before),
                Buffer(h),
                Buffer(saved),
                *ints(t * batch, near),
            )
        )
        before, near = h, t * batch
    return cell.lowered(launches)


def _backwards(steps: int, batch: int, reverse: bool) -> list[tuple[int, int, int]]:
    """For each step of the gradient: its first row, the first row of the step before it (-1: the initial state) and
    that of the step after it (-1: the end). The last step comes first."""
    rows = [t * batch for t in _order(steps, reverse)]
    return list(zip(rows, [-1, *rows[:-1]], [*rows[1:], -1], strict=False))[::-1]


def lower_lstm_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    dh, dh_last, dc_last, w, c, gates, c0 = (view.tensor for view in node.inputs)
    dgx, dh0, dc0 = node.outputs
    steps, batch, hidden = node.inputs[0].shape
    if batch * hidden == 0:
        return Lowered(())
    cell = _Cell.of(caps, steps, batch, hidden, 4, backward=True)
    if steps == 0:
        return Lowered((cell.keep(dh_last, dh0), cell.keep(dc_last, dc0)))
    launches = [cell.pack(w, transposed=False)]
    if cell.blocks:
        args: tuple[Arg, ...] = (
            *map(Buffer, (dh, dh_last, dc_last)),
            Workspace(0),
            *map(Buffer, (c, gates, c0, dgx, dh0, dc0)),
        )
        return cell.lowered([*launches, cell.all_steps("lstm_grad", node.attrs["reverse"], *args)])
    for at, near, later in _backwards(steps, batch, node.attrs["reverse"]):
        launches.append(
            cell.step(
                "lstm_grad",
                Buffer(dh),
                Buffer(dh_last),
                Buffer(dc_last if later < 0 else dc0),
                Workspace(0),
                Buffer(c),
                Buffer(gates),
                Buffer(c0 if near < 0 else c),
                Buffer(dgx),
                Buffer(dc0),
                *ints(at, max(near, 0), later),
            )
        )
    first = _order(steps, node.attrs["reverse"])[0] * batch
    launches.append(cell.step("lstm_begin", Buffer(dgx), Workspace(0), Buffer(dh0), *ints(first)))
    return cell.lowered(launches)


def lower_gru_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    dh, dh_last, w, h, saved, h0 = (view.tensor for view in node.inputs)
    dgx, dgh, dh0 = node.outputs
    steps, batch, hidden = node.inputs[0].shape
    if batch * hidden == 0:
        return Lowered(())
    cell = _Cell.of(caps, steps, batch, hidden, 3, backward=True)
    if steps == 0:
        return Lowered((cell.keep(dh_last, dh0),))
    launches = [cell.pack(w, transposed=False)]
    if cell.blocks:
        args: tuple[Arg, ...] = (*map(Buffer, (dh, dh_last)), Workspace(0), *map(Buffer, (h, saved, h0, dgx, dgh, dh0)))
        return cell.lowered([*launches, cell.all_steps("gru_grad", node.attrs["reverse"], *args)])
    for at, near, later in _backwards(steps, batch, node.attrs["reverse"]):
        launches.append(
            cell.step(
                "gru_grad",
                Buffer(dh),
                Buffer(dh_last if later < 0 else dh0),
                Workspace(0),
                Buffer(h0 if near < 0 else h),
                Buffer(saved),
                Buffer(dgx),
                Buffer(dgh),
                Buffer(dh0),
                *ints(at, max(near, 0), later),
            )
        )
    first = _order(steps, node.attrs["reverse"])[0] * batch
    launches.append(cell.step("gru_begin", Buffer(dgh), Workspace(0), Buffer(dh0), *ints(first)))
    return cell.lowered(launches)
