"""The ways in which das2022 runs a step. All have the same methods: run, time, inspect.

    pytorch            plain PyTorch on the CPU: model, loss.backward, optimizer.step
    reference:cpu      the captured graph on the CPU, op by op
    naive              OpenCL, everything on the device, the product of a published baseline
    optimised          OpenCL, everything on the device, Handheld's kernels
    naive per-op       OpenCL, inputs and outputs of every op through the host, as in the study
    optimised per-op   the same with Handheld's kernels

All start from the same model and use the same batch. Times are in seconds.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from handheld.backends.opencl.programs import Kept
from handheld.errors import DeviceError
from handheld.graph.graph import PHASES, Graph
from handheld.kernels import contract
from handheld.plan.plan import Plan
from handheld.run.batch import check_batch
from handheld.run.planning import plan_step
from handheld.step import Step
from handheld.store.commands import DOWNLOAD, LAUNCH, UPLOAD
from handheld.studies.per_op import PerOp
from handheld.suite import Workload

PYTORCH, REFERENCE = "pytorch", "reference:cpu"
NAIVE, OPTIMISED = "naive", "optimised"
PER_OP = " per-op"
RESIDENT = (NAIVE, OPTIMISED)
APART = (NAIVE + PER_OP, OPTIMISED + PER_OP)
CPU = (PYTORCH, REFERENCE)
WAYS = (*CPU, *RESIDENT, *APART)

RECORDED = 5  # Steps per round whose commands are timed.
NS = 1e-9

Samples = dict[str, list[float]]


class Way(ABC):
    """A model that trains in one of the ways. `samples` collects the measured values by name.

    If steps follow each other without a wait (`pipelined`), only a whole round of them has a time.
    """

    pipelined = False

    def __init__(self) -> None:
        self.samples: Samples = {}

    @abstractmethod
    def run(self, steps: int) -> None:
        """Run `steps` steps to their end. What can be measured on the way goes into `samples`."""

    @abstractmethod
    def parameters(self) -> dict[str, np.ndarray]:
        """The current parameters, by PyTorch's names."""

    @abstractmethod
    def inspect(self, steps: int) -> None:
        """Measure the parts of a step. This may slow down the steps that are inspected."""

    def facts(self) -> dict[str, object]:
        """What is known without running."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Free the device."""

    def time(self, steps: int) -> None:
        """Time a round of `steps` steps as a whole (`pipelined`), or each step."""
        at_once = steps if self.pipelined else 1
        for _ in range(steps // at_once):
            began = time.perf_counter()
            self.run(at_once)
            self.note("step", (time.perf_counter() - began) / at_once)

    def note(self, name: str, seconds: float) -> None:
        self.samples.setdefault(name, []).append(seconds)


class PyTorch(Way):
    """Training without Handheld, on the CPU, as a user would write it."""

    def __init__(self, workload: Workload, batch: int) -> None:
        super().__init__()
        self.model, self.loss, self.optimizer = workload.make()
        self.x, self.y = workload.batch(batch)

    def run(self, steps: int) -> None:
        now, note = time.perf_counter, self.note
        for _ in range(steps):
            begin = now()
            loss = self.loss(self.model(self.x), self.y)
            middle = now()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            end = now()
            self.optimizer.step()
            note("forward", middle - begin)
            note("backward", end - middle)
            note("update", now() - end)

    def inspect(self, steps: int) -> None:
        """Nothing more to measure: `run` already times the phases."""

    def close(self) -> None:
        """Nothing to free."""

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy().copy() for name, value in self.model.named_parameters()}


class Planned(Way):
    """A started plan: the whole step stays on its device."""

    def __init__(
        self, step: Step, batch: Sequence[Any], device: str, naive: bool = False, kept: Kept | None = None
    ) -> None:
        super().__init__()
        self.plan: Plan = plan_step(step.copy(), device, graphs=["train"], naive=naive)
        self.graph: Graph = self.plan.graphs["train"].graph
        self.batch = check_batch(self.graph, tuple(batch))
        options: dict[str, Any] = {"kept": kept} if kept else {}
        self.trainer = self.plan.start(**options)
        self.session = self.trainer.session

    def run(self, steps: int) -> None:
        step, batch = self.trainer.step, self.batch
        for _ in range(steps):
            step(*batch)
        self.session.finish()

    def parameters(self) -> dict[str, np.ndarray]:
        return self.trainer.state()

    def close(self) -> None:
        self.trainer.close()

    def facts(self) -> dict[str, object]:
        inputs = [self.graph.tensors[given.tensor].nbytes for given in self.graph.inputs]
        launches = self.plan.graphs["train"].launches or None  # PyTorch's own launches are not counted.
        return {
            "launches": launches,
            "uploads": len(inputs),
            "upload_bytes": sum(inputs),
            "downloads": 1,
            "download_bytes": 4,
            "product_flops": product_flops(self.graph),
        }

    def inspect(self, steps: int) -> None:
        """On the CPU, ops run one after another, so their times add up to the phases."""
        for rows in self._recorded(steps):
            took = (rows["ended"] - rows["started"]) * NS
            for name, seconds in by_phase(self.graph, rows["op"], took).items():
                self.note(name, seconds)
            self.note("products", products(self.graph, rows["op"], took))

    def _recorded(self, steps: int) -> list[np.ndarray]:
        """One table of commands per step. The first step is left out, because it starts on an idle device."""
        with self.session.record() as recording:
            for _ in range(steps + 1):
                self.trainer.step(*self.batch)
            self.session.finish()
            rows = recording.read()
        return np.split(rows, steps + 1)[1:]


class Resident(Planned):
    """OpenCL. Kernels and transfers are timed by the device's clock, phases by running them alone."""

    pipelined = True

    def inspect(self, steps: int) -> None:
        for rows in self._recorded(steps):
            took = (rows["ended"] - rows["started"]) * NS
            # Copies on the device count as kernels.
            moved = np.isin(rows["kind"], (UPLOAD, DOWNLOAD))
            self.note("kernels", float(took[~moved].sum()))
            self.note("transfers", float(took[moved].sum()))
            self.note("transfer calls", float((rows["host_end"] - rows["host_begin"])[moved].sum()) * NS)
            self.note("products", products(self.graph, rows["op"], took))

    def time_parts(self, steps: int) -> None:
        """Time each phase alone, repeated without a wait, and then steps that move no data."""
        for phase in PHASES:
            skipped = {n: 0 for n, node in enumerate(self.graph.nodes) if node.origin.phase != phase}
            self._time(phase, partial(self.session.run_repeated, "train", skipped), steps)
        self._time("without transfers", partial(self.session.run, "train"), steps)
        # Repeating a part of a step does not train, so the state is restored.
        for name, value in self.plan.step.values.items():
            self.session.write_slot(name, value)
        self.session.finish()

    def _time(self, name: str, once: Callable[[], None], steps: int) -> None:
        once()
        self.session.finish()
        began = time.perf_counter()
        for _ in range(steps):
            once()
        self.session.finish()
        self.note(name, (time.perf_counter() - began) / steps)


class Apart(Way):
    """OpenCL with every tensor at the host. Everything is waited for, so all parts are timed by the host's clock."""

    def __init__(
        self, step: Step, batch: Sequence[Any], device: str, naive: bool = False, kept: Kept | None = None
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"kept": kept} if kept else {}
        self.perop = PerOp(plan_step(step.copy(), device, graphs=["train"], naive=naive), **options)
        self.graph = self.perop.graph
        self.batch = check_batch(self.graph, tuple(batch))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            times = self.perop.step(*self.batch)
            nodes = np.array([op.node for op in times])
            parts = {
                "uploads": [op.upload_ns for op in times],
                "launches": [op.launch_ns for op in times],
                "downloads": [op.download_ns for op in times],
            }
            seconds = {name: np.array(ns) * NS for name, ns in parts.items()}
            for name, values in seconds.items():
                self.note(name, float(values.sum()))
            whole = np.sum(list(seconds.values()), axis=0)
            for name, value in by_phase(self.graph, nodes, whole).items():
                self.note(name, value)

    def parameters(self) -> dict[str, np.ndarray]:
        slots = self.perop.plan.step.slots
        return {
            name: self.perop.slot(slot.name).copy()
            for slot in slots.values()
            if slot.name in self.graph.slots
            for name in slot.names
        }

    def inspect(self, steps: int) -> None:
        """Time the kernels alone by the device's clock; the rest of a launch is latency."""
        session = self.perop.session
        with session.record() as recording:
            for _ in range(steps):
                self.perop.step(*self.batch)
            rows = recording.read()
        for part in np.split(rows, steps):
            took = (part["ended"] - part["started"]) * NS
            self.note("kernels", float(took[part["kind"] == LAUNCH].sum()))

    def facts(self) -> dict[str, object]:
        uploads, up_bytes, downloads, down_bytes = self.perop.crossings
        return {
            "launches": self.perop.plan.graphs["train"].launches,
            "ops": len(self.graph.nodes),
            "uploads": uploads,
            "upload_bytes": up_bytes,
            "downloads": downloads,
            "download_bytes": down_bytes,
            "product_flops": product_flops(self.graph),
        }

    def close(self) -> None:
        self.perop.close()


def open_way(name: str, workload: Workload, step: Step, batch: int, device: str, kept: Kept | None) -> Way:
    if name == PYTORCH:
        return PyTorch(workload, batch)
    data = workload.batch(batch)
    if name == REFERENCE:
        return Planned(step, data, REFERENCE)
    kind = Apart if name.endswith(PER_OP) else Resident
    return kind(step, data, device, name.startswith(NAIVE), kept)


def by_phase(graph: Graph, nodes: np.ndarray, seconds: np.ndarray) -> dict[str, float]:
    """Seconds per phase. Transfers belong to no node and are not included."""
    seconds_of: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    for node, took in zip(nodes.tolist(), seconds.tolist(), strict=True):
        if node >= 0:
            seconds_of[graph.nodes[node].origin.phase] += took
    return seconds_of


def products(graph: Graph, nodes: np.ndarray, seconds: np.ndarray) -> float:
    """Seconds in matrix products."""
    is_product = [node >= 0 and graph.nodes[node].op == "matmul" for node in nodes.tolist()]
    return float(seconds[is_product].sum())


def product_flops(graph: Graph) -> int:
    """Floating-point operations of all matrix products of a step; a multiply-add counts as two."""
    return sum(contract.flops(node, graph) for node in graph.nodes if node.op == "matmul")


def check_equal(ways: Mapping[str, Way]) -> dict[str, float]:
    """Compare the ways after the same number of steps.

    The placement of tensors must not change a bit, and all ways must be close to the reference. Returns the distance
    of each, relative to the size of the parameters. Raises DeviceError if results differ, because times of a wrong
    computation mean nothing.
    """
    state = {name: way.parameters() for name, way in ways.items()}
    trained = list(state.get(PYTORCH, next(iter(state.values()))))
    distances = {}
    for name in set(state) - {REFERENCE} if REFERENCE in state else ():
        gaps = [_gap(state[name][key], state[REFERENCE][key]) for key in trained]
        distances[name] = max(gaps)
        if not distances[name] < 1e-3:
            raise DeviceError(
                f"{name} trained other parameters than {REFERENCE}: they differ "
                f"by {distances[name]:.1e}. Try: handheld verify m4"
            )
    for name in RESIDENT:
        if (
            name in state
            and name + PER_OP in state
            and not all(np.array_equal(state[name][key], state[name + PER_OP][key]) for key in trained)
        ):
            raise DeviceError(
                f"{name}: the same kernels gave different bits with their tensors at the host. Try: handheld verify m4"
            )
    return distances


def _gap(got: np.ndarray, want: np.ndarray) -> float:
    size = float(np.linalg.norm(want)) or 1.0
    return float(np.linalg.norm(got.astype(np.float64) - want)) / size
