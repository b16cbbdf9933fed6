"""`Plan`: a step on a device with nothing left to decide.

It holds the launches and transfers in order, and the place of every tensor in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Slot
from handheld.kernels.base import Choice, Lowered
from handheld.passes.state_bits import Unit
from handheld.plan.memory import Place, SlotCopy, WorkspaceKey
from handheld.plan.precision import stored_slots, table_slots
from handheld.units import count

if TYPE_CHECKING:
    from handheld.analyse.estimate import Estimate
    from handheld.analyse.run import Run
    from handheld.backends.opencl.submit import Submitter
    from handheld.profile.run import Batch, Progress
    from handheld.profile.sampling import Sensors
    from handheld.progress import Progress as Building
    from handheld.run.trainer import Trainer
    from handheld.sensors.base import Where
    from handheld.step import Step


@dataclass(frozen=True)
class GraphPlan:
    """One graph of the step, ready to run."""

    graph: Graph
    #: The launches of each node, in the order of graph.nodes.
    lowered: tuple[Lowered, ...]
    places: Mapping[int, Place]
    workspace: Mapping[WorkspaceKey, Place]
    #: The values that are copied into their slots after the last launch.
    copies: tuple[SlotCopy, ...]
    #: Node -> the variant from its tuning record, for the nodes that have one.
    tuned: Mapping[int, Choice] = field(default_factory=dict)
    #: The places of the tensors in the memory of the host (graph.host).
    host: Mapping[int, Place] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        return sum(len(low.launches) for low in self.lowered)

    @property
    def programs(self) -> int:
        return len({launch.text for low in self.lowered for launch in low.launches})

    @property
    def tensor_bytes(self) -> int:
        """The bytes that all tensors would need without reuse. Slots are not counted; packs count once."""
        slots = set(self.graph.slots.values())
        inside = {m for members in self.graph.packs.values() for m in members}
        return sum(t.nbytes for i, t in self.graph.tensors.items() if i not in slots and i not in inside)


@dataclass(frozen=True, repr=False)
class Plan:
    """A step on a device. `segments` holds the size of each allocation in bytes."""

    step: Step
    device: str
    caps: DeviceCaps
    graphs: Mapping[str, GraphPlan]
    state: Mapping[str, Place]
    segments: tuple[int, ...]
    #: The first segment of the arena. Earlier segments hold slots, inputs and outputs.
    arena: int
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Constants that planning added, by slot.
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: The bytes that the plan keeps in the memory of the host or in a file, and the places of the slots among them.
    host_bytes: int = 0
    host_state: Mapping[str, Place] = field(default_factory=dict)
    #: Optimizer state that is stored in fewer bits (`state_bits`).
    units: tuple[Unit, ...] = ()

    def __repr__(self) -> str:
        ops = ", ".join(f"{name} {count(len(graph.lowered), 'op')}" for name, graph in self.graphs.items())
        return f"<Plan on {self.device}: {ops}; {self.bytes:,} bytes>"

    @property
    def slots(self) -> dict[str, Slot]:
        """The slots of the step and those of `tables`, with the codes and scales of `units`."""
        return stored_slots({**self.step.slots, **table_slots(self.tables)}, self.units)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The values of the slots at the start."""
        values = {**self.step.values, **self.tables}
        for unit in self.units:
            values |= unit.encode(values)
            for slot in unit.slots:
                del values[slot]
        return values

    @property
    def bytes(self) -> int:
        """The bytes that the plan allocates on the device."""
        return sum(self.segments)

    @property
    def arena_bytes(self) -> int:
        return sum(self.segments[self.arena :])

    def again(self, device: str | None = None, **changed: Any) -> Plan:
        """Makes a plan with the same options except those in `changed`; on another device if one is given."""
        from handheld.run.planning import plan_again

        return plan_again(self, device, **changed)

    def start(
        self,
        *,
        profiling: bool = False,
        build_threads: int | None = None,
        submitter: Submitter | None = None,
        float64: bool = False,
        progress: Building | None = None,
        **options: Any,
    ) -> Trainer:
        """Opens the device, builds the kernels and uploads the state.

        - `profiling` (OpenCL): the device keeps the times of every command, also outside a recording.
        - `build_threads` (OpenCL): how many programs are built at the same time; default: the number of processors.
        - `submitter` (OpenCL): how launches reach the device (backends/opencl/submit.py).
        - `float64` (reference): computes in double precision.

        An option that the device's backend does not have is an error.

        If the driver rejects a kernel, the plan is made again with other variants, and a warning says so: first
        without tuning, then with the variants of a GPU on a CPU or the other way round.

        `progress` is called with ("building", done, total) while kernels are built, from the threads that build.
        """
        from handheld.run.planning import start_plan

        given = {"profiling": profiling, "build_threads": build_threads, "submitter": submitter, "float64": float64}
        return start_plan(
            self, **{k: v for k, v in given.items() if v is not None and v is not False}, progress=progress, **options
        )

    def profile(
        self,
        batches: Batch | Iterable[Batch] | Mapping[str, Any],
        path: str | Path,
        *,
        steps: int = 50,
        seconds: float | None = None,
        graph: str | Sequence[str] | None = None,
        wait: int = 0,
        warmup: int = 2,
        active: int | None = None,
        sensors: Sensors = True,
        where: Where | None = None,
        energy: bool = False,
        energy_s: float | None = None,
        estimate: Estimate | None = None,
        idle_s: float = 1.0,
        progress: Progress | None = None,
        code: Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Run:
        """Runs steps of a copy of the state, measures them, writes the run file `path` and opens it.

        `handheld.profile.run.profile` describes the parameters."""
        from handheld.profile.run import profile

        return profile(
            self,
            batches,
            path,
            steps=steps,
            seconds=seconds,
            graph=graph,
            wait=wait,
            warmup=warmup,
            active=active,
            sensors=sensors,
            where=where,
            energy=energy,
            energy_s=energy_s,
            estimate=estimate,
            idle_s=idle_s,
            progress=progress,
            code=code,
            settings=settings,
        )

    def explain(self, graph: str | None = None, width: int = 80) -> str:
        """Describes the schedule, the memory, each kernel and why it was chosen, for one graph or all."""
        from handheld.plan.explain import explain

        return explain(self, graph, width)

    def to_json(self) -> dict[str, object]:
        """Returns the plan as plain data."""
        from handheld.plan.codec import to_json

        return to_json(self)
