"""Writing by index: turns scatter (the gradient of reading by index) and assign into launches of index.cl.

scatter   few indices            scatter_scan
          many indices           sort the indices ──► scatter_starts ──► scatter_sorted
          whole rows on a CPU    scatter_owned
assign    assign_copy ──► assign_region
"""

from __future__ import annotations

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.dtypes import BOOL, DTYPES, I32
from handheld.graph.graph import Graph, Node, View
from handheld.kernels.args import ints, line, strided
from handheld.kernels.base import Arg, Buffer, Int, Launch, Lowered, Workspace, read_cl, with_defines
from handheld.kernels.order import sort_rows

#: Up to this many indices, every destination reads all of them. More indices are sorted first.
_FEW = 32
#: CPU: work-items per compute unit that share the rows of a scatter, and the least columns of one of them.
_OWNERS = 4
_COLUMNS = 64
#: CPU: the most indices, per row on average and in total, that are added one by one. More would cost accuracy.
_HITS, _MOST = 64, 65536
#: CPU: elements of a region per work-item.
_RUN = 256


def lower_scatter(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    index, src = node.inputs[:2]
    outer, v, inner = node.attrs["shape"]
    if outer * v * inner == 0:
        return Lowered(())
    dtype, add = graph.tensors[node.outputs[0]].dtype, node.attrs["mode"] == "add"
    if add and dtype == BOOL:
        raise PlanError("scatter cannot add booleans. Try: convert them to integers first")
    k = index.shape[1]
    one_row = inner == 1 or index.strides[2] == 0
    if caps.kind == "cpu" and one_row and (inner >= 16 or k > _FEW) and k <= min(_HITS * v, _MOST):
        return _owned(node, graph, caps)
    text = with_defines({"ELEM": DTYPES[dtype].c_memory, "ADD": int(add)}, read_cl("index.cl"))
    items = outer * v * inner
    sizes = ints(items, int(node.attrs["base"]), v, k, inner)
    if k <= _FEW:
        buffers = _buffers(node, index, src)
        args: tuple[Arg, ...] = (*buffers, *sizes, *strided(index), *strided(src), *_base(node))
        return Lowered(
            (line("scatter_scan", text, args, items, caps),), why=f"{k} indices: each of {v} rows reads them all"
        )
    # If one index serves a whole row, the indices are sorted per o, otherwise per (o, i).
    rows = 1 if one_row else inner
    keys = View(index.tensor, (outer, k, rows), index.strides, index.offset)
    done = sort_rows(keys, I32, caps)
    starts, n_starts = Workspace(len(done.workspace)), outer * rows * (v + 1)
    sizes += ints(rows)
    _, *buffers = _buffers(node, index, src)
    args = (starts, done.places, *buffers, *sizes, *strided(src), *_base(node))
    launches = (
        *done.launches,
        line("scatter_starts", text, (done.keys, starts, *ints(n_starts, v, k)), n_starts, caps),
        line("scatter_sorted", text, args, items, caps),
    )
    return Lowered(launches, (*done.workspace, 4 * n_starts), f"{k} indices sorted, so that each row reads its own")


def _owned(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    """CPU: every owner reads all indices. This costs little compared with the rows that it adds."""
    index, src = node.inputs[:2]
    outer, v, inner = node.attrs["shape"]
    elem, add = DTYPES[graph.tensors[node.outputs[0]].dtype].c_memory, node.attrs["mode"] == "add"
    text = with_defines({"ELEM": elem, "ADD": int(add)}, read_cl("index.cl"))
    work_items = _OWNERS * caps.compute_units
    owners = 1 << min(work_items.bit_length() - 1, (v - 1).bit_length())
    runs = min(-(-work_items // (outer * owners)), -(-inner // _COLUMNS))
    columns = -(-inner // runs)
    items = outer * owners * runs
    args = (
        *_buffers(node, index, src),
        *ints(items, int(node.attrs["base"]), v, index.shape[1], inner, owners, columns, runs),
        *strided(index),
        *strided(src),
        *_base(node),
    )
    launch = Launch("scatter_owned", text, args, (items,), (1,))
    return Lowered((launch,), why=f"{owners} owners of {v} rows, {columns} columns at once")


def _buffers(node: Node, index: View, src: View) -> list[Arg]:
    """The arguments index, src, base and out. The output stands in for an input that is absent or has no elements."""
    out = node.outputs[0]
    base = node.inputs[2].tensor if node.attrs["base"] else out
    nonempty = index.size > 0
    return [
        Buffer(index.tensor if nonempty else out),
        Buffer(src.tensor if nonempty else out),
        Buffer(base),
        Buffer(out),
    ]


def _base(node: Node) -> tuple[Int, ...]:
    return strided(node.inputs[2]) if node.attrs["base"] else ints(0, 0, 0, 0)


def lower_assign(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    base, value = node.inputs
    out = node.outputs[0]
    total = graph.tensors[out].size
    if total == 0:
        return Lowered(())
    dims = _merged(tuple(node.attrs["region_shape"]), tuple(node.attrs["region_strides"]), value.strides)
    if len(dims) > 8:
        raise PlanError(
            f"an assignment to a region has {len(dims)} dimensions that cannot be merged; kernels take at most 8. "
            "Try: flatten the tensor before writing into it"
        )
    rank = next(r for r in (2, 4, 8) if len(dims) <= r)
    elem = DTYPES[graph.tensors[out].dtype].c_memory
    text = with_defines({"ELEM": elem, "RANK": rank}, read_cl("index.cl"))
    launches: list[Launch] = []
    region = value.size
    if region < total:  # A region has no overlaps, so with as many elements as the tensor it covers everything.
        args: tuple[Arg, ...] = (Buffer(base.tensor), Buffer(out), *ints(total))
        launches.append(line("assign_copy", text, args, -(-total // 4), caps))
    if region:
        dims += [(1, 0, 0)] * (rank - len(dims))
        size = dims[0][0]
        run = min(size, _RUN) if caps.kind == "cpu" else 1
        items = region // size * -(-size // run)
        places = ints(items, run, value.offset, int(node.attrs["region_offset"]), *(n for dim in dims for n in dim))
        args = (Buffer(value.tensor), Buffer(out), *places)
        launches.append(line("assign_region", text, args, items, caps))
    return Lowered(tuple(launches), why=f"copy, then a region of {rank} dimensions")


def _merged(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """(size, stride, stride, ..) per dimension, the last first. Neighbouring dimensions are merged if every operand
    walks both with one stride."""
    dims: list[tuple[int, ...]] = []
    for size, *steps in reversed(list(zip(shape, *strides, strict=True))):
        if size == 1:
            continue
        if dims and all(step == dims[-1][0] * inner for step, inner in zip(steps, dims[-1][1:], strict=False)):
            dims[-1] = (dims[-1][0] * size, *dims[-1][1:])
        else:
            dims.append((size, *steps))
    return dims
