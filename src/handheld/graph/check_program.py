"""The rules of scalar programs: arguments, types, reads and stores."""

from __future__ import annotations

import math

from handheld.errors import GraphError
from handheld.graph.check_ops import LIMIT, check_view, need, well_formed
from handheld.graph.dtypes import BOOL, DTYPES, F32, I32
from handheld.graph.graph import Graph, Node, View
from handheld.graph.ops import OPS
from handheld.graph.program import ARITY, FLOAT_UNARY, REDUCTIONS, Guard, Instr, Program

_FLOAT = frozenset({*FLOAT_UNARY, "div", "atan2"})
_COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "not"})
#: The instructions that are not defined for a type.
_NOT: dict[str, frozenset[str]] = {
    F32: frozenset({"and", "or", "xor", "shl", "shr", "bitnot", "any_of", "all_of"}),
    I32: _FLOAT | {"any_of", "all_of"},
    BOOL: _FLOAT | {"sum", "prod"},
}
#: The instructions whose result type does not depend on their arguments.
_RESULT = {
    **dict.fromkeys(_COMPARE, BOOL),
    "arg_max": I32,
    "arg_min": I32,
    "iota": I32,
    "index": I32,
    "acc": F32,
    "random": F32,
}


def check_program(graph: Graph, node: Node) -> None:
    """Checks the program of a map, a reduce or an epilogue, with its operands and stores."""
    shape, axes = tuple(node.attrs["shape"]), tuple(node.attrs.get("axes", ()))
    program: Program = node.program
    need(min(shape, default=0) >= 0 and math.prod(shape) <= LIMIT, f"{shape} needs more than 32-bit indices")
    need(all(0 <= a < len(shape) for a in axes) and len(set(axes)) == len(axes), f"axes {axes} do not fit {shape}")
    need(node.op == "reduce" or not axes, f"a {node.op} has no axes")
    for view in node.inputs:
        well_formed(view)
    varies: list[bool] = []  # per instruction: whether its value differs along `axes`
    for i, instr in enumerate(program):
        # This runs for every instruction of a step, so messages are only built for errors.
        if instr.op not in ARITY or instr.dtype not in _NOT:
            raise GraphError(f"unknown instruction {instr}")
        if len(instr.args) != ARITY[instr.op] or not all(0 <= a < i for a in instr.args):
            raise GraphError(f"instruction {i} ({instr.op}) has bad arguments {instr.args}")
        kinds = [program[a].dtype for a in instr.args]
        if not _fits(instr, kinds):
            raise GraphError(
                f"instruction {i}: {instr.op} of {', '.join(kinds) or 'nothing'} does not give {instr.dtype}"
            )
        _check_params(graph, node, i, instr)
        varies.append(_varies(node, instr, axes, [varies[a] for a in instr.args]))
    _check_stores(graph, node, varies)


def _fits(instr: Instr, kinds: list[str]) -> bool:
    """Whether the types of the arguments fit. Only casts, comparisons and positions change the type."""
    op, dtype = instr.op, instr.dtype
    if dtype != _RESULT.get(op, dtype) or op in _NOT[dtype]:
        return False
    if op in ("gather", "random"):
        return all(kind == I32 for kind in kinds)
    if op == "where":
        return kinds[1:] == [dtype, dtype]
    free = op in _COMPARE or op in ("cast", "arg_max", "arg_min")
    return free or all(kind == dtype for kind in kinds)


def _check_params(graph: Graph, node: Node, i: int, instr: Instr) -> None:
    op, rank = instr.op, len(node.attrs["shape"])
    if op == "acc":
        need(OPS[node.op].epilogue, "acc outside an epilogue")
    elif op in REDUCTIONS:
        need(node.op == "reduce", "a reduction outside a reduce")
    elif op == "iota":
        need(0 <= instr.params[0] < rank, "iota of a dimension that does not exist")
    elif op == "const":
        _check_constant(instr.params[0], instr.dtype)
    elif op == "random":
        need(abs(instr.params[0]) <= LIMIT, f"random key {instr.params[0]} needs more than 32 bits")
    elif op in ("load", "gather"):
        _check_read(graph, node, i, instr)


def _check_constant(value: float, dtype: str) -> None:
    if dtype != F32:
        need(math.isfinite(value) and -LIMIT - 1 <= int(value) <= LIMIT, f"the constant {value} does not fit {dtype}")


def _check_read(graph: Graph, node: Node, i: int, instr: Instr) -> None:
    shape, operand = tuple(node.attrs["shape"]), instr.params[0]
    own = OPS[node.op].inputs or 0
    need(own <= operand < len(node.inputs), f"instruction {i} reads operand {operand}")
    view = node.inputs[operand]
    tensor = graph.tensors[view.tensor]
    need(DTYPES[tensor.dtype].value == instr.dtype, f"instruction {i} reads {tensor.dtype} as {instr.dtype}")
    if instr.op == "gather":
        need(view.is_contiguous and view.size == tensor.size, "gather from part of a tensor")
        has_output = any(graph.tensors[out].size for out in node.outputs)
        need(tensor.size > 0 or not has_output, "gather from a tensor without elements")
        return
    need(view.shape == shape, f"operand {operand} has shape {view.shape}, not {shape}")
    _, guards, fill = instr.params
    if guards:
        _check_constant(fill, instr.dtype)
    axes = tuple(node.attrs.get("axes", ()))
    if not _varies(node, instr, axes, []):
        # The load happens once per row, even if the row is empty.
        sizes = tuple(1 if d in axes else n for d, n in enumerate(shape))
        view = View(view.tensor, sizes, view.strides, view.offset)
    _check_guarded(graph, view, guards)


def _check_guarded(graph: Graph, view: View, guards: tuple[Guard, ...]) -> None:
    """Checks the part of a view that a guarded load reads: where all guards hold."""
    low, high = [0] * len(view.shape), list(view.shape)
    for dim, start, stop in guards:
        need(0 <= dim < len(view.shape), f"a guard of dimension {dim}, which does not exist")
        need(max(abs(start), abs(stop)) <= LIMIT, f"the guard {start}..{stop} needs more than 32 bits")
        low[dim], high[dim] = max(low[dim], start), min(high[dim], stop)
    part = tuple(max(h - a, 0) for a, h in zip(low, high, strict=True))
    if 0 not in part:
        offset = view.offset + sum(a * s for a, s in zip(low, view.strides, strict=True))
        check_view(graph, View(view.tensor, part, view.strides, offset))


def _varies(node: Node, instr: Instr, axes: tuple[int, ...], args: list[bool]) -> bool:
    """Whether the value differs along the reduced dimensions, so that there is no single value per row."""
    if instr.op in REDUCTIONS:
        return False
    if instr.op == "iota":
        return instr.params[0] in axes
    if instr.op == "index":
        return bool(axes)
    if instr.op == "load":
        view = node.inputs[instr.params[0]]
        walked = any(view.strides[d] for d in axes if view.shape[d] != 1)
        return walked or any(dim in axes for dim, _, _ in instr.params[1])
    return any(args)


def _check_stores(graph: Graph, node: Node, varies: list[bool]) -> None:
    shape, axes = tuple(node.attrs["shape"]), tuple(node.attrs.get("axes", ()))
    program, stores = node.program, node.stores
    need(len(stores) == len(node.outputs), "stores and outputs differ in number")
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    for store, out in zip(stores, node.outputs, strict=True):
        position, full = store.position, store.full
        tensor = graph.tensors[out]
        need(0 <= position < len(program), "stores an instruction that does not exist")
        need(full or node.op == "reduce", "a map must store every point")
        need(
            full or not varies[position],
            f"stores instruction {position} once per row, but its value differs along the row",
        )
        need(tensor.size == math.prod(shape if full else outer), f"output {out} has the wrong size")
        need(DTYPES[tensor.dtype].value == program[position].dtype, f"output {out} has the wrong type")
