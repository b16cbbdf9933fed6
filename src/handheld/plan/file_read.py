"""Reads a plan file and checks everything in it: sizes, places, texts and numbers.

The writer reads what it wrote with this reader. The runner has its own reader (native/plan.c) with the same rules.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.errors import PlanFileError, StepFileError
from handheld.graph.dtypes import DTYPES
from handheld.plan import file_format as form
from handheld.plan.file_format import ArgKind, Content, Section, Table

Bytes = npt.NDArray[np.uint8]

_WIDTHS = np.array([DTYPES[name].nbytes for name in form.TYPES], np.uint64)


def content_of(data: Bytes) -> Content:
    """Returns the sections of a plan file. Raises PlanFileError: truncated, of another version, damaged."""
    entries = _entries(data)
    sections = {section: data[start : start + size] for section, (start, size) in entries.items()}
    tables = {section: sections[section].view(record) for section, record in form.RECORDS.items()}
    try:
        notes = json.loads(sections[Section.NOTES].tobytes() or b"{}")
    except ValueError:
        raise _damaged("NOTES is no JSON") from None
    strings, state = sections[Section.STRINGS].tobytes(), sections[Section.STATE].tobytes()
    content = Content(tables, strings, sections[Section.VALUES], state, notes, len(data))
    _check(content)
    return content


def _damaged(what: str) -> PlanFileError:
    return PlanFileError(f"is damaged: {what}. Try: write it again with handheld plan --out")


def _need(condition: object, what: str) -> None:
    if not condition:
        raise _damaged(what)


def _entries(data: Bytes) -> dict[Section, tuple[int, int]]:
    """Checks the header and the table of sections. Returns the offset and the bytes of each section."""
    start = form.HEADER.size + len(Section) * form.ENTRY.size
    begin = data[: len(form.MAGIC)].tobytes()
    if begin != form.MAGIC[: len(begin)] or not len(begin):
        raise PlanFileError("is no plan file. Try: handheld plan STEP --on DEVICE --out FILE.plan")
    if len(data) < start:
        raise PlanFileError(f"is cut off after {len(data)} bytes. Try: write or copy it again")
    _, version, count, size, checksum, zero = form.HEADER.unpack(data[: form.HEADER.size].tobytes())
    if version != form.VERSION:
        raise PlanFileError(
            f"is a plan file of version {version}, and this version of Handheld reads {form.VERSION}. "
            "Try: write it again with this version"
        )
    if len(data) < size:
        raise PlanFileError(f"is cut off: it has {len(data):,} of {size:,} bytes. Try: write or copy it again")
    _need(len(data) == size and size <= form.MAX_FILE and not zero, "its size is not the one in its header")
    _need(zlib.crc32(data[form.HEADER.size :].data) == checksum, "its checksum does not match")
    _need(count == len(Section), "its number of sections is wrong")
    entries, end = {}, start
    for i, section in enumerate(Section):
        at = form.HEADER.size + i * form.ENTRY.size
        kind, records, offset, nbytes = form.ENTRY.unpack(data[at : at + form.ENTRY.size].tobytes())
        align = form.VALUE_ALIGN if section == Section.VALUES else form.ALIGN
        _need(kind == section, f"section {section.name} is not at its place")
        _need(offset % align == 0 and end <= offset and offset + nbytes <= size, f"{section.name} is out of place")
        _need(not data[end:offset].any(), f"there are bytes before {section.name} that belong to no section")
        width = form.RECORDS[section].itemsize if section in form.RECORDS else 0
        _need(nbytes == records * width if width else records == 0, f"{section.name} has a wrong number of records")
        entries[section], end = (offset, nbytes), offset + nbytes
    _need(end == size, "there are bytes after the last section")
    return entries


def _check(content: Content) -> None:
    tables = content.tables
    _need(len(content.strings) <= form.MAX_STRINGS, "STRINGS is too large")
    for section, most in (
        (Section.SEGMENTS, form.MAX_SEGMENTS),
        (Section.PROGRAMS, form.MAX_PROGRAMS),
        (Section.LAUNCHES, form.MAX_LAUNCHES),
    ):
        _need(len(tables[section]) <= most, f"{section.name} has more than {most:,} records")
    for section, record in form.RECORDS.items():
        for name, (kind, *_) in (record.fields or {}).items():
            if kind == form.STR:
                _texts(content, tables[section][name], f"{section.name}.{name}")
            if name.startswith("zero"):
                _need(not tables[section][name].any(), f"{section.name} has unknown fields")
    _check_device(content)
    _need((tables[Section.SEGMENTS]["bytes"] >= 4).all(), "a segment is smaller than 4 bytes")
    _check_graphs(tables)
    _check_launches(content)
    _check_args(tables)
    _check_places(content)
    _check_state(content)


def _texts(content: Content, places: Table, what: str) -> None:
    ends = places["at"].astype(np.uint64) + places["length"]
    _need((ends <= len(content.strings)).all(), f"{what} lies outside STRINGS")
    for at, length in {(int(p["at"]), int(p["length"])) for p in places}:
        text = content.strings[at : at + length]
        try:
            text.decode()
        except UnicodeDecodeError:
            raise _damaged(f"{what} is no text") from None
        _need(b"\0" not in text, f"{what} holds a zero byte")


def _check_device(content: Content) -> None:
    _need(len(content.tables[Section.DEVICE]) == 1, "DEVICE must have one record")
    device = content.tables[Section.DEVICE][0]
    align = int(device["base_align_bytes"])
    _need(device["kind"] <= 1 and device["flags"] <= form.UNIFIED | form.SHARED, "the device is of an unknown kind")
    _need(0 < align <= 1 << 20 and align & (align - 1) == 0, "the device has no legal alignment")


def _follow(first: Table, count: Table, total: int, what: str) -> None:
    """Checks that ranges of records lie one after the other and cover the table."""
    ends = np.cumsum(count, dtype=np.uint64)
    _need((first == ends - count).all() and (int(ends[-1]) if len(ends) else 0) == total, f"{what} are out of order")


def _check_graphs(tables: dict[Section, Table]) -> None:
    graphs = tables[Section.GRAPHS]
    _need(len(np.unique(graphs["name"])) == len(graphs), "a graph appears twice")
    for section in (Section.LAUNCHES, Section.COPIES, Section.INPUTS, Section.OUTPUTS):
        name = section.name.lower()
        _follow(graphs[f"first_{name}"], graphs[name], len(tables[section]), f"the {name} of the graphs")
    nodes = tables[Section.LAUNCHES]["node"]
    for graph in graphs:
        own = nodes[int(graph["first_launches"]) :][: int(graph["launches"])]
        _need((own < graph["nodes"]).all() and (own[1:] >= own[:-1]).all(), "launches are not in the order of nodes")


def _check_launches(content: Content) -> None:
    launches = content.tables[Section.LAUNCHES]
    _need((launches["program"] < len(content.tables[Section.PROGRAMS])).all(), "a launch has no program")
    dims, sizes, groups = launches["dims"], launches["global"], launches["local"]
    _need(((dims >= 1) & (dims <= 3)).all(), "a launch has no legal dimensions")
    _need((groups > 0).all() and (sizes > 0).all() and (sizes < 2**63).all(), "a launch has a size of 0")
    _need((sizes % groups == 0).all(), "a launch has sizes that are no multiples of its groups")
    beyond = np.arange(3) >= dims[:, None]
    _need((sizes[beyond] == 1).all() and (groups[beyond] == 1).all(), "a launch has sizes beyond its dimensions")
    _need((launches["args"] <= form.MAX_ARGS).all(), f"a launch has more than {form.MAX_ARGS} arguments")
    _follow(launches["first_args"], launches["args"], len(content.tables[Section.ARGS]), "the arguments")
    for place in np.unique(launches["kernel"]):
        name = content.text(place)
        _need(name.isascii() and name.isidentifier() and len(name) < 256, "a launch has no legal kernel name")


def _check_args(tables: dict[Section, Table]) -> None:
    args, sizes = tables[Section.ARGS], tables[Section.SEGMENTS]["bytes"]
    kinds = args["kind"]
    _need((kinds <= max(ArgKind)).all(), "an argument is of an unknown kind")
    buffers = args[kinds == ArgKind.BUFFER]
    _inside(buffers["a"], buffers["b"], buffers["c"], sizes, "an argument")
    align = tables[Section.DEVICE]["base_align_bytes"][0]
    _need((buffers["c"] > 0).all() and (buffers["b"] % align == 0).all(), "an argument is not aligned for the device")
    textures = args[kinds == ArgKind.TEXTURE]
    _need((textures["a"] < len(sizes)).all(), "a texture has no segment")
    legal = ((textures["b"] == 1) | (textures["b"] == 4)) & (textures["c"] <= 1)
    _need(legal.all(), "an argument is no legal texture")
    numbers = args[kinds >= ArgKind.INT]
    _need(not numbers["b"].any() and not numbers["c"].any(), "a number has further parts")


def _inside(segment: Table, offset: Table, nbytes: Table, sizes: Table, what: str) -> None:
    _need((segment < len(sizes)).all(), f"{what} has no segment")
    size = sizes[segment.astype(np.int64)]
    fits = (offset <= size) & (nbytes <= size - np.minimum(offset, size))  # A sum could overflow.
    _need(fits.all(), f"{what} lies outside its segment")


def _check_places(content: Content) -> None:
    tables, sizes = content.tables, content.tables[Section.SEGMENTS]["bytes"]
    copies = tables[Section.COPIES]
    for end in ("from", "to"):
        _inside(copies[f"{end}_segment"], copies[f"{end}_offset"], copies["bytes"], sizes, "a copy")
    a, b = copies["from_offset"], copies["to_offset"]
    overlap = (copies["from_segment"] == copies["to_segment"]) & (np.maximum(a, b) - np.minimum(a, b) < copies["bytes"])
    _need(not overlap.any() and (copies["bytes"] > 0).all(), "a copy is empty or overlaps itself")
    for section in (Section.INPUTS, Section.OUTPUTS, Section.SLOTS):
        table, what = tables[section], section.name.lower()
        _need((table["type"] < len(form.TYPES)).all(), f"{what} have an unknown type")
        _need((table["bytes"] % _WIDTHS[table["type"].astype(np.int64)] == 0).all(), f"{what} have a wrong size")
        _inside(table["segment"], table["offset"], table["bytes"], sizes, f"one of the {what}")
    _check_shapes(content)
    slots = tables[Section.SLOTS]
    _need(len(np.unique(slots["name"])) == len(slots), "a slot appears twice")
    _need((slots["flags"] <= form.CHECKPOINTED).all(), "a slot has unknown flags")
    stored = slots[slots["value"] != form.NO_VALUE]
    total = np.uint64(len(content.values))
    fits = (stored["value"] <= total) & (stored["bytes"] <= total - np.minimum(stored["value"], total))
    _need(fits.all() and (stored["value"] % form.VALUE_ALIGN == 0).all(), "a slot has a value outside VALUES")


def _check_shapes(content: Content) -> None:
    """The shape of an input is a text such as 32x1x28x28, empty for a number, that gives its bytes."""
    for given in content.tables[Section.INPUTS]:
        sizes = content.text(given["shape"])
        legal = re.fullmatch(r"([0-9]{1,19}(x[0-9]{1,19}){0,63})?", sizes)
        _need(legal, "an input has no legal shape")
        count = math.prod(int(size) for size in sizes.split("x") if size)
        _need(count * int(_WIDTHS[given["type"]]) == given["bytes"], "an input has a shape that does not fit its bytes")


def _check_state(content: Content) -> None:
    """The header of a checkpoint must describe the slots that belong to it, in their order."""
    slots = content.tables[Section.SLOTS]
    kept = slots[(slots["flags"] & form.CHECKPOINTED) > 0]
    if not len(kept) or not content.state:
        _need(not len(kept) and not content.state, "STATE does not fit the slots")
        return
    head, header = content.state[: form.STATE_HEAD.size], content.state[form.STATE_HEAD.size :]
    _need(len(head) == form.STATE_HEAD.size, "STATE is too short")
    steps, checksum, _, zero = form.STATE_HEAD.unpack(head)
    for at, digits in ((steps, form.STEPS_DIGITS), (checksum, form.CHECKSUM_DIGITS)):
        _need(header[at : at + digits] == b"0" * digits and not zero, "STATE has no place for its numbers")
    try:
        entries: dict[str, Any] = json.loads(header)
        sizes = [entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"]
        ends = np.array(sizes, np.int64).reshape(len(kept), 2)
    except (ValueError, KeyError, TypeError, AttributeError, StepFileError):
        raise _damaged("STATE is no header of a checkpoint") from None
    want = np.cumsum(kept["bytes"].astype(np.int64))
    _need((ends[:, 1] == want).all() and (ends[:, 0] == want - kept["bytes"].astype(np.int64)).all(), "STATE is wrong")
