"""Runs op cases in a process of its own, one after the other, because a driver may crash or hang.

It says which case it begins, so that the parent knows which one a crash belongs to. If the device is that of a target
which is lost, it says so and ends; no case is to blame for that.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from handheld.backends.base import is_gone
from handheld.child import Parent
from handheld.conformance.cases import CASES
from handheld.conformance.check import (
    Held,
    Results,
    captured,
    differences,
    limit_of,
    reference,
    run_by_kernel,
    run_plan,
)
from handheld.device import DeviceCaps
from handheld.errors import DeviceError, TargetLost
from handheld.plan.plan import Plan

#: The functions of a simulator are less exact.
SIMULATED = 1e-3
#: A case with more points than this takes minutes on a simulator.
MOST_WORK = 60_000


class Gone(Exception):
    """The target of the device is gone."""


def run_case(name: str, device: str, caps: DeviceCaps, simulator: bool) -> dict[str, Any]:
    """The result of a case: what is wrong with it, the shapes of its tensors and the fallbacks that were taken. Raises
    Gone."""
    case = CASES[name]
    begun = time.monotonic()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        held = Held(case)
        step = captured(held, name)
        graph = step.graphs["case"]
        facts: dict[str, Any] = {
            "ops": sorted({node.op for node in graph.nodes}),
            "shapes": [list(t.shape) for t in (*held.given, *held.batch)],
        }
        if simulator and work(graph) > MOST_WORK:
            return {**facts, "status": "skipped", "problems": ["too large for a simulator"], "fallbacks": []}
        limit = limit_of(case, exact=False)
        try:
            got = _run(step.plan(device, caps=caps, isolate=simulator), held)
            problems = differences(got, reference(held), max(limit, SIMULATED) if simulator else limit)
        except Gone:
            raise
        except Exception as error:  # Drivers raise their own types of errors; each one is a failure of this case.
            problems = [f"{type(error).__name__}: {error}"[:1000]]
    fallbacks = [str(w.message)[:300] for w in heard if "instead" in str(w.message) or "separately" in str(w.message)]
    status = "failed" if problems else "passed"
    took = round(time.monotonic() - begun, 2)
    return {**facts, "status": status, "problems": problems, "fallbacks": fallbacks, "s": took}


def blame(name: str, device: str, caps: DeviceCaps, tell: Callable[[str], None]) -> None:
    """Runs a case that has crashed once more, and tells what it does before it does it."""
    tell("while its kernels were built")
    held = Held(CASES[name])
    run_by_kernel(captured(held, name).plan(device, caps=caps), held, tell)


def _run(plan: Plan, held: Held) -> Results:
    """The results of the device. A case is to blame for the end of a runner only if it ends two of them."""
    try:
        return run_plan(plan, held)
    except DeviceError as error:
        if is_gone(plan.device, error):
            raise Gone(str(error)) from error
        if not isinstance(error, TargetLost):
            raise
    return run_plan(plan, held)


def work(graph: Any) -> int:
    """Roughly the number of points that all kernels of a graph visit."""
    total = 0
    for node in graph.nodes:
        points = 1
        for size in node.attrs.get("shape", ()) or graph.tensors[node.outputs[0]].shape:
            points *= size
        inner = node.inputs[0].shape[-1] if node.op == "matmul" else 1
        if node.op.startswith(("conv", "attention", "ctc")):
            for size in node.inputs[1].shape[1:]:
                inner *= size
        total += points * inner * (64 if node.op == "sort" else 1)
    return total


def _main() -> None:
    parent = Parent()
    request = parent.receive()
    if request is None:
        return
    caps = DeviceCaps.from_json(request["caps"])
    if request["blame"]:
        with parent.reporting():
            blame(request["names"][0], request["device"], caps, lambda what: parent.send({"what": what}))
        return
    for name in request["names"]:
        parent.send({"begin": name})
        try:
            with parent.reporting():
                result = run_case(name, request["device"], caps, request["simulator"])
        except Gone as lost:
            parent.send({"lost": str(lost)})
            return
        parent.send({"case": name, **result})


if __name__ == "__main__":
    _main()
