"""A plan: nothing left to decide. Launches and transfers in order, and where every tensor lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Slot
from handheld.kernels.base import Lowered
from handheld.plan.lowering import Choice
from handheld.plan.memory import Place, SlotCopy, WorkspaceKey
from handheld.plan.precision import table_slots

if TYPE_CHECKING:
    from handheld.analyse.run import Run
    from handheld.run.trainer import Trainer
    from handheld.step import Step


@dataclass(frozen=True)
class GraphPlan:
    """One graph of the step, ready to run."""

    graph: Graph
    #: launches of each node, in the order of graph.nodes
    lowered: tuple[Lowered, ...]
    places: Mapping[int, Place]
    workspace: Mapping[WorkspaceKey, Place]
    #: values copied into their slots after the last launch
    copies: tuple[SlotCopy, ...]
    #: node -> the variant that its tuning record says, for the nodes that have one
    tuned: Mapping[int, Choice] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        return sum(len(low.launches) for low in self.lowered)

    @property
    def programs(self) -> int:
        return len({launch.text for low in self.lowered for launch in low.launches})

    @property
    def tensor_bytes(self) -> int:
        """What all tensors of the step would need without reuse, slots and packs aside."""
        slots = set(self.graph.slots.values())
        inside = {m for members in self.graph.packs.values() for m in members}
        return sum(t.nbytes for i, t in self.graph.tensors.items() if i not in slots and i not in inside)


@dataclass(frozen=True)
class Plan:
    """A step on a device. `segments` are the bytes of each allocation."""

    step: Step
    device: str
    caps: DeviceCaps
    graphs: Mapping[str, GraphPlan]
    state: Mapping[str, Place]
    segments: tuple[int, ...]
    #: the first segment that holds no slots, inputs or outputs
    arena: int
    options: Mapping[str, Any] = field(default_factory=dict)
    #: constants that planning made, by slot
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def slots(self) -> dict[str, Slot]:
        """The step's slots and those of `tables`."""
        return {**self.step.slots, **table_slots(self.tables)}

    @property
    def values(self) -> dict[str, np.ndarray]:
        """What the slots hold at the start."""
        return {**self.step.values, **self.tables}

    @property
    def bytes(self) -> int:
        """Everything the plan allocates on the device."""
        return sum(self.segments)

    @property
    def arena_bytes(self) -> int:
        return sum(self.segments[self.arena :])

    def again(self, device: str | None = None, **changed: Any) -> Plan:
        """Another plan with the same options but those that are `changed`, perhaps elsewhere."""
        from handheld.run.planning import plan_again

        return plan_again(self, device, **changed)

    def start(self, **options: Any) -> Trainer:
        """Opens the device, builds the kernels and uploads the state. Where the driver rejects a
        kernel, the plan is made again with other variants (those that were not tuned, then those
        of a GPU on a CPU and the other way round) and a warning says so."""
        from handheld.run.planning import start_plan

        return start_plan(self, **options)

    def profile(self, batches: Any, path: Any, **options: Any) -> Run:
        """Runs steps and measures them; see handheld.profile.run.profile."""
        from handheld.profile.run import profile

        return profile(self, batches, path, **options)

    def explain(self, graph: str | None = None, width: int = 80) -> str:
        """The schedule, the memory, each kernel and why it was chosen, of one graph or of all."""
        from handheld.plan.explain import explain

        return explain(self, graph, width)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        from handheld.plan.codec import to_json

        return to_json(self)
