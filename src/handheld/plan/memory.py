"""Gives every tensor a place in memory: offsets in segments, and reuse of memory.

    state   slots, for as long as the plan lives; members of a pack lie side by side
    io      inputs and outputs, which the caller writes and reads between steps
    arena   everything else, each tensor from the node that writes it to its last reader

A segment is one allocation, no larger than the device allows. A plan has as many segments as it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from handheld.errors import OutOfMemory
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, Node, Slot, Tensor, View, pack_offsets
from handheld.kernels.base import Lowered, round_up
from handheld.plan.in_place import in_place, replaces
from handheld.plan.lifetimes import lifetimes
from handheld.units import size as size_text

#: Where places in the host's memory begin: multiples of a page, so that copies are fast.
HOST_ALIGN = 4096


class SlotCopy(NamedTuple):
    """A value that could not be computed in the memory of its slot, and is copied there after the last launch.

    Both fields are tensors of the graph.
    """

    value: int
    slot: int


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes [offset, offset + nbytes) of a segment."""

    segment: int
    offset: int
    nbytes: int


@dataclass
class Segments:
    """The allocations of a plan, while it is made. `sizes` has the bytes of each."""

    limit: int
    align: int
    #: Whether every piece of memory gets its own segment.
    isolate: bool = False
    sizes: list[int] = field(default_factory=list)

    def append(self, nbytes: int, first: int, what: str) -> Place:
        """Reserves bytes at the end of a segment with number `first` or higher."""
        self._fits(nbytes, what)
        for number in range(first, 0 if self.isolate else len(self.sizes)):
            start = round_up(self.sizes[number], self.align)
            if start + nbytes <= self.limit:
                self.sizes[number] = start + nbytes
                return Place(number, start, nbytes)
        self.sizes.append(nbytes)
        return Place(len(self.sizes) - 1, 0, nbytes)

    def _fits(self, nbytes: int, what: str) -> None:
        if nbytes > self.limit:
            raise OutOfMemory(
                f"{what} needs {size_text(nbytes)} in one piece; the device allocates at most "
                f"{size_text(self.limit)}. Try: a smaller batch"
            )


@dataclass(frozen=True, order=True, slots=True)
class WorkspaceKey:
    """Names a scratch buffer: the `index`-th of a node."""

    node: int
    index: int


@dataclass
class Item:
    """One piece of memory, needed from node `start` to node `end`.

    It holds a workspace, or tensors that use it one after the other.
    """

    nbytes: int
    start: int
    end: int
    tensors: list[int]
    workspace: WorkspaceKey | None = None


class _Arena:
    """One segment of the arena: the bytes that each item has got, and from which to which node. Sorted by address."""

    def __init__(self, align: int) -> None:
        self.align, self.count = align, 0
        #: Per item: its first byte, the first aligned byte after it, its first and its last node.
        self._rows = np.zeros((4, 8), np.int64)

    def lowest(self, item: Item) -> int:
        """The lowest address with enough free bytes during the lifetime of an item."""
        starts, ends, born, last = self._rows[:, : self.count]
        there = np.flatnonzero((born <= item.end) & (last >= item.start))
        if not len(there):
            return 0
        free = np.maximum.accumulate(ends[there])  # from here on, after each of them
        gaps = starts[there] - np.concatenate(([0], free[:-1])) >= item.nbytes
        at = int(gaps.argmax())
        if not gaps[at]:
            return int(free[-1])
        return int(free[at - 1]) if at else 0

    def add(self, item: Item, offset: int) -> None:
        at = int(np.searchsorted(self._rows[0, : self.count], offset, side="right"))
        if self.count == self._rows.shape[1]:
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)], axis=1)
        self._rows[:, at + 1 : self.count + 1] = self._rows[:, at : self.count]
        self._rows[:, at] = offset, round_up(offset + item.nbytes, self.align), item.start, item.end
        self.count += 1


def place_state(slots: Mapping[str, Slot], graphs: Iterable[Graph], segments: Segments) -> dict[str, Place]:
    """Returns a place for every slot. Slots that a graph packs lie side by side."""
    groups: list[tuple[str, ...]] = []
    grouped: set[str] = set()
    for graph in graphs:
        name_of = {t: s for s, t in graph.slots.items()}
        for members in graph.packs.values():
            names = tuple(name_of.get(m, "") for m in members)
            if all(names) and not grouped & set(names):
                groups.append(names)
                grouped.update(names)
    places: dict[str, Place] = {}
    for names in groups:
        like = {i: Tensor(i, slots[n].shape, slots[n].dtype, "buffer") for i, n in enumerate(names)}
        offsets, total = pack_offsets(like, tuple(like))
        width = DTYPES[slots[names[0]].dtype].nbytes
        whole = segments.append(total * width, 0, "a group of parameters")
        for i, name in enumerate(names):
            places[name] = Place(whole.segment, whole.offset + offsets[i] * width, like[i].nbytes)
    for name, slot in slots.items():
        if name not in places:
            tensor = Tensor(0, slot.shape, slot.dtype, slot.role)
            places[name] = segments.append(max(tensor.nbytes, 4), 0, f"slot {name}")
    return places


class Host(NamedTuple):
    """What a plan keeps in the memory of the host, or in a file: its bytes, the places of slots, and per graph those of
    tensors."""

    nbytes: int = 0
    state: Mapping[str, Place] = {}
    places: Mapping[str, Mapping[int, Place]] = {}


def place_host(graphs: Mapping[str, Graph]) -> Host:
    """Places what the graphs keep in the host's memory, each tensor for as long as the plan lives. Graphs run one after
    the other, so their values share memory."""
    state: dict[str, Place] = {}
    end = 0
    for graph in graphs.values():
        for name, tensor in graph.slots.items():
            if tensor in graph.host and name not in state:
                state[name] = Place(0, end, graph.tensors[tensor].nbytes)
                end = round_up(end + state[name].nbytes, HOST_ALIGN)
    first, places = end, {}
    for key, graph in graphs.items():
        places[key] = {t: state[name] for name, t in graph.slots.items() if t in graph.host}
        at = first
        for tensor in sorted(graph.host - set(places[key])):
            places[key][tensor] = Place(0, at, graph.tensors[tensor].nbytes)
            at = round_up(at + graph.tensors[tensor].nbytes, HOST_ALIGN)
        end = max(end, at)
    return Host(end, state, places)


class GraphMemory:
    """Finds places for the tensors and workspaces of one graph."""

    def __init__(
        self, graph: Graph, lowered: Sequence[Lowered], state: Mapping[str, Place], segments: Segments, isolate: bool
    ) -> None:
        self.graph, self.lowered, self.isolate = graph, lowered, isolate
        self.state = state
        self.places: dict[int, Place] = {t: state[s] for s, t in graph.slots.items() if t not in graph.host}
        self.copies: list[SlotCopy] = []
        self.workspace: dict[WorkspaceKey, Place] = {}
        self.pack_of = {m: p for p, members in graph.packs.items() for m in members}
        needed = lifetimes(graph)
        self.born, self.last = needed.born, needed.last
        self._place_slot_writes()
        self._place_packs_of_slots()
        self.items = self._items()
        self._place_io(segments)

    def _parts(self, tensor: int) -> tuple[int, ...]:
        return self.graph.packs.get(tensor, (tensor,))

    def _maker(self, tensor: int) -> Node | None:
        i = self.born.get(tensor)
        return None if i is None else self.graph.nodes[i]

    # ── values computed directly in their slot ────────────────────────────────────────────────

    def _place_slot_writes(self) -> None:
        shown = {shown.view.tensor for shown in self.graph.outputs}
        target = {write.tensor: write.slot for write in self.graph.writes}
        packs: dict[int, bool] = {}  # pack -> whether all of it can be written in place
        for write in self.graph.writes:
            new = write.tensor
            pack = self.pack_of.get(new)
            if pack is None:
                safe = self._all_safe((new,), target)
            else:
                if pack not in packs:
                    members = self.graph.packs[pack]
                    packs[pack] = self._all_safe(members, target) and self._side_by_side(
                        [self.state[target[m]] for m in members], members
                    )
                safe = packs[pack]
            if safe and new not in shown and not self.isolate:
                self.places[new] = self.state[write.slot]
            else:
                self.copies.append(SlotCopy(new, self.graph.slots[write.slot]))

    def _all_safe(self, members: tuple[int, ...], target: Mapping[int, str]) -> bool:
        return all(m in target and self._safe_in_slot(m, self.graph.slots[target[m]]) for m in members)

    def _safe_in_slot(self, new: int, old: int) -> bool:
        node = self._maker(new)
        if node is None or self.last.get(old, -1) > self.born[new]:
            return False
        j = node.outputs.index(self.pack_of.get(new, new))
        return all(not self._touches(view, old) or in_place(node, k, j) for k, view in enumerate(node.inputs))

    def _touches(self, view: View, tensor: int) -> bool:
        return tensor in self._parts(view.tensor)

    def _side_by_side(self, places: Sequence[Place], members: tuple[int, ...]) -> bool:
        offsets, _ = pack_offsets(self.graph.tensors, members)
        width = DTYPES[self.graph.tensors[members[0]].dtype].nbytes
        return all(
            p.segment == places[0].segment and p.offset == places[0].offset + o * width
            for p, o in zip(places, offsets, strict=True)
        )

    def _place_packs_of_slots(self) -> None:
        """Gives a place to each pack whose members already lie side by side."""
        for pack, members in self.graph.packs.items():
            if all(m in self.places for m in members):
                if not self._side_by_side([self.places[m] for m in members], members):
                    raise OutOfMemory("two graphs of the step pack the same slots in different ways")
                first = self.places[members[0]]
                self.places[pack] = Place(first.segment, first.offset, self.graph.tensors[pack].nbytes)

    # ── the arena ─────────────────────────────────────────────────────────────────────────────

    def _items(self) -> list[Item]:
        fixed = {given.tensor for given in self.graph.inputs} | {shown.view.tensor for shown in self.graph.outputs}
        copied = {copy.value for copy in self.copies}
        elsewhere = set(self.graph.packs) | self.graph.host
        end = len(self.graph.nodes)
        owner: dict[int, Item] = {}
        items: list[Item] = []
        packs = [(min(self.born[m] for m in ms), p, ms) for p, ms in self.graph.packs.items() if p not in self.places]
        for start, pack, members in sorted(packs):
            last = end if copied & set(members) else max(self.last[m] for m in members)
            item = next((it for it in items if it.start < start <= it.end and self._give_way(it, members)), None)
            if item is None or self.isolate or copied & {*item.tensors, *members}:
                item = Item(self.graph.tensors[pack].nbytes, start, last, [])
                items.append(item)
            item.end = max(item.end, last)
            item.tensors += [pack, *members]
            owner.update(dict.fromkeys((pack, *members), item))
        for i, node in enumerate(self.graph.nodes):
            for j, out in enumerate(node.outputs):
                if out in self.places or out in owner or out in fixed or out in elsewhere:
                    continue
                tensor = self.graph.tensors[out]
                last = end if out in copied else self.last[out]
                reused = None if self.isolate else self._reusable(node, i, j, tensor, owner)
                if reused is not None:
                    reused.end = max(last, i)
                    reused.tensors.append(out)
                    owner[out] = reused
                else:
                    owner[out] = Item(max(tensor.nbytes, 4), i, last, [out])
                    items.append(owner[out])
            for n, nbytes in enumerate(self.lowered[i].workspace):
                items.append(Item(max(nbytes, 4), i, i, [], WorkspaceKey(i, n)))
        return items

    def _give_way(self, item: Item, members: Sequence[int]) -> bool:
        """Whether the last pack in the memory of an item has members that these can replace one by one."""
        olds = item.tensors[-len(members) :]
        packed = tuple(olds) in {self.graph.packs.get(t) for t in item.tensors}
        return packed and all(
            replaces(self.graph, self.born, self.last, *both) for both in zip(members, olds, strict=True)
        )

    def _reusable(self, node: Node, i: int, j: int, out: Tensor, owner: Mapping[int, Item]) -> Item | None:
        """Returns the memory of an input that output j may use again, or None.

        No later node may need the input, and each point must read only the element that it writes.
        """
        for view in node.inputs:
            item = owner.get(view.tensor)
            if (
                item is not None
                and item.end == i
                and item.tensors[-1] == view.tensor
                and item.nbytes == out.nbytes
                and view.tensor not in self.pack_of
                and all(in_place(node, k, j) for k, v in enumerate(node.inputs) if v.tensor == view.tensor)
            ):
                return item
        return None

    def _place_io(self, segments: Segments) -> None:
        for given in self.graph.inputs:
            tensor = self.graph.tensors[given.tensor]
            self.places[tensor.id] = segments.append(max(tensor.nbytes, 4), 0, f"input {tensor.name}")
        for shown in self.graph.outputs:
            tensor = self.graph.tensors[shown.view.tensor]
            if tensor.id not in self.places:
                self.places[tensor.id] = segments.append(max(tensor.nbytes, 4), 0, "an output")

    def place_arena(self, segments: Segments, first: int, tight: bool = False) -> None:
        """Gives each item an offset: the largest first, at the lowest address that is free during its lifetime. If the
        plan must be `tight`, other orders are tried too: by bytes and the length of the lifetime."""
        sizes, best = list(segments.sizes), list[Place]()
        for power in (0.0, 1.0, 0.5) if tight else (0.0,):
            trial, done = replace(segments, sizes=list(sizes)), list[_Arena]()
            items = sorted(self.items, key=lambda it: (-it.nbytes * (it.end - it.start + 1) ** power, it.start))
            places = [self._lowest(item, done, trial, first) for item in items]
            if not best or sum(trial.sizes) < sum(segments.sizes):
                ordered, best, segments.sizes[:] = items, places, trial.sizes
        for item, place in zip(ordered if best else (), best, strict=True):
            self._give(item, place)

    def _lowest(self, item: Item, done: list[_Arena], segments: Segments, first: int) -> Place:
        what = "a workspace" if item.workspace else f"tensor {self.graph.tensors[item.tensors[0]].shape}"
        segments._fits(item.nbytes, what)
        number = 0
        while True:
            if number == len(done):
                done.append(_Arena(segments.align))
                if first + number == len(segments.sizes):
                    segments.sizes.append(0)
            arena = done[number]
            if not (self.isolate and arena.count):
                offset = arena.lowest(item)
                if offset + item.nbytes <= segments.limit:
                    break
            number += 1
        arena.add(item, offset)
        segment = first + number
        segments.sizes[segment] = max(segments.sizes[segment], offset + item.nbytes)
        return Place(segment, offset, item.nbytes)

    def _give(self, item: Item, place: Place) -> None:
        if item.workspace is not None:
            self.workspace[item.workspace] = place
        for t in item.tensors:
            if t not in self.pack_of:
                self.places[t] = Place(place.segment, place.offset, self.graph.tensors[t].nbytes)
            if t in self.graph.packs:
                members = self.graph.packs[t]
                offsets, _ = pack_offsets(self.graph.tensors, members)
                for m, o in zip(members, offsets, strict=True):
                    tensor = self.graph.tensors[m]
                    self.places[m] = Place(place.segment, place.offset + o * DTYPES[tensor.dtype].nbytes, tensor.nbytes)
