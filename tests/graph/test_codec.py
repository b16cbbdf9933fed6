"""Graphs to JSON and back: exact for what Handheld wrote, StepFileError for anything else."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import replace

import pytest

from handheld.errors import GraphError, StepFileError
from handheld.graph import codec
from handheld.graph.check import check
from handheld.graph.codec import from_json, slot_from_json, slot_to_json, to_json
from handheld.graph.graph import (
    Graph,
    GraphInput,
    GraphOutput,
    Node,
    Origin,
    Slot,
    SlotWrite,
    Tensor,
    View,
    contiguous_strides,
)
from handheld.graph.ops import OPS
from handheld.graph.program import Builder, Guard, Instr, Store

SHAPES = {
    0: (2, 3, 4, 4),
    1: (5, 3, 3, 3),
    2: (2, 5, 2, 2),
    3: (2, 5),
    4: (2, 2, 2, 5),
    5: (2, 2, 2, 5),
    6: (5, 3, 3, 3),
    7: (3,),
}


def example() -> Graph:
    """A small step that uses every kind of value that a graph can hold."""
    shapes = SHAPES
    roles = {0: "input", 1: "parameter", 7: "constant"}
    tensors = {i: Tensor(i, s, "f32", roles.get(i, "activation"), f"t{i}") for i, s in shapes.items()}
    tensors[5] = replace(tensors[5], dtype="i32")
    views = {i: View(i, s, contiguous_strides(s)) for i, s in shapes.items()}
    conv = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    p = Builder()
    relu = p.op("max", "f32", p.op("acc", "f32"), p.const(-math.inf, "f32"))
    r = Builder()
    guarded = r.load(0, "f32", (Guard(2, 0, 2), Guard(3, 0, 2)), math.nan)
    total = r.op("sum", "f32", r.op("mul", "f32", guarded, r.const(0.1, "f32")))
    m = Builder()
    x = m.load(0, "f32")
    index = m.op("cast", "i32", m.op("gt", "bool", x, m.const(True, "bool")))
    uniform = m.op("random", "f32", *[m.const(n, "i32") for n in (1, 2, 3)], params=(9,))
    back = View(2, (2, 2, 2, 5), (20, -2, 1, 4), 2)
    nodes = (
        Node(
            "conv",
            (views[0], views[1]),
            (2,),
            {**conv, "shape": shapes[2], "program": p.program, "stores": (Store(relu),)},
            Origin("forward", "conv1", "aten.convolution"),
        ),
        Node(
            "reduce",
            (views[2],),
            (3,),
            {"shape": shapes[2], "axes": (2, 3), "program": r.program, "stores": (Store(total, full=False),)},
            Origin("forward", "", "aten.mean"),
        ),
        Node(
            "map",
            (back,),
            (4, 5),
            {"shape": shapes[4], "axes": (), "program": m.program, "stores": (Store(uniform), Store(index))},
            Origin("backward", "a.b", "x"),
        ),
        Node("conv_weight", (views[2], views[0]), (6,), {**conv, "shape": shapes[6]}, Origin("update", "conv1", "sgd")),
    )
    notes = {"batch": 2, "rate": 0.5, "worst": -math.inf, "names": ["a", ("b", None)], "more": {"x": {"y": True}}}
    return Graph(
        "train",
        tensors,
        nodes,
        (GraphInput("x", 0, "float32"),),
        {"conv1.weight": 1, "k": 7},
        (SlotWrite("conv1.weight", 6),),
        (GraphOutput("loss", views[3], "float32"),),
        notes,
    )


def wire(graph: Graph):
    """The value after a round trip through strict JSON text."""
    return json.loads(json.dumps(to_json(graph), allow_nan=False))


def test_round_trip_is_exact():
    graph = check(example())
    back = check(from_json(wire(graph)))
    assert wire(back) == wire(graph)
    assert back.tensors == graph.tensors and back.notes == graph.notes
    assert (back.inputs, back.slots, back.writes, back.outputs) == (
        graph.inputs,
        graph.slots,
        graph.writes,
        graph.outputs,
    )
    for ours, theirs in zip(back.nodes, graph.nodes, strict=True):
        assert repr(ours) == repr(theirs)  # repr distinguishes 1, 1.0 and True, and handles NaN.
    assert isinstance(back.nodes[1].attrs["program"][0].params[1][0], tuple)


@pytest.mark.parametrize(
    "value", [0, 1, True, False, 0.0, -0.0, 1.0, 0.1, 1e300, math.inf, -math.inf, math.nan, -(2**63)]
)
def test_constants_keep_their_type(value):
    graph = example()
    program = (Instr("const", "f32", (), (value,)),)
    node = replace(graph.nodes[2], attrs={**graph.nodes[2].attrs, "program": program})
    back = from_json(wire(graph.with_nodes((node,))))
    assert repr(back.nodes[0].attrs["program"][0].params[0]) == repr(value)


def test_slots():
    slot = Slot("w", (3, 4), "f32", "parameter", ("w", "tied.w"), "float16")
    assert slot_from_json(json.loads(json.dumps(slot_to_json(slot)))) == slot
    good = slot_to_json(slot)
    for key, bad in (
        ("name", 3),
        ("shape", [-1]),
        ("dtype", "f64"),
        ("role", None),
        ("names", [1]),
        ("torch_dtype", {}),
        ("shape", [1] * 65),
        ("name", "\ud800"),
        ("shape", [True]),
    ):
        with pytest.raises(StepFileError):
            slot_from_json({**good, key: bad})


def test_every_attribute_can_be_read():
    assert {a for op in OPS.values() for a in (*op.attrs, *op.optional)} == {*codec.ATTRIBUTES, "stores"}


def test_only_plain_values_are_written():
    graph = replace(example(), notes={"x": object()})
    with pytest.raises(GraphError, match="object"):
        to_json(graph)


def test_messages_say_where():
    data = wire(example())
    data["nodes"][0]["attrs"]["stride"] = [1]
    with pytest.raises(StepFileError, match="stride of a conv needs two numbers"):
        from_json(data)
    del data["nodes"]
    with pytest.raises(StepFileError, match="graph has no nodes"):
        from_json(data)


def test_absurd_sizes():
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    row = [1, [2] * 65, "f32", "input", ""]
    for key, value in (
        ("notes", {"a": deep}),
        ("name", "n" * 10_001),
        ("tensors", [row]),
        ("tensors", [[1, [10**40], "f32", "input", ""]]),
        ("nodes", [None] * 1_000_001),
        ("notes", {"k" * 20_000: 1}),
    ):
        with pytest.raises(StepFileError):
            from_json({**wire(example()), key: value})


JUNK = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    -(2**63),
    10**30,
    0.5,
    float("nan"),
    "",
    "f32",
    "x" * 20_000,
    "\ud800",
    [],
    [[]],
    [1, 2],
    {},
    {"f": "inf"},
    {"f": "1e999"},
    {"f": 3},
    {"l": []},
    {"d": 1},
    "load",
    "gather",
    "sum",
    "matmul",
    "map",
    "reduce",
    "conv_input",
)


def places(data, found):
    """Every list and dictionary in the document."""
    found.append(data)
    for child in data.values() if isinstance(data, dict) else data:
        if isinstance(child, dict | list):
            places(child, found)
    return found


def mutate(data, rng: random.Random) -> None:
    box = rng.choice([p for p in places(data, []) if p])
    key = rng.choice(list(box)) if isinstance(box, dict) else rng.randrange(len(box))
    kind = rng.random()
    if kind < 0.15:
        del box[key]
    elif kind < 0.3:
        other = rng.choice(places(data, []))
        box[key] = copy.deepcopy(other if other is not data else None)
    elif kind < 0.4 and isinstance(box, list):
        box.insert(key, copy.deepcopy(box[key]))
    elif kind < 0.6 and type(box[key]) is int:
        box[key] += rng.choice((-5, -1, 1, 7, 1000))
    else:
        box[key] = copy.deepcopy(rng.choice(JUNK))


def test_mutated_documents_raise_nothing_else():
    rng, good = random.Random(11), json.dumps(to_json(example()))
    refused = illegal = legal = 0
    for _ in range(3000):
        data = json.loads(good)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            mutate(data, rng)
        try:
            graph = from_json(data)
        except StepFileError:
            refused += 1
            continue
        to_json(graph)
        try:
            check(graph)
            legal += 1
        except GraphError:
            illegal += 1
    assert min(refused, illegal, legal) > 20  # The mutations reach every outcome.


@pytest.mark.parametrize("data", JUNK)
def test_junk(data):
    for read in (from_json, slot_from_json):
        with pytest.raises(StepFileError):
            read(data)


def test_stores_are_written_as_files_have_always_had_them():
    nodes = {node["op"]: node["attrs"] for node in wire(example())["nodes"]}
    conv = nodes["conv"]["stores"]
    assert conv == [len(nodes["conv"]["program"]) - 1]  # An epilogue stores positions only.
    assert nodes["reduce"]["stores"] == [[len(nodes["reduce"]["program"]) - 1, False]]
    assert all(isinstance(store, list) and store[1] is True for store in nodes["map"]["stores"])
    with pytest.raises(StepFileError):
        broken = wire(example())
        next(n for n in broken["nodes"] if n["op"] == "conv")["attrs"]["stores"] = [[0, True]]
        from_json(broken)
