"""Converts graphs and slots to plain JSON data, and back.

Reading trusts nothing: every value is checked before it is used, and a wrong one raises a StepFileError that
says where it is. This module checks only that every field has the right type. graph/check.py then checks that
the graph is legal.

A tuple is a JSON list. A float that JSON cannot express is {"f": "inf"}. Notes may hold any plain value; there a
list is {"l": [...]} and a dictionary is {"d": {...}}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from handheld.errors import GraphError
from handheld.graph.decode import (
    MAX_DIMS,
    Item,
    a_bool,
    a_list,
    a_number,
    a_shape,
    a_value,
    an_int,
    an_object,
    fields,
    ints,
    need,
    row,
    text,
    word,
)
from handheld.graph.dtypes import DTYPES, VALUE_DTYPES
from handheld.graph.graph import (
    PHASES,
    ROLES,
    Graph,
    GraphInput,
    GraphOutput,
    Node,
    Origin,
    Slot,
    SlotWrite,
    Tensor,
    View,
)
from handheld.graph.ops import OPS
from handheld.graph.program import ARITY, Guard, Instr, Program, Store

MAX_NODES = 1_000_000
MAX_TENSORS = 4_000_000


#: The values that `json` can write.
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# Writing


def to_json(graph: Graph) -> dict[str, Json]:
    """Returns the graph as lists, dictionaries, strings, numbers and booleans."""
    return {
        "name": graph.name,
        "tensors": [[t.id, list(t.shape), t.dtype, t.role, t.name] for t in graph.tensors.values()],
        "nodes": [_write_node(node) for node in graph.nodes],
        "inputs": [[given.name, given.tensor, given.torch_dtype] for given in graph.inputs],
        "slots": [[name, tensor] for name, tensor in graph.slots.items()],
        "writes": [[write.slot, write.tensor] for write in graph.writes],
        "outputs": [[shown.name, _write_view(shown.view), shown.torch_dtype] for shown in graph.outputs],
        "notes": {str(key): value_to_json(value) for key, value in graph.notes.items()},
        "packs": [[pack, list(members)] for pack, members in graph.packs.items()],
    }


def slot_to_json(slot: Slot) -> dict[str, Json]:
    return {
        "name": slot.name,
        "shape": list(slot.shape),
        "dtype": slot.dtype,
        "role": slot.role,
        "names": list(slot.names),
        "torch_dtype": slot.torch_dtype,
    }


def _write_view(view: View) -> list[Json]:
    return [view.tensor, list(view.shape), list(view.strides), view.offset]


def _write_node(node: Node) -> dict[str, Json]:
    origin = node.origin
    return {
        "op": node.op,
        "inputs": [_write_view(view) for view in node.inputs],
        "outputs": list(node.outputs),
        "attrs": {
            key: _write_stores(node) if key == "stores" else value_to_json(value) for key, value in node.attrs.items()
        },
        "origin": [origin.phase, origin.path, origin.torch_op],
    }


def _write_stores(node: Node) -> list[Json]:
    """Writes the stores of a node. Those of an epilogue are always full, so only their positions are written."""
    if OPS[node.op].epilogue:
        return [store.position for store in node.stores]
    return [[store.position, store.full] for store in node.stores]


def value_to_json(value: object) -> Json:
    """Writes any plain value in the form that `a_value` in decode.py reads."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"f": repr(float(value))}
    if isinstance(value, Instr):
        return [value.op, value.dtype, list(value.args), value_to_json(value.params)]
    if isinstance(value, tuple):
        return [value_to_json(item) for item in value]
    if isinstance(value, list):
        return {"l": [value_to_json(item) for item in value]}
    if isinstance(value, dict):
        return {"d": {str(key): value_to_json(item) for key, item in value.items()}}
    raise GraphError(f"a value of type {type(value).__name__} cannot be written to a step file: {value!r:.80}")


# Reading


def from_json(data: object) -> Graph:
    """Reads what `to_json` wrote, or raises StepFileError. The caller must still run graph/check.py."""
    keys = ("name", "tensors", "nodes", "inputs", "slots", "writes", "outputs", "notes", "packs")
    name, tensors, nodes, inputs, slots, writes, outputs, notes, packs = fields(data, keys, "graph")
    by_id: dict[int, Tensor] = {}
    for tensor in a_list(tensors, _tensor, "tensors", MAX_TENSORS):
        need(tensor.id not in by_id, f"tensor {tensor.id} appears twice")
        by_id[tensor.id] = tensor
    slot_pairs = a_list(slots, _pair, "slots", MAX_TENSORS)
    need(len({slot for slot, _ in slot_pairs}) == len(slot_pairs), "a slot appears twice")
    pack_pairs = a_list(packs, _pack, "packs")
    need(len({pack for pack, _ in pack_pairs}) == len(pack_pairs), "a pack appears twice")
    return Graph(
        name=text(name, "name"),
        tensors=by_id,
        nodes=a_list(nodes, _node, "nodes", MAX_NODES),
        inputs=a_list(inputs, _input, "inputs"),
        slots=dict(slot_pairs),
        writes=a_list(writes, _slot_write, "writes", MAX_TENSORS),
        outputs=a_list(outputs, _output, "outputs"),
        notes={key: a_value(value, "notes") for key, value in an_object(notes, "notes").items()},
        packs=dict(pack_pairs),
    )


def slot_from_json(data: object) -> Slot:
    """Reads what `slot_to_json` wrote, or raises StepFileError."""
    keys = ("name", "shape", "dtype", "role", "names", "torch_dtype")
    name, shape, dtype, role, names, torch_dtype = fields(data, keys, "slot")
    return Slot(
        text(name, "slot name"),
        a_shape(shape, "slot shape"),
        word(dtype, VALUE_DTYPES, "slot type"),
        word(role, ROLES, "slot role"),
        a_list(names, text, "slot names"),
        text(torch_dtype, "slot torch_dtype"),
    )


def _tensor(data: object, where: str) -> Tensor:
    number, shape, dtype, role, name = row(data, 5, where)
    return Tensor(
        an_int(number, "a tensor's number"),
        a_shape(shape, "a tensor's shape"),
        word(dtype, DTYPES, "a tensor's type"),
        word(role, ROLES, "a tensor's role"),
        text(name, "a tensor's name"),
    )


def _view(data: object, where: str) -> View:
    tensor, shape, strides, offset = row(data, 4, where)
    view = View(an_int(tensor, where), a_shape(shape, where), ints(strides, where), an_int(offset, where))
    need(len(view.shape) == len(view.strides), f"{where}: a view needs as many strides as sizes")
    return view


def _pair(data: object, where: str) -> tuple[str, int]:
    name, tensor = row(data, 2, where)
    return text(name, where), an_int(tensor, where)


def _slot_write(data: object, where: str) -> SlotWrite:
    return SlotWrite(*_pair(data, where))


def _pack(data: object, where: str) -> tuple[int, tuple[int, ...]]:
    pack, members = row(data, 2, where)
    return an_int(pack, where), a_list(members, an_int, where)


def _input(data: object, where: str) -> GraphInput:
    name, tensor, kind = row(data, 3, where)
    return GraphInput(text(name, where), an_int(tensor, where), text(kind, where))


def _output(data: object, where: str) -> GraphOutput:
    name, view, kind = row(data, 3, where)
    return GraphOutput(text(name, where), _view(view, where), text(kind, where))


def _node(data: object, where: str) -> Node:
    op, inputs, outputs, attrs, origin = fields(data, ("op", "inputs", "outputs", "attrs", "origin"), "a node")
    op = word(op, OPS, "a node's op")
    phase, path, torch_op = row(origin, 3, "a node's origin")
    values = _attributes(op, attrs)
    return Node(
        op,
        a_list(inputs, _view, f"the inputs of a {op}"),
        a_list(outputs, an_int, f"the outputs of a {op}"),
        values,
        Origin(word(phase, PHASES, "a phase"), text(path, "a path"), text(torch_op, "a PyTorch op")),
    )


def _attributes(op: str, data: object) -> Mapping[str, Any]:
    given = an_object(data, f"the attributes of a {op}")
    names = (*OPS[op].attrs, *(name for name in OPS[op].optional if name in given))
    fields(data, names, f"the attributes of a {op}")
    attrs: dict[str, Any] = {}
    for name, value in given.items():
        where = f"{name} of a {op}"
        if name == "stores":
            attrs[name] = a_list(value, _store_of_epilogue if OPS[op].epilogue else _store, where)
        else:
            attrs[name] = ATTRIBUTES[name](value, where)
        if op.startswith("conv") and name in ("stride", "padding", "dilation"):
            need(len(attrs[name]) == 2, f"{where} needs two numbers")
    rank = len(attrs.get("shape", ()))
    for instr in attrs.get("program", ()):
        if instr.op == "load":
            need(
                all(0 <= dim < rank for dim, _, _ in instr.params[1]),
                f"a load of a {op} guards a dimension that does not exist",
            )
    return attrs


def _store(data: object, where: str) -> Store:
    position, full = row(data, 2, where)
    return Store(an_int(position, where), a_bool(full, where))


def _store_of_epilogue(data: object, where: str) -> Store:
    return Store(an_int(data, where))


def _program(data: object, where: str) -> Program:
    return a_list(data, _instr, where)


def _instr(data: object, where: str) -> Instr:
    op, dtype, args, params = row(data, 4, where)
    op = word(op, ARITY, f"an instruction in {where}")
    kinds: tuple[Item[Any], ...] = _PARAMS.get(op, ())
    values = row(params, len(kinds), f"the parameters of {op} in {where}")
    return Instr(
        op,
        word(dtype, VALUE_DTYPES, f"the type of {op} in {where}"),
        a_list(args, an_int, f"the arguments of {op} in {where}", 8),
        tuple(kind(value, f"a parameter of {op} in {where}") for kind, value in zip(kinds, values, strict=False)),
    )


def _guards(data: object, where: str) -> tuple[Guard, ...]:
    def guard(entry: object, where: str) -> Guard:
        return Guard(*(an_int(number, where) for number in row(entry, 3, where)))

    return a_list(data, guard, where, MAX_DIMS)


_PARAMS: dict[str, tuple[Item[Any], ...]] = {
    "load": (an_int, _guards, a_number),
    "gather": (an_int,),
    "iota": (an_int,),
    "const": (a_number,),
    "random": (an_int,),
}

#: The reader of each attribute in graph/ops.py. `stores` is missing because its form depends on the op.
ATTRIBUTES: dict[str, Item[Any]] = {
    "shape": a_shape,
    "axes": ints,
    "program": _program,
    "stride": ints,
    "padding": ints,
    "dilation": ints,
    "groups": an_int,
    "kernel": ints,
    "adaptive": a_bool,
    "count_pad": a_bool,
    "divisor": an_int,
    "mode": text,
    "arithmetic": text,
    "base": a_bool,
    "region_shape": a_shape,
    "region_strides": ints,
    "region_offset": an_int,
    "reverse": a_bool,
    "descending": a_bool,
    "blank": an_int,
    "zero_infinity": a_bool,
    "scale": a_number,
    "causal": a_bool,
    "masked": a_bool,
    "dropout": a_number,
    "key": an_int,
}
