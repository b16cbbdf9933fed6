"""The immutable records that describe a training step: tensors, views, nodes, graphs, slots.

Every tensor is a dense, row-major buffer. A PyTorch view is not a node here: an op reads its inputs through a
`View` (shape, strides and offset in elements). Transposition, slicing, expansion and flattening therefore cost
nothing, and no pass has to remove them.

State lives in slots. A graph is pure: it reads a slot through the tensor bound to it. `writes` names the tensor
that becomes the next value of the slot after the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from handheld.graph.dtypes import DTYPES
from handheld.graph.program import Instr, Program, Store

#: The purpose of a tensor. Memory reports group tensors by role.
ROLES = ("input", "parameter", "buffer", "optimizer", "control", "constant", "activation", "gradient", "workspace")

#: The roles of tensors that outlive a step.
SLOT_ROLES = frozenset({"parameter", "buffer", "optimizer", "control", "constant"})

PHASES = ("forward", "backward", "update")


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the row-major strides of a shape, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense buffer with an element type and a role."""

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
        """Whether the view is row-major from the start of the buffer.

        Strides of dimensions of size 1 do not matter.
        """
        if self.offset:
            return False
        dense = contiguous_strides(self.shape)
        return self.size == 0 or all(n == 1 or s == d for n, s, d in zip(self.shape, self.strides, dense, strict=True))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from. Reports take layers and phases from it."""

    phase: str
    path: str
    torch_op: str


#: The values that an attribute of a node may have.
Attr = bool | int | float | str | tuple[int, ...] | Program | tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `outputs` are ids of dense tensors. `attrs` holds plain data only."""

    op: str
    inputs: tuple[View, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    origin: Origin

    @property
    def program(self) -> Program:
        """The program that a map, a reduce or an epilogue runs at each point."""
        program: Program = self.attrs["program"]
        return program

    @property
    def stores(self) -> tuple[Store, ...]:
        """For each output, the instruction whose value it gets."""
        stores: tuple[Store, ...] = self.attrs["stores"]
        return stores


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of state that outlives the step.

    `names` are its PyTorch names; tied weights are one slot with several names.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    names: tuple[str, ...] = ()
    #: Its type in PyTorch. `Trainer.state()` returns the values in this type.
    torch_dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A tensor of the batch, with the caller's name and the PyTorch type."""

    name: str
    tensor: int
    torch_dtype: str


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """A value that the caller may read after a step, with its PyTorch type."""

    name: str
    view: View
    torch_dtype: str


@dataclass(frozen=True, slots=True)
class SlotWrite:
    """Says that `tensor` is the value of `slot` after the step."""

    slot: str
    tensor: int


class IndexRange(NamedTuple):
    """An input that is used as an index. Its values must be from low to high - 1, or equal `ignore`."""

    input: str
    low: int
    high: int
    ignore: int | None


@dataclass(frozen=True)
class Graph:
    """One part of a step as data. The order of `nodes` respects their dependencies."""

    name: str
    tensors: Mapping[int, Tensor]
    nodes: tuple[Node, ...]
    #: The tensors of the batch, in the order in which the caller passes them.
    inputs: tuple[GraphInput, ...]
    #: Slot name -> the tensor that holds its value at the start of the step.
    slots: Mapping[str, int]
    #: The slots that have a new value after the step.
    writes: tuple[SlotWrite, ...]
    #: The values that the caller may read.
    outputs: tuple[GraphOutput, ...]
    #: Facts for people: batch size, parameters without gradient, frozen values.
    notes: Mapping[str, Any] = field(default_factory=dict)
    #: Pack -> its members. The members lie end to end in memory (see `pack_offsets`), so that one launch can
    #: update many parameters. A pack exists once all its members exist; a node that writes the pack writes them.
    packs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    #: The tensors that are not in the memory of the device, but in that of the host or in a file. Only copies from or
    #: to them (`transfer_of`) read or write them. A plan adds them; step files have none.
    host: frozenset[int] = frozenset()

    @property
    def ranges(self) -> dict[str, IndexRange]:
        """The values that each input used as an index may have, by the name of the input."""
        return {entry[0]: IndexRange(*entry) for entry in self.notes.get("ranges", ())}

    @property
    def kept(self) -> frozenset[int]:
        """The tensors that are needed after all nodes have run: outputs and new values of slots."""
        return frozenset(shown.view.tensor for shown in self.outputs) | {write.tensor for write in self.writes}

    def view(self, tensor: int) -> View:
        """Returns the view of a whole tensor."""
        shape = self.tensors[tensor].shape
        return View(tensor, shape, contiguous_strides(shape))

    def with_nodes(self, nodes: list[Node] | tuple[Node, ...]) -> Graph:
        """Returns the graph with other nodes, without the tensors that are no longer used."""
        used = {given.tensor for given in self.inputs} | set(self.slots.values()) | self.kept
        for node in nodes:
            used.update(view.tensor for view in node.inputs)
            used.update(node.outputs)
        packs = {p: m for p, m in self.packs.items() if p in used}
        used.update(t for members in packs.values() for t in members)
        tensors = {i: t for i, t in self.tensors.items() if i in used}
        return replace(self, nodes=tuple(nodes), tensors=tensors, packs=packs, host=self.host & used)


#: Members of a pack start at multiples of this many elements. For 4-byte elements this is 512 bytes, a multiple of
#: the base alignment of every known device.
PACK_ALIGN = 128


def pack_offsets(tensors: Mapping[int, Tensor], members: tuple[int, ...]) -> tuple[list[int], int]:
    """Returns where each member of a pack starts and the size of the pack, both in elements."""
    offsets, end = [], 0
    for member in members:
        offsets.append(end)
        end += -(-max(tensors[member].size, 1) // PACK_ALIGN) * PACK_ALIGN
    return offsets, end


def copy_node(graph: Graph, source: int, target: int, origin: Origin) -> Node:
    """The node that copies a tensor to another one of the same shape and type."""
    tensor = graph.tensors[source]
    program = (Instr("load", DTYPES[tensor.dtype].value, (), (0, (), 0)),)
    attrs = {"shape": tensor.shape, "axes": (), "program": program, "stores": (Store(0),)}
    return Node("map", (graph.view(source),), (target,), attrs, origin)


def transfer_of(graph: Graph, node: Node) -> str:
    """ "out" if a node copies a tensor to the host's memory, "in" if it copies one back; "" for all other nodes."""
    if not graph.host:
        return ""
    if graph.host.intersection(node.outputs):
        return "out"
    return "in" if any(view.tensor in graph.host for view in node.inputs) else ""


def producers(graph: Graph) -> dict[int, int]:
    """Returns tensor -> index of the node that writes it."""
    return {t: i for i, node in enumerate(graph.nodes) for t in node.outputs}


def consumers(graph: Graph) -> dict[int, list[int]]:
    """Returns tensor -> indices of the nodes that read it, in order and without duplicates."""
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for tensor in {view.tensor for view in node.inputs}:
            readers.setdefault(tensor, []).append(i)
    return readers
