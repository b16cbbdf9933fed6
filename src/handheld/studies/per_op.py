"""Runs a step with every tensor at the host: the inputs of each op are uploaded, its outputs downloaded.

    for each op:   upload its inputs ─ launch ─ wait ─ download its outputs      (all waited for)

Frameworks run a graph like this on a device that they support only in part. das2022 found that it costs ten times
the compute time. Handheld never runs a plan like this; `PerOp` does it to measure the cost. Kernels and their order
are those of the plan, so a step gives the same bits as `Trainer.step`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.backends.base import Session, open_session
from handheld.graph.dtypes import DTYPES
from handheld.run.batch import check_batch

if TYPE_CHECKING:
    from handheld.plan.plan import Plan


@dataclass(frozen=True)
class OpTime:
    """One op of one step, by the host's clock: ns to upload its inputs, to launch it and wait, and to download its
    outputs."""

    node: int
    upload_ns: int
    launch_ns: int
    download_ns: int


class PerOp:
    """Runs a graph of a plan op by op from the host's memory, where the state stays. `close` frees the device."""

    def __init__(self, plan: Plan, graph: str = "train", **options: Any) -> None:
        self.plan, self.name = plan, graph
        self.graph = plan.graphs[graph].graph
        self.session: Session = open_session(plan, **options)
        slots, values = plan.slots, plan.values
        self.host: dict[int, np.ndarray] = {
            tensor: np.array(values[name], DTYPES[slots[name].dtype].numpy) for name, tensor in self.graph.slots.items()
        }
        packs = self.graph.packs
        self._ops = [
            (
                list(dict.fromkeys(part for view in node.inputs for part in packs.get(view.tensor, (view.tensor,)))),
                [part for out in node.outputs for part in packs.get(out, (out,))],
            )
            for node in self.graph.nodes
        ]

    @property
    def crossings(self) -> tuple[int, int, int, int]:
        """Per step: uploads and their bytes, downloads and their bytes."""
        up = [self.graph.tensors[t].nbytes for ins, _ in self._ops for t in ins]
        down = [self.graph.tensors[t].nbytes for _, outs in self._ops for t in outs]
        return len(up), sum(up), len(down), sum(down)

    def step(self, *batch: Any) -> list[OpTime]:
        """Run one step. Returns the times of its ops."""
        arrays: Sequence[np.ndarray] = check_batch(self.graph, batch)
        self.host.update({given.tensor: array for given, array in zip(self.graph.inputs, arrays, strict=True)})
        session, name, host, now = self.session, self.name, self.host, time.perf_counter_ns
        times = []
        for node, (inputs, outputs) in enumerate(self._ops):
            begin = now()
            for tensor in inputs:
                session.set_tensor(name, tensor, host[tensor])
            there = now()
            session.run_node(name, node)
            session.finish()
            done = now()
            for tensor in outputs:
                host[tensor] = session.read_tensor(name, tensor)
            times.append(OpTime(node, there - begin, done - there, now() - done))
        written = [(write.slot, host[write.tensor]) for write in self.graph.writes]
        self.host.update({self.graph.slots[slot]: value for slot, value in written})
        return times

    def loss(self) -> float:
        """The loss of the last step."""
        view = self.graph.outputs[0].view
        return float(self.host[view.tensor].reshape(-1)[view.offset])

    def slot(self, name: str) -> np.ndarray:
        """The current value of a slot, in its shape."""
        return self.host[self.graph.slots[name]].reshape(self.plan.slots[name].shape)

    def close(self) -> None:
        self.session.close()
