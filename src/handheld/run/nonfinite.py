"""Finds the op that made the first NaN or infinity, by running the last steps again one node at a time.

While it watches, it keeps the state of every few steps and the batches since then, so that any of
these steps can be run again. The same state and batch give the same bits, so the fault repeats. The
values are then followed back from the loss to the op that made them from finite ones, across steps if
a weight was already broken.

That node is often several ops in one kernel. If the step was captured in this process, the step before
fusion runs once more in PyTorch and names the op that the model called. For a step file, the program
of the node is executed step by step and its instruction is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from handheld.backends.base import Session, open_session
from handheld.errors import HandheldError
from handheld.graph.evaluate import evaluate
from handheld.graph.graph import Graph, Node, Tensor
from handheld.graph.program import Store
from handheld.run.batch import check_batch

if TYPE_CHECKING:
    from handheld.run.trainer import Trainer

#: Steps between snapshots of the state. One to two such windows can be run again.
WINDOW = 16
#: Do not search for an instruction in more values than this.
MAX_VALUES = 1 << 26


@dataclass
class _PastStep:
    graph: str
    arrays: list[np.ndarray]
    changed: Mapping[str, float]
    snapshot: dict[str, np.ndarray] | None


@dataclass(frozen=True)
class Cause:
    """Where a value came from: a text for the user, how many steps before the loss, and the node if there is one."""

    text: str
    steps_back: int = 0
    node: int | None = None


class Replay:
    """Keeps enough to run the last steps again."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.records: list[_PastStep] = []
        self._slots = [s.name for s in trainer.plan.step.slots.values() if s.role != "constant"]

    def before_step(self, batch: tuple[object, ...], changed: Mapping[str, float]) -> None:
        """Call this before `trainer.step`, with the same batch, and with the slots of rates that have just changed."""
        name = self.trainer.next_graph(*batch)
        arrays = check_batch(self.trainer.plan.graphs[name].graph, batch)
        starts = [i for i, r in enumerate(self.records) if r.snapshot is not None]
        snapshot = None
        if not starts or len(self.records) - starts[-1] >= WINDOW:
            snapshot = {n: self.trainer.session.read_slot(n) for n in self._slots}
            del self.records[: starts[-1] if starts else 0]
        self.records.append(_PastStep(name, arrays, changed, snapshot))

    def find(self) -> Cause:
        """Follow the loss of the last step back. Leaves the trainer in the state before the step at fault."""
        k, slot = len(self.records) - 1, ""
        while True:
            cause = self._look(k, slot)
            if isinstance(cause, Cause) or k == 0:
                break
            k, slot = k - 1, cause
        self.restore(k)
        back = len(self.records) - 1 - k
        if isinstance(cause, Cause):
            return Cause(cause.text, back)
        return Cause(f"{cause} held it before the earliest step that was kept", back)

    def restore(self, k: int) -> None:
        """Restore the state before the k-th kept step, bit for bit."""
        start = max(i for i in range(k + 1) if self.records[i].snapshot is not None)
        session, snapshot = self.trainer.session, self.records[start].snapshot or {}
        for name, value in snapshot.items():
            session.write_slot(name, value)
        for record in self.records[start:k]:
            self._rates(record)
            self.trainer.run(record.graph, *record.arrays)
        self._rates(self.records[k])

    def _rates(self, record: _PastStep) -> None:
        for slot, value in record.changed.items():
            self.trainer.session.write_slot(slot, np.array(value, np.float32))

    def _look(self, k: int, slot: str) -> Cause | str:
        """What made the loss of step k (or its new value of `slot`) non-finite: an op, or the slot that
        already was non-finite before the step."""
        graph = self.trainer.plan.graphs[self.records[k].graph].graph
        self.restore(k)
        flags = self._flags(self.trainer.session, self.records[k], graph)
        start = _start(graph, slot)
        if start is not None and start in flags:
            cause = trace(graph, flags, start)
            if isinstance(cause, str) or cause.node is None:
                return cause
            return self._before_fusion(k, slot) or self._instruction(k, graph, cause)
        if not slot:
            return Cause("no op: the step gave finite values when it was run again")
        if start is None and flag(self.trainer.session.read_slot(slot)):
            return slot  # This graph only reads the slot, so the search continues in earlier steps.
        return Cause(f"no op: {slot} was changed from outside after the run")

    def _before_fusion(self, k: int, slot: str) -> Cause | None:
        """The cause in the captured graph, if it is available and PyTorch repeats the fault."""
        unfused, record = self.trainer.plan.step.unfused, self.records[k]
        if unfused is None:
            return None
        self.restore(k)
        try:
            plan = unfused.plan("reference:cpu", graphs=[record.graph], micro_batches=1)
            session = open_session(plan)
        except HandheldError:  # Without fusion, the step may need more memory than there is.
            return None
        for name in self._slots:
            session.write_slot(name, self.trainer.session.read_slot(name))
        graph = plan.graphs[record.graph].graph
        flags, start = self._flags(session, record, graph), _start(graph, slot)
        session.close()
        cause = trace(graph, flags, start) if start in flags else None
        return cause if isinstance(cause, Cause) else None

    def _instruction(self, k: int, graph: Graph, cause: Cause) -> Cause:
        """The same cause, with the instruction of the node's program that is at fault."""
        assert cause.node is not None
        node = graph.nodes[cause.node]
        if node.op not in ("map", "reduce"):
            return cause
        self.restore(k)
        values: dict[int, np.ndarray] = {}
        self._begin(self.trainer.session, self.records[k], graph)
        for i in range(cause.node):
            self.trainer.session.run_node(self.records[k].graph, i)
        for view in node.inputs:
            values[view.tensor] = self.trainer.session.read_tensor(self.records[k].graph, view.tensor)
        name = instruction(node, graph, values)
        return replace(cause, text=f"{cause.text} ({name!r} of its kernel)") if name else cause

    def _begin(self, session: Session, record: _PastStep, graph: Graph) -> None:
        for given, array in zip(graph.inputs, record.arrays, strict=True):
            session.upload(record.graph, given.tensor, array)
        session.begin_nodes(record.graph)

    def _flags(self, session: Session, record: _PastStep, graph: Graph) -> dict[int, str]:
        """Run the step node by node. Maps each non-finite tensor to `nan` or `inf`."""
        flags = {given.tensor: flag(a) for given, a in zip(graph.inputs, record.arrays, strict=True)}
        flags |= {t: flag(session.read_slot(name)) for name, t in graph.slots.items()}
        self._begin(session, record, graph)
        for i, node in enumerate(graph.nodes):
            session.run_node(record.graph, i)
            for out in node.outputs:
                for tensor in graph.packs.get(out, (out,)):
                    flags[tensor] = flag(session.read_tensor(record.graph, tensor))
        return {tensor: kind for tensor, kind in flags.items() if kind}


def _start(graph: Graph, slot: str) -> int | None:
    """The tensor to follow back: the new value of a slot, or the loss."""
    return next((w.tensor for w in graph.writes if w.slot == slot), None) if slot else graph.outputs[0].view.tensor


def flag(array: np.ndarray) -> str:
    """`nan`, `inf` or ""."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return ""
    return "nan" if np.isnan(array).any() else "inf"


def trace(graph: Graph, flags: dict[int, str], start: int) -> Cause | str:
    """Follow a non-finite tensor back to the op that made it, or to the slot that held it."""
    maker = {t: i for i, n in enumerate(graph.nodes) for o in n.outputs for t in graph.packs.get(o, (o,))}
    named = {given.tensor: f"the input {given.name!r} of the batch" for given in graph.inputs}
    slots = {t: name for name, t in graph.slots.items()}
    tensor, first = start, ""
    while tensor in maker:
        node, kind = graph.nodes[maker[tensor]], flags[tensor]
        read = {t for v in node.inputs for t in graph.packs.get(v.tensor, (v.tensor,))}
        bad = sorted((t for t in read if t in flags), key=lambda t: (flags[t] != "nan", maker.get(t, -1)))
        where = f"{node.origin.torch_op} ({node.origin.phase} of {node.origin.path})"
        if not bad:
            return Cause(f"{first}{where} made {kind} from finite values", node=maker[tensor])
        if kind == "nan" and flags[bad[0]] == "inf":
            first = f"{where} made nan from an infinity, and "
        tensor = bad[0]
    if tensor in named:
        return Cause(f"{first}{named[tensor]} holds {flags[tensor]}")
    return slots[tensor]


def instruction(node: Node, graph: Graph, values: dict[int, np.ndarray]) -> str:
    """The instruction of a map or reduce that made the value which later instructions only pass on.

    Returns "" if there are too many values to check.
    """
    program, shape = node.program, tuple(node.attrs["shape"])
    if len(program) * math.prod(shape) > MAX_VALUES:
        return ""
    after = max(graph.tensors) + 1
    held = {after + i: Tensor(after + i, shape, instr.dtype, "activation") for i, instr in enumerate(program)}
    every = {**node.attrs, "stores": tuple(Store(i) for i in range(len(program)))}
    results = evaluate(
        replace(node, outputs=tuple(held), attrs=every), replace(graph, tensors={**graph.tensors, **held}), values
    )
    flags = [flag(result) for result in results]
    at = next((store.position for store in node.stores if flags[store.position]), None)
    while at is not None:
        same = [a for a in program[at].args if flags[a] == flags[at]]
        if not same:
            return str(program[at].op)
        at = same[0]
    return ""
