"""Steps that consist of matrix products of given sizes."""

from __future__ import annotations

from handheld.graph.check import check
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Tensor, View
from handheld.graph.program import Instr, Store
from handheld.step import Step


def products(*sizes: int) -> Step:
    """y = x w for square x and w of each size, each product twice."""
    tensors, nodes, inputs, outputs = {}, [], [], []
    for n in sizes:
        x = len(tensors)
        for i, role in enumerate(("input", "input", "activation", "activation")):
            tensors[x + i] = Tensor(x + i, (n, n), "f32", role)
        views = [View(x + i, (n, n), (n, 1)) for i in range(2)]
        inputs += [GraphInput(f"x{x + i}", x + i, "float32") for i in range(2)]
        for out in (x + 2, x + 3):
            attrs = {"shape": (n, n), "program": (Instr("acc", "f32"),), "stores": (Store(0),)}
            nodes.append(Node("matmul", tuple(views), (out,), attrs, Origin("forward", "m", "mm")))
            outputs.append(GraphOutput(f"y{out}", View(out, (n, n), (n, 1)), "float32"))
    graph = Graph("train", tensors, tuple(nodes), tuple(inputs), {}, (), tuple(outputs))
    return Step({}, {}, {"train": check(graph)})
