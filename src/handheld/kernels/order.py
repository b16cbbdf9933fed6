"""Sorting and scans: turns sort and scan nodes into launches of order.cl.

    sort   sort_blocks ──► sort_merge ──► sort_merge ──► .. ──► sort_take
    scan   scan_lines, or scan_totals ──► scan_carry ──► scan_pieces if there are few long lines

index.py also uses `sort_rows`, to sort the indices of a long scatter.
"""

from __future__ import annotations

from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.graph.dtypes import F32
from handheld.graph.graph import Graph, Node, View
from handheld.kernels.args import ints, line
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace, read_cl, with_defines

_MODES = {"add": 0, "mul": 1, "max": 2, "min": 3}
#: The same as CHUNK in order.cl.
_CHUNK = 256
#: Rows of up to _ONE_BLOCK elements are ranked as one block; longer rows in blocks of _BLOCK, which are then merged.
_ONE_BLOCK, _BLOCK = 256, 64
#: With fewer lines than this, a scan is cut into pieces.
_FEW_LINES = 1024


@dataclass(frozen=True)
class SortedRows:
    """The launches of a sort, and the arguments that then hold the sorted keys and places, each dense [rows, n]."""

    launches: tuple[Launch, ...]
    workspace: tuple[int, ...]
    keys: Arg
    places: Arg


def sort_rows(
    x: View, dtype: str, caps: DeviceCaps, *, descending: bool = False, places: Arg | None = None
) -> SortedRows:
    """Sorts x[outer, n, inner] along n; the row number is outer*inner_size + inner. `places` receives the places; if it
    is None, they go to a workspace."""
    outer, n, inner = x.shape
    total = outer * n * inner
    block = n if n <= _ONE_BLOCK else _BLOCK
    merges = max(0, (-(-n // block) - 1).bit_length())
    text = with_defines({"FLOAT": int(dtype == F32)}, read_cl("order.cl"))
    # Two pairs (keys, places) take turns as input and output. The pair that is written last is the result.
    pairs: list[tuple[Arg, Arg]] = [(Workspace(0), Workspace(1)), (Workspace(2), Workspace(3))]
    if places is not None:
        pairs[merges % 2] = (pairs[merges % 2][0], places)
    args = (Buffer(x.tensor), *pairs[0], *ints(total, n, block, -1 if descending else 0, inner, x.offset, *x.strides))
    launches = [line("sort_blocks", text, args, total, caps)]
    for step in range(merges):
        args = (*pairs[step % 2], *pairs[(step + 1) % 2], *ints(total, n, block << step))
        launches.append(line("sort_merge", text, args, total, caps))
    workspace = (4 * total,) * (4 if merges else 2)
    return SortedRows(tuple(launches), workspace, *pairs[merges % 2])


def lower_sort(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    (x,), (values, positions) = node.inputs, node.outputs
    total, n = x.size, x.shape[-1]
    if total == 0:
        return Lowered(())
    dtype = graph.tensors[x.tensor].dtype
    rows = View(x.tensor, (total // n, n, 1), (n, 1, 1))
    done = sort_rows(rows, dtype, caps, descending=bool(node.attrs["descending"]), places=Buffer(positions))
    args = (Buffer(x.tensor), done.places, Buffer(values), *ints(total, n))
    take = line("sort_take", done.launches[0].text, args, total, caps)
    why = "ranked at once" if n <= _ONE_BLOCK else f"blocks of {_BLOCK} ranked, then merged"
    return Lowered((*done.launches, take), done.workspace, why)


def lower_scan(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    (x,), (out,) = node.inputs, node.outputs
    if x.size == 0:
        return Lowered(())
    outer, n, inner = x.shape
    mode, reverse = node.attrs["mode"], int(node.attrs["reverse"])
    text = with_defines({"FLOAT": int(graph.tensors[x.tensor].dtype == F32), "MODE": _MODES[mode]}, read_cl("order.cl"))
    lines = outer * inner
    if mode == "mul" or n <= _CHUNK or lines >= _FEW_LINES:
        args: tuple[Arg, ...] = (Buffer(x.tensor), Buffer(out), *ints(lines, n, inner, reverse))
        return Lowered((line("scan_lines", text, args, lines, caps),), why="one work-item per line")
    pieces = -(-n // _CHUNK)
    total, totals = lines * pieces, Workspace(0)
    shape = ints(n, inner, pieces, reverse)
    launches = (
        line("scan_totals", text, (Buffer(x.tensor), totals, *ints(total), *shape), total, caps),
        line("scan_carry", text, (totals, *ints(lines, inner, pieces)), lines, caps),
        line("scan_pieces", text, (Buffer(x.tensor), totals, Buffer(out), *ints(total), *shape), total, caps),
    )
    return Lowered(launches, (4 * total,), f"few lines: {pieces} pieces of {_CHUNK} each")
