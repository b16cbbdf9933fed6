"""Large intermediate tensors are stored in halves; everything is still computed in float32.

What lives between two nodes (activations, their gradients, and those of parameters) is rounded to
16 bits when it is stored and widened when it is loaded. What stays float32:

    parameters, optimizer state, running statistics, inputs and outputs
    the forward pass of the loss, and results of reductions (means, variances, norms)
    whatever an op makes or reads that has no kernel for halves
    small tensors, which would save nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from handheld.graph.dtypes import DTYPES, F16, F32
from handheld.graph.graph import PACK_ALIGN, Graph, Node, View

#: elements below which a tensor stays as it is
LEAST = 1024

#: ops whose kernels read their own inputs in halves; programs read any operand so
_OPS = frozenset(
    {
        "map",
        "reduce",
        "matmul",
        "conv",
        "conv_input",
        "conv_weight",
        "max_pool",
        "max_pool_grad",
        "avg_pool",
        "avg_pool_grad",
    }
)

#: and ops that have all their tensors in halves or none: the inputs and outputs that count
_ALIKE = {"attention": (3, 1), "attention_grad": (5, 3)}


def store_halves(graph: Graph, align_bytes: int = 1) -> Graph:
    """`align_bytes`: where a tensor may start on the device. The gradients of many parameters lie
    end to end; they are halves only if each of them still starts where it may."""
    kept = graph.kept
    kept |= {view.tensor for node in graph.nodes for view in _whole(node)}
    pack_of = {m: pack for pack, members in graph.packs.items() for m in members}
    read = {
        t
        for node in graph.nodes
        if node.origin.phase != "update"
        for view in node.inputs
        for t in (view.tensor, *graph.packs.get(view.tensor, ()))
    }
    may: set[int] = set()
    for node in graph.nodes:
        may.update(_storable(graph, node, read, pack_of))
    may = _agreed(graph, may - kept)
    packs = {
        pack
        for pack, members in graph.packs.items()
        if may.issuperset(members) and PACK_ALIGN * DTYPES[F16].nbytes % align_bytes == 0
    }
    may = {t for t in may if pack_of.get(t, -1) in (-1, *packs)} | packs
    tensors = {i: replace(t, dtype=F16) if i in may else t for i, t in graph.tensors.items()}
    return replace(graph, tensors=tensors)


def _whole(node: Node) -> tuple[View, ...]:
    """The inputs that a node's kernels read as floats."""
    if node.op in _OPS:
        return ()
    return node.inputs[_ALIKE.get(node.op, (0, 0))[0] :]


def _agreed(graph: Graph, may: set[int]) -> set[int]:
    """Without the tensors of ops that would have some of them in halves and some not."""
    groups = [
        {*(view.tensor for view in node.inputs[:own]), *node.outputs[:made]}
        for node in graph.nodes
        if node.op in _ALIKE
        for own, made in [_ALIKE[node.op]]
    ]
    while split := {t for group in groups if not group <= may for t in group & may}:
        may = may - split
    return may


def _storable(graph: Graph, node: Node, read: set[int], pack_of: dict[int, int]) -> Iterator[int]:
    """The results of a node that may be rounded. `read`: what is read by more than updates."""
    loss = node.origin.phase == "forward" and node.origin.path == "loss"
    if node.origin.phase == "update" or loss or node.op not in (*_OPS, *_ALIKE):
        return
    made = _ALIKE[node.op][1] if node.op in _ALIKE else len(node.outputs)
    for i, out in enumerate(node.outputs[:made]):
        tensor = graph.tensors[out]
        # a result for each row is a statistic, unless it is the gradient of a parameter
        whole = node.op != "reduce" or node.stores[i].full or out not in read
        if tensor.dtype == F32 and whole and (tensor.size >= LEAST or out in pack_of):
            yield out
