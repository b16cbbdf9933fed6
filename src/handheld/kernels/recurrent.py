"""LSTM and GRU: a launch a time step, all of one program, after one that packs the weights."""

from __future__ import annotations

from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import group, ints, line
from handheld.kernels.base import (
    Arg,
    Buffer,
    Launch,
    Lowered,
    Workspace,
    read_source,
    round_up,
    with_defines,
)


@dataclass(frozen=True)
class _Cell:
    """One node: its sizes, the program, the grid of a step and the packed weights."""

    caps: DeviceCaps
    source: str
    steps: int
    batch: int
    hidden: int
    gates: int
    panel: int
    grid: tuple[tuple[int, int], tuple[int, int]]

    @staticmethod
    def of(caps: DeviceCaps, steps: int, batch: int, hidden: int, gates: int) -> _Cell:
        on_gpu = caps.kind == "gpu"
        # lanes * rows * gates sums stay in registers; a GPU's vector is its work-items
        lanes, rows = (1, 4) if on_gpu else (8, 2)
        row_blocks, lane_blocks = -(-batch // rows), -(-hidden // lanes)
        if on_gpu:
            local = (1, group(caps))
        else:
            local = (min(group(caps, 16), 1 << (row_blocks - 1).bit_length()), 1)
        size = (round_up(row_blocks, local[0]), round_up(lane_blocks, local[1]))
        source = with_defines({"LANES": lanes, "ROWS": rows}, read_source("recurrent.cl"))
        panel = hidden if on_gpu else lanes
        ints(steps * batch * gates * hidden)
        return _Cell(caps, source, steps, batch, hidden, gates, panel, (size, local))

    @property
    def packed_size(self) -> int:
        return self.gates * self.hidden * round_up(self.hidden, self.panel)

    @property
    def sizes(self) -> tuple[Arg, ...]:
        return ints(self.batch, self.hidden, self.panel)

    def pack(self, weights: int, *, transposed: bool) -> Launch:
        """The weights in the order that a step reads them; forward steps want them transposed."""
        strides = (self.hidden, 1) if transposed else (1, self.hidden)
        sizes = ints(self.packed_size, self.gates, self.hidden, self.panel, *strides)
        args: tuple[Arg, ...] = (Buffer(weights), Workspace(0), *sizes)
        return line("pack", self.source, args, self.packed_size, self.caps)

    def keep(self, source: int, target: int) -> Launch:
        """A plain copy: what a sequence of no steps does to its state."""
        total = self.batch * self.hidden
        args: tuple[Arg, ...] = (Buffer(source), Buffer(target), *ints(total))
        return line("keep", self.source, args, total, self.caps)

    def step(self, kernel: str, *args: Arg) -> Launch:
        return Launch(kernel, self.source, (*args, *self.sizes), *self.grid)

    def lowered(self, launches: list[Launch]) -> Lowered:
        where = "one work-item a column" if self.caps.kind == "gpu" else "vectors of columns"
        return Lowered(tuple(launches), (4 * self.packed_size,),
                       f"{self.steps} steps of one launch, {where}, weights packed once")


def _order(steps: int, reverse: bool) -> list[int]:
    return list(range(steps - 1, -1, -1) if reverse else range(steps))


def lower_lstm(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    gx, w, h0, c0 = (view.tensor for view in node.inputs)
    h, c, gates = node.outputs
    steps, batch, hidden = graph.tensors[h].shape
    if steps * batch * hidden == 0:
        return Lowered(())
    cell = _Cell.of(caps, steps, batch, hidden, 4)
    launches = [cell.pack(w, transposed=True)]
    before_h, before_c, near = h0, c0, 0
    for t in _order(steps, node.attrs["reverse"]):
        launches.append(cell.step(
            "lstm", Buffer(gx), Workspace(0), Buffer(before_h), Buffer(before_c), Buffer(h),
            Buffer(c), Buffer(gates), *ints(t * batch, near)))
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
    before, near = h0, 0
    for t in _order(steps, node.attrs["reverse"]):
        launches.append(cell.step("gru", Buffer(gx), Workspace(0), Buffer(bias), Buffer(before),
                                  Buffer(h), Buffer(saved), *ints(t * batch, near)))
        before, near = h, t * batch
    return cell.lowered(launches)


def _backwards(steps: int, batch: int, reverse: bool) -> list[tuple[int, int, int]]:
    """For each step of the gradient: its row, that of the step before it in time (-1: the initial
    state) and that of the step after it (-1: the end)."""
    rows = [t * batch for t in _order(steps, reverse)]
    return list(zip(rows, [-1, *rows[:-1]], [*rows[1:], -1]))[::-1]


def lower_lstm_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    dh, dh_last, dc_last, w, c, gates, c0 = (view.tensor for view in node.inputs)
    dgx, dh0, dc0 = node.outputs
    steps, batch, hidden = node.inputs[0].shape
    if batch * hidden == 0:
        return Lowered(())
    cell = _Cell.of(caps, steps, batch, hidden, 4)
    if steps == 0:
        return Lowered((cell.keep(dh_last, dh0), cell.keep(dc_last, dc0)))
    launches = [cell.pack(w, transposed=False)]
    for at, near, later in _backwards(steps, batch, node.attrs["reverse"]):
        launches.append(cell.step(
            "lstm_grad", Buffer(dh), Buffer(dh_last), Buffer(dc_last if later < 0 else dc0),
            Workspace(0), Buffer(c), Buffer(gates), Buffer(c0 if near < 0 else c), Buffer(dgx),
            Buffer(dc0), *ints(at, max(near, 0), later)))
    first = _order(steps, node.attrs["reverse"])[0] * batch
    launches.append(cell.step("lstm_begin", Buffer(dgx), Workspace(0), Buffer(dh0), *ints(first)))
    return cell.lowered(launches)


def lower_gru_grad(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    dh, dh_last, w, h, saved, h0 = (view.tensor for view in node.inputs)
    dgx, dgh, dh0 = node.outputs
    steps, batch, hidden = node.inputs[0].shape
    if batch * hidden == 0:
        return Lowered(())
    cell = _Cell.of(caps, steps, batch, hidden, 3)
    if steps == 0:
        return Lowered((cell.keep(dh_last, dh0),))
    launches = [cell.pack(w, transposed=False)]
    for at, near, later in _backwards(steps, batch, node.attrs["reverse"]):
        launches.append(cell.step(
            "gru_grad", Buffer(dh), Buffer(dh_last if later < 0 else dh0), Workspace(0),
            Buffer(h0 if near < 0 else h), Buffer(saved), Buffer(dgx), Buffer(dgh), Buffer(dh0),
            *ints(at, max(near, 0), later)))
    first = _order(steps, node.attrs["reverse"])[0] * batch
    launches.append(cell.step("gru_begin", Buffer(dgh), Workspace(0), Buffer(dh0), *ints(first)))
    return cell.lowered(launches)
