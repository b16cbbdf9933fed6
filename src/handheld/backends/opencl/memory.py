"""The memory of one plan on a device: segments, regions of tensors inside them, and textures over segments."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from handheld.backends.opencl.bind import texture
from handheld.backends.opencl.devices import opencl
from handheld.errors import BuildError, OutOfMemory
from handheld.graph.dtypes import DTYPES
from handheld.plan.memory import WorkspaceKey
from handheld.plan.quirks import in_shared_memory
from handheld.units import count as plural
from handheld.units import size as size_text

if TYPE_CHECKING:
    import pyopencl as cl

    from handheld.plan.memory import Place
    from handheld.plan.plan import GraphPlan, Plan

#: Bytes that one command sets to zero. NVIDIA's driver counts them in 32 bits.
FILL = 1 << 30


class User(Protocol):
    """An object that keeps kernels. Kernels keep the memory of their arguments alive."""

    def clear(self) -> None: ...


class Memory:
    """The allocations of a plan, with one sub-buffer per tensor.

    The memory is freed by `release`, when this object is garbage-collected, or at exit.
    """

    def __init__(self, plan: Plan, context: cl.Context, queue: cl.CommandQueue) -> None:
        self._plan, self._context = plan, context
        self._segments: list[cl.Buffer] = []
        self._regions: dict[tuple[int, int, int], cl.Buffer] = {}
        self._textures: dict[tuple[int, int, str], cl.Image] = {}
        self._users: list[User] = []
        self._shared: list[Any] = []
        self._allocate(queue)
        self.nbytes = sum(int(buffer.size) for buffer in self._segments)
        self.release = weakref.finalize(
            self, _free, self._users, self._textures, self._regions, self._segments, self._shared
        )

    def used_by(self, *users: User) -> None:
        """Registers objects that are cleared before the memory is freed."""
        self._users += users

    def _allocate(self, queue: cl.CommandQueue) -> None:
        api, plan = opencl(), self._plan
        flags = api.mem_flags.READ_WRITE
        if plan.caps.unified_memory:
            flags |= api.mem_flags.ALLOC_HOST_PTR
        shared = in_shared_memory(plan.caps, sum(plan.segments))
        try:
            for n in plan.segments:
                over = self._in_shared_memory(max(n, 4)) if shared else None
                self._segments.append(api.Buffer(self._context, flags, max(n, 4)) if over is None else over)
            for buffer, size in zip(self._segments, plan.segments, strict=True):
                # Kernels also read the gaps in packs, so all memory starts as zeros.
                whole = max(size, 4) // 4 * 4
                api.enqueue_fill_buffer(queue, buffer, np.uint8(0), 0, min(FILL, whole))
                for start in range(FILL, whole, FILL):  # The rest is copied from the zeroed part.
                    count = min(FILL, whole - start)
                    api.enqueue_copy(queue, buffer, buffer, src_offset=0, dst_offset=start, byte_count=count)
        except api.Error as error:
            raise OutOfMemory(
                f"{plan.device} refused {size_text(sum(plan.segments))} in "
                f"{plural(len(plan.segments), 'piece')}: {error}. Try: a smaller batch"
            ) from None

    def _in_shared_memory(self, size: int) -> cl.Buffer | None:
        """Returns a buffer over shared virtual memory, or None if the device has none.

        The driver does not compare the sub-buffers of such a buffer with each other at every launch.
        """
        api = opencl()
        try:
            if not self._context.devices[0].svm_capabilities & api.device_svm_capabilities.COARSE_GRAIN_BUFFER:
                return None
            memory = api.SVMAllocation(self._context, size, 0, api.svm_mem_flags.READ_WRITE)
        except (AttributeError, api.Error):  # An older pyopencl or driver.
            return None
        self._shared.append(memory)
        seen: np.ndarray = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(memory.svm_ptr))
        flags = api.mem_flags.READ_WRITE | api.mem_flags.USE_HOST_PTR
        buffer: cl.Buffer = api.Buffer(self._context, flags, hostbuf=seen)
        return buffer

    def __len__(self) -> int:
        """Returns the number of allocations."""
        return len(self._segments)

    def region(self, place: Place) -> cl.Buffer:
        key = (place.segment, place.offset, max(place.nbytes, 4))
        if key not in self._regions:
            size = min(key[2], max(self._plan.segments[place.segment], 4) - place.offset)
            flags = opencl().mem_flags.READ_WRITE
            self._regions[key] = self._segments[place.segment].get_sub_region(place.offset, size, flags)
        return self._regions[key]

    def texture(self, segment: int, floats: int, kind: str) -> cl.Image:
        key = (segment, floats, kind)
        if key not in self._textures:
            try:
                self._textures[key] = texture(self._context, self._segments[segment], floats, kind)
            except opencl().Error as error:
                raise BuildError(
                    f"{self._plan.device} cannot create a texture of {self._plan.segments[segment]:,} bytes: {error}"
                ) from None
        return self._textures[key]


class NodePlaces:
    """The memory of the tensors and workspaces of one node of a plan (`Places` in bind.py)."""

    def __init__(self, memory: Memory, graph: GraphPlan, node: int) -> None:
        self._memory, self._graph, self._node = memory, graph, node

    def buffer(self, tensor: int) -> cl.Buffer:
        return self._memory.region(self._graph.places[tensor])

    def workspace(self, index: int) -> cl.Buffer:
        return self._memory.region(self._graph.workspace[WorkspaceKey(self._node, index)])

    def texture(self, tensor: int, floats: int) -> cl.Image:
        kind = self._graph.graph.tensors[tensor].dtype
        return self._memory.texture(self._graph.places[tensor].segment, floats, kind)

    def start(self, tensor: int) -> int:
        width = DTYPES[self._graph.graph.tensors[tensor].dtype].nbytes
        return self._graph.places[tensor].offset // width


def _free(
    users: list[User],
    textures: dict[tuple[int, int, str], cl.Image],
    regions: dict[tuple[int, int, int], cl.Buffer],
    segments: list[cl.Buffer],
    shared: list[Any],
) -> None:
    """Frees everything, newest first: NVIDIA's driver crashes if sub-buffers are released in another order."""
    for user in users:
        user.clear()
    textures.clear()
    while regions:
        regions.popitem()
    while segments:
        segments.pop().release()
    while shared:
        shared.pop().release()
