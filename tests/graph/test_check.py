"""Every rule of graph/check.py: a legal graph of each op, and for each rule one that breaks it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from handheld.errors import GraphError
from handheld.graph.check import check
from handheld.graph.graph import Graph, Node, Origin, Slot, Tensor, View, contiguous_strides
from handheld.graph.ops import OPS
from handheld.graph.program import Instr

ACC = {"program": (Instr("acc", "f32"),), "stores": (0,)}
CONV = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
MAX = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "adaptive": False}
AVG = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "count_pad": True, "divisor": 0}
ATTEND = {"scale": 0.5, "causal": False, "masked": True, "dropout": 0.1, "key": 3}
LOAD = Instr("load", "f32", (), (0, (), 0.0))
BIG = 2**31


def graph_of(op: str, inputs: list[str], outputs: list[str], attrs: dict) -> Graph:
    """A graph of one node. Tensors are written "f32 2 3": a type and a shape."""
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
        tuple((f"x{i}", i, "float32") for i in ins),
        {},
        (),
        tuple((f"y{i}", dense(tensors[i]), "float32") for i in outs),
    )


def dense(tensor: Tensor) -> View:
    return View(tensor.id, tensor.shape, contiguous_strides(tensor.shape))


def loops(op: str, shape: tuple[int, ...], program: tuple, stores: tuple, axes=()) -> dict:
    return {"shape": shape, "axes": axes, "program": program, "stores": stores}


LEGAL = {
    "map": (["f32 2 3"], ["f32 2 3"], loops("map", (2, 3), (LOAD,), ((0, True),))),
    "reduce": (
        ["f32 2 3"],
        ["f32 2", "f32 2 3"],
        loops("reduce", (2, 3), (LOAD, Instr("sum", "f32", (0,))), ((1, False), (0, True)), (1,)),
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
}


def legal(op: str) -> Graph:
    return graph_of(op, *LEGAL[op])


def with_node(graph: Graph, **change) -> Graph:
    return replace(graph, nodes=(replace(graph.nodes[0], **change),))


def with_attrs(op: str, **attrs) -> Graph:
    graph = legal(op)
    return with_node(graph, attrs={**graph.nodes[0].attrs, **attrs})


def with_tensor(op: str, tensor: int, text: str) -> Graph:
    """The legal graph of `op` with one tensor, and the view of it, changed."""
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
    attrs = loops(op, (2, 3), tuple(instrs), ((len(instrs) - 1, full),), () if full else (1,))
    return graph_of(op, list(inputs), [f"{dtype} 2 3" if full else f"{dtype} 2"], attrs)


def guarded(*guards, offset: int = 0, fill: float = 0.0) -> Graph:
    """A map over [4] that loads, guarded, from a tensor of three elements."""
    load = Instr("load", "f32", (), (0, guards, fill))
    graph = graph_of("map", ["f32 3"], ["f32 4"], loops("map", (4,), (load,), ((0, True),)))
    return with_node(graph, inputs=(View(0, (4,), (1,), offset),))


@pytest.mark.parametrize("op", OPS)
def test_legal(op):
    assert check(legal(op)) is not None


OP_RULES = [
    # matmul
    ("is i32, not f32", with_tensor("matmul", 0, "i32 2 3")),
    ("different rank", with_tensor("matmul", 0, "f32 1 2 3")),
    ("is not", with_tensor("matmul", 1, "f32 2 4")),
    ("is not", with_attrs("matmul", shape=(2, 5))),
    # convolutions
    ("is bool, not f32", with_tensor("conv", 1, "bool 4 3 3 3")),
    ("is i32, not f32", with_tensor("conv_weight", 2, "i32 4 3 3 3")),
    ("four dimensions", with_tensor("conv", 1, "f32 4 3 9")),
    ("4 dimensions", with_attrs("conv", shape=(2, 4, 36))),
    ("groups do not fit", with_attrs("conv", groups=3)),
    ("groups do not fit", with_attrs("conv", groups=0)),
    ("groups do not fit", with_tensor("conv", 0, "f32 1 3 8 8")),
    ("stride", with_attrs("conv", stride=(0, 1))),
    ("stride", with_attrs("conv", stride=(1,))),
    ("dilation", with_attrs("conv", dilation=(1, -1))),
    ("padding", with_attrs("conv", padding=(-1, 0))),
    ("padding", with_attrs("conv", padding=(BIG, 0))),
    ("too large", with_attrs("conv", stride=(2, 2))),
    ("too large", with_attrs("conv_input", dilation=(2, 2))),
    ("elements, not", with_tensor("conv_weight", 2, "f32 4 3 3 4")),
    # pooling
    ("is i32, not f32", with_tensor("max_pool", 0, "i32 2 3 8 8")),
    ("is f32, not i32", with_tensor("max_pool", 2, "f32 2 3 4 4")),
    ("is f32, not i32", with_tensor("max_pool_grad", 1, "f32 2 3 4 4")),
    ("is i32, not f32", with_tensor("avg_pool_grad", 1, "i32 2 3 8 8")),
    ("rank 4", with_tensor("avg_pool", 0, "f32 6 8 8")),
    ("alike", with_tensor("max_pool_grad", 1, "i32 2 3 4 3")),
    ("differ in number", with_tensor("avg_pool", 0, "f32 2 4 8 8")),
    ("4 dimensions", with_attrs("max_pool", shape=(6, 4, 4))),
    ("kernel", with_attrs("max_pool", kernel=(0, 2))),
    ("kernel", with_attrs("avg_pool_grad", kernel=(2,))),
    ("stride", with_attrs("max_pool_grad", stride=(2, 0))),
    ("stride", with_attrs("avg_pool", stride=(-1, 2))),
    ("padding", with_attrs("avg_pool", padding=(0, -1))),
    ("dilation", with_attrs("max_pool", dilation=(0, 1))),
    ("divisor", with_attrs("avg_pool", divisor=BIG)),
    ("no room", with_attrs("max_pool", stride=(3, 3))),
    ("no room", with_attrs("avg_pool_grad", kernel=(5, 2))),
    ("elements, not", with_tensor("max_pool", 2, "i32 2 3 4 3")),
    ("elements, not", with_tensor("avg_pool_grad", 1, "f32 2 3 8 9")),
    # scatter
    ("unknown mode 'mul'", with_attrs("scatter", mode="mul")),
    ("3 inputs and needs 2", with_attrs("scatter", base=False)),
    ("is f32, not i32", with_tensor("scatter", 0, "f32 2 5 3")),
    ("is i32, not f32", with_tensor("scatter", 1, "i32 2 5 3")),
    ("is bool, not f32", with_tensor("scatter", 2, "bool 2 7 3")),
    ("do not fit", with_tensor("scatter", 1, "f32 2 6 3")),
    ("do not fit", with_tensor("scatter", 0, "i32 3 5 3")),
    ("base", with_tensor("scatter", 2, "f32 14 3")),
    ("3 dimensions", with_attrs("scatter", shape=(14, 3))),
    ("elements, not", with_tensor("scatter", 3, "f32 2 8 3")),
    # assign
    ("is i32, not f32", with_tensor("assign", 0, "i32 4 6")),
    ("is i32, not f32", with_tensor("assign", 1, "i32 2 3")),
    ("base is not dense", with_view("assign", 0, (6, 4), (1, 6))),
    ("elements, not", with_tensor("assign", 2, "f32 4 5")),
    ("not the region's", with_attrs("assign", region_shape=(3, 2))),
    ("malformed", with_attrs("assign", region_strides=(6,))),
    ("a view reads", with_attrs("assign", region_offset=14)),
    ("a view reads", with_attrs("assign", region_offset=-1)),
    ("overlaps itself", with_attrs("assign", region_strides=(0, 1))),
    ("overlaps itself", with_attrs("assign", region_strides=(2, 1))),
    # scan and sort
    ("scan of bool", with_tensor("scan", 0, "bool 2 3 4")),
    ("sort of bool", with_tensor("sort", 0, "bool 3 4")),
    ("3 dimensions", with_tensor("scan", 0, "f32 6 4")),
    ("2 dimensions", with_tensor("sort", 0, "i32 12")),
    ("not dense", with_view("scan", 0, (2, 3, 4), (12, 1, 3))),
    ("not dense", with_view("sort", 0, (3, 3), (4, 1))),
    ("is i32, not f32", with_tensor("scan", 1, "i32 2 3 4")),
    ("is f32, not i32", with_tensor("sort", 2, "f32 3 4")),
    ("elements, not", with_tensor("scan", 1, "f32 2 3 3")),
    ("elements, not", with_tensor("sort", 2, "i32 3 3")),
    ("unknown mode", with_attrs("scan", mode="sum")),
    # recurrent layers
    ("wrong ranks", with_tensor("lstm", 0, "f32 10 12")),
    ("wrong ranks", with_tensor("gru", 3, "f32 6")),
    ("is i32, not f32", with_tensor("lstm", 2, "i32 2 3")),
    ("is i32, not f32", with_tensor("gru_grad", 6, "i32 5 2 9")),
    ("not dense", with_view("lstm", 1, (12, 3), (1, 12))),
    ("G, h", with_tensor("lstm", 1, "f32 9 3")),
    ("t, b, G", with_tensor("gru", 0, "f32 5 2 12")),
    ("t, b, h", with_tensor("lstm_grad", 4, "f32 4 2 3")),
    ("t, b, S", with_tensor("gru_grad", 4, "f32 5 2 9")),
    ("b, h", with_tensor("lstm_grad", 9, "f32 2 4")),
    # attention
    ("not finite", with_attrs("attention", scale=math.inf)),
    ("dropout", with_attrs("attention", dropout=1.5)),
    ("dropout", with_attrs("attention", dropout=-0.5)),
    ("random key", with_attrs("attention", key=BIG)),
    ("6 inputs and needs 5", with_attrs("attention", masked=False)),
    ("9 inputs and needs 7", with_attrs("attention_grad", dropout=0.0)),
    ("four dimensions", with_tensor("attention", 0, "f32 8 5 8")),
    ("do not fit", with_tensor("attention", 1, "f32 2 3 7 8")),
    ("do not fit", with_tensor("attention", 1, "f32 2 2 7 9")),
    ("do not fit", with_tensor("attention_grad", 3, "f32 2 2 8 6")),
    (
        "no keys",
        with_node(
            legal("attention"),
            inputs=tuple(
                replace(v, shape=(2, 2, 0, v.shape[3])) if i in (1, 2) else v
                for i, v in enumerate(legal("attention").nodes[0].inputs)
            ),
        ),
    ),
    ("is not|and not", with_tensor("attention", 3, "bool 2 4 5 6")),
    ("and not", with_tensor("attention", 4, "i32 1")),
    ("and not", with_tensor("attention", 6, "f32 2 4 5 6")),
    ("and not", with_tensor("attention_grad", 5, "f32 2 5 4")),
    ("and not", with_tensor("attention_grad", 10, "f32 2 7 2 6")),
    ("the mask is i32", with_tensor("attention", 3, "i32 2 4 5 7")),
    ("is f32, not i32", with_tensor("attention", 4, "f32")),
    ("is bool, not f32", with_tensor("attention", 2, "bool 2 2 7 6")),
    ("not dense", with_view("attention_grad", 5, (2, 4, 5), (20, 1, 4))),
]


@pytest.mark.parametrize(("match", "graph"), OP_RULES)
def test_rules_of_ops(match, graph):
    with pytest.raises(GraphError, match=match):
        check(graph)


def test_uneven_windows_and_unused_geometry_are_legal():
    check(with_attrs("max_pool", kernel=(3, 3)))  # the last window hangs over: ceil_mode
    check(with_attrs("max_pool", adaptive=True, kernel=(), stride=(0, 0)))
    check(with_attrs("assign", region_strides=(-6, -2), region_offset=20))


PROGRAM_RULES = [
    ("unknown instruction", program(Instr("frobnicate", "f32"))),
    ("unknown instruction", program(Instr("const", "f16", (), (1.0,)), dtype="f32")),
    ("bad arguments", program(LOAD, Instr("neg", "f32", (1,)))),
    ("bad arguments", program(LOAD, Instr("neg", "f32", (-1,)))),
    ("bad arguments", program(LOAD, Instr("add", "f32", (0,)))),
    ("does not give i32", program(LOAD, Instr("exp", "i32", (0,)), dtype="i32")),
    ("does not give f32", program(Instr("iota", "f32", (), (0,)))),
    ("does not give f32", program(Instr("index", "f32"))),
    ("does not give f32", program(Instr("iota", "i32", (), (0,)), Instr("exp", "f32", (0,)))),
    ("does not give f32", program(LOAD, Instr("and", "f32", (0, 0)))),
    ("does not give f32", program(LOAD, Instr("lt", "f32", (0, 0)))),
    ("does not give f32", program(LOAD, Instr("iota", "i32", (), (0,)), Instr("add", "f32", (0, 1)))),
    ("does not give f32", program(LOAD, Instr("gather", "f32", (0,), (0,)))),
    ("does not give f32", program(LOAD, Instr("random", "f32", (0, 0, 0), (1,)))),
    ("does not give f32", program(LOAD, Instr("iota", "i32", (), (0,)), Instr("where", "f32", (0, 0, 1)))),
    ("does not give bool", program(LOAD, Instr("any_of", "bool", (0,)), op="reduce", dtype="bool")),
    (
        "does not give bool",
        program(Instr("const", "bool", (), (True,)), Instr("sum", "bool", (0,)), op="reduce", dtype="bool"),
    ),
    ("acc outside", program(Instr("acc", "f32"))),
    ("reduction outside", program(LOAD, Instr("sum", "f32", (0,)))),
    ("iota of", program(Instr("iota", "i32", (), (2,)), dtype="i32")),
    ("iota of", program(Instr("iota", "i32", (), (-1,)), dtype="i32")),
    ("does not fit i32", program(Instr("const", "i32", (), (BIG,)), dtype="i32")),
    ("does not fit i32", program(Instr("const", "i32", (), (math.nan,)), dtype="i32")),
    ("random key", program(Instr("const", "i32", (), (1,)), Instr("random", "f32", (0,) * 3, (BIG,)))),
    # what is read
    ("reads operand 1", program(Instr("load", "f32", (), (1, (), 0.0)))),
    ("reads operand -1", program(Instr("load", "f32", (), (-1, (), 0.0)))),
    ("reads operand 0", with_attrs("matmul", program=(LOAD,))),
    ("reads f32 as i32", program(Instr("load", "i32", (), (0, (), 0)), dtype="i32")),
    ("has shape", program(LOAD, inputs=("f32 3 2",))),
    (
        "part of a tensor",
        with_node(
            program(Instr("iota", "i32", (), (0,)), Instr("gather", "f32", (0,), (0,))),
            inputs=(View(0, (2,), (1,), 0),),
        ),
    ),
    (
        "without elements",
        program(Instr("iota", "i32", (), (0,)), Instr("gather", "f32", (0,), (0,)), inputs=("f32 0",)),
    ),
    ("a view reads", with_view("map", 0, (2, 3), (3, 1), 1)),
    ("a view reads", with_view("map", 0, (2, 3), (3, -1))),
    ("malformed view", with_view("map", 0, (2, 3), (3,))),
    ("more than 32 bits", with_view("map", 0, (2, 3), (BIG, 1))),
    ("more than 32 bits", with_view("map", 0, (2, 3), (3, 1), -BIG)),
    ("32-bit indices", with_view("map", 0, (2**20, 2**20), (0, 0))),
    # guards: several on one dimension let through what all let through
    ("a view reads", guarded((0, 0, 4))),
    ("a view reads", guarded((0, 0, 3), (0, 2, 4), offset=1)),
    ("a view reads", guarded((0, 1, 3), (0, 0, 2), offset=-2)),
    ("which is not there", guarded((1, 0, 3))),
    ("which is not there", guarded((-1, 0, 3))),
    ("over 32 bits", guarded((0, 0, 2**40))),
    # the space and the stores
    ("32-bit indices", with_attrs("map", shape=(2**20, 2**20))),
    ("do not fit", with_attrs("reduce", axes=(2,))),
    ("do not fit", with_attrs("reduce", axes=(1, 1))),
    ("has no axes", with_attrs("map", axes=(0,))),
    ("differ in number", with_attrs("map", stores=((0, True), (0, True)))),
    ("not there", with_attrs("map", stores=((1, True),))),
    ("not there", with_attrs("matmul", stores=(-1,))),
    ("a map stores every point", with_attrs("map", stores=((0, False),))),
    ("differs along the row", with_attrs("reduce", stores=((0, False), (0, True)))),
    ("differs along the row", program(Instr("iota", "i32", (), (1,)), op="reduce", dtype="i32")),
    ("differs along the row", program(Instr("index", "i32"), op="reduce", dtype="i32")),
    ("differs along the row", program(Instr("load", "f32", (), (0, ((1, 0, 2),), 0.0)), op="reduce")),
    ("wrong size", with_tensor("map", 1, "f32 2 4")),
    ("wrong size", with_tensor("reduce", 1, "f32 3")),
    ("wrong type", with_tensor("map", 1, "i32 2 3")),
    ("wrong type", with_tensor("matmul", 2, "i32 2 4")),
]


@pytest.mark.parametrize(("match", "graph"), PROGRAM_RULES)
def test_rules_of_programs(match, graph):
    with pytest.raises(GraphError, match=match):
        check(graph)


def test_guards_are_intersected():
    check(guarded((0, 0, 3)))
    check(guarded((0, 0, 3), (0, 1, 4)))
    check(guarded((0, 0, 2), (0, 2, 4), offset=50))  # nothing gets through
    check(guarded((0, 2, 4), offset=-2))
    with pytest.raises(GraphError, match="does not fit i32"):
        load = Instr("load", "i32", (), (0, ((0, 0, 2),), math.inf))
        check(program(load, dtype="i32", inputs=("i32 2 3",)))


def test_empty_rows_read_nothing_but_row_values():
    """A sum over no elements: what is read once a row must be there, the rest need not."""
    total = (LOAD, Instr("sum", "f32", (0,)))
    graph = graph_of("reduce", ["f32 2 0"], ["f32 2"], loops("reduce", (2, 0), total, ((1, False),), (1,)))
    check(graph)
    with pytest.raises(GraphError, match="a view reads"):
        check(with_node(graph, inputs=(View(0, (2, 0), (1, 0)),)))


def trained() -> Graph:
    """x -> w + x becomes w, in a graph with an input, a slot, a write and an output."""
    add = (LOAD, Instr("load", "f32", (), (1, (), 0.0)), Instr("add", "f32", (0, 1)))
    graph = graph_of("map", ["f32 2 3", "f32 2 3"], ["f32 2 3"], loops("map", (2, 3), add, ((2, True),)))
    tensors = {**graph.tensors, 1: replace(graph.tensors[1], role="parameter")}
    return replace(graph, tensors=tensors, inputs=graph.inputs[:1], slots={"w": 1}, writes=(("w", 2),))


def changed(**tensor) -> Graph:
    """`trained` with tensor 2, which the node makes, changed."""
    graph = trained()
    return replace(graph, tensors={**graph.tensors, 2: replace(graph.tensors[2], **tensor)})


def retyped(tensor: int, **change) -> Graph:
    graph = trained()
    old = graph.tensors[tensor]
    return replace(graph, tensors={**graph.tensors, tensor: replace(old, **change)})


ORIGIN = Origin("forward", "", "")
GRAPH_RULES = [
    ("calls itself", changed(id=7)),
    ("unknown type", changed(dtype="f8")),
    ("unknown role", changed(role="thing")),
    ("more elements", changed(shape=(2**16, 2**16))),
    ("more elements", changed(shape=(0, 2**40))),
    ("more elements", changed(shape=(2, -3))),
    ("input 'x0' is there twice", replace(trained(), inputs=(("x0", 0, "int64"),) * 2)),
    ("output 'y' is there twice", replace(trained(), outputs=(("y", View(2, (), ()), "bool"),) * 2)),
    ("tensor 0 is there twice", replace(trained(), slots={"w": 0})),
    ("tensor 1 is there twice", replace(trained(), slots={"w": 1, "v": 1})),
    ("no tensor 9", replace(trained(), inputs=(("x", 9, "float32"),))),
    ("no tensor 9", replace(trained(), slots={"w": 9})),
    ("has the role buffer", retyped(0, role="buffer")),
    ("has the role activation", retyped(1, role="activation")),
    ("PyTorch type 'complex64'", replace(trained(), inputs=(("x", 0, "complex64"),))),
    ("PyTorch type 'O'", replace(trained(), outputs=(("y", View(2, (2,), (1,)), "O"),))),
    ("made by no node", replace(trained(), nodes=())),
    ("a view reads", replace(trained(), outputs=(("y", View(2, (7,), (1,)), "int64"),))),
    ("written slot 'w' is there twice", replace(trained(), writes=(("w", 2),) * 2)),
    ("unknown slot", replace(trained(), writes=(("v", 2),))),
    ("new value", replace(trained(), outputs=(), nodes=())),
    ("constant", retyped(1, role="constant")),
    ("becomes", replace(retyped(1, shape=(6, 2)), nodes=(), outputs=(), writes=(("w", 0),))),
    # notes that are more than text
    ("'frozen'", replace(trained(), notes={"frozen": (1,)})),
    ("'no_gradient'", replace(trained(), notes={"no_gradient": "w"})),
    ("'accumulate'", replace(trained(), notes={"accumulate": 0})),
    ("'accumulate'", replace(trained(), notes={"accumulate": True})),
    ("'ranges'", replace(trained(), notes={"ranges": 3})),
    ("'ranges'", replace(trained(), notes={"ranges": (("x1", 0, 3, None),)})),
    ("'ranges'", replace(trained(), notes={"ranges": (("x0", 0.5, 3, None),)})),
    ("'ranges'", replace(trained(), notes={"ranges": ((["x0"], 0, 3, None),)})),
    # nodes
    ("unknown op", with_node(trained(), op="conv3d")),
    ("unknown phase", with_node(trained(), origin=Origin("sideways", "", ""))),
    ("has attributes", with_node(trained(), attrs={})),
    ("before it is made", with_node(trained(), inputs=(View(2, (2, 3), (3, 1)),) * 2)),
    ("before it is made", with_node(trained(), inputs=(View(9, (2, 3), (3, 1)),) * 2)),
    ("makes nothing", with_node(trained(), outputs=())),
    ("output 2 is there twice", with_node(trained(), outputs=(2, 2))),
    ("missing or made twice", with_node(trained(), outputs=(1,))),
    ("missing or made twice", with_node(trained(), outputs=(9,))),
    ("no node can make", changed(role="parameter")),
    ("2 inputs and needs 1", with_node(legal("sort"), inputs=(View(0, (3, 4), (4, 1)),) * 2)),
    ("1 inputs and needs 2", with_node(legal("matmul"), inputs=(View(0, (2, 3), (3, 1)),))),
    ("1 outputs and needs 2", with_node(legal("sort"), outputs=(1,))),
    ("a view reads", with_view("matmul", 0, (2, 3), (4, 1))),
]


@pytest.mark.parametrize(("match", "graph"), GRAPH_RULES)
def test_rules_of_graphs(match, graph):
    with pytest.raises(GraphError, match=match):
        check(graph)


def test_notes_for_people_are_free():
    notes = {
        "frozen": ("a: 3",),
        "ranges": (("x0", 0, 9, -100), ("x0", 0, 9, None)),
        "accumulate": 4,
        "batch": 2,
        "anything": [None],
    }
    check(replace(trained(), notes=notes))


def test_the_state_must_fit():
    check(trained(), {"w": Slot("w", (2, 3), "f32", "parameter")})
    for slots in ({}, {"w": Slot("w", (3, 2), "f32", "parameter")}, {"w": Slot("w", (2, 3), "i32", "parameter")}):
        with pytest.raises(GraphError, match="slot 'w'"):
            check(trained(), slots)


def packed() -> Graph:
    """Two slots of 3 and 200 elements, updated as one: w -> -w."""
    tensors = {i: Tensor(i, (3 if i % 2 else 200,), "f32", "parameter" if i < 2 else "activation") for i in range(4)}
    tensors |= {4: Tensor(4, (384,), "f32", "parameter"), 5: Tensor(5, (384,), "f32", "activation")}
    node = Node(
        "map",
        (View(4, (384,), (1,)),),
        (5,),
        loops("map", (384,), (LOAD, Instr("neg", "f32", (0,))), ((1, True),)),
        ORIGIN,
    )
    return Graph("g", tensors, (node,), (), {"a": 0, "b": 1}, (("a", 2), ("b", 3)), (), packs={4: (0, 1), 5: (2, 3)})


def test_packs():
    check(packed())
    made = packed().nodes[0]
    copy = Node("map", (View(0, (200,), (1,)),), (2,), loops("map", (200,), (LOAD,), ((0, True),)), ORIGIN)
    for match, graph in [
        ("there twice", replace(packed(), packs={4: (0, 1), 5: (2, 2)})),
        ("not there", replace(packed(), packs={4: (0, 1), 5: (2, 9)})),
        ("not there", replace(packed(), packs={4: (0, 1), 5: ()})),
        ("another pack", replace(packed(), packs={4: (0, 5), 5: (2, 3)})),
        ("as long as", replace(packed(), packs={4: (0, 1), 5: (2,)})),
        ("another type", replace(packed(), tensors={**packed().tensors, 3: Tensor(3, (3,), "i32", "activation")})),
        ("is an input or a slot", replace(packed(), slots={"a": 0, "b": 1, "p": 4})),
        ("before it is made", replace(packed(), slots={"a": 0}, writes=())),
        ("made twice", replace(packed(), nodes=(copy, made))),
        ("made twice", replace(packed(), nodes=(made, copy))),
        (
            "holds an input",
            replace(
                packed(),
                slots={"a": 0},
                writes=(),
                inputs=(("b", 1, "bool"),),
                tensors={**packed().tensors, 1: Tensor(1, (3,), "f32", "input")},
            ),
        ),
    ]:
        with pytest.raises(GraphError, match=match):
            check(graph)


def test_messages_say_where():
    with pytest.raises(GraphError, match=r"graph 'g', node 0 \(scan from layer\): unknown mode"):
        check(with_attrs("scan", mode="sum"))
