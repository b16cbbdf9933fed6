"""Stores large intermediate tensors as 16-bit floats (halves). Everything is computed in float32, unless
`compute_halves` marks the products and convolutions of the graph.

Tensors between two nodes (activations, their gradients, gradients of parameters) are rounded to 16 bits when
they are stored and widened when they are loaded. These stay float32:

    parameters, optimizer state, running statistics, inputs and outputs
    the forward pass of the loss, and results of reductions (means, variances, norms)
    inputs and outputs of ops that have no kernel for halves
    small tensors, which would save nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from handheld.graph.dtypes import DTYPES, F16, F32
from handheld.graph.graph import PACK_ALIGN, Graph, Node, View

#: A tensor with fewer elements stays float32.
LEAST = 1024

#: The ops whose kernels can read their own inputs as halves. Programs can read any operand as halves.
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

_PRODUCTS = frozenset({"matmul", "conv", "conv_input", "conv_weight"})

#: The ops whose tensors must be all halves or all floats: the number of inputs and outputs that this concerns.
_ALIKE = {"attention": (3, 1), "attention_grad": (5, 3)}


def store_halves(graph: Graph, align_bytes: int = 1, least: int = LEAST) -> Graph:
    """Returns the graph with the type f16 for tensors that may be rounded and have at least `least` elements.

    `align_bytes` is the alignment of tensors on the device. A pack of gradients becomes halves only if each of
    its members is still aligned.
    """
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
        may.update(_storable(graph, node, read, pack_of, least))
    may = _agreed(graph, may - kept)
    packs = {
        pack
        for pack, members in graph.packs.items()
        if may.issuperset(members) and PACK_ALIGN * DTYPES[F16].nbytes % align_bytes == 0
    }
    may = {t for t in may if pack_of.get(t, -1) in (-1, *packs)} | packs
    tensors = {i: replace(t, dtype=F16) if i in may else t for i, t in graph.tensors.items()}
    return replace(graph, tensors=tensors)


def compute_halves(graph: Graph) -> Graph:
    """Returns the graph with products and convolutions, and the gradients of both, computed in halves.

    The forward pass of the loss and updates stay in float32. So do convolutions with one channel per group: their
    sums are short, and moving the data takes most of their time.
    """
    nodes = tuple(
        replace(node, attrs={**node.attrs, "arithmetic": "half"}) if _computable(node) else node for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def _computable(node: Node) -> bool:
    origin = node.origin
    if node.op not in _PRODUCTS or origin.phase == "update" or (origin.phase == "forward" and origin.path == "loss"):
        return False
    if node.op == "matmul":
        return True
    weight = node.attrs["shape"] if node.op == "conv_weight" else node.inputs[1].shape
    return int(weight[1]) > 1 or int(node.attrs["groups"]) == 1


def _whole(node: Node) -> tuple[View, ...]:
    """Returns the inputs that the kernels of a node can only read as floats."""
    if node.op in _OPS:
        return ()
    return node.inputs[_ALIKE.get(node.op, (0, 0))[0] :]


def _agreed(graph: Graph, may: set[int]) -> set[int]:
    """Removes the tensors of ops that would otherwise have some of their tensors as halves and some as floats."""
    groups = [
        {*(view.tensor for view in node.inputs[:own]), *node.outputs[:made]}
        for node in graph.nodes
        if node.op in _ALIKE
        for own, made in [_ALIKE[node.op]]
    ]
    while split := {t for group in groups if not group <= may for t in group & may}:
        may = may - split
    return may


def _storable(graph: Graph, node: Node, read: set[int], pack_of: dict[int, int], least: int) -> Iterator[int]:
    """Yields the results of a node that may be rounded. `read` holds the tensors that nodes before the updates read."""
    loss = node.origin.phase == "forward" and node.origin.path == "loss"
    if node.origin.phase == "update" or loss or node.op not in (*_OPS, *_ALIKE):
        return
    count = _ALIKE[node.op][1] if node.op in _ALIKE else len(node.outputs)
    for i, out in enumerate(node.outputs[:count]):
        tensor = graph.tensors[out]
        # A result with one value per row is a statistic, unless it is the gradient of a parameter.
        whole = node.op != "reduce" or node.stores[i].full or out not in read
        if tensor.dtype == F32 and whole and (tensor.size >= least or out in pack_of):
            yield out
