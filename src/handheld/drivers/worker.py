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
from handheld.drivers.halves import Asked
from handheld.drivers.halves import problems as problems_of
from handheld.drivers.numpy_ops import run_graph
from handheld.drivers.sketch import Sketch
from handheld.passes.scale import GROWTH
from handheld.plan.lowering import FAMILIES
from handheld.plan.make import make_plan
from handheld.plan.ways import SUFFIXES, parsed, precision_of, written
from handheld.step import Step

#: The largest relative error of a result. Rounding reaches 1e-5 in the longest sums; a fault is orders larger.
LIMIT = 2e-4
#: The same where a result is stored or computed in halves, which have 11 bits.
HALF_LIMIT = 4e-3
_OPTIONS: Mapping[str, Any] = {
    "memory_limit_bytes": None,
    "isolate": False,
    "tuning": False,
    "naive": False,
    "precision": "float32",
    "growth_steps": GROWTH,
}


def run(
    device: str, way: str, chosen: Sequence[Sketch], tell: Callable[[str, dict[str, str]], None], asked: Asked
) -> None:
    """Run problems on a device and tell, for each, the ops that are wrong and how."""
    suffix = SUFFIXES[asked.precision]
    ways = {op + suffix: way for op in FAMILIES} if way else {}
    caps = replace(describe(device), avoid=written({**parsed(asked.avoid), **ways}))
    step = Step({}, {}, {sketch.name: sketch.graph for sketch in chosen})
    # Every tensor has its own memory, because a tensor in halves is no output, and is read nevertheless.
    options = {**_OPTIONS, "isolate": asked.precision != "float32"}
    plan = make_plan(step, device, caps, list(step.graphs), options)
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
        limit = LIMIT if precision_of(node, sketch.graph) == "float32" else HALF_LIMIT
        problems = [
            problem
            for n, tensor in enumerate(node.outputs)
            if (problem := difference(session.read_tensor(sketch.name, tensor), want[tensor], n, limit))
        ]
        if problems:
            if not tainted & {view.tensor for view in node.inputs}:
                wrong.setdefault(node.op, problems[0])
            tainted.update(node.outputs)
    return wrong


def difference(got: npt.NDArray[Any], want: npt.NDArray[Any], number: int = 0, limit: float = LIMIT) -> str:
    """How a result differs from the right one; "" if it does not."""
    got = np.asarray(got).reshape(want.shape)
    if want.dtype.kind != "f":
        count = int((got.astype(want.dtype) != want).sum())
        return f"output {number} differs in {count} of {want.size} places" if count else ""
    finite = np.isfinite(want)  # What does not fit into halves is infinite.
    if not np.isfinite(got[finite]).all() or (np.isnan(want) != np.isnan(got)).any() or np.isfinite(got[~finite]).any():
        return f"output {number} is not finite in {int((~np.isfinite(got)).sum())} of {got.size} places"
    got, want = got[finite].astype(want.dtype), want[finite]  # The squares of halves may not be halves.
    error = float(np.linalg.norm(got - want)) / max(float(np.linalg.norm(want)), 1e-6)
    return "" if error <= limit else f"output {number} is off by {error:.1e}"


def _tell(parent: Parent, name: str, wrong: dict[str, str]) -> None:
    parent.send({"name": name, "wrong": wrong})


def _main() -> None:
    parent = Parent()
    while (request := parent.receive()) is not None:
        asked = Asked(request["precision"], request["avoid"])
        chosen = [s for s in problems_of(request["large"], asked.precision) if s.name in request["names"]]
        problem, gone = "", False
        try:
            with parent.reporting():
                run(request["device"], request["way"], chosen, partial(_tell, parent), asked)
        except Exception as error:  # Drivers raise their own types of errors; each one means that this failed.
            problem, gone = f"{type(error).__name__}: {error}"[:2000], is_gone(request["device"], error)
        parent.send({"done": problem, "gone": gone})


if __name__ == "__main__":
    _main()
