"""Lets one device compute something small, in a child process because a driver may crash or hang."""

from __future__ import annotations

import numpy as np

from handheld.child import SILENCE_S, Child, Parent, python_module
from handheld.drivers.check import described_so_far
from handheld.errors import HandheldError
from handheld.graph.dtypes import F32
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Tensor, View
from handheld.graph.program import Instr, Store
from handheld.step import Step


def probe_step(n: int = 64) -> Step:
    """A step that computes y = 2x + 1 and z = y @ y, built by hand so that PyTorch is not needed."""
    tensors = {i: Tensor(i, (n, n), F32, role) for i, role in enumerate(("input", "activation", "activation"))}
    whole = [View(i, (n, n), (n, 1)) for i in tensors]
    line = (
        Instr("load", F32, (), (0, (), 0.0)),
        Instr("const", F32, (), (2.0,)),
        Instr("mul", F32, (0, 1)),
        Instr("const", F32, (), (1.0,)),
        Instr("add", F32, (2, 3)),
    )
    origin = Origin("forward", "probe", "probe")
    nodes = (
        Node("map", (whole[0],), (1,), {"shape": (n, n), "axes": (), "program": line, "stores": (Store(4),)}, origin),
        Node(
            "matmul",
            (whole[1], whole[1]),
            (2,),
            {"shape": (n, n), "program": (Instr("acc", F32),), "stores": (Store(0),)},
            origin,
        ),
    )
    graph = Graph(
        "probe",
        tensors,
        nodes,
        (GraphInput("x", 0, "float32"),),
        {},
        (),
        (GraphOutput("y", whole[1], "float32"), GraphOutput("z", whole[2], "float32")),
    )
    return Step({}, {}, {"probe": graph})


def run(device: str) -> str:
    """Compute the probe step on the device. Returns "" if the result is right, else what is wrong.

    The driver is not checked here: that takes longer.
    """
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    try:
        with probe_step().plan(device, caps=described_so_far(device)).start() as trainer:
            trainer.run("probe", x)
            outputs = trainer.outputs()
    except HandheldError as error:
        return str(error)
    y = 2 * x.astype(np.float64) + 1
    for name, expected in (("y", y), ("z", y @ y)):
        error_size = np.linalg.norm(outputs[name] - expected) / np.linalg.norm(expected)
        if not error_size < 1e-5:
            return f"wrong result: {name} is off by {error_size:.1e}"
    return ""


def run_in_child(device: str) -> str:
    """As `run`, in a child process: a crash or a hang of the driver is also returned as text."""
    answer = None
    with Child(python_module("handheld.cli.probe")) as child:
        child.send({"device": device})
        try:
            while (message := child.receive(SILENCE_S)) is not None:
                answer = message
        except TimeoutError:
            return f"nothing was reported for {SILENCE_S:.0f} s"
        ending = child.ending()
    if ending.crashed or answer is None:
        return ending.describe()
    return str(answer["problem"])


def _main() -> None:
    parent = Parent()
    if (request := parent.receive()) is not None:
        try:
            with parent.reporting():
                problem = run(request["device"])
        except Exception as error:  # Drivers raise their own types of errors; each one means that the probe failed.
            problem = f"{type(error).__name__}: {error}"
        parent.send({"problem": problem})


if __name__ == "__main__":
    _main()
