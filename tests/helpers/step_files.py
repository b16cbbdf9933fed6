"""A step with every type that a slot can have, and helpers that read and change its file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from handheld import container
from handheld.errors import StepFileError
from handheld.graph.graph import Graph, GraphOutput, Node, Origin, Slot, SlotWrite, Tensor, View
from handheld.graph.program import Instr, Store
from handheld.package import load, save
from handheld.step import Step


def example() -> Step:
    """Two parameters that are updated as one pack, a counter and a mask: every type that a slot can have."""
    shapes = {0: (200,), 1: (1, 3), 2: (200,), 3: (1, 3), 4: (384,), 5: (384,), 6: (), 7: (2, 2)}
    roles = {0: "parameter", 1: "parameter", 4: "parameter", 6: "control", 7: "constant"}
    tensors = {i: Tensor(i, s, "f32", roles.get(i, "gradient"), f"t{i}") for i, s in shapes.items()}
    tensors[6] = Tensor(6, (), "i32", "control")
    tensors[7] = Tensor(7, (2, 2), "bool", "constant")
    program = (Instr("load", "f32", (), (0, (), 0.0)), Instr("const", "f32", (), (0.5,)), Instr("mul", "f32", (0, 1)))
    node = Node(
        "map",
        (View(4, (384,), (1,)),),
        (5,),
        {"shape": (384,), "axes": (), "program": program, "stores": (Store(2),)},
        Origin("update", "layer", "sgd"),
    )
    graph = Graph(
        "train",
        tensors,
        (node,),
        (),
        {"a": 0, "b": 1, "n": 6, "m": 7},
        (SlotWrite("a", 2), SlotWrite("b", 3)),
        (GraphOutput("loss", View(2, (), ()), "float32"),),
        {"rate": 0.1, "names": ["x", ("y",)]},
        {4: (0, 1), 5: (2, 3)},
    )
    slots = {
        "a": Slot("a", (200,), "f32", "parameter", ("a", "tied.a")),
        "b": Slot("b", (1, 3), "f32", "parameter", ("b",), "float64"),
        "n": Slot("n", (), "i32", "control", ("n",), "int64"),
        "m": Slot("m", (2, 2), "bool", "constant", (), "bool"),
        "unused": Slot("unused", (3, 0), "f32", "buffer", ("unused",)),
    }
    rng = np.random.default_rng(0)
    values = {
        "a": rng.normal(size=200).astype("f"),
        "b": np.array([[0, np.nan, -np.inf]], "f"),
        "n": np.array(7, np.int32),
        "m": np.array([[True, False], [False, True]]),
        "unused": np.zeros((3, 0), "f"),
    }
    return Step(slots, values, {"train": graph}, {"name": "tiny", "epochs": 3, "tags": ("a", "b")})


def same(a: Step, b: Step) -> bool:
    """Whether both hold the same. When and by what a file was written may differ."""
    metas = [{k: v for k, v in step.meta.items() if k != "written"} for step in (a, b)]
    values = [{k: (v.dtype, v.shape, v.tobytes()) for k, v in step.values.items()} for step in (a, b)]
    return values[0] == values[1] and (a.slots, a.graphs, metas[0]) == (b.slots, b.graphs, metas[1])


def refused(path) -> str:
    with pytest.raises(StepFileError) as caught:
        load(path)
    return str(caught.value)


def content() -> dict:
    """The JSON inside a step file."""
    found: dict = {}

    def take(path, values, metadata):
        found.update(json.loads(metadata["step"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "write", take)
        save(example(), "nowhere")
    return found


def rewritten(path, step: object, values: dict | None = None) -> None:
    """A file with the given content and a correct checksum."""
    text = step if isinstance(step, str) else json.dumps(step)
    container.write(
        path, example().values if values is None else values, {"handheld": "step", "version": "1", "step": text}
    )
