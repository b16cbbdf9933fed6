"""Which op made the first NaN or infinity: the last steps run again, one node at a time.

While it watches, it keeps the state of every few steps and the batches since, so that any of those
steps can be run again from where it started. Same state and batch, same bits: what went wrong goes
wrong again, and the values are followed back from the loss to the op that made them from finite
ones, across steps if a weight was already broken.

The node found is often several ops in one kernel. Where the step was captured in this process, the
step before fusion runs once more in PyTorch and names the op that the model called; from a step
file, the node's program is gone through and its instruction named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

#: steps between snapshots of the state; one to two such windows can be looked back
WINDOW = 16
#: the most values that are looked at to find an instruction
MAX_VALUES = 1 << 26


@dataclass
class _PastStep:
    graph: str
    arrays: list[np.ndarray]
    rates: Sequence[float] | None
    snapshot: dict[str, np.ndarray] | None


@dataclass(frozen=True)
class Cause:
    """Where a value came from: text for people, how many steps before the loss it was, and the
    node that made it, if one did."""

    text: str
    steps_back: int = 0
    node: int | None = None


class Replay:
    """Remembers enough to run the last steps again."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.records: list[_PastStep] = []
        self._slots = [s.name for s in trainer.plan.step.slots.values() if s.role != "constant"]

    def before_step(self, batch: tuple[object, ...], rates: Sequence[float] | None) -> None:
        """Call with what the next `trainer.step` gets; `rates` if they have just been changed."""
        name = self.trainer.next_graph(*batch)
        arrays = check_batch(self.trainer.plan.graphs[name].graph, batch)
        starts = [i for i, r in enumerate(self.records) if r.snapshot is not None]
        snapshot = None
        if not starts or len(self.records) - starts[-1] >= WINDOW:
            snapshot = {n: self.trainer.session.read_slot(n) for n in self._slots}
            del self.records[: starts[-1] if starts else 0]
        self.records.append(_PastStep(name, arrays, rates, snapshot))

    def find(self) -> Cause:
        """Follows the last step's loss back, and leaves the trainer before the step at fault."""
        k, slot = len(self.records) - 1, ""
        while True:
            found = self._look(k, slot)
            if isinstance(found, Cause) or k == 0:
                break
            k, slot = k - 1, found
        self.restore(k)
        back = len(self.records) - 1 - k
        if isinstance(found, Cause):
            return Cause(found.text, back)
        return Cause(f"{found} held it before the steps that were kept", back)

    def restore(self, k: int) -> None:
        """The state before the k-th kept step, bit for bit."""
        start = max(i for i in range(k + 1) if self.records[i].snapshot is not None)
        session, snapshot = self.trainer.session, self.records[start].snapshot or {}
        for name, value in snapshot.items():
            session.write_slot(name, value)
        for record in self.records[start:k]:
            self._rates(record)
            self.trainer.run(record.graph, *record.arrays)
        self._rates(self.records[k])

    def _rates(self, record: _PastStep) -> None:
        for group, rate in enumerate(record.rates or ()):
            self.trainer.set_rate(rate, group, "train")

    def _look(self, k: int, slot: str) -> Cause | str:
        """What made the k-th step's loss (or its new value of `slot`) non-finite, or the slot that
        already was before it."""
        graph = self.trainer.plan.graphs[self.records[k].graph].graph
        self.restore(k)
        flags = self._flags(self.trainer.session, self.records[k], graph)
        start = _start(graph, slot)
        if start is not None and start in flags:
            found = trace(graph, flags, start)
            if isinstance(found, str) or found.node is None:
                return found
            return self._before_fusion(k, slot) or self._instruction(k, graph, found)
        if not slot:
            return Cause("no op: the step gave finite values when it was run again")
        if start is None and flag(self.trainer.session.read_slot(slot)):
            return slot  # this graph only reads it: look further back
        return Cause(f"no op: {slot} was changed from outside after the run")

    def _before_fusion(self, k: int, slot: str) -> Cause | None:
        """The same by the graph that was recorded, if it is here and PyTorch comes to the same."""
        unfused, record = self.trainer.plan.step.unfused, self.records[k]
        if unfused is None:
            return None
        self.restore(k)
        try:
            plan = unfused.plan("reference:cpu", graphs=[record.graph])
            session = open_session(plan)
        except HandheldError:  # without fusion it may need more memory than there is
            return None
        for name in self._slots:
            session.write_slot(name, self.trainer.session.read_slot(name))
        graph = plan.graphs[record.graph].graph
        flags, start = self._flags(session, record, graph), _start(graph, slot)
        session.close()
        found = trace(graph, flags, start) if start in flags else None
        return found if isinstance(found, Cause) else None

    def _instruction(self, k: int, graph: Graph, found: Cause) -> Cause:
        """The same cause with the instruction of the node's program that is at fault."""
        assert found.node is not None
        node = graph.nodes[found.node]
        if node.op not in ("map", "reduce"):
            return found
        self.restore(k)
        values: dict[int, np.ndarray] = {}
        self._begin(self.trainer.session, self.records[k], graph)
        for i in range(found.node):
            self.trainer.session.run_node(self.records[k].graph, i)
        for view in node.inputs:
            values[view.tensor] = self.trainer.session.read_tensor(self.records[k].graph, view.tensor)
        name = instruction(node, graph, values)
        return replace(found, text=f"{found.text} ({name!r} of its kernel)") if name else found

    def _begin(self, session: Session, record: _PastStep, graph: Graph) -> None:
        for given, array in zip(graph.inputs, record.arrays, strict=True):
            session.upload(record.graph, given.tensor, array)
        session.begin_nodes(record.graph)

    def _flags(self, session: Session, record: _PastStep, graph: Graph) -> dict[int, str]:
        """Runs the step node by node; tensor -> `nan` or `inf` for those that hold one."""
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
    """`nan`, `inf` or nothing."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return ""
    return "nan" if np.isnan(array).any() else "inf"


def trace(graph: Graph, flags: dict[int, str], start: int) -> Cause | str:
    """From a non-finite tensor back to the op that made it, or to the slot that held it."""
    made = {t: i for i, n in enumerate(graph.nodes) for o in n.outputs for t in graph.packs.get(o, (o,))}
    named = {given.tensor: f"the input {given.name!r} of the batch" for given in graph.inputs}
    slots = {t: name for name, t in graph.slots.items()}
    tensor, first = start, ""
    while tensor in made:
        node, kind = graph.nodes[made[tensor]], flags[tensor]
        read = {t for v in node.inputs for t in graph.packs.get(v.tensor, (v.tensor,))}
        bad = sorted((t for t in read if t in flags), key=lambda t: (flags[t] != "nan", made.get(t, -1)))
        where = f"{node.origin.torch_op} ({node.origin.phase} of {node.origin.path})"
        if not bad:
            return Cause(f"{first}{where} made {kind} from finite values", node=made[tensor])
        if kind == "nan" and flags[bad[0]] == "inf":
            first = f"{where} made nan from an infinity, and "
        tensor = bad[0]
    if tensor in named:
        return Cause(f"{first}{named[tensor]} holds {flags[tensor]}")
    return slots[tensor]


def instruction(node: Node, graph: Graph, values: dict[int, np.ndarray]) -> str:
    """The instruction of a map or reduce that made what its other instructions only hand on, or
    nothing where there are too many values to look at."""
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
