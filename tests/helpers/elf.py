"""What an ELF64 file says about itself: segments, sections, needed libraries and undefined symbols."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

AARCH64, X86_64 = 183, 62
DYN = 3
LOAD, DYNAMIC, INTERP, TLS, STACK, RELRO = 1, 2, 3, 7, 0x6474E551, 0x6474E552
EXECUTE, WRITE, READ = 1, 2, 4
NEEDED, STRTAB, TEXTREL, RPATH, FLAGS, RUNPATH, FLAGS_1 = 1, 5, 22, 15, 30, 29, 0x6FFFFFFB
BIND_NOW, NOW, PIE = 8, 1, 0x8000000
UNDEFINED = 0


@dataclass(frozen=True)
class Segment:
    kind: int
    flags: int
    offset: int
    address: int
    file_bytes: int
    bytes: int
    align: int


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    address: int
    offset: int
    bytes: int
    link: int


class Elf:
    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        assert self.data[:7] == b"\x7fELF\x02\x01\x01", f"{path} is no little-endian ELF64 file"
        header = struct.unpack_from("<HHIQQQIHHHHHH", self.data, 16)
        self.type, self.machine = header[0], header[1]
        segments, sections = header[4], header[5]
        sizes = header[8:]  # bytes and number of program headers, bytes and number of section headers, names
        self.segments = []
        for i in range(sizes[1]):
            kind, flags, *rest = struct.unpack_from("<IIQQQQQQ", self.data, segments + i * sizes[0])
            offset, address, _, file_bytes, length, align = rest
            self.segments.append(Segment(kind, flags, offset, address, file_bytes, length, align))
        raw = [struct.unpack_from("<IIQQQQII", self.data, sections + i * sizes[2]) for i in range(sizes[3])]
        names = raw[sizes[4]][4]
        self.sections = [Section(self.text(names + r[0]), r[1], r[3], r[4], r[5], r[6]) for r in raw]
        self.dynamic = self._dynamic()

    def text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()

    def of_kind(self, kind: int) -> list[Segment]:
        return [segment for segment in self.segments if segment.kind == kind]

    def _dynamic(self) -> list[tuple[int, int]]:
        (segment,) = self.of_kind(DYNAMIC)
        pairs = struct.iter_unpack("<qQ", self.data[segment.offset : segment.offset + segment.file_bytes])
        return [(tag, value) for tag, value in pairs if tag]

    def tags(self, tag: int) -> list[int]:
        return [value for own, value in self.dynamic if own == tag]

    @property
    def interpreter(self) -> str:
        (segment,) = self.of_kind(INTERP)
        return self.text(segment.offset)

    @property
    def needed(self) -> list[str]:
        (strings,) = (section for section in self.sections if section.name == ".dynstr")
        return [self.text(strings.offset + value) for value in self.tags(NEEDED)]

    @property
    def undefined(self) -> set[str]:
        """The names that the loader must find in other libraries."""
        (symbols,) = (section for section in self.sections if section.name == ".dynsym")
        strings = self.sections[symbols.link]
        found = set()
        for name, _, _, section, *_ in struct.iter_unpack(
            "<IBBHQQ", self.data[symbols.offset : symbols.offset + symbols.bytes]
        ):
            if section == UNDEFINED and name:
                found.add(self.text(strings.offset + name))
        return found

    @property
    def glibc(self) -> tuple[int, int]:
        """The newest version of glibc that a symbol asks for."""
        versions = [word for word in self.data.split(b"\0") if word.startswith(b"GLIBC_2.")]
        return max(tuple(int(n) for n in word[6:].split(b".")[:2]) for word in versions)  # type: ignore[return-value]
