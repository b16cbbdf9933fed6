"""The frozen data that a training step is: tensors, views, nodes, graphs, slots.

Every tensor is a dense, row-major buffer. What PyTorch calls a view is no node here: an op reads
its inputs through a `View` (shape, strides and offset in elements), so that transposition,
slicing, expansion and flattening cost nothing and need no pass to remove them.

State lives in slots. A graph is pure: it reads a slot through the tensor bound to it and names, in
`writes`, the tensor that becomes the slot's next value when the step is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from handheld.graph.dtypes import DTYPES
from handheld.graph.program import Program, Store

#: what a tensor is for; memory reports are grouped by it
ROLES = ("input", "parameter", "buffer", "optimizer", "control", "constant", "activation", "gradient", "workspace")

#: roles of tensors that outlive a step
SLOT_ROLES = frozenset({"parameter", "buffer", "optimizer", "control", "constant"})

PHASES = ("forward", "backward", "update")


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense buffer with a type and a purpose."""

    id: int
    shape: tuple[int, ...]
    dtype: str
    role: str
    name: str = ""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * DTYPES[self.dtype].nbytes


@dataclass(frozen=True, slots=True)
class View:
    """How an op reads a tensor: element [i, j, ...] is buffer[offset + i*strides[0] + ...]."""

    tensor: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Row-major from the start of the buffer, whatever the strides of dimensions of size 1."""
        if self.offset:
            return False
        want = contiguous_strides(self.shape)
        return self.size == 0 or all(n == 1 or s == w for n, s, w in zip(self.shape, self.strides, want, strict=True))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from; what reports say about layers and phases rests on this."""

    phase: str
    path: str
    torch_op: str


#: what an attribute of a node may be
Attr = bool | int | float | str | tuple[int, ...] | Program | tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `outputs` are ids of dense tensors; `attrs` holds plain data only."""

    op: str
    inputs: tuple[View, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    origin: Origin

    @property
    def program(self) -> Program:
        """What a map, a reduce or an epilogue computes at each point."""
        program: Program = self.attrs["program"]
        return program

    @property
    def stores(self) -> tuple[Store, ...]:
        """Which instruction of the program each output gets."""
        stores: tuple[Store, ...] = self.attrs["stores"]
        return stores


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of state that outlives the step. `names`: its PyTorch names, tied ones together."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    names: tuple[str, ...] = ()
    #: the type it has in PyTorch, given back by Trainer.state()
    torch_dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A tensor of the batch, as the caller names it and as PyTorch types it."""

    name: str
    tensor: int
    torch_dtype: str


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """What the caller may read after a step, with the type that PyTorch gives it."""

    name: str
    view: View
    torch_dtype: str


@dataclass(frozen=True, slots=True)
class SlotWrite:
    """The tensor that is a slot's value after the step."""

    slot: str
    tensor: int


@dataclass(frozen=True)
class Graph:
    """A step as data: `nodes` in an order that respects their dependencies."""

    name: str
    tensors: Mapping[int, Tensor]
    nodes: tuple[Node, ...]
    #: batch tensors in the order the caller gives them
    inputs: tuple[GraphInput, ...]
    #: slot name -> the tensor that holds its value at the start of the step
    slots: Mapping[str, int]
    #: the slots that have another value after the step
    writes: tuple[SlotWrite, ...]
    #: what the caller may read
    outputs: tuple[GraphOutput, ...]
    #: facts for people: batch size, parameters without gradient, values frozen in
    notes: Mapping[str, Any] = field(default_factory=dict)
    #: pack -> its members: tensors laid end to end (see `pack_offsets`), so that one launch can
    #: update many parameters. A pack exists when all its members do; making it makes them.
    packs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def kept(self) -> frozenset[int]:
        """The tensors that are needed when all nodes have run: outputs and new values of slots."""
        return frozenset(shown.view.tensor for shown in self.outputs) | {write.tensor for write in self.writes}

    def view(self, tensor: int) -> View:
        """The whole of a tensor."""
        shape = self.tensors[tensor].shape
        return View(tensor, shape, contiguous_strides(shape))

    def with_nodes(self, nodes: list[Node] | tuple[Node, ...]) -> Graph:
        """The same graph with other nodes, and only the tensors that are still mentioned."""
        used = {given.tensor for given in self.inputs} | set(self.slots.values()) | self.kept
        for node in nodes:
            used.update(view.tensor for view in node.inputs)
            used.update(node.outputs)
        packs = {p: m for p, m in self.packs.items() if p in used}
        used.update(t for members in packs.values() for t in members)
        tensors = {i: t for i, t in self.tensors.items() if i in used}
        return replace(self, nodes=tuple(nodes), tensors=tensors, packs=packs)


PACK_ALIGN = 128  # elements: the base alignment of every device we know, or a multiple of it


def pack_offsets(tensors: Mapping[int, Tensor], members: tuple[int, ...]) -> tuple[list[int], int]:
    """Where each member of a pack starts, in elements, and the size of the pack."""
    offsets, end = [], 0
    for member in members:
        offsets.append(end)
        end += -(-max(tensors[member].size, 1) // PACK_ALIGN) * PACK_ALIGN
    return offsets, end


def producers(graph: Graph) -> dict[int, int]:
    """tensor -> index of the node that makes it."""
    return {t: i for i, node in enumerate(graph.nodes) for t in node.outputs}


def consumers(graph: Graph) -> dict[int, list[int]]:
    """tensor -> indices of the nodes that read it, each once, in order."""
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for tensor in {view.tensor for view in node.inputs}:
            readers.setdefault(tensor, []).append(i)
    return readers
