"""The memory that a training step needs on a device, from its plan alone. Nothing runs; the device may be absent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from handheld.device import DeviceCaps
from handheld.suite.workload import Workload

#: More memory than any plan needs, because the question is how much a step needs, not whether it fits.
_ROOM = 1 << 50


@dataclass(frozen=True)
class Need:
    """Bytes on the device. Parameters, optimizer state, buffers, a batch and its outputs exist from step to step;
    the arena holds activations, gradients and workspace, each only while it is needed."""

    workload: str
    size: str
    batch: int
    lasting_bytes: int
    arena_bytes: int

    @property
    def bytes(self) -> int:
        """The peak, which is everything that the plan allocates."""
        return self.lasting_bytes + self.arena_bytes


def needed(workload: Workload, batch: int, device: str = "adreno-740") -> Need:
    """What the workload's training step needs with the kernels for a device whose description ships with Handheld,
    if memory were unlimited."""
    caps = replace(DeviceCaps.shipped(device), global_mem_bytes=_ROOM, max_alloc_bytes=_ROOM)
    step = workload.step(batch, evaluate=False)
    graphs = [name for name, _ in workload.runs(workload.batch(1))]
    plan = step.plan("opencl", caps=caps, graphs=graphs, recompute=False)
    return Need(workload.name, workload.size, batch, plan.bytes - plan.arena_bytes, plan.arena_bytes)
