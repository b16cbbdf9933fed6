"""The text form of graphs."""

from __future__ import annotations

import pytest
from test_codec import example

from handheld.graph.program import Builder
from handheld.graph.text import formula, show, show_node, summary


def test_a_node_is_one_line():
    graph = example()
    assert show_node(graph.nodes[0], graph) == (
        "%2 f32[2,5,2,2] = conv($x f32[2,3,4,4], @conv1.weight f32[5,3,3,3]) stride=1,1 "
        "padding=0,0 dilation=1,1 groups=1 { max(acc, -inf) } | forward conv1 aten.convolution"
    )
    assert show_node(graph.nodes[1], graph) == (
        "%3 f32[2,5] = reduce(x0=%2 f32[2,5,2,2]) over [2,5,2,2] reducing 2,3 "
        "{ sum(where(0 <= i2 < 2 & 0 <= i3 < 2, x0, nan) * 0.1) } | forward - aten.mean"
    )
    assert "x0=%2 f32[2,2,2,5; 20,-2,1,4; +2]" in show_node(graph.nodes[2], graph)


def test_a_graph_ends_with_outputs_and_writes():
    lines = show(example()).splitlines()
    assert lines[0] == "graph train"
    assert "  input $x f32[2,3,4,4] (float32)" in lines
    assert "  slot @conv1.weight f32[5,3,3,3] parameter" in lines
    assert lines[-2:] == ["  output loss = %3 f32[2,5] (float32)", "  @conv1.weight <- %6"]


def test_summary():
    text = summary(example())
    assert "4 nodes, 8 tensors" in text and "conv 1" in text
    assert "forward 2, backward 1, update 1" in text
    assert "parameter: 1 tensors, 540 B" in text


def build(make):
    b = Builder()
    x, y = b.load(0, "f32"), b.load(1, "f32")
    last = make(b, x, y)
    return formula(b.program, [last])


@pytest.mark.parametrize(
    "make, want",
    [
        (lambda b, x, y: b.op("max", "f32", b.op("add", "f32", x, y), b.const(0, "f32")), "max(x0 + x1, 0)"),
        (lambda b, x, y: b.op("mul", "f32", b.op("add", "f32", x, y), x), "(x0 + x1) * x0"),
        (lambda b, x, y: b.op("sub", "f32", x, b.op("sub", "f32", y, x)), "x0 - (x1 - x0)"),
        (lambda b, x, y: b.op("sub", "f32", b.op("sub", "f32", x, y), x), "x0 - x1 - x0"),
        (lambda b, x, y: b.op("neg", "f32", b.op("mul", "f32", x, y)), "-(x0 * x1)"),
        (lambda b, x, y: b.op("pow", "f32", b.const(-2.0, "f32"), y), "(-2) ** x1"),
        (lambda b, x, y: b.op("cast", "i32", b.op("lt", "bool", x, y)), "i32(x0 < x1)"),
        (lambda b, x, y: b.op("mul", "f32", *[b.op("exp", "f32", x)] * 2), "t2 = exp(x0); t2 * t2"),
    ],
)
def test_formulas(make, want):
    assert build(make) == want


def test_a_formula_stays_short_when_values_are_shared():
    b = Builder()
    x = b.load(0, "f32")
    for _ in range(60):
        x = b.op("add", "f32", x, x)
    assert len(formula(b.program, [x])) < 2000
