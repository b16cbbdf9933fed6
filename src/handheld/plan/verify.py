"""Verifies a plan, independently of the code that made it.

The verifier walks the launches in order and remembers which tensor owns each byte. A node may read a tensor only
if the tensor still owns all its bytes. A write takes bytes over. At the end every slot must hold the value that
the graph gives it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import NamedTuple

from handheld.errors import PlanError
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, pack_offsets
from handheld.kernels.base import Buffer, Start, Texture
from handheld.plan.memory import Place, WorkspaceKey
from handheld.plan.plan import GraphPlan, Plan

#: The owner of bytes: a tensor or a workspace.
Owner = int | WorkspaceKey


class _Owned(NamedTuple):
    """The bytes [start, end) of a segment and their owner."""

    start: int
    end: int
    owner: Owner


class _Bytes:
    """The owners of the bytes of one segment, as disjoint, sorted intervals."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.entries: list[_Owned] = []

    def claim(self, start: int, end: int, owner: Owner) -> None:
        if start == end:
            return
        i = bisect.bisect_right(self.starts, start) - 1
        i = max(i, 0)
        while i < len(self.entries) and self.entries[i].end <= start:
            i += 1
        kept: list[_Owned] = []
        j = i
        while j < len(self.entries) and self.entries[j].start < end:
            old = self.entries[j]
            if old.start < start:
                kept.append(_Owned(old.start, start, old.owner))
            if old.end > end:
                kept.append(_Owned(end, old.end, old.owner))
            j += 1
        new = sorted([*kept, _Owned(start, end, owner)], key=lambda entry: entry.start)
        self.entries[i:j] = new
        self.starts[i:j] = [entry.start for entry in new]

    def owned(self, start: int, end: int, owner: Owner) -> bool:
        i = max(bisect.bisect_right(self.starts, start) - 1, 0)
        position = start
        while position < end and i < len(self.entries):
            entry = self.entries[i]
            if entry.end > position:
                if entry.start > position or entry.owner != owner:
                    return False
                position = entry.end
            i += 1
        return position >= end


def verify(plan: Plan) -> None:
    """Raises PlanError if a launch would read overwritten memory, or a slot would end with a wrong value."""
    for name, graph_plan in plan.graphs.items():
        try:
            _verify_graph(plan, graph_plan)
        except PlanError as error:
            raise PlanError(f"the plan of graph {name!r} is wrong: {error}") from None


def _members(graph: Graph, tensor: int) -> tuple[int, ...]:
    return graph.packs.get(tensor, (tensor,))


def _verify_graph(plan: Plan, graph_plan: GraphPlan) -> None:
    graph, places = graph_plan.graph, graph_plan.places
    memory = [_Bytes() for _ in plan.segments]
    for tensor, place in places.items():
        _check_place(plan, place, f"tensor {tensor}")
        _check_size(graph, tensor, place)
    host = _Host(plan, graph_plan)
    for pack, members in graph.packs.items():
        offsets, _ = pack_offsets(graph.tensors, members)
        for m, o in zip(members, offsets, strict=True):
            offset = places[pack].offset + o * DTYPES[graph.tensors[m].dtype].nbytes
            if (places[m].segment, places[m].offset) != (places[pack].segment, offset):
                raise PlanError(f"member {m} of pack {pack} is in the wrong place")

    def own(tensors: Iterable[int]) -> None:
        for t in tensors:
            if t in graph.packs:  # A launch also writes the gaps between members.
                p = places[t]
                memory[p.segment].claim(p.offset, p.offset + p.nbytes, t)
            for m in _members(graph, t):
                p = places[m]
                memory[p.segment].claim(p.offset, p.offset + graph.tensors[m].nbytes, m)

    def need(tensor: int, what: str) -> None:
        for m in _members(graph, tensor):
            p = places[m]
            if not memory[p.segment].owned(p.offset, p.offset + graph.tensors[m].nbytes, m):
                raise PlanError(f"{what} reads tensor {m} after its memory was overwritten")

    own(tensor for tensor in graph.slots.values() if tensor not in graph.host)
    own(given.tensor for given in graph.inputs)
    for i, (node, lowered) in enumerate(zip(graph.nodes, graph_plan.lowered, strict=True)):
        allowed = {v.tensor for v in node.inputs} | set(node.outputs)
        for launch in lowered.launches:
            for arg in launch.args:
                if isinstance(arg, Buffer | Texture | Start) and arg.tensor not in allowed:
                    raise PlanError(
                        f"node {i} ({node.op}) binds tensor {arg.tensor}, which is neither its input nor its output"
                    )
        host.before(i)
        for view in node.inputs:
            if view.tensor not in graph.host:
                need(view.tensor, f"node {i} ({node.op} of {node.origin.path})")
        if graph.host.intersection(node.outputs):
            continue
        _claim_workspaces(plan, graph_plan, i, memory)
        for view in node.inputs:
            # Scratch memory must not overlap the inputs of the node.
            need(view.tensor, f"workspace of node {i} ({node.op})") if lowered.workspace else None
        own(node.outputs)
        host.after(i)
        for out in node.outputs:
            need(out, f"node {i} ({node.op}): outputs overlap;")
    for value, slot in graph_plan.copies:
        need(value, "the copy into a slot")
        p = places[slot]
        memory[p.segment].claim(p.offset, p.offset + graph.tensors[slot].nbytes, value)
    for shown in graph.outputs:
        need(shown.view.tensor, "an output")
    _check_slots(graph, graph_plan, memory)


class _Host:
    """The bytes in the memory of the host, while the launches are walked.

    A copy to the host runs at any time between the node that makes its value and its own node, so it takes its bytes at
    the first moment and must still own them at the last. A copy to the device reads until the first reader of its
    result. Nodes that copy have no launches, and no other node touches these tensors.
    """

    def __init__(self, plan: Plan, graph_plan: GraphPlan) -> None:
        self._graph, self._places, self._bytes = graph_plan.graph, graph_plan.host, _Bytes()
        graph = self._graph
        if set(self._places) != graph.host:
            raise PlanError("a tensor in the memory of the host has no place there, or a place that it must not have")
        for tensor, place in self._places.items():
            _check_size(graph, tensor, place)
            if place.offset < 0 or place.offset + place.nbytes > plan.host_bytes:
                raise PlanError(f"tensor {tensor} lies outside the memory of the host")
        self._begins: dict[int, list[int]] = {}  # node -> the tensors that are copied to the host after it
        self._reads: dict[int, list[int]] = {}  # node -> the tensors of the host that are read until it begins
        maker = {t: i for i, node in enumerate(graph.nodes) for t in node.outputs}
        arrives: dict[int, int] = {}
        for i, (node, lowered) in enumerate(zip(graph.nodes, graph_plan.lowered, strict=True)):
            touched = [*(view.tensor for view in node.inputs), *node.outputs]
            if graph.host.intersection(touched) and (lowered.launches or lowered.workspace):
                raise PlanError(f"node {i} copies from or to the host, and has launches")
            for view in node.inputs:
                if view.tensor in arrives:  # Its first reader: the copy is over before it.
                    self._reads.setdefault(i, []).append(arrives.pop(view.tensor))
                if view.tensor in graph.host:
                    self._reads.setdefault(i, []).append(view.tensor)
                    arrives[node.outputs[0]] = view.tensor
            for out in graph.host.intersection(node.outputs):
                source = node.inputs[0].tensor
                if source not in maker:
                    raise PlanError(f"node {i} copies tensor {source} to the host, which no node makes")
                self._begins.setdefault(maker[source], []).append(out)
                self._reads.setdefault(i, []).append(out)
        for name, tensor in graph.slots.items():
            if tensor in graph.host:
                if plan.host_state.get(name) != self._places[tensor]:
                    raise PlanError(f"slot {name!r} has two places in the memory of the host")
                self._own(tensor)

    def _own(self, tensor: int) -> None:
        place = self._places[tensor]
        self._bytes.claim(place.offset, place.offset + place.nbytes, tensor)

    def before(self, node: int) -> None:
        """Checks what the node, or a copy that ends before it, reads from the host or has written there."""
        for tensor in self._reads.get(node, ()):
            place = self._places[tensor]
            if not self._bytes.owned(place.offset, place.offset + self._graph.tensors[tensor].nbytes, tensor):
                raise PlanError(f"node {node} needs tensor {tensor} after its bytes in the host were overwritten")

    def after(self, node: int) -> None:
        """Begins the copies of what the node has made."""
        for tensor in self._begins.get(node, ()):
            self._own(tensor)


def _claim_workspaces(plan: Plan, graph_plan: GraphPlan, node: int, memory: list[_Bytes]) -> None:
    """Checks the workspaces of a node: inside their segments, large enough, and without overlap."""
    sizes = graph_plan.lowered[node].workspace
    keys = [WorkspaceKey(node, n) for n in range(len(sizes))]
    for key, nbytes in zip(keys, sizes, strict=True):
        place = graph_plan.workspace.get(key)
        if place is None or place.nbytes < nbytes:
            raise PlanError(f"workspace {key.index} of node {node} has no place of {nbytes} bytes")
        _check_place(plan, place, f"workspace {key.index} of node {node}")
        memory[place.segment].claim(place.offset, place.offset + place.nbytes, key)
    for key in keys:
        place = graph_plan.workspace[key]
        if not memory[place.segment].owned(place.offset, place.offset + place.nbytes, key):
            raise PlanError(f"workspaces of node {node} overlap")


def _check_slots(graph: Graph, graph_plan: GraphPlan, memory: list[_Bytes]) -> None:
    new = {write.slot: write.tensor for write in graph.writes}
    for slot, tensor in graph.slots.items():
        if tensor in graph.host:
            continue
        p = graph_plan.places[tensor]
        owner = new.get(slot, tensor)
        if not memory[p.segment].owned(p.offset, p.offset + graph.tensors[tensor].nbytes, owner):
            raise PlanError(f"slot {slot!r} does not hold its value after the step")


def _check_place(plan: Plan, place: Place, what: str) -> None:
    if not (
        0 <= place.segment < len(plan.segments)
        and place.offset >= 0
        and place.offset + place.nbytes <= plan.segments[place.segment]
    ):
        raise PlanError(f"{what} lies outside its segment")
    if place.offset % plan.caps.base_align_bytes:
        raise PlanError(f"{what} is not aligned to {plan.caps.base_align_bytes} bytes")
    if plan.segments[place.segment] > plan.caps.max_alloc_bytes:
        raise PlanError(f"segment {place.segment} is larger than the device can allocate")


def _check_size(graph: Graph, tensor: int, place: Place) -> None:
    if place.nbytes < graph.tensors[tensor].nbytes:
        raise PlanError(f"tensor {tensor} is larger than its place")
