"""One device computes something tiny. Run in a child process: a driver may crash or hang."""

from __future__ import annotations

import numpy as np

from handheld.child import Child, Parent, python_module
from handheld.errors import HandheldError
from handheld.graph.dtypes import F32
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Tensor, View
from handheld.graph.program import Instr, Store
from handheld.step import Step

TIMEOUT = 60.0


def probe_step(n: int = 64) -> Step:
    """y = 2x + 1 and z = y y, by hand: no PyTorch needed."""
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
    """Empty if the device computes what it should, else why not."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    try:
        with probe_step().plan(device).start() as trainer:
            trainer.run("probe", x)
            got = trainer.outputs()
    except HandheldError as error:
        return str(error)
    y = 2 * x.astype(np.float64) + 1
    for name, want in (("y", y), ("z", y @ y)):
        error_size = np.linalg.norm(got[name] - want) / np.linalg.norm(want)
        if not error_size < 1e-5:
            return f"wrong result: {name} is off by {error_size:.1e}"
    return ""


def run_in_child(device: str) -> str:
    """As `run`, and whatever the driver does to the process is an answer too."""
    answer = None
    with Child(python_module("handheld.cli.probe")) as child:
        child.send({"device": device})
        try:
            while (message := child.receive(TIMEOUT)) is not None:
                answer = message
        except TimeoutError:
            return f"no answer within {TIMEOUT:.0f} s"
        ending = child.ending()
    if ending.crashed or answer is None:
        return ending.describe()
    return str(answer["problem"])


def _main() -> None:
    parent = Parent()
    if (asked := parent.receive()) is not None:
        try:
            problem = run(asked["device"])
        except Exception as error:  # drivers have errors of their own: any is an answer
            problem = f"{type(error).__name__}: {error}"
        parent.send({"problem": problem})


if __name__ == "__main__":
    _main()
