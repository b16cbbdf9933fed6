"""The least work of an op: floating-point operations, and bytes that must be moved."""

from __future__ import annotations

import math

from handheld.cost.work import Work
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, Node
from handheld.graph.program import LEAVES
from handheld.kernels import contract
from handheld.plan.plan import GraphPlan
from handheld.plan.signature import signature

#: Instructions that compute nothing.
IDLE = frozenset({*LEAVES, "gather", "cast"})


def flops(node: Node, graph: Graph) -> int:
    """Floating-point operations of a node. Contractions count multiplications and additions, programs one operation per
    instruction and point, recurrent layers and attention only their matrix products."""
    if node.op in ("matmul", "conv", "conv_input", "conv_weight"):
        return contract.flops(node, graph) + _program(node, int(math.prod(node.attrs["shape"])))
    if node.op in ("lstm", "lstm_grad", "gru", "gru_grad"):
        weights = max(math.prod(view.shape) for view in node.inputs if len(view.shape) == 2)
        steps = max(math.prod(view.shape[:2]) for view in node.inputs if len(view.shape) == 3)
        return 2 * weights * steps
    if node.op in ("attention", "attention_grad"):
        return _attention(node)
    return _program(node, int(math.prod(node.attrs["shape"]))) if "program" in node.attrs else 0


def _attention(node: Node) -> int:
    """The matrix products of attention: two forward; in the gradient five, because the scores are computed again."""
    backward = node.op == "attention_grad"
    query, key, value = (view.shape for view in node.inputs[backward : backward + 3])
    pairs = query[2] * key[2]
    if node.attrs["causal"]:  # A query reads the keys up to its own position.
        pairs = sum(min(position + 1, key[2]) for position in range(query[2]))
    terms = 3 * query[3] + 2 * value[3] if backward else query[3] + value[3]
    return int(2 * math.prod(query[:2]) * pairs * terms)


def _program(node: Node, points: int) -> int:
    program = node.attrs.get("program", ())
    return points * sum(instr.op not in IDLE for instr in program)


def nbytes(node: Node, graph: Graph) -> int:
    """Bytes moved if each input is read once (only the part that is used) and each output is written once."""
    read: dict[int, int] = {}
    for view in node.inputs:
        tensor = graph.tensors[view.tensor]
        seen = math.prod(n for n, s in zip(view.shape, view.strides, strict=True) if s) * DTYPES[tensor.dtype].nbytes
        read[view.tensor] = min(max(read.get(view.tensor, 0), seen), tensor.nbytes)
    return sum(read.values()) + sum(graph.tensors[t].nbytes for t in node.outputs)


def works(planned: GraphPlan) -> list[Work]:
    """The work of every op of a graph, in the order in which they run."""
    graph = planned.graph
    return [
        Work(
            node.op,
            signature(node, graph),
            low.why,
            len(low.launches),
            int(flops(node, graph)),
            int(nbytes(node, graph)),
        )
        for node, low in zip(graph.nodes, planned.lowered, strict=True)
    ]
