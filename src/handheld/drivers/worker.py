"""Runs the problems of a check in a process of its own, because a driver may crash or hang.

The request names the device, the way and the problems. All are graphs of one plan, so that their programs are built
together; the parent asks for one at a time if that fails. The answer also says whether the device is gone, if it is
that of a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.backends.base import Session, describe, is_gone, open_session
from handheld.child import Parent
from handheld.drivers.numpy_ops import run_graph
from handheld.drivers.sketch import Sketch
from handheld.drivers.sketches import sketches
from handheld.passes.scale import GROWTH
from handheld.plan.lowering import FAMILIES
from handheld.plan.make import make_plan
from handheld.plan.ways import written
from handheld.step import Step

#: The largest relative error of a result. Rounding reaches 1e-5 in the longest sums; a fault is orders larger.
LIMIT = 2e-4
_OPTIONS: Mapping[str, Any] = {
    "memory_limit_bytes": None,
    "isolate": False,
    "tuning": False,
    "naive": False,
    "precision": "float32",
    "growth_steps": GROWTH,
}


def run(device: str, way: str, chosen: Sequence[Sketch], tell: Callable[[str, dict[str, str]], None]) -> None:
    """Run problems on a device and tell, for each, the ops that are wrong and how."""
    caps = describe(device)
    caps = replace(caps, avoid=written(dict.fromkeys(FAMILIES, way)) if way else "")
    step = Step({}, {}, {sketch.name: sketch.graph for sketch in chosen})
    plan = make_plan(step, device, caps, list(step.graphs), _OPTIONS)
    session = open_session(plan)
    try:
        for sketch in chosen:
            tell(sketch.name, _wrong(session, sketch))
    finally:
        session.close()


def _wrong(session: Session, sketch: Sketch) -> dict[str, str]:
    """Op -> what is wrong. An op whose inputs are wrong is not blamed."""
    for tensor, value in sketch.inputs.items():
        session.upload(sketch.name, tensor, value)
    session.run(sketch.name)
    want = run_graph(sketch.graph, sketch.inputs)
    wrong: dict[str, str] = {}
    tainted: set[int] = set()
    for node in sketch.graph.nodes:
        problems = [
            problem
            for n, tensor in enumerate(node.outputs)
            if (problem := difference(session.read_tensor(sketch.name, tensor), want[tensor], n))
        ]
        if problems:
            if not tainted & {view.tensor for view in node.inputs}:
                wrong.setdefault(node.op, problems[0])
            tainted.update(node.outputs)
    return wrong


def difference(got: npt.NDArray[Any], want: npt.NDArray[Any], number: int = 0) -> str:
    """How a result differs from the right one; "" if it does not."""
    got = np.asarray(got).reshape(want.shape)
    if want.dtype.kind != "f":
        count = int((got.astype(want.dtype) != want).sum())
        return f"output {number} differs in {count} of {want.size} places" if count else ""
    if not np.isfinite(got).all():
        return f"output {number} is not finite in {int((~np.isfinite(got)).sum())} of {got.size} places"
    error = float(np.linalg.norm(got - want)) / max(float(np.linalg.norm(want)), 1e-6)
    return "" if error <= LIMIT else f"output {number} is off by {error:.1e}"


def _tell(parent: Parent, name: str, wrong: dict[str, str]) -> None:
    parent.send({"name": name, "wrong": wrong})


def _main() -> None:
    parent = Parent()
    while (request := parent.receive()) is not None:
        chosen = [sketch for sketch in sketches(request["large"]) if sketch.name in request["names"]]
        problem, gone = "", False
        try:
            with parent.reporting():
                run(request["device"], request["way"], chosen, partial(_tell, parent))
        except Exception as error:  # Drivers raise their own types of errors; each one means that this failed.
            problem, gone = f"{type(error).__name__}: {error}"[:2000], is_gone(request["device"], error)
        parent.send({"done": problem, "gone": gone})


if __name__ == "__main__":
    _main()
