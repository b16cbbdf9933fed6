"""The problems of a check in halves: those of sketches.py, with the tensors and products in halves that plans have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from handheld.drivers.sketch import Sketch
from handheld.drivers.sketches import sketches
from handheld.graph.check import check
from handheld.graph.dtypes import F16, F32
from handheld.graph.graph import Graph, GraphInput, Node, Origin
from handheld.graph.program import Builder, Store
from handheld.passes.half import compute_halves, store_halves
from handheld.plan.precision import HALF_COMPUTE


@dataclass(frozen=True)
class Asked:
    """What a check is about: a precision, and what is avoided in the more exact ones (`avoid` of a description)."""

    precision: str = "float32"
    avoid: str = ""


def problems(large: bool, precision: str) -> list[Sketch]:
    """The problems of a precision. Those in halves have the names of those in float32."""
    every = sketches(large)
    if precision == "float32":
        return every
    found = (_in_halves(sketch, precision == HALF_COMPUTE) for sketch in every)
    return [sketch for sketch in found if sketch is not None]


def _in_halves(sketch: Sketch, compute: bool) -> Sketch | None:
    """The problem in halves; None if plans have none in it."""
    graph, inputs, copies = sketch.graph, {}, []
    tensors, given = dict(graph.tensors), []
    for entry in graph.inputs:
        tensor = tensors[entry.tensor]
        if tensor.dtype != F32:
            given.append(entry)
            inputs[tensor.id] = sketch.inputs[tensor.id]
            continue
        # Inputs are never stored in halves: a copy of the input is.
        new = max(tensors) + 1
        tensors |= {new: replace(tensor, id=new), tensor.id: replace(tensor, role="activation")}
        given.append(GraphInput(entry.name, new, entry.torch_dtype))
        inputs[new] = sketch.inputs[tensor.id]
        copies.append(_copy(replace(graph, tensors=tensors), new, tensor.id))
    graph = replace(graph, tensors=tensors, nodes=(*copies, *graph.nodes), inputs=tuple(given), outputs=())
    graph = store_halves(graph, least=1)
    if compute:
        graph = compute_halves(graph)
    if not any(arithmetic_of(node, graph, compute) for node in graph.nodes[len(copies) :]):
        return None
    return Sketch(sketch.name, check(graph), inputs, len(copies))


def arithmetic_of(node: Node, graph: Graph, compute: bool) -> bool:
    """Whether a node computes in halves or, without `compute`, has a tensor in halves."""
    if compute:
        return "arithmetic" in node.attrs
    own = (*(view.tensor for view in node.inputs), *node.outputs)
    return any(graph.tensors[tensor].dtype == F16 for tensor in own)


def _copy(graph: Graph, source: int, target: int) -> Node:
    builder, shape = Builder(), graph.tensors[source].shape
    store = Store(builder.load(0, F32))
    attrs = {"shape": shape, "axes": (), "program": builder.program, "stores": (store,)}
    return Node("map", (graph.view(source),), (target,), attrs, Origin("forward", graph.name, "copy"))
