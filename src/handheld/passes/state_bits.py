"""Stores the state of optimizers in 16 or 8 bits. Everything is computed in float32.

As in the published 8-bit Adam, values that follow each other form a block with one scale, its largest magnitude. There
the codes of a block are a table of 256 values, dense near zero. Here they are powers of whole numbers, which every
device computes without a table:

    momenta (they have a sign)       value = sign(c) * (c / most)^2 * scale      c from -most to most
    averages of squares              value = (c / most)^4 * scale                c from 0 to most

The update of such parameters becomes a reduction over blocks: it reads the codes, computes as before, finds the new
scales, and writes the new codes. A value that is not zero never becomes zero as an average of squares, because
optimizers divide by its root. Codes and scales that are read and written again do not change.

The parameters of a pack begin at multiples of 128 values, so a block holds values of one parameter only. What lies
between two parameters has the code `most + 1`, which stays, and does not count for the scale: there the memory of the
gradients holds what other tensors left.

`Unit` is the state that one launch updates: that of one parameter, or of many that lie end to end in a pack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from handheld.graph.dtypes import BOOL, F32, I16, I32, U8
from handheld.graph.graph import (
    PACK_ALIGN,
    Graph,
    Node,
    Slot,
    SlotWrite,
    Tensor,
    View,
    contiguous_strides,
    pack_offsets,
)
from handheld.graph.program import Builder, Store

BITS = (16, 8)
#: The last parts of the names of state that is stored so, in the optimizers of torch.optim.
SIGNED = frozenset({"exp_avg", "momentum_buffer", "grad_avg", "exp_inf"})
SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"})
#: The most values of a block, and the fewest; a parameter whose size has no such divisor stays float32.
BLOCK, LEAST_BLOCK = 128, 32
#: The state of a parameter with fewer values stays float32.
LEAST = 256
#: A block whose largest magnitude is smaller counts as zeros: its reciprocal would be infinite.
TINY = 1e-35


@dataclass(frozen=True)
class Unit:
    """State that is stored in `bits` bits: its slots, where each begins, and the values of all."""

    slots: tuple[str, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    size: int
    bits: int

    @property
    def squares(self) -> bool:
        return self.slots[0].rpartition(".")[2] in SQUARES

    @property
    def block(self) -> int:
        return _block(self.size)

    @property
    def codes(self) -> str:
        return f"{self.slots[0]}.codes"

    @property
    def scales(self) -> str:
        return f"{self.slots[0]}.scales"

    @property
    def most(self) -> int:
        """The code of the largest magnitude."""
        if self.bits == 8:
            return 254 if self.squares else 127
        return 65534 if self.squares else 32767

    @property
    def zero(self) -> int:
        """What is added to a code before it is stored."""
        if self.bits == 8:
            return 0 if self.squares else 127
        return -32768 if self.squares else -1

    @property
    def has_gaps(self) -> bool:
        return sum(self.sizes) < self.size

    def new_slots(self) -> dict[str, Slot]:
        kind, torch_kind = (U8, "uint8") if self.bits == 8 else (I16, "int16")
        rows = self.size // self.block
        return {
            self.codes: Slot(self.codes, (self.size,), kind, "optimizer", (self.codes,), torch_kind),
            self.scales: Slot(self.scales, (rows,), F32, "optimizer", (self.scales,)),
        }

    def encode(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The codes and scales of the state, by their slots."""
        whole, gap = np.zeros(self.size, np.float32), np.ones(self.size, np.bool_)
        for slot, offset, size in zip(self.slots, self.offsets, self.sizes, strict=True):
            whole[offset : offset + size] = values[slot].reshape(-1)
            gap[offset : offset + size] = False
        rows = whole.reshape(-1, self.block)
        scales = np.abs(rows).max(axis=1)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            part = np.where(scales > TINY, np.float32(1) / scales, np.float32(0))[:, None]
            root = np.sqrt(np.abs(rows) * part)
            root = np.sqrt(root) if self.squares else root
            codes = np.nan_to_num(np.floor(root * np.float32(self.most) + np.float32(0.5)), nan=0.0)
        codes = np.maximum(codes, rows > 0) if self.squares else np.copysign(codes, rows)
        codes = np.where(gap.reshape(rows.shape), self.most + 1, codes)
        kind = np.uint8 if self.bits == 8 else np.int16
        return {self.codes: (codes + self.zero).astype(kind).reshape(-1), self.scales: scales}

    def decode(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The state as flat float32 values, by its slots."""
        codes = (values[self.codes].astype(np.float32) - np.float32(self.zero)) / np.float32(self.most)
        rows = codes.reshape(-1, self.block)
        scales = values[self.scales].reshape(-1, 1).astype(np.float32)
        power = rows * rows
        whole = (power * power if self.squares else rows * np.abs(rows)) * scales
        flat = whole.reshape(-1)
        return {
            slot: flat[offset : offset + size].copy()
            for slot, offset, size in zip(self.slots, self.offsets, self.sizes, strict=True)
        }


def _block(size: int) -> int:
    block = BLOCK
    while size % block:
        block //= 2
    return block


def units_of(graphs: Iterable[Graph], bits: int) -> list[Unit]:
    """The state that all these graphs can keep in `bits` bits."""
    found: dict[str, Unit] = {}
    refused: set[str] = set()
    for graph in graphs:
        own = {slot: unit for unit in _units(graph, bits) for slot in unit.slots}
        for slot in graph.slots:
            known = slot.rpartition(".")[2] in SIGNED | SQUARES
            if known and (slot not in own or found.setdefault(slot, own[slot]) != own[slot]):
                refused.add(slot)
    units = dict.fromkeys(unit for unit in found.values())
    return [unit for unit in units if not refused & set(unit.slots)]


def _units(graph: Graph, bits: int) -> list[Unit]:
    """The state that the graph updates in one map, and that nothing else reads."""
    readers: dict[int, int] = {}
    for node in graph.nodes:
        for tensor in {view.tensor for view in node.inputs}:
            for part in (tensor, *graph.packs.get(tensor, ())):
                readers[part] = readers.get(part, 0) + 1
    slot_of = {tensor: slot for slot, tensor in graph.slots.items()}
    new_of = {write.slot: write.tensor for write in graph.writes}
    units = []
    for node in graph.nodes:
        if not _fits(node, graph):
            continue
        made = {part for out in node.outputs for part in graph.packs.get(out, (out,))}
        for view in node.inputs:
            members = graph.packs.get(view.tensor, (view.tensor,))
            slots = tuple(slot_of.get(m, "") for m in members)
            if all(
                slot.rpartition(".")[2] in SIGNED | SQUARES
                and new_of.get(slot) in made
                and readers[member] == 1
                and readers.get(new_of[slot], 0) == 0
                for slot, member in zip(slots, members, strict=True)
            ):
                size = graph.tensors[view.tensor].size
                offsets = pack_offsets(graph.tensors, members)[0] if view.tensor in graph.packs else [0]
                sizes = tuple(graph.tensors[m].size for m in members)
                units.append(Unit(slots, tuple(offsets), sizes, size, bits))
    return units


def _fits(node: Node, graph: Graph) -> bool:
    """Whether a node is an update over whole parameters: it reads each operand in order, or one value of it."""
    if node.op != "map" or node.origin.phase != "update":
        return False
    size = graph.tensors[node.outputs[0]].size
    if size < LEAST or size % LEAST_BLOCK or PACK_ALIGN % LEAST_BLOCK:
        return False
    if any(i.op in ("iota", "index", "gather", "random") or (i.op == "load" and i.params[1]) for i in node.program):
        return False
    return all((v.is_contiguous and v.size == size) or not any(_strides(v)) for v in node.inputs)


def _strides(view: View) -> list[int]:
    return [stride for n, stride in zip(view.shape, view.strides, strict=True) if n > 1]


def store_state(graph: Graph, units: Sequence[Unit]) -> Graph:
    """Returns the graph that keeps these units in their codes and scales."""
    units = [unit for unit in units if unit.slots[0] in graph.slots]
    if not units:
        return graph
    work = _Work(graph, {unit.slots[0]: unit for unit in units})
    nodes = [work.changed(node) for node in graph.nodes]
    gone = {slot for unit in units for slot in unit.slots}
    slots = {name: tensor for name, tensor in graph.slots.items() if name not in gone} | work.slots
    writes = (*(write for write in graph.writes if write.slot not in gone), *work.writes)
    packs = {p: m for p, m in graph.packs.items() if p not in work.gone}
    return replace(graph, tensors=work.tensors, slots=slots, writes=writes, packs=packs).with_nodes(nodes)


class _Work:
    """The tensors, slots and writes that are added."""

    def __init__(self, graph: Graph, units: Mapping[str, Unit]) -> None:
        self.graph, self._units = graph, units
        self.tensors = dict(graph.tensors)
        self.slots: dict[str, int] = {}
        self.writes: list[SlotWrite] = []
        self.gone: set[int] = set()
        self._slot_of = {tensor: slot for slot, tensor in graph.slots.items()}
        self._new_of = {write.tensor: write.slot for write in graph.writes}

    def _tensor(self, slot: Slot, role: str) -> int:
        number = max(self.tensors) + 1
        self.tensors[number] = Tensor(number, slot.shape, slot.dtype, role, slot.name)
        return number

    def _unit(self, tensor: int, slots: Mapping[int, str]) -> Unit | None:
        first = self.graph.packs.get(tensor, (tensor,))[0]
        return self._units.get(slots.get(first, ""))

    def changed(self, node: Node) -> Node:
        """The node that reads and writes codes, if it updates units."""
        own = {k: unit for k, view in enumerate(node.inputs) if (unit := self._unit(view.tensor, self._slot_of))}
        if not own or node.origin.phase != "update" or node.op != "map":
            return node
        size = self.graph.tensors[node.outputs[0]].size
        shape = (size // _block(size), _block(size))
        inputs = [
            View(v.tensor, shape, contiguous_strides(shape) if any(_strides(v)) else (0, 0), v.offset)
            for v in node.inputs
        ]
        builder, where, read = Builder(), dict[int, int](), dict[str, int]()
        for k, unit in own.items():
            slots = unit.new_slots()
            codes, scales = (self._tensor(slots[name], "optimizer") for name in (unit.codes, unit.scales))
            self.slots |= {unit.codes: codes, unit.scales: scales}
            self.gone.add(node.inputs[k].tensor)
            inputs[k] = View(codes, shape, contiguous_strides(shape))
            inputs.append(View(scales, shape, (1, 0)))
            read[unit.codes], value = _decoded(builder, unit, k, len(inputs) - 1)
            where |= {i: value for i, instr in enumerate(node.program) if instr.op == "load" and instr.params[0] == k}
        where = builder.append(node.program, where)
        outputs, stores = list[int](), list[Store]()
        for out, store in zip(node.outputs, node.stores, strict=True):
            made = self._unit(out, self._new_of)
            if made is None:
                outputs.append(out)
                stores.append(Store(where[store.position]))
                continue
            slots = made.new_slots()
            code, scale = _encoded(builder, made, where[store.position], read[made.codes])
            new = [self._tensor(slots[name], "workspace") for name in (made.codes, made.scales)]
            self.writes += [SlotWrite(made.codes, new[0]), SlotWrite(made.scales, new[1])]
            self.gone.add(out)
            outputs += new
            stores += [Store(code), Store(scale, full=False)]
        attrs = {"shape": shape, "axes": (1,), "program": builder.program, "stores": tuple(stores)}
        return Node("reduce", tuple(inputs), tuple(outputs), attrs, node.origin)


def _decoded(b: Builder, unit: Unit, codes: int, scales: int) -> tuple[int, int]:
    """Adds a code, and its value."""
    code = b.op("sub", I32, b.load(codes, I32), b.const(unit.zero, I32))
    part = b.op("div", F32, b.op("cast", F32, code), b.const(float(unit.most), F32))
    if unit.squares:
        part = b.op("mul", F32, part, part)
        power = b.op("mul", F32, part, part)
    else:
        power = b.op("mul", F32, part, b.op("abs", F32, part))
    return code, b.op("mul", F32, power, b.load(scales, F32))


def _encoded(b: Builder, unit: Unit, value: int, old: int) -> tuple[int, int]:
    """Adds the code of a value, and the scale of its block. Whole numbers are rounded by a cast, which is fast.

    `old` is the code before the update. It says what lies between two parameters."""
    zero = b.const(0.0, F32)
    if unit.has_gaps:
        gap = b.op("gt", BOOL, old, b.const(unit.most, I32))
        value = b.op("where", F32, gap, zero, value)
    size = b.op("abs", F32, value)
    scale = b.op("max_of", F32, size)
    there = b.op("gt", BOOL, scale, b.const(TINY, F32))
    part = b.op("where", F32, there, b.op("div", F32, b.const(1.0, F32), scale), zero)
    root = b.op("sqrt", F32, b.op("mul", F32, size, part))
    if unit.squares:
        root = b.op("sqrt", F32, root)
    near = b.op("add", F32, b.op("mul", F32, root, b.const(float(unit.most), F32)), b.const(0.5, F32))
    code = b.op("cast", I32, near)
    if unit.squares:
        code = b.op("max", I32, code, b.op("cast", I32, b.op("gt", BOOL, value, zero)))
    else:
        code = b.op("where", I32, b.op("lt", BOOL, value, zero), b.op("neg", I32, code), code)
    if unit.has_gaps:
        code = b.op("where", I32, gap, old, code)
    return b.op("add", I32, code, b.const(unit.zero, I32)), scale
