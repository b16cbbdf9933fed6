"""Which op made the first NaN or infinity: the last steps run again, one node at a time.

While it watches, it keeps the state of every few steps and the batches since, so that any of those
steps can be run again from where it started. Same state and batch, same bits: what went wrong goes
wrong again, and the values are followed back from the loss to the op that made them from finite
ones, across steps if a weight was already broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from handheld.graph.graph import Graph
from handheld.run.batch import check_batch

if TYPE_CHECKING:
    from handheld.run.trainer import Trainer

#: steps between snapshots of the state; one to two such windows can be looked back
WINDOW = 16


@dataclass
class _Record:
    graph: str
    arrays: list[np.ndarray]
    rates: Sequence[float] | None
    snapshot: dict[str, np.ndarray] | None


@dataclass(frozen=True)
class Cause:
    """Where a value came from: text for people, and how many steps before the loss it was."""

    text: str
    steps_back: int


class Replay:
    """Remembers enough to run the last steps again."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.records: list[_Record] = []
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
        self.records.append(_Record(name, arrays, rates, snapshot))

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

    def _rates(self, record: _Record) -> None:
        for group, rate in enumerate(record.rates or ()):
            self.trainer.set_rate(rate, group)

    def _look(self, k: int, slot: str) -> Cause | str:
        """What made the k-th step's loss (or its new value of `slot`) non-finite, or the slot that
        already was before it."""
        record = self.records[k]
        graph = self.trainer.plan.graphs[record.graph].graph
        self.restore(k)
        flags = self._run(record, graph)
        start = dict(graph.writes).get(slot) if slot else graph.outputs[0][1].tensor
        if start is not None and start in flags:
            return trace(graph, flags, start)
        if not slot:
            return Cause("no op: the step gave finite values when it was run again", 0)
        if start is None and flag(self.trainer.session.read_slot(slot)):
            return slot  # this graph only reads it: look further back
        return Cause(f"no op: {slot} was changed from outside after the run", 0)

    def _run(self, record: _Record, graph: Graph) -> dict[int, str]:
        """Runs the step node by node; tensor -> `nan` or `inf` for those that hold one."""
        session, flags = self.trainer.session, {}
        for (_, tensor, _), array in zip(graph.inputs, record.arrays):
            session.upload(record.graph, tensor, array)
            flags[tensor] = flag(array)
        for name, tensor in graph.slots.items():
            flags[tensor] = flag(session.read_slot(name))
        begin = getattr(session, "begin_nodes", None)
        if begin is not None:
            begin(record.graph)
        for i, node in enumerate(graph.nodes):
            session.run_node(record.graph, i)
            for out in node.outputs:
                for tensor in graph.packs.get(out, (out,)):
                    flags[tensor] = flag(session.read_tensor(record.graph, tensor))
        return {tensor: kind for tensor, kind in flags.items() if kind}


def flag(array: np.ndarray) -> str:
    """`nan`, `inf` or nothing."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return ""
    return "nan" if np.isnan(array).any() else "inf"


def trace(graph: Graph, flags: dict[int, str], start: int) -> Cause | str:
    """From a non-finite tensor back to the op that made it, or to the slot that held it."""
    made = {t: i for i, n in enumerate(graph.nodes) for o in n.outputs
            for t in graph.packs.get(o, (o,))}
    named = {t: f"the input {name!r} of the batch" for name, t, _ in graph.inputs}
    slots = {t: name for name, t in graph.slots.items()}
    tensor, first = start, ""
    while tensor in made:
        node, kind = graph.nodes[made[tensor]], flags[tensor]
        read = {t for v in node.inputs for t in graph.packs.get(v.tensor, (v.tensor,))}
        bad = sorted((t for t in read if t in flags), key=lambda t: (flags[t] != "nan",
                                                                     made.get(t, -1)))
        where = f"{node.op} ({node.origin.phase} of {node.origin.path}, {node.origin.source})"
        if not bad:
            return Cause(f"{first}{where} made {kind} from finite values", 0)
        if kind == "nan" and flags[bad[0]] == "inf":
            first = f"{where} made nan from an infinity, and "
        tensor = bad[0]
    if tensor in named:
        return Cause(f"{first}{named[tensor]} holds {flags[tensor]}", 0)
    return slots[tensor]
