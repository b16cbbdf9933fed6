"""The rules of graph/check.py about ops and their programs: a legal graph of each op, and one that breaks each rule."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from handheld.errors import GraphError
from handheld.graph.check import check
from handheld.graph.graph import View
from handheld.graph.ops import OPS
from handheld.graph.program import Instr, Store
from helpers.legal_graphs import (
    BIG,
    LOAD,
    graph_of,
    guarded,
    legal,
    loops,
    program,
    with_attrs,
    with_node,
    with_tensor,
    with_view,
)


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
    ("equal shapes", with_tensor("max_pool_grad", 1, "i32 2 3 4 3")),
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
    ("3 inputs but needs 2", with_attrs("scatter", base=False)),
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
    ("6 inputs but needs 5", with_attrs("attention", masked=False)),
    ("9 inputs but needs 7", with_attrs("attention_grad", dropout=0.0)),
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
    ("an operand is .*, not", with_tensor("attention", 3, "bool 2 4 5 6")),
    ("an operand is .*, not", with_tensor("attention", 4, "i32 1")),
    ("an operand is .*, not", with_tensor("attention", 6, "f32 2 4 5 6")),
    ("an operand is .*, not", with_tensor("attention_grad", 5, "f32 2 5 4")),
    ("an operand is .*, not", with_tensor("attention_grad", 10, "f32 2 7 2 6")),
    ("the mask is i32", with_tensor("attention", 3, "i32 2 4 5 7")),
    ("is f32, not i32", with_tensor("attention", 4, "f32")),
    ("is bool, not f32", with_tensor("attention", 2, "bool 2 2 7 6")),
    ("not dense", with_view("attention_grad", 5, (2, 4, 5), (20, 1, 4))),
    # connectionist temporal classification
    ("wrong ranks", with_tensor("ctc", 0, "f32 7 10")),
    ("wrong ranks", with_tensor("ctc_grad", 2, "i32 6")),
    ("no steps or no classes", with_tensor("ctc", 0, "f32 0 2 5")),
    ("blank 5 is not one of 5", with_attrs("ctc", blank=5)),
    ("blank -1 is not one of 5", with_attrs("ctc_grad", blank=-1)),
    ("an operand is .*, not", with_tensor("ctc", 2, "i32 3")),
    ("an operand is .*, not", with_tensor("ctc", 4, "f32 3")),
    ("an operand is .*, not", with_tensor("ctc_grad", 0, "f32 3")),
    ("an operand is .*, not", with_tensor("ctc_grad", 5, "f32 7 2 4")),
    ("is f32, not i32", with_tensor("ctc", 1, "f32 2 3")),
    ("is i32, not f32", with_tensor("ctc_grad", 1, "i32 7 2 5")),
    ("not dense", with_view("ctc", 0, (7, 2, 5), (5, 35, 1))),
]


@pytest.mark.parametrize(("match", "graph"), OP_RULES)
def test_rules_of_ops(match, graph):
    with pytest.raises(GraphError, match=match):
        check(graph)


def test_uneven_windows_and_unused_geometry_are_legal():
    check(with_attrs("max_pool", kernel=(3, 3)))  # The last window extends beyond the edge, as with ceil_mode.
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
    # loads
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
    # guards: with several on one dimension, an element must pass all of them
    ("a view reads", guarded((0, 0, 4))),
    ("a view reads", guarded((0, 0, 3), (0, 2, 4), offset=1)),
    ("a view reads", guarded((0, 1, 3), (0, 0, 2), offset=-2)),
    ("which does not exist", guarded((1, 0, 3))),
    ("which does not exist", guarded((-1, 0, 3))),
    ("more than 32 bits", guarded((0, 0, 2**40))),
    # the iteration space and the stores
    ("32-bit indices", with_attrs("map", shape=(2**20, 2**20))),
    ("do not fit", with_attrs("reduce", axes=(2,))),
    ("do not fit", with_attrs("reduce", axes=(1, 1))),
    ("has no axes", with_attrs("map", axes=(0,))),
    ("differ in number", with_attrs("map", stores=(Store(0), Store(0)))),
    ("not exist", with_attrs("map", stores=(Store(1),))),
    ("not exist", with_attrs("matmul", stores=(Store(-1),))),
    ("a map must store every point", with_attrs("map", stores=(Store(0, full=False),))),
    ("differs along the row", with_attrs("reduce", stores=(Store(0, full=False), Store(0)))),
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
    check(guarded((0, 0, 2), (0, 2, 4), offset=50))  # No element passes.
    check(guarded((0, 2, 4), offset=-2))
    with pytest.raises(GraphError, match="does not fit i32"):
        load = Instr("load", "i32", (), (0, ((0, 0, 2),), math.inf))
        check(program(load, dtype="i32", inputs=("i32 2 3",)))


def test_empty_rows_read_nothing_but_row_values():
    """A sum over no elements: operands that are read once per row must exist, the others need not."""
    total = (LOAD, Instr("sum", "f32", (0,)))
    graph = graph_of("reduce", ["f32 2 0"], ["f32 2"], loops("reduce", (2, 0), total, (Store(1, full=False),), (1,)))
    check(graph)
    with pytest.raises(GraphError, match="a view reads"):
        check(with_node(graph, inputs=(View(0, (2, 0), (1, 0)),)))


def test_messages_say_where():
    with pytest.raises(GraphError, match=r"graph 'g', node 0 \(scan from layer\): unknown mode"):
        check(with_attrs("scan", mode="sum"))
