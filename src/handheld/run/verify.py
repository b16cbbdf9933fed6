"""Compares a plan with the reference, node by node.

Every node is computed twice from the same inputs: by the device, and by PyTorch in float64. The next
node of the reference gets the device's results, not its own, so an error is charged only to the op
that makes it. A node passes if its relative error (norm of the difference over norm of the reference)
is within the tolerance. If the exact result cancels to almost nothing, it passes if its error is
about as large as that of PyTorch in float32 on the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.backends.base import Session, describe, open_session
from handheld.errors import HandheldError
from handheld.graph.graph import Graph
from handheld.passes.scale import SCALE, SKIPPED
from handheld.progress import report
from handheld.run.batch import check_batch, choose_graph

if TYPE_CHECKING:
    from handheld.plan.plan import Plan

#: Relative norms: the error of a float32 op of ordinary length, and the allowed multiple of PyTorch's own error.
TOLERANCE, SLACK = 1e-5, 10.0
#: Tolerance for values stored in half precision. Both sides round to 11 bits, and the last bit of a
#: float32 may decide in which direction.
HALF_TOLERANCE = 2.0**-11
#: Tolerance for products that are computed in halves.
HALF_PRODUCTS = 2.0**-9


@dataclass(frozen=True)
class Row:
    """One node, described by its worst output. `float32_error` is PyTorch's own error, if it was needed."""

    index: int
    op: str
    phase: str
    path: str
    torch_op: str
    shape: tuple[int, ...]
    error: float
    float32_error: float | None
    passed: bool

    @property
    def where(self) -> str:
        return f"{self.op} ({self.phase} of {self.path}, {self.torch_op})"


@dataclass(frozen=True)
class Verification:
    """All nodes of a graph, in order."""

    device: str
    graph: str
    tolerance: float
    rows: tuple[Row, ...]

    @property
    def first(self) -> Row | None:
        """The first op whose result differs."""
        return next((row for row in self.rows if not row.passed), None)

    @property
    def passed(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        head = f"{self.graph} on {self.device}"
        row = self.first
        if row is not None:
            own = f", PyTorch's float32 by {row.float32_error:.1e}" if row.float32_error else ""
            return (
                f"{head}: op {row.index} of {len(self.rows)} differs first: {row.where}, shape "
                f"{list(row.shape)}, by {row.error:.1e} relative to float64{own}"
            )
        within = [r for r in self.rows if r.float32_error is None]
        others = [r for r in self.rows if r.float32_error is not None]
        ops = "its op equals" if len(self.rows) == 1 else f"all {len(self.rows)} ops equal"
        if not others:
            return f"{head}: {ops} PyTorch; {_largest(within)}"
        near = f"{len(within)} within {self.tolerance:g}" + (f" ({_largest(within)})" if within else "")
        return f"{head}: {ops} PyTorch: {near}, {len(others)} as near as PyTorch's own float32 ({_largest(others)})"


def _largest(rows: Sequence[Row]) -> str:
    worst = max(rows, key=lambda row: row.error, default=None)
    if worst is None:
        return "nothing was compared"
    own = f" (PyTorch's own: {worst.float32_error:.1e})" if worst.float32_error is not None else ""
    return f"the largest relative error is {worst.error:.1e}{own} in {worst.where}"


def verify_plan(plan: Plan, batch: Sequence[Any], graph: str = "train", tolerance: float = TOLERANCE) -> Verification:
    """Compare every node of a graph with PyTorch. Changes no state."""
    batch = tuple(batch)
    name = choose_graph(plan.graphs, graph, batch)
    if name not in plan.graphs:
        raise HandheldError(f"the plan has no graph {name!r}; it has {', '.join(plan.graphs)}")
    if not plan.options.get("isolate") or len(plan.graphs) > 1:
        # Results must stay in memory after the nodes that read them.
        plan = plan.again(graphs=[name], isolate=True, memory_limit_bytes=None)
    # Which tensors are in half precision depends on the alignment of the device.
    caps = replace(describe("reference:cpu"), base_align_bytes=plan.caps.base_align_bytes)
    reference = plan.again("reference:cpu", caps=caps, isolate=False, naive=False, memory_limit_bytes=None)
    arrays = check_batch(plan.graphs[name].graph, batch)
    sessions: list[Session] = []
    try:
        sessions.append(open_session(plan))
        sessions.append(open_session(reference, float64=True))
        sessions.append(open_session(reference))
        if SKIPPED in plan.graphs[name].graph.slots:
            scale = _settle(plan, sessions[0], name, arrays)
            for session in sessions:
                session.write_slot(SCALE, np.array(scale, np.float32))
        rows = _Comparison(name, plan.graphs[name].graph, sessions, arrays).rows(tolerance)
    finally:
        for session in sessions:
            session.close()
    return Verification(plan.device, name, tolerance, tuple(rows))


def _settle(plan: Plan, session: Session, name: str, arrays: Sequence[np.ndarray]) -> float:
    """Run the step until its gradients do not overflow, because non-finite values cannot be compared.

    Returns the loss scale of that step. The state is then restored.
    """
    scale = float(session.read_slot(SCALE))
    for _ in range(48):
        for given, array in zip(plan.graphs[name].graph.inputs, arrays, strict=True):
            session.upload(name, given.tensor, array)
        skipped = int(session.read_slot(SKIPPED))
        session.run(name)
        if int(session.read_slot(SKIPPED)) == skipped:
            break
        scale = float(session.read_slot(SCALE))
    for slot, value in plan.values.items():
        session.write_slot(slot, value)
    return scale


class _Comparison:
    """The device, PyTorch in float64 and PyTorch in float32, side by side."""

    def __init__(self, name: str, graph: Graph, sessions: Sequence[Session], arrays: Sequence[np.ndarray]) -> None:
        self.name, self.graph = name, graph
        self.device, self.exact, self.single = sessions
        for session in sessions:
            for given, array in zip(graph.inputs, arrays, strict=True):
                session.upload(name, given.tensor, array)
        for session in sessions:
            session.begin_nodes(name)

    def rows(self, tolerance: float) -> list[Row]:
        rows, count = [], len(self.graph.nodes)
        for i in range(count):
            report(f"comparing {self.name}: op", i + 1, count)
            rows.append(self._row(i, tolerance))
        return rows

    def _row(self, i: int, tolerance: float) -> Row:
        node = self.graph.nodes[i]
        parts = [t for out in node.outputs for t in self.graph.packs.get(out, (out,))]
        self.device.run_node(self.name, i)
        self.exact.run_node(self.name, i)
        got = {t: self._read(self.device, t) for t in parts}
        want = {t: self._read(self.exact, t) for t in parts}
        errors = {t: relative_error(got[t], want[t]) for t in parts}
        least = HALF_PRODUCTS if "arithmetic" in node.attrs else 0.0
        limits = {t: max(tolerance, least, HALF_TOLERANCE if got[t].dtype == np.float16 else 0.0) for t in parts}
        worst = max(parts, key=lambda t: errors[t] / max(limits[t], 1e-30))
        passed, own = errors[worst] <= limits[worst], None
        if not passed:
            self.single.run_node(self.name, i)
            owns = {t: relative_error(self._read(self.single, t), want[t]) for t in parts}
            failed = [t for t in parts if not errors[t] <= max(limits[t], SLACK * owns[t])]
            worst, passed = max(failed or parts, key=lambda t: errors[t]), not failed
            own = owns[worst]
        for tensor, array in got.items():
            self.exact.set_tensor(self.name, tensor, array)
            self.single.set_tensor(self.name, tensor, array)
        return Row(
            i,
            node.op,
            node.origin.phase,
            node.origin.path,
            node.origin.torch_op,
            self.graph.tensors[worst].shape,
            errors[worst],
            own,
            passed,
        )

    def _read(self, session: Session, tensor: int) -> np.ndarray:
        shape = self.graph.tensors[tensor].shape
        return session.read_tensor(self.name, tensor).reshape(shape)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Norm of the difference over the norm of `want`; for integers, the share of values that differ.

    A NaN or infinity on one side only is an infinite error.
    """
    if not got.size:
        return 0.0
    if want.dtype.kind in "iub":
        return float(np.mean(got != want))
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    # A value too large for float32 is correctly an infinity on the device.
    finite &= np.abs(np.where(finite, b, 0.0)) <= np.finfo(np.float32).max
    rest_a, rest_b = a[~finite], b[~finite]
    same = (np.isnan(rest_a) == np.isnan(rest_b)).all() and (
        np.isnan(rest_a) | (np.isinf(rest_a) & (np.sign(rest_a) == np.sign(rest_b)))
    ).all()
    if not same or not np.isfinite(a[finite]).all():
        return float("inf")
    difference = float(np.linalg.norm(a[finite] - b[finite]))
    scale = float(np.linalg.norm(b[finite]))
    return difference / scale if scale else difference
