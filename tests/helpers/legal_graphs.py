"""A legal graph of each op, and helpers that change one."""

from __future__ import annotations

from dataclasses import replace

from handheld.graph.graph import (
    Graph,
    GraphInput,
    GraphOutput,
    Node,
    Origin,
    SlotWrite,
    Tensor,
    View,
    contiguous_strides,
)
from handheld.graph.program import Instr, Store

ACC = {"program": (Instr("acc", "f32"),), "stores": (Store(0),)}
CONV = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
MAX = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "adaptive": False}
AVG = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "count_pad": True, "divisor": 0}
ATTEND = {"scale": 0.5, "causal": False, "masked": True, "dropout": 0.1, "key": 3}
LOAD = Instr("load", "f32", (), (0, (), 0.0))
BIG = 2**31


def graph_of(op: str, inputs: list[str], outputs: list[str], attrs: dict) -> Graph:
    """A graph of one node. A tensor is written as a type and a shape: "f32 2 3"."""
    tensors = {}
    for i, text in enumerate([*inputs, *outputs]):
        dtype, *shape = text.split()
        role = "input" if i < len(inputs) else "activation"
        tensors[i] = Tensor(i, tuple(map(int, shape)), dtype, role)
    ins, outs = range(len(inputs)), range(len(inputs), len(tensors))
    node = Node(op, tuple(dense(tensors[i]) for i in ins), tuple(outs), attrs, Origin("forward", "layer", "test"))
    return Graph(
        "g",
        tensors,
        (node,),
        tuple(GraphInput(f"x{i}", i, "float32") for i in ins),
        {},
        (),
        tuple(GraphOutput(f"y{i}", dense(tensors[i]), "float32") for i in outs),
    )


def dense(tensor: Tensor) -> View:
    return View(tensor.id, tensor.shape, contiguous_strides(tensor.shape))


def loops(op: str, shape: tuple[int, ...], program: tuple, stores: tuple, axes=()) -> dict:
    return {"shape": shape, "axes": axes, "program": program, "stores": stores}


LEGAL = {
    "map": (["f32 2 3"], ["f32 2 3"], loops("map", (2, 3), (LOAD,), (Store(0),))),
    "reduce": (
        ["f32 2 3"],
        ["f32 2", "f32 2 3"],
        loops("reduce", (2, 3), (LOAD, Instr("sum", "f32", (0,))), (Store(1, full=False), Store(0)), (1,)),
    ),
    "matmul": (["f32 2 3", "f32 3 4"], ["f32 2 4"], {"shape": (2, 4), **ACC}),
    "conv": (["f32 2 3 8 8", "f32 4 3 3 3"], ["f32 2 4 6 6"], {**CONV, "shape": (2, 4, 6, 6), **ACC}),
    "conv_input": (["f32 2 4 6 6", "f32 4 3 3 3"], ["f32 2 3 8 8"], {**CONV, "shape": (2, 3, 8, 8), **ACC}),
    "conv_weight": (["f32 2 4 6 6", "f32 2 3 8 8"], ["f32 4 3 3 3"], {**CONV, "shape": (4, 3, 3, 3)}),
    "max_pool": (["f32 2 3 8 8"], ["f32 2 3 4 4", "i32 2 3 4 4"], {**MAX, "shape": (2, 3, 4, 4)}),
    "max_pool_grad": (["f32 2 3 4 4", "i32 2 3 4 4"], ["f32 2 3 8 8"], {**MAX, "shape": (2, 3, 8, 8)}),
    "avg_pool": (["f32 2 3 8 8"], ["f32 2 3 4 4"], {**AVG, "shape": (2, 3, 4, 4)}),
    "avg_pool_grad": (["f32 2 3 4 4"], ["f32 2 3 8 8"], {**AVG, "shape": (2, 3, 8, 8)}),
    "scatter": (
        ["i32 2 5 3", "f32 2 5 3", "f32 2 7 3"],
        ["f32 2 7 3"],
        {"mode": "add", "base": True, "shape": (2, 7, 3)},
    ),
    "assign": (
        ["f32 4 6", "f32 2 3"],
        ["f32 4 6"],
        {"region_shape": (2, 3), "region_strides": (6, 2), "region_offset": 7},
    ),
    "scan": (["f32 2 3 4"], ["f32 2 3 4"], {"mode": "add", "reverse": False}),
    "sort": (["i32 3 4"], ["i32 3 4", "i32 3 4"], {"descending": False}),
    "lstm": (
        ["f32 5 2 12", "f32 12 3", "f32 2 3", "f32 2 3"],
        ["f32 5 2 3", "f32 5 2 3", "f32 5 2 12"],
        {"reverse": False},
    ),
    "lstm_grad": (
        ["f32 5 2 3", "f32 2 3", "f32 2 3", "f32 12 3", "f32 5 2 3", "f32 5 2 12", "f32 2 3"],
        ["f32 5 2 12", "f32 2 3", "f32 2 3"],
        {"reverse": True},
    ),
    "gru": (["f32 5 2 9", "f32 9 3", "f32 9", "f32 2 3"], ["f32 5 2 3", "f32 5 2 12"], {"reverse": False}),
    "gru_grad": (
        ["f32 5 2 3", "f32 2 3", "f32 9 3", "f32 5 2 3", "f32 5 2 12", "f32 2 3"],
        ["f32 5 2 9", "f32 5 2 9", "f32 2 3"],
        {"reverse": True},
    ),
    "attention": (
        ["f32 2 4 5 8", "f32 2 2 7 8", "f32 2 2 7 6", "bool 2 4 5 7", "i32", "i32"],
        ["f32 2 5 4 6", "f32 2 4 5"],
        ATTEND,
    ),
    "attention_grad": (
        [
            "f32 2 4 5 6",
            "f32 2 4 5 8",
            "f32 2 2 7 8",
            "f32 2 2 7 6",
            "f32 2 4 5 6",
            "f32 2 4 5",
            "f32 2 4 5 7",
            "i32",
            "i32",
        ],
        ["f32 2 5 4 8", "f32 2 7 2 8", "f32 2 7 2 6"],
        ATTEND,
    ),
    "ctc": (["f32 7 2 5", "i32 2 3", "i32 2", "i32 2"], ["f32 2"], {"blank": 0}),
    "ctc_grad": (
        ["f32 2", "f32 7 2 5", "i32 2 3", "i32 2", "i32 2"],
        ["f32 7 2 5"],
        {"blank": 4, "zero_infinity": True},
    ),
}


def legal(op: str) -> Graph:
    return graph_of(op, *LEGAL[op])


def with_node(graph: Graph, **change) -> Graph:
    return replace(graph, nodes=(replace(graph.nodes[0], **change),))


def with_attrs(op: str, **attrs) -> Graph:
    graph = legal(op)
    return with_node(graph, attrs={**graph.nodes[0].attrs, **attrs})


def with_tensor(op: str, tensor: int, text: str) -> Graph:
    """The legal graph of `op` with one tensor and its view changed."""
    inputs, outputs, attrs = (list(LEGAL[op][0]), list(LEGAL[op][1]), LEGAL[op][2])
    side, at = (inputs, tensor) if tensor < len(inputs) else (outputs, tensor - len(inputs))
    side[at] = text
    return graph_of(op, inputs, outputs, attrs)


def with_view(op: str, which: int, shape, strides, offset: int = 0) -> Graph:
    graph = legal(op)
    views = list(graph.nodes[0].inputs)
    views[which] = View(views[which].tensor, tuple(shape), tuple(strides), offset)
    return with_node(graph, inputs=tuple(views))


def program(*instrs: Instr, op: str = "map", dtype: str = "f32", inputs=("f32 2 3",)) -> Graph:
    """A map (or reduce over dimension 1) over [2, 3] that stores its last instruction."""
    full = op == "map"
    attrs = loops(op, (2, 3), tuple(instrs), (Store(len(instrs) - 1, full),), () if full else (1,))
    return graph_of(op, list(inputs), [f"{dtype} 2 3" if full else f"{dtype} 2"], attrs)


def guarded(*guards, offset: int = 0, fill: float = 0.0) -> Graph:
    """A map over [4] with a guarded load from a tensor of three elements."""
    load = Instr("load", "f32", (), (0, guards, fill))
    graph = graph_of("map", ["f32 3"], ["f32 4"], loops("map", (4,), (load,), (Store(0),)))
    return with_node(graph, inputs=(View(0, (4,), (1,), offset),))


def trained() -> Graph:
    """A graph that adds its input x to the slot w: it has an input, a slot, a write and an output."""
    add = (LOAD, Instr("load", "f32", (), (1, (), 0.0)), Instr("add", "f32", (0, 1)))
    graph = graph_of("map", ["f32 2 3", "f32 2 3"], ["f32 2 3"], loops("map", (2, 3), add, (Store(2),)))
    tensors = {**graph.tensors, 1: replace(graph.tensors[1], role="parameter")}
    return replace(graph, tensors=tensors, inputs=graph.inputs[:1], slots={"w": 1}, writes=(SlotWrite("w", 2),))


def changed(**tensor) -> Graph:
    """`trained` with tensor 2, the node's output, changed."""
    graph = trained()
    return replace(graph, tensors={**graph.tensors, 2: replace(graph.tensors[2], **tensor)})


def retyped(tensor: int, **change) -> Graph:
    graph = trained()
    old = graph.tensors[tensor]
    return replace(graph, tensors={**graph.tensors, tensor: replace(old, **change)})


ORIGIN = Origin("forward", "", "")
