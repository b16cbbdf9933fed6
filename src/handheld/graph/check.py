"""What a legal graph is. Every pass, and every file that is read, is followed by `check`."""

from __future__ import annotations

import math
from typing import Any

from handheld.errors import GraphError
from handheld.graph.graph import DTYPES, PHASES, ROLES, Graph, Node, Tensor, View
from handheld.graph.ops import OPS
from handheld.graph.program import ARITY, REDUCTIONS, Program

LIMIT = 2**31 - 1  # kernels index with 32-bit integers


def check(graph: Graph, slots: dict[str, Any] | None = None) -> Graph:
    """Returns the graph, or raises GraphError with the node at fault."""
    for key, tensor in graph.tensors.items():
        _check_tensor(key, tensor)
    known = {t for _, t, _ in graph.inputs} | set(graph.slots.values())
    _need(known <= set(graph.tensors), "an input or slot names a tensor that does not exist")
    for name, tensor_id in graph.slots.items():
        if slots is not None:
            _need(name in slots, f"slot {name!r} is not in the state")
            tensor, slot = graph.tensors[tensor_id], slots[name]
            _need((tensor.shape, tensor.dtype) == (slot.shape, slot.dtype),
                  f"slot {name!r} is {slot.dtype}{slot.shape} in the state "
                  f"and {tensor.dtype}{tensor.shape} in graph {graph.name!r}")
    for index, node in enumerate(graph.nodes):
        try:
            _check_node(graph, node, known)
        except GraphError as error:
            where = f"node {index} ({node.op} from {node.origin.path or 'no module'})"
            raise GraphError(f"graph {graph.name!r}, {where}: {error}") from None
        known.update(node.outputs)
    for _, view, _ in graph.outputs:
        _need(view.tensor in known, "an output is made by no node")
        _check_view(graph, view)
    for slot_name, tensor_id in graph.writes:
        _need(tensor_id in known, f"the new value of slot {slot_name!r} is made by no node")
        _need(slot_name in graph.slots, f"the graph writes an unknown slot {slot_name!r}")
        old, new = graph.tensors[graph.slots[slot_name]], graph.tensors[tensor_id]
        _need((old.size, old.dtype) == (new.size, new.dtype), f"slot {slot_name!r} changes shape")
    _need(len({s for s, _ in graph.writes}) == len(graph.writes), "a slot is written twice")
    return graph


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise GraphError(message)


def _check_tensor(key: int, tensor: Tensor) -> None:
    _need(key == tensor.id, f"tensor {key} calls itself {tensor.id}")
    _need(tensor.dtype in DTYPES and tensor.role in ROLES, f"tensor {key}: bad type or role")
    _need(all(n >= 0 for n in tensor.shape) and math.prod(tensor.shape) <= LIMIT,
          f"tensor {key} {tensor.shape} has more elements than a 32-bit index reaches")


def _check_view(graph: Graph, view: View) -> None:
    _need(view.tensor in graph.tensors, f"reads tensor {view.tensor}, which does not exist")
    _need(len(view.shape) == len(view.strides) and min(view.shape, default=0) >= 0, "malformed view")
    if math.prod(view.shape) == 0:
        return
    _need(math.prod(view.shape) <= LIMIT, f"view {view.shape} needs more than 32-bit indices")
    spans = [(n - 1) * s for n, s in zip(view.shape, view.strides)]
    low = view.offset + sum(s for s in spans if s < 0)
    high = view.offset + sum(s for s in spans if s > 0)
    size = graph.tensors[view.tensor].size
    _need(0 <= low and high < size, f"view reads [{low}, {high}] of a tensor of {size} elements")


def _check_node(graph: Graph, node: Node, known: set[int]) -> None:
    _need(node.op in OPS, f"unknown op {node.op!r}")
    op = OPS[node.op]
    _need(node.origin.phase in PHASES, f"unknown phase {node.origin.phase!r}")
    _need(set(node.attrs) == set(op.attrs), f"has attributes {sorted(node.attrs)}, not {op.attrs}")
    for view in node.inputs:
        _need(view.tensor in known, f"reads tensor {view.tensor} before it is made")
    for out in node.outputs:
        _need(out in graph.tensors and out not in known, f"output {out} is missing or made twice")
    _need(len(set(node.outputs)) == len(node.outputs), "names an output twice")
    if op.inputs is not None:
        few = len(node.inputs) < op.inputs
        _need(not few and (op.epilogue or len(node.inputs) == op.inputs), "wrong number of inputs")
    if op.outputs is not None:
        _need(len(node.outputs) == op.outputs, "wrong number of outputs")
    if "program" in node.attrs:
        _check_program(graph, node, op.inputs or 0, op.epilogue)
    else:
        for view in node.inputs:
            _check_view(graph, view)
        shape = node.attrs.get("shape")
        if shape is not None:
            _need(graph.tensors[node.outputs[0]].size
                  == math.prod(shape), f"output does not have shape {shape}")
    if node.op == "matmul":
        a, b = node.inputs[:2]
        shape = node.attrs["shape"]
        _need(len(a.shape) == len(b.shape) == len(shape) >= 2, "operands of different rank")
        _need(a.shape[:-1] == shape[:-1] and b.shape[:-2] == shape[:-2]
              and b.shape[-1] == shape[-1] and a.shape[-1] == b.shape[-2],
              f"{a.shape} @ {b.shape} is not {shape}")
    if node.op.startswith("conv"):
        _check_conv(node)


def _check_conv(node: Node) -> None:
    a, b, out = node.inputs[0].shape, node.inputs[1].shape, tuple(node.attrs["shape"])
    _need(len(a) == len(b) == len(out) == 4, "convolution operands must have four dimensions")
    x, w, y = {"conv": (a, b, out), "conv_input": (out, b, a), "conv_weight": (b, out, a)}[node.op]
    groups = node.attrs["groups"]
    _need(groups > 0 and x[1] == w[1] * groups and w[0] == y[1] and w[0] % groups == 0
          and x[0] == y[0], f"shapes {x} * {w} -> {y} with {groups} groups do not fit")
    for i in (0, 1):
        st, pad, dil = (node.attrs[k][i] for k in ("stride", "padding", "dilation"))
        _need(st > 0 and dil > 0 and pad >= 0, "stride, dilation or padding out of range")
        _need(y[2 + i] == 0 or y[2 + i] <= (x[2 + i] + 2 * pad - dil * (w[2 + i] - 1) - 1) // st + 1,
              f"output {y} is too large for {x} * {w}")


def _check_program(graph: Graph, node: Node, first: int, epilogue: bool) -> None:
    shape: tuple[int, ...] = tuple(node.attrs["shape"])
    program: Program = node.attrs["program"]
    axes = tuple(node.attrs.get("axes", ()))
    _need(math.prod(shape) <= LIMIT, f"{shape} needs more than 32-bit indices")
    _need(all(0 <= a < len(shape) for a in axes), f"axes {axes} do not fit {shape}")
    for i, instr in enumerate(program):
        _need(instr.op in ARITY and instr.dtype in DTYPES, f"unknown instruction {instr}")
        _need(len(instr.args) == ARITY[instr.op] and all(0 <= a < i for a in instr.args),
              f"instruction {i} ({instr.op}) has bad arguments {instr.args}")
        _need(instr.op != "acc" or epilogue, "acc outside an epilogue")
        _need(instr.op not in REDUCTIONS or node.op == "reduce", "reduction outside a reduce")
        if instr.op == "iota":
            _need(0 <= instr.params[0] < len(shape), "iota of a dimension that is not there")
        if instr.op in ("load", "gather"):
            k = instr.params[0]
            _need(first <= k < len(node.inputs), f"instruction {i} reads operand {k}")
            view = node.inputs[k]
            _need(graph.tensors[view.tensor].dtype == instr.dtype, f"instruction {i}: wrong type")
            if instr.op == "gather":
                _need(view.is_contiguous and view.size == graph.tensors[view.tensor].size,
                      "gather from part of a tensor")
            else:
                _need(view.shape == shape, f"operand {k} has shape {view.shape}, not {shape}")
                _check_guarded(graph, view, instr.params[1])
    for view in node.inputs[:first]:
        _check_view(graph, view)
    stores = node.attrs["stores"]
    _need(len(stores) == len(node.outputs), "stores and outputs differ in number")
    outer = tuple(n for d, n in enumerate(shape) if d not in axes)
    for store, out in zip(stores, node.outputs):
        position, full = (store, True) if epilogue else store
        tensor = graph.tensors[out]
        _need(0 <= position < len(program), "stores an instruction that is not there")
        _need(tensor.size == math.prod(shape if full else outer), f"output {out} has a wrong size")
        _need(tensor.dtype == program[position].dtype, f"output {out} has a wrong type")


def _check_guarded(graph: Graph, view: View, guards: tuple[tuple[int, int, int], ...]) -> None:
    """A guarded load reads only the part of its view that the guards let through."""
    shape, offset = list(view.shape), view.offset
    for dim, low, high in guards:
        low, high = max(low, 0), min(high, shape[dim])
        offset += low * view.strides[dim]
        shape[dim] = max(high - low, 0)
    _check_view(graph, View(view.tensor, tuple(shape), view.strides, offset))
