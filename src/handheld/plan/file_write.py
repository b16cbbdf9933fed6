"""Writes a plan as a plan file: numbers, texts and places, with nothing left to decide.

A session sends a plan file without values to a runner and writes the slots itself. `handheld plan --out` writes one
with values, which is complete.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import handheld
from handheld.errors import PlanFileError
from handheld.graph.dtypes import DTYPES, F16
from handheld.graph.graph import Slot, View
from handheld.kernels.base import Arg, Buffer, Int, Launch, Start, Texture, Workspace, round_up
from handheld.package import checkpoint_origin, state_header
from handheld.plan import file_format as form
from handheld.plan.file_format import ArgKind, Section
from handheld.plan.memory import Place, WorkspaceKey
from handheld.plan.quirks import in_shared_memory
from handheld.plan.texts import program_texts

if TYPE_CHECKING:
    from handheld.plan.plan import GraphPlan, Plan

#: How programs are compiled: without warnings, which do not help the user.
OPTIONS = "-w"
Part = bytes | memoryview


def parts_of(plan: Plan, values: bool, merged: bool = True) -> list[Part]:
    """Returns the bytes of the plan file in pieces, so that values are not copied.

    Without `merged`, each text of a launch is its own program, also on a CPU.
    """
    if not plan.caps.takes_launches:
        raise PlanFileError(
            f"a plan for {plan.device} has no launches to write. Try: --on opencl, or a description such as adreno-740"
        )
    if plan.host_bytes:
        raise PlanFileError(
            "a plan file cannot move values out of the device, so runners and targets cannot either. Try: without "
            "--spill and --stream (spill=, stream=)"
        )
    if plan.units:
        raise PlanFileError(
            f"a plan file cannot hold optimizer state in {plan.units[0].bits} bits, so runners and targets cannot "
            "either. Try: without --state-bits (state_bits=)"
        )
    writer = _Writer(plan, merged)
    data, kept = _values(plan) if values else ([], {})
    slots = writer.slots(kept)
    state, notes = _state(plan), _notes(plan)
    tables = {section: table_of(section, rows) for section, rows in {**writer.rows, Section.SLOTS: slots}.items()}
    bodies: dict[Section, list[Part]] = {section: [table.tobytes()] for section, table in tables.items()}
    bodies |= {Section.STRINGS: [writer.strings.joined()], Section.VALUES: data}
    bodies |= {Section.STATE: [state], Section.NOTES: [notes]}
    return joined(bodies, {section: len(table) for section, table in tables.items()})


def joined(bodies: dict[Section, list[Part]], records: dict[Section, int]) -> list[Part]:
    at = form.HEADER.size + len(Section) * form.ENTRY.size
    table, body = b"", list[Part]()
    for section in Section:
        start = round_up(at, form.VALUE_ALIGN if section == Section.VALUES else form.ALIGN)
        body += [bytes(start - at), *bodies[section]]
        at = start + sum(len(part) for part in bodies[section])
        table += form.ENTRY.pack(section, records.get(section, 0), start, at - start)
    checksum = zlib.crc32(table)
    for part in body:
        checksum = zlib.crc32(part, checksum)
    if at > form.MAX_FILE:
        raise PlanFileError(f"the plan file would have {at:,} bytes; at most {form.MAX_FILE:,} are allowed")
    return [form.HEADER.pack(form.MAGIC, form.VERSION, len(Section), at, checksum, 0), table, *body]


def table_of(section: Section, rows: Sequence[tuple[Any, ...]]) -> form.Table:
    return np.array(rows, form.RECORDS[section])


class Strings:
    """The section STRINGS. Each text is in it once."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self._parts: list[bytes] = []
        self._end = 0

    def place(self, text: str) -> tuple[int, int]:
        if text not in self._places:
            data = text.encode()
            self._places[text] = (self._end, len(data))
            self._parts.append(data)
            self._end += len(data)
        return self._places[text]

    def joined(self) -> bytes:
        return b"".join(self._parts)


class _Writer:
    """Collects the rows of all tables, and their texts."""

    def __init__(self, plan: Plan, merged: bool) -> None:
        self._plan = plan
        self.strings = Strings()
        self.rows: dict[Section, list[tuple[Any, ...]]] = {section: [] for section in form.RECORDS}
        self._sizes = [max(size, 4) for size in plan.segments]  # A device allocates no empty buffer.
        self.rows[Section.SEGMENTS] = [(size,) for size in self._sizes]
        self._device()
        programs = program_texts(plan, merged).programs
        self._programs = {text: (i, source) for i, source in enumerate(programs) for text in source.members}
        options = self.strings.place(OPTIONS)
        self.rows[Section.PROGRAMS] = [(self.strings.place(source.text), options) for source in programs]
        for name, graph in plan.graphs.items():
            self._graph(name, graph)

    def _device(self) -> None:
        caps, place = self._plan.caps, self.strings.place
        flags = form.UNIFIED if caps.unified_memory else 0
        flags |= form.SHARED if in_shared_memory(caps, sum(self._plan.segments)) else 0
        texts = place(caps.name), place(caps.vendor), place(caps.driver)
        self.rows[Section.DEVICE] = [(*texts, int(caps.kind == "gpu"), flags, caps.base_align_bytes, 0)]

    def _graph(self, name: str, graph: GraphPlan) -> None:
        parts = (Section.LAUNCHES, Section.COPIES, Section.INPUTS, Section.OUTPUTS)
        before = [len(self.rows[part]) for part in parts]
        for node, lowered in enumerate(graph.lowered):
            for launch in lowered.launches:
                self._launch(graph, node, launch)
        self._copies(graph)
        for given in graph.graph.inputs:
            row = self._tensor(given.name, graph, graph.graph.view(given.tensor))
            shape = "x".join(map(str, graph.graph.tensors[given.tensor].shape))
            self.rows[Section.INPUTS].append((*row, self.strings.place(shape)))
        for shown in graph.graph.outputs:
            self.rows[Section.OUTPUTS].append(self._tensor(shown.name, graph, shown.view))
        ranges = [n for start, part in zip(before, parts, strict=True) for n in (start, len(self.rows[part]) - start)]
        self.rows[Section.GRAPHS].append((self.strings.place(name), *ranges, len(graph.lowered), (0,) * 5))

    def _launch(self, graph: GraphPlan, node: int, launch: Launch) -> None:
        program, source = self._programs[launch.text]
        args = [self._arg(graph, node, arg) for arg in launch.args]
        dims = len(launch.global_size)
        ones = (1,) * (3 - dims)
        self.rows[Section.LAUNCHES].append(
            (
                program,
                node,
                self.strings.place(source.kernel(launch)),
                dims,
                len(self.rows[Section.ARGS]),
                len(args),
                0,
                (*launch.global_size, *ones),
                (*launch.local_size, *ones),
                0,
            )
        )
        self.rows[Section.ARGS] += args

    def _arg(self, graph: GraphPlan, node: int, arg: Arg) -> tuple[int, int, int, int]:
        if isinstance(arg, Buffer):
            return self._buffer(graph.places[arg.tensor])
        if isinstance(arg, Workspace):
            return self._buffer(graph.workspace[WorkspaceKey(node, arg.index)])
        if isinstance(arg, Texture):
            half = graph.graph.tensors[arg.tensor].dtype == F16
            return ArgKind.TEXTURE, graph.places[arg.tensor].segment, arg.floats, int(half)
        if isinstance(arg, Start):
            width = DTYPES[graph.graph.tensors[arg.tensor].dtype].nbytes
            return ArgKind.INT, graph.places[arg.tensor].offset // width, 0, 0
        if isinstance(arg, Int):
            return ArgKind.INT, arg.value % 2**32, 0, 0
        return ArgKind.FLOAT, int(np.float32(arg.value).view(np.uint32)), 0, 0

    def _buffer(self, place: Place) -> tuple[int, int, int, int]:
        """At least 4 bytes, if the segment has them: the same region as in backends/opencl/memory.py."""
        nbytes = min(max(place.nbytes, 4), self._sizes[place.segment] - place.offset)
        return ArgKind.BUFFER, place.segment, place.offset, nbytes

    def _copies(self, graph: GraphPlan) -> None:
        for source, target in graph.copies:
            a, b, nbytes = graph.places[source], graph.places[target], graph.graph.tensors[source].nbytes
            if nbytes:
                self.rows[Section.COPIES].append((a.segment, b.segment, a.offset, b.offset, nbytes))

    def _tensor(self, name: str, graph: GraphPlan, view: View) -> tuple[Any, ...]:
        """An input or output. An output that is not a row-major part of its tensor is the whole tensor."""
        tensor, place = graph.graph.tensors[view.tensor], graph.places[view.tensor]
        kind, width = form.TYPES.index(tensor.dtype), DTYPES[tensor.dtype].nbytes
        dense = graph.graph.view(view.tensor)
        offset, nbytes = place.offset, tensor.nbytes
        if view.size == 1 and dense.size != 1:
            offset, nbytes = offset + view.offset * width, width
        return self.strings.place(name), place.segment, kind, offset, nbytes

    def slots(self, kept: dict[str, int]) -> list[tuple[Any, ...]]:
        rows = []
        for name, slot in _slots(self._plan).items():
            place = self._plan.state[name]
            kind = form.TYPES.index(slot.dtype)
            flags = form.CHECKPOINTED if _checkpointed(slot) else 0
            value = kept.get(name, form.NO_VALUE)
            rows.append((self.strings.place(name), place.segment, kind, place.offset, _nbytes(slot), value, flags, 0))
        return rows


def _slots(plan: Plan) -> dict[str, Slot]:
    """The slots with the widest elements first, so that every tensor of a checkpoint is aligned."""
    return dict(sorted(plan.slots.items(), key=lambda pair: -DTYPES[pair[1].dtype].nbytes))


def _checkpointed(slot: Slot) -> bool:
    return slot.role != "constant" and bool(slot.names)


def _nbytes(slot: Slot) -> int:
    return int(np.prod(slot.shape, dtype=np.int64)) * DTYPES[slot.dtype].nbytes


def _values(plan: Plan) -> tuple[list[Part], dict[str, int]]:
    """The section VALUES in pieces, and where each slot's value is in it."""
    parts, places, at = list[Part](), dict[str, int](), 0
    for name, slot in _slots(plan).items():
        kind = np.dtype(DTYPES[slot.dtype].numpy).newbyteorder("<")
        data = np.ascontiguousarray(plan.values[name], kind).reshape(-1).view(np.uint8)
        parts += [bytes(-at % form.VALUE_ALIGN), data.data]
        at += -at % form.VALUE_ALIGN
        places[name] = at
        at += data.nbytes
    return parts, places


def _state(plan: Plan) -> bytes:
    """The section STATE: the header of a checkpoint that `package.load_state` reads."""
    slots = {slot.names[0]: slot for slot in _slots(plan).values() if _checkpointed(slot)}
    if not slots:
        return b""
    facts = {"device": plan.device, "step": checkpoint_origin(plan.step)}
    header = state_header({name: (slot.dtype, slot.shape) for name, slot in slots.items()}, facts)
    return form.STATE_HEAD.pack(header.number_at, header.checksum_at, header.checksum, 0) + header.data


def _notes(plan: Plan) -> bytes:
    facts = {
        "handheld": handheld.__version__,
        "step": str(plan.step.meta.get("name", "")),
        "device": plan.device,
        "options": dict(plan.options),
        "caps": plan.caps.to_json(),
    }
    return json.dumps(facts, sort_keys=True).encode()
