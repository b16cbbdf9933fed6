"""The layout of plan files: magic number, sections and records. docs/plan-file.md describes it byte by byte.

All numbers are little-endian. A *str* is the place of a text in the section STRINGS.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from handheld.graph.dtypes import BOOL, F16, F32, I32

MAGIC = b"HANDPLAN"
VERSION = 2
#: magic, version, number of sections, file size, CRC-32 of all bytes after the header, zero
HEADER = struct.Struct("<8sIIQII")
#: kind, records, offset, bytes
ENTRY = struct.Struct("<IIQQ")
ALIGN, VALUE_ALIGN = 8, 64
#: In a slot: its value is not in the file.
NO_VALUE = 2**64 - 1
#: In a slot: it is part of a checkpoint.
CHECKPOINTED = 1
#: In the device: its memory is that of the host; segments lie in shared virtual memory.
UNIFIED, SHARED = 1, 2
#: Before the header in STATE: where the number of steps and the checksum are in it, and the checksum so far.
STATE_HEAD = struct.Struct("<IIII")
#: The digits of the number of steps and of the checksum in the header of a checkpoint.
STEPS_DIGITS, CHECKSUM_DIGITS = 20, 8

MAX_FILE = 16 << 30
MAX_SEGMENTS = 4096
MAX_PROGRAMS = 65_536
MAX_LAUNCHES = 1 << 20
MAX_ARGS = 64
MAX_STRINGS = 256 << 20

#: The numbers of element types in a plan file.
TYPES = (F32, I32, BOOL, F16)

Table: TypeAlias = npt.NDArray[Any]


class Section(IntEnum):
    """The sections, in the order of the file."""

    STRINGS = 1
    DEVICE = 2
    SEGMENTS = 3
    PROGRAMS = 4
    GRAPHS = 5
    LAUNCHES = 6
    ARGS = 7
    COPIES = 8
    INPUTS = 9
    OUTPUTS = 10
    SLOTS = 11
    VALUES = 12
    STATE = 13
    NOTES = 14


class ArgKind(IntEnum):
    """What an argument of a kernel is."""

    BUFFER = 0
    TEXTURE = 1
    INT = 2
    FLOAT = 3


STR = np.dtype([("at", "<u4"), ("length", "<u4")])
_VALUE = [("name", STR), ("segment", "<u4"), ("type", "<u4"), ("offset", "<u8"), ("bytes", "<u8")]

#: The records of the sections that are tables. The other sections are bytes, and their number of records is 0.
RECORDS: dict[Section, np.dtype[Any]] = {
    Section.DEVICE: np.dtype(
        [
            ("name", STR),
            ("vendor", STR),
            ("driver", STR),
            ("kind", "<u4"),
            ("flags", "<u4"),
            ("base_align_bytes", "<u8"),
            ("zero", "<u8"),
        ]
    ),
    Section.SEGMENTS: np.dtype([("bytes", "<u8")]),
    Section.PROGRAMS: np.dtype([("text", STR), ("options", STR)]),
    Section.GRAPHS: np.dtype(
        [
            ("name", STR),
            *(
                (f"{way}{what}", "<u4")
                for what in ("launches", "copies", "inputs", "outputs")
                for way in ("first_", "")
            ),
            ("nodes", "<u4"),
            ("zero", "<u4", (5,)),
        ]
    ),
    Section.LAUNCHES: np.dtype(
        [
            ("program", "<u4"),
            ("node", "<u4"),
            ("kernel", STR),
            ("dims", "<u4"),
            ("first_args", "<u4"),
            ("args", "<u4"),
            ("zero", "<u4"),
            ("global", "<u8", (3,)),
            ("local", "<u8", (3,)),
            ("zeros", "<u8"),
        ]
    ),
    Section.ARGS: np.dtype([("kind", "<u4"), ("a", "<u4"), ("b", "<u8"), ("c", "<u8")]),
    Section.COPIES: np.dtype(
        [("from_segment", "<u4"), ("to_segment", "<u4"), ("from_offset", "<u8"), ("to_offset", "<u8"), ("bytes", "<u8")]
    ),
    Section.INPUTS: np.dtype([*_VALUE, ("shape", STR)]),
    Section.OUTPUTS: np.dtype(_VALUE),
    Section.SLOTS: np.dtype([*_VALUE, ("value", "<u8"), ("flags", "<u4"), ("zero", "<u4")]),
}


@dataclass(frozen=True)
class Content:
    """The sections of a plan file that was read and checked."""

    tables: dict[Section, Table]
    strings: bytes
    #: The values of the slots, one after the other. Reading them from a file does not load them into memory.
    values: npt.NDArray[np.uint8]
    #: The header of a checkpoint, with the 16 bytes before it.
    state: bytes
    notes: dict[str, Any]
    nbytes: int

    def text(self, place: Any) -> str:
        """Returns a text by its place in STRINGS."""
        at, length = int(place["at"]), int(place["length"])
        return self.strings[at : at + length].decode()

    @property
    def device(self) -> str:
        """The name of the device that the plan is for."""
        return self.text(self.tables[Section.DEVICE][0]["name"])

    @property
    def driver(self) -> str:
        """The driver of that device."""
        return self.text(self.tables[Section.DEVICE][0]["driver"])
