"""The rules of graph/check.py about whole graphs and packed updates: one graph that breaks each."""

from __future__ import annotations

from dataclasses import replace

import pytest

import handheld
from handheld.errors import GraphError
from handheld.graph.check import check
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Slot, SlotWrite, Tensor, View
from handheld.graph.program import Instr, Store
from helpers.legal_graphs import LOAD, ORIGIN, changed, legal, loops, retyped, trained, with_node, with_view
from helpers.models import loss, make

GRAPH_RULES = [
    ("calls itself", changed(id=7)),
    ("unknown type", changed(dtype="f8")),
    ("unknown role", changed(role="thing")),
    ("more elements", changed(shape=(2**16, 2**16))),
    ("more elements", changed(shape=(0, 2**40))),
    ("more elements", changed(shape=(2, -3))),
    ("input 'x0' appears twice", replace(trained(), inputs=(GraphInput("x0", 0, "int64"),) * 2)),
    ("output 'y' appears twice", replace(trained(), outputs=(GraphOutput("y", View(2, (), ()), "bool"),) * 2)),
    ("tensor 0 appears twice", replace(trained(), slots={"w": 0})),
    ("tensor 1 appears twice", replace(trained(), slots={"w": 1, "v": 1})),
    ("no tensor 9", replace(trained(), inputs=(GraphInput("x", 9, "float32"),))),
    ("no tensor 9", replace(trained(), slots={"w": 9})),
    ("has the role buffer", retyped(0, role="buffer")),
    ("has the role activation", retyped(1, role="activation")),
    ("PyTorch type 'complex64'", replace(trained(), inputs=(GraphInput("x", 0, "complex64"),))),
    ("PyTorch type 'O'", replace(trained(), outputs=(GraphOutput("y", View(2, (2,), (1,)), "O"),))),
    ("no node writes", replace(trained(), nodes=())),
    ("a view reads", replace(trained(), outputs=(GraphOutput("y", View(2, (7,), (1,)), "int64"),))),
    ("written slot 'w' appears twice", replace(trained(), writes=(SlotWrite("w", 2),) * 2)),
    ("unknown slot", replace(trained(), writes=(SlotWrite("v", 2),))),
    ("new value", replace(trained(), outputs=(), nodes=())),
    ("constant", retyped(1, role="constant")),
    ("its new value is", replace(retyped(1, shape=(6, 2)), nodes=(), outputs=(), writes=(SlotWrite("w", 0),))),
    # notes with a meaning for the code
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
    ("before it is written", with_node(trained(), inputs=(View(2, (2, 3), (3, 1)),) * 2)),
    ("before it is written", with_node(trained(), inputs=(View(9, (2, 3), (3, 1)),) * 2)),
    ("has no outputs", with_node(trained(), outputs=())),
    ("output 2 appears twice", with_node(trained(), outputs=(2, 2))),
    ("missing or written twice", with_node(trained(), outputs=(1,))),
    ("missing or written twice", with_node(trained(), outputs=(9,))),
    ("no node can write", changed(role="parameter")),
    ("2 inputs but needs 1", with_node(legal("sort"), inputs=(View(0, (3, 4), (4, 1)),) * 2)),
    ("1 inputs but needs 2", with_node(legal("matmul"), inputs=(View(0, (2, 3), (3, 1)),))),
    ("1 outputs but needs 2", with_node(legal("sort"), outputs=(1,))),
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
    """Two slots of 3 and 200 elements that are updated as one pack: w -> -w."""
    tensors = {i: Tensor(i, (3 if i % 2 else 200,), "f32", "parameter" if i < 2 else "activation") for i in range(4)}
    tensors |= {4: Tensor(4, (384,), "f32", "parameter"), 5: Tensor(5, (384,), "f32", "activation")}
    node = Node(
        "map",
        (View(4, (384,), (1,)),),
        (5,),
        loops("map", (384,), (LOAD, Instr("neg", "f32", (0,))), (Store(1),)),
        ORIGIN,
    )
    return Graph(
        "g",
        tensors,
        (node,),
        (),
        {"a": 0, "b": 1},
        (SlotWrite("a", 2), SlotWrite("b", 3)),
        (),
        packs={4: (0, 1), 5: (2, 3)},
    )


def test_packs():
    check(packed())
    made = packed().nodes[0]
    copy = Node("map", (View(0, (200,), (1,)),), (2,), loops("map", (200,), (LOAD,), (Store(0),)), ORIGIN)
    for match, graph in [
        ("appears twice", replace(packed(), packs={4: (0, 1), 5: (2, 2)})),
        ("not exist", replace(packed(), packs={4: (0, 1), 5: (2, 9)})),
        ("not exist", replace(packed(), packs={4: (0, 1), 5: ()})),
        ("another pack", replace(packed(), packs={4: (0, 5), 5: (2, 3)})),
        ("as long as", replace(packed(), packs={4: (0, 1), 5: (2,)})),
        ("another type", replace(packed(), tensors={**packed().tensors, 3: Tensor(3, (3,), "i32", "activation")})),
        ("is an input or a slot", replace(packed(), slots={"a": 0, "b": 1, "p": 4})),
        ("before it is written", replace(packed(), slots={"a": 0}, writes=())),
        ("written twice", replace(packed(), nodes=(copy, made))),
        ("written twice", replace(packed(), nodes=(made, copy))),
        (
            "holds an input",
            replace(
                packed(),
                slots={"a": 0},
                writes=(),
                inputs=(GraphInput("b", 1, "bool"),),
                tensors={**packed().tensors, 1: Tensor(1, (3,), "f32", "input")},
            ),
        ),
    ]:
        with pytest.raises(GraphError, match=match):
            check(graph)


@pytest.mark.parametrize(
    "change", [{"shape": (2, 4)}, {"shape": (1, 3)}, {"dtype": "i32"}, {"role": "parameter"}], ids=str
)
def test_nodes_of_a_graph_before_are_checked_where_their_tensors_changed(change) -> None:
    before = legal("map")
    (node,) = before.nodes
    number = node.outputs[0]
    wrong = replace(before, tensors={**before.tensors, number: replace(before.tensors[number], **change)})
    with pytest.raises(GraphError) as alone:
        check(wrong)
    with pytest.raises(GraphError) as after:
        check(wrong, before=before)
    assert str(after.value) == str(alone.value)


def test_a_changed_order_is_found_with_a_graph_before() -> None:
    model, optimizer, batch = make("vision")
    step = handheld.capture(model, loss, optimizer, batch, evaluate=False)
    before = step.graphs["train"]
    check(before, step.slots, before=before)
    with pytest.raises(GraphError, match="before it is written"):
        check(before.with_nodes(before.nodes[::-1]), step.slots, before=before)
